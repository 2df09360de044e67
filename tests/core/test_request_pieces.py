"""Pieces of requests whose sparse entries come in any order, and requests that only seem to go together."""

import numpy as np
import pytest

from tests.core.test_request_batch import SPARSE, SPARSE_FEATURE, batcher, packer
from tests.core.wire_testing import arrays_of, part


def test_entries_in_any_order_are_cut_by_their_rows():
    plan = packer(SPARSE, [SPARSE_FEATURE])
    rng = np.random.default_rng(3)
    indices = np.stack([rng.integers(0, 9, 40), rng.integers(0, 5, 40)], 1)
    values = np.arange(40)
    stack = batcher(plan)
    for order in (np.arange(40), np.argsort(indices[:, 0], kind="stable")):
        rows, numbers = indices[order], values[order]
        packed = plan.pack({"s/values": numbers, "s/indices": rows, "s/dense_shape": [9, 5]})
        for first, count in [(0, 4), (4, 5), (3, 0), (8, 1), (0, 9)]:
            mine = (rows[:, 0] >= first) & (rows[:, 0] < first + count)
            got = arrays_of(stack.slice(packed, first, count), ["int64", "int64", "int64"])
            np.testing.assert_array_equal(got[0], numbers[mine])
            np.testing.assert_array_equal(got[1], rows[mine] - [first, 0])
            assert got[2].tolist() == [count, 5]


@pytest.mark.parametrize(("name", "other"), [("k", 2.0), ("t", b"b")])
def test_another_constant_is_never_taken_for_ones_own(name, other):
    """Lanes are hashes of keys: two requests may meet in one that do not go together."""
    parts = [part("x", "float32", [-1]), part("k", "float32", []), part("t", "string", [])]
    plan = packer(parts)
    base = {"x": [1.0], "k": 1.0, "t": b"a"}
    one, two = plan.pack(base), plan.pack(base | {name: other})
    stack = batcher(plan)
    assert not stack.fits(one, two)
    stack.concat([one, one])
    with pytest.raises(ValueError, match="do not go together"):
        stack.concat([one, two])
