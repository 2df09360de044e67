"""Generated requests and requests of files."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfctr.errors import UsageError
from tfctr.loadtest.model_info import describe
from tfctr.loadtest.traffic import TrafficOptions, generated, of_file, zipf_ranks

INFO = {
    "inputs": [
        {"name": "u", "dtype": "int64", "shape": [-1], "domain": {"kind": "ids", "low": 0, "high": 500}},
        {"name": "h", "dtype": "int64", "shape": [-1], "domain": {"kind": "ids", "low": 0, "high": 1 << 30}},
        {"name": "t_values", "dtype": "string", "shape": [-1], "domain": {"kind": "text"}},
        {"name": "t_splits", "dtype": "int64", "shape": [-1], "domain": None},
        {"name": "k", "dtype": "string", "shape": [-1], "domain": {"kind": "keys", "keys": ["a", "b", "c"]}},
        {"name": "x", "dtype": "float32", "shape": [-1, 2], "domain": {"kind": "float", "low": 0.0, "high": 1.0}},
    ],
    "features": [
        *({"name": n, "kind": "dense", "parts": {"values": n}} for n in "uhkx"),
        {"name": "t", "kind": "ragged", "parts": {"values": "t_values", "row_splits": "t_splits"}},
    ],
}


def test_a_few_ids_are_popular_and_all_are_legal():
    requests = generated(INFO, TrafficOptions(count=20, rows=(200, 200)))
    ids = np.concatenate([arrays["u"] for arrays, _, _ in requests])
    assert ids.min() >= 0 and ids.max() < 500
    counts = np.sort(np.bincount(ids, minlength=500))[::-1]
    assert counts[:5].sum() > 0.25 * counts.sum()
    alike = generated(INFO, TrafficOptions(count=20, rows=(200, 200), zipf=0))
    flat = np.bincount(np.concatenate([a["u"] for a, _, _ in alike]), minlength=500)
    assert np.sort(flat)[::-1][:5].sum() < 0.05 * flat.sum()


def test_rows_vary_and_structure_stays_whole():
    requests = generated(INFO, TrafficOptions(count=30, rows=(1, 8)))
    assert {rows for _, rows, _ in requests} == set(range(1, 9))
    for arrays, rows, _ in requests:
        assert len(arrays["u"]) == len(arrays["t_splits"]) - 1 == rows
        assert arrays["t_splits"][-1] == len(arrays["t_values"])
        assert set(arrays["k"]) <= {b"a", b"b", b"c"}


def test_equal_seeds_give_equal_requests():
    def drawn(seed):
        return [a["u"].tolist() for a, _, _ in generated(INFO, TrafficOptions(count=3, seed=seed))]

    assert drawn(1) == drawn(1) != drawn(2)


def test_unseen_ids_go_where_any_id_is_legal():
    ((arrays, _, markers),) = generated(INFO, TrafficOptions(count=1, rows=(50, 50), unseen=0.1))
    assert arrays["u"].max() < 500
    assert (arrays["h"] > 1 << 40).sum() == 5
    texts = len(arrays["t_values"])
    assert markers.count == 5 + max(1, round(0.1 * texts))


def test_unseen_ids_where_the_user_says():
    ((arrays, _, markers),) = generated(
        INFO, TrafficOptions(count=1, rows=(50, 50), unseen=0.5, unseen_inputs=("u", "z*"))
    )
    assert markers.count == (arrays["u"] > 1 << 40).sum() == 25


def test_a_signature_without_room_for_unseen_ids_says_so():
    info = {"inputs": INFO["inputs"][:1], "features": INFO["features"][:1]}
    with pytest.raises(UsageError, match="every id of this signature has to be in its table"):
        generated(info, TrafficOptions(unseen=0.1))
    with pytest.raises(UsageError, match="--unseen-inputs q: no int64 or string input has such a name; there are u"):
        generated(info, TrafficOptions(unseen=0.1, unseen_inputs=("q",)))


def test_user_rows_are_of_inputs_that_are_known_to_be_the_users():
    options = TrafficOptions(count=2, rows=(5, 5), user_rows=1)
    for arrays, rows, _ in generated(INFO | {"user": {"inputs": ["u", "t_values", "t_splits"]}}, options):
        assert rows == 5 and len(arrays["h"]) == 5
        assert len(arrays["u"]) == len(arrays["t_splits"]) - 1 == 1
    with pytest.raises(UsageError, match="nothing says which inputs are the user's; --bundle"):
        generated(INFO, options)
    with pytest.raises(UsageError, match=r"in.npz: --user-rows is of generated requests"):
        of_file({"u": np.arange(3)}, INFO, options, "in.npz")


@pytest.mark.parametrize(
    "options", [{"rows": (0, 1)}, {"rows": (3, 2)}, {"count": 0}, {"zipf": -1}, {"unseen": 1.5}, {"zipf": float("nan")}]
)
def test_options_are_checked(options):
    with pytest.raises(UsageError, match="expected"):
        TrafficOptions(**options)


@settings(max_examples=40, deadline=None)
@given(span=st.integers(1, 1 << 62), exponent=st.floats(0.01, 5), seed=st.integers(0, 99))
def test_ranks_lie_in_their_span(span, exponent, seed):
    ranks = zipf_ranks(span, 50, exponent, np.random.default_rng(seed))
    assert ranks.min() >= 0 and ranks.max() < span


def test_ranks_follow_the_law():
    ranks = zipf_ranks(10_000, 200_000, 1.05, np.random.default_rng(0))
    weights = np.arange(1, 10_001) ** -1.05
    for last in (10, 100, 1000):  # the integral stands for the sum, so the very first ranks differ a little
        assert (ranks < last).mean() == pytest.approx(weights[:last].sum() / weights.sum(), abs=0.06)


def test_files_are_cut_into_requests_and_start_again():
    arrays = {"u": np.arange(5, dtype=np.int64)}
    info = {"inputs": INFO["inputs"][:1], "features": INFO["features"][:1]}
    requests = of_file(arrays, info, TrafficOptions(count=3, rows=(2, 2)), "f.npz")
    assert [a["u"].tolist() for a, _, _ in requests] == [[0, 1], [2, 3], [4, 0]]
    with pytest.raises(UsageError, match="f.npz: holds no row"):
        of_file({"u": np.arange(0)}, info, TrafficOptions(), "f.npz")


def test_features_are_read_from_the_names_of_inputs():
    told = describe(
        [("a_indices", "int64", [-1, 2]), ("a_values", "int64", [-1]), ("a_shape", "int64", [2]),
         ("b/values", "string", [-1]), ("b/row_splits", "int64", [-1]), ("c", "int64", [-1]),
         ("d_shape", "int64", [-1]), ("e_values", "float32", [-1])],
        id_limit=70,
    )  # fmt: skip
    kinds = {f["name"]: f["kind"] for f in told["features"]}
    assert kinds == {"a": "sparse", "b": "ragged", "c": "dense", "d_shape": "dense", "e_values": "dense"}
    domains = {e["name"]: e["domain"] for e in told["inputs"]}
    assert domains["a_values"]["high"] == 70 and domains["a_indices"] is None and domains["b/row_splits"] is None
    ((arrays, rows, _),) = generated(told, TrafficOptions(count=1, rows=(6, 6)))
    assert arrays["a_shape"].tolist()[0] == rows == len(arrays["b/row_splits"]) - 1
