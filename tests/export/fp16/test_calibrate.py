"""Activations near FP16's end become islands by name."""

import json

import numpy as np
import pytest

from export.fp16.calibrate import calibrate
from export.fp16.graph import read_graph
from tests.export.fp16.graphs import model, node, normal, value, weights
from tfctr.errors import InputError, UsageError


def cross(layers=3, width=4):
    """x0 * (W x) + x, again and again: of degree ``layers`` + 1 in the inputs."""
    nodes, x = [], "x"
    for k in range(layers):
        nodes += [
            node("MatMul", [x, "w"], f"h{k}"),
            node("Mul", ["x", f"h{k}"], f"c{k}"),
            node("Add", [f"c{k}", x], f"x{k}"),
        ]
        x = f"x{k}"
    nodes += [node("MatMul", [x, "head"], "logit"), node("Sigmoid", ["logit"], "p")]
    constants = {"w": np.eye(width, dtype=np.float32), "head": weights(width, 1) * np.float32(1e-3)}
    return model(nodes, [value("x", "N", width)], [value("p", "N", 1)], constants)


def test_peaks_and_risky_nodes():
    """x = 10: x0 10, then 110, 1210, 13310, of which the last is over 65504 / 8."""
    found = calibrate(read_graph(cross()), [{"x": np.full((5, 4), 10, np.float32)}, {"x": normal(3, 4)}])
    assert found.peaks["x"] == 10 and found.peaks["x1"] == 1210 and found.peaks["c2"] == 12100
    assert found.limit == 8188
    assert set(found.risky) == {"Mul_c2", "Add_x2", "MatMul_logit"}
    assert "|c2| reaches 1.21e+04 on the samples, over 8.19e+03" in found.risky["Mul_c2"]
    assert found.batches == 2


def test_nothing_risky():
    assert calibrate(read_graph(cross()), [{"x": normal(9, 4)}]).risky == {}


def test_margin_decides():
    feeds = [{"x": np.full((1, 4), 10, np.float32)}]
    assert calibrate(read_graph(cross()), feeds, margin=1).risky == {}
    assert "Add_x1" in calibrate(read_graph(cross()), feeds, margin=64).risky
    with pytest.raises(UsageError, match="margin 0.5"):
        calibrate(read_graph(cross()), feeds, margin=0.5)


def test_sum_behind_a_mean():
    """The mean of 4096 values of 30 is 30; an engine may add them up in FP16."""
    source = model(
        [node("Relu", ["x"], "r"), node("ReduceMean", ["r", "axis"], "m", keepdims=1)],
        [value("x", "N", 4096)],
        [value("m", "N", 1)],
        {"axis": np.array([1])},
    )
    found = calibrate(read_graph(source), [{"x": np.full((2, 4096), 30, np.float32)}])
    assert list(found.risky) == ["ReduceMean_m"]


def test_values_that_are_no_numbers():
    source = model([node("Log", ["x"], "l"), node("Exp", ["l"], "y")], [value("x", "N")], [value("y", "N")])
    found = calibrate(read_graph(source), [{"x": np.array([0, -1, 1], np.float32)}])
    assert np.isnan(found.peaks["l"])
    json.dumps(found.to_json(), allow_nan=False)


def test_no_samples():
    with pytest.raises(InputError, match="no sample batches"):
        calibrate(read_graph(cross()), [])
