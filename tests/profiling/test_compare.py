"""The comparer itself: what it must let pass and what it must not."""

import numpy as np
import pytest

from tfctr.profiling.compare import compare_outputs


@pytest.mark.parametrize(
    ("ours", "stock", "ok"),
    [
        ([1.0, 0.0], [1.0 + 9e-6, 9e-7], True),
        ([1.0], [1.0 + 2e-5], False),
        ([0.0], [2e-6], False),
        ([np.nan, np.inf], [np.nan, np.inf], True),
        ([np.nan], [0.0], False),
        ([np.inf], [-np.inf], False),
        ([np.inf], [1e30], False),
    ],
)
def test_float_tolerance(ours: list[float], stock: list[float], ok: bool) -> None:
    (difference,) = compare_outputs({"p": np.array(ours)}, {"p": np.array(stock)})
    assert difference.ok is ok


@pytest.mark.parametrize(
    ("ours", "stock", "reason"),
    [
        (np.zeros((2, 1)), np.zeros(2), "shape"),
        (np.zeros(2, np.float32), np.zeros(2), "dtype"),
        (np.array([1, 2]), np.array([1, 3]), "1 of 2 values differ"),
        (np.array([b"a"], object), np.array([b"b"], object), "1 of 1 values differ"),
    ],
)
def test_what_must_be_equal(ours: np.ndarray, stock: np.ndarray, reason: str) -> None:
    (difference,) = compare_outputs({"p": ours}, {"p": stock})
    assert not difference.ok
    assert reason in difference.reason


def test_a_missing_output_fails_on_either_side() -> None:
    found = compare_outputs({"a": np.zeros(1)}, {"b": np.zeros(1)})
    assert [(d.output, d.ok) for d in found] == [("b", False), ("a", False)]


def test_empty_outputs_are_equal() -> None:
    (difference,) = compare_outputs({"p": np.zeros((0, 1))}, {"p": np.zeros((0, 1))})
    assert difference.ok
