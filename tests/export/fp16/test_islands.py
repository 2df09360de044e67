"""What goes wrong in FP16 everywhere, and does not with our islands. Each test shows both."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from export.fp16.convert import Fp16Options, count_casts, to_fp16
from export.fp16.half_eval import evaluate
from tests.export.fp16.graphs import layer_norm, model, naive, node, normal, value, weights

PADDED = -(2.0**32) + 1


def reasons(found):
    return {island.node: island.reason for island in found.islands}


def check(source, feeds, atol=2e-3, clamped=()):
    """Our FP16 agrees with FP32 to ``atol``; returns (the conversion, the outputs of FP16 everywhere, of FP32)."""
    found = to_fp16(source, Fp16Options(clamped=clamped))
    want = evaluate(source, feeds)
    got = evaluate(found.model, feeds)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, atol=atol, rtol=2e-3, err_msg=name)
    onnx.checker.check_model(naive(source), full_check=True)
    return found, evaluate(naive(source), feeds), want


def test_layer_norm_statistics():
    """Activations of standard deviation 400: FP16 variances overflow and the output is all zero."""
    feeds = {"x": normal(32, 64)}
    found, half, want = check(layer_norm(), feeds, atol=5e-3)
    assert want["y"].std() == pytest.approx(1, abs=0.02)
    assert half["y"].std() == 0
    assert found.casts == count_casts(found.model) == 4  # in, to the statistics, from them, out
    assert set(reasons(found)) == {
        f"{op}_{out}"
        for op, out in (
            ("ReduceMean", "mean"),
            ("Sub", "d"),
            ("Mul", "square"),
            ("ReduceMean", "var"),
            ("Add", "var1"),
            ("Sqrt", "std"),
            ("Reciprocal", "inverse"),
            ("Mul", "scale"),
            ("Mul", "scaled"),
            ("Neg", "negative"),
            ("Mul", "shift"),
            ("Add", "shift1"),
            ("Add", "normal"),
        )
    }


def power_norm():
    """With Pow and Div, as other front ends write it."""
    return model(
        [
            node("MatMul", ["x", "gain"], "h"),
            node("ReduceMean", ["h", "axis"], "mean", keepdims=1),
            node("Sub", ["h", "mean"], "d"),
            node("Pow", ["d", "two"], "square"),
            node("ReduceMean", ["square", "axis"], "var", keepdims=1),
            node("Add", ["var", "eps"], "var1"),
            node("Sqrt", ["var1"], "std"),
            node("Div", ["d", "std"], "normal"),
            node("Mul", ["normal", "gamma"], "y"),
        ],
        [value("x", "N", 16)],
        [value("y", "N", 16)],
        {
            "gain": np.eye(16, dtype=np.float32) * np.float32(400),
            "axis": np.array([1], np.int64),
            "two": 2.0,
            "eps": 1e-6,
            "gamma": np.ones(16, np.float32),
        },
    )


def moments_norm():
    """Variance as the mean of squares less the squared mean."""
    return model(
        [
            node("MatMul", ["x", "gain"], "h"),
            node("ReduceMean", ["h", "axis"], "mean", keepdims=1),
            node("Mul", ["h", "h"], "square"),
            node("ReduceMean", ["square", "axis"], "squares", keepdims=1),
            node("Mul", ["mean", "mean"], "squared_mean"),
            node("Sub", ["squares", "squared_mean"], "var"),
            node("Add", ["var", "eps"], "var1"),
            node("Sqrt", ["var1"], "std"),
            node("Sub", ["h", "mean"], "d"),
            node("Div", ["d", "std"], "y"),
        ],
        [value("x", "N", 16)],
        [value("y", "N", 16)],
        {"gain": np.eye(16, dtype=np.float32) * np.float32(400), "axis": np.array([1], np.int64), "eps": 1e-6},
    )


def one_node_norm():
    return model(
        [
            node("MatMul", ["x", "gain"], "h"),
            node("LayerNormalization", ["h", "gamma", "beta"], "n", axis=-1, epsilon=1e-6),
            node("MatMul", ["n", "out"], "y"),
        ],
        [value("x", "N", 16)],
        [value("y", "N", 16)],
        {
            "gain": np.eye(16, dtype=np.float32) * np.float32(400),
            "gamma": np.ones(16, np.float32),
            "beta": np.zeros(16, np.float32),
            "out": np.eye(16, dtype=np.float32),
        },
    )


@pytest.mark.parametrize("make", [power_norm, moments_norm, one_node_norm])
def test_layer_norm_in_other_words(make):
    found, _, want = check(make(), {"x": normal(32, 16)}, atol=5e-3)
    assert want["y"].std() == pytest.approx(1, abs=0.02)
    assert any("statistics" in why for why in reasons(found).values())
    assert found.heavy >= 1


def masked_scores(select):
    """Softmax over masked scores; ``select``: tf.where as tf2onnx writes it, x * c + y * !c, instead of Where."""
    if select:
        nodes = [
            node("Cast", ["mask"], "yes", to=TensorProto.FLOAT),
            node("Not", ["mask"], "padded"),
            node("Cast", ["padded"], "no", to=TensorProto.FLOAT),
            node("Mul", ["scores", "yes"], "kept"),
            node("Mul", ["fill", "no"], "filled"),
            node("Add", ["kept", "filled"], "masked"),
        ]
    else:
        nodes = [node("Where", ["mask", "scores", "fill"], "masked")]
    return model(
        [
            node("MatMul", ["x", "w"], "scores"),
            *nodes,
            node("Softmax", ["masked"], "weights", axis=-1),
            node("MatMul", ["weights", "v"], "y"),
        ],
        [value("x", "N", 8), value("mask", "N", 6, kind="bool")],
        [value("y", "N", 3)],
        {"w": weights(8, 6), "fill": PADDED, "v": weights(6, 3)},
    )


def mask_feeds(rows=64):
    """Rows of 0 to 6 true positions: some rows have none."""
    lengths = np.arange(rows) % 7
    return {"x": normal(rows, 8), "mask": np.arange(6) < lengths[:, None]}


def test_mask_by_select():
    """-2^32 is -inf in FP16, and -inf times 0 is NaN: every row is lost."""
    source = masked_scores(select=True)
    found, _, _ = check(source, mask_feeds())
    half = evaluate(naive(source, clip=False), mask_feeds())
    assert np.isnan(half["y"]).all()
    assert {"Mul_filled", "Add_masked", "Softmax_weights"} <= set(reasons(found))


def test_mask_by_where():
    """Clipping the constant is not needed here, but a row without any true position is NaN without it."""
    source = masked_scores(select=False)
    found, clipped, want = check(source, mask_feeds())
    np.testing.assert_allclose(clipped["y"], want["y"], atol=5e-3)
    half = evaluate(naive(source, clip=False), mask_feeds())
    assert np.isnan(half["y"][::7]).all() and np.isfinite(half["y"][1::7]).all()
    assert set(reasons(found)) == {"Where_masked", "Softmax_weights"}
    assert found.casts == 4


def test_mask_that_is_added():
    """(1 - mask) * -1e9: even the clipped constant overflows with a score of -40 beside it."""
    source = model(
        [
            node("MatMul", ["x", "w"], "scores"),
            node("Cast", ["mask"], "yes", to=TensorProto.FLOAT),
            node("Sub", ["one", "yes"], "no"),
            node("Mul", ["no", "fill"], "filled"),
            node("Add", ["scores", "filled"], "masked"),
            node("Softmax", ["masked"], "weights", axis=-1),
            node("MatMul", ["weights", "v"], "y"),
        ],
        [value("x", "N", 8), value("mask", "N", 6, kind="bool")],
        [value("y", "N", 3)],
        {"w": -np.abs(weights(8, 6)) * 60, "one": 1.0, "fill": -1e9, "v": weights(6, 3)},
    )
    feeds = mask_feeds()
    feeds["x"] = np.abs(feeds["x"])
    found, half, want = check(source, feeds, atol=0.05)
    assert np.isnan(half["y"][::7]).any() and np.isfinite(want["y"]).all()
    assert reasons(found)["Sub_no"] == reasons(found)["Cast_yes"] == "between FP32 neighbours"
    assert found.casts == 4


def test_mask_tensor():
    """A causal mask is no scalar."""
    causal = np.where(np.tri(5, dtype=bool), 0, -1e9).astype(np.float32)
    source = model(
        [
            node("MatMul", ["x", "w"], "scores"),
            node("Add", ["scores", "causal"], "masked"),
            node("Softmax", ["masked"], "y", axis=-1),
        ],
        [value("x", "N", 5, 4)],
        [value("y", "N", 5, 5)],
        {"w": weights(4, 5), "causal": causal},
    )
    found, _, _ = check(source, {"x": normal(8, 5, 4)})
    assert reasons(found)["Add_masked"] == "a mask constant"


def test_mask_without_a_softmax_saturates():
    """What reaches a matrix product is finite, whatever the mask says."""
    source = model(
        [node("Where", ["mask", "x", "fill"], "masked"), node("MatMul", ["masked", "w"], "y")],
        [value("x", "N", 4), value("mask", "N", 4, kind="bool")],
        [value("y", "N", 1)],
        {"fill": PADDED, "w": np.array([[1], [0], [0], [0]], np.float32)},
    )
    feeds = {"x": normal(8, 4), "mask": np.arange(32).reshape(8, 4) % 4 != 1}
    got = evaluate(to_fp16(source).model, feeds)["y"]
    np.testing.assert_allclose(got, feeds["x"][:, :1], rtol=1e-3)
    assert np.isnan(evaluate(naive(source, clip=False), feeds)["y"]).all()


def test_infinite_mask_value():
    """-inf is what some models put on padded positions."""
    source = masked_scores(select=False)
    for one in source.graph.initializer:
        if one.name == "fill":
            one.CopyFrom(numpy_helper.from_array(np.float32(-np.inf), "fill"))
    feeds = mask_feeds()
    feeds["mask"][:, 0] = True
    check(source, feeds)


def test_epsilon_of_an_unfolded_root():
    """Dice's 1e-8 is 0 in FP16: a column that never varied gives infinity, then NaN."""
    source = model(
        [
            node("MatMul", ["x", "w"], "h"),
            node("Sub", ["h", "mean"], "d"),
            node("Add", ["var", "eps"], "var1"),
            node("Sqrt", ["var1"], "std"),
            node("Reciprocal", ["std"], "inverse"),
            node("Mul", ["d", "inverse"], "n"),
            node("Sigmoid", ["n"], "gate"),
            node("Mul", ["gate", "h"], "g"),
            node("MatMul", ["g", "v"], "y"),
        ],
        [value("x", "N", 8)],
        [value("y", "N", 1)],
        {
            "w": np.concatenate([weights(8, 3), np.zeros((8, 1), np.float32)], 1),
            "mean": np.zeros(4, np.float32),
            "var": np.array([1, 0.5, 2, 0], np.float32),
            "eps": 1e-8,
            "v": weights(4, 1),
        },
    )
    found, half, _ = check(source, {"x": normal(32, 8)})
    assert np.isnan(half["y"]).all()
    assert reasons(found)["Add_var1"] == "the constant 1e-08 is not in FP16's range"


def test_epsilon_of_a_masked_mean():
    """sum / (count + 1e-8) of an empty row is 0 in FP32 and 0 / 0 in FP16."""
    source = model(
        [
            node("Cast", ["mask"], "yes", to=TensorProto.FLOAT),
            node("Mul", ["x", "yes"], "kept"),
            node("ReduceSum", ["kept", "axis"], "sum", keepdims=1),
            node("ReduceSum", ["yes", "axis"], "count", keepdims=1),
            node("Add", ["count", "eps"], "count1"),
            node("Div", ["sum", "count1"], "mean"),
            node("MatMul", ["mean", "w"], "y"),
        ],
        [value("x", "N", 6), value("mask", "N", 6, kind="bool")],
        [value("y", "N", 1)],
        {"axis": np.array([1], np.int64), "eps": 1e-8, "w": np.ones((1, 1), np.float32)},
    )
    feeds = {"x": normal(64, 6), "mask": mask_feeds()["mask"]}
    found, half, _ = check(source, feeds)
    assert np.isnan(half["y"][::7]).all()
    assert reasons(found)["Div_mean"] == "a division by a computed value"


@pytest.mark.parametrize(("op", "back", "x"), [("Exp", "Log", 11.5), ("Pow", "Sqrt", 300.0)])
def test_powers(op, back, x):
    """exp(11.5) and 300^2 are beyond 65504: log(exp(x) + 1) and sqrt(x^2 + 1) are infinite in FP16."""
    source = model(
        [
            node("MatMul", ["x", "w"], "h"),
            node(op, ["h"] if op == "Exp" else ["h", "two"], "e"),
            node("Add", ["e", "one"], "e1"),
            node(back, ["e1"], "l"),
            node("MatMul", ["l", "w"], "y"),
        ],
        [value("x", "N", 1)],
        [value("y", "N", 1)],
        {"w": np.ones((1, 1), np.float32), "two": 2.0, "one": 1.0},
    )
    found, half, _ = check(source, {"x": np.full((2, 1), x, np.float32)}, atol=0.02)
    assert np.isinf(half["y"]).all()
    assert set(reasons(found)) == {f"{op}_e", "Add_e1", f"{back}_l"}


def test_bounds_beyond_fp16():
    """A Clip to +-1e9 bounds nothing in FP16: its constants are clipped, and it stays there."""
    source = model(
        [node("MatMul", ["x", "w"], "h"), node("Clip", ["h", "low", "high"], "c"), node("MatMul", ["c", "w"], "y")],
        [value("x", "N", 4)],
        [value("y", "N", 4)],
        {"w": weights(4, 4), "low": -1e9, "high": 1e9},
    )
    found, _, _ = check(source, {"x": normal(16, 4)}, atol=1e-2)
    assert not found.islands and found.casts == 2
    held = {one.name: numpy_helper.to_array(one) for one in found.model.graph.initializer}
    assert float(held["low"]) == -65504 and float(held["high"]) == 65504


def test_whole_numbers_and_comparisons():
    """2049 is 2048 in FP16, and 1e-9 is 0: counts and comparisons keep FP32."""
    source = model(
        [
            node("Cast", ["count"], "c", to=TensorProto.FLOAT),
            node("Log", ["c"], "l"),
            node("Greater", ["x", "zero"], "positive"),
            node("Cast", ["positive"], "p", to=TensorProto.FLOAT),
            node("MatMul", ["p", "w"], "h"),
            node("Add", ["h", "l"], "y"),
        ],
        [value("x", "N", 4), value("count", "N", 1, kind="int64")],
        [value("y", "N", 1)],
        {"zero": 0.0, "w": np.ones((4, 1), np.float32)},
    )
    feeds = {"x": np.full((2, 4), 1e-9, np.float32), "count": np.array([[2049], [100001]])}
    found, half, want = check(source, feeds, atol=5e-3)
    assert np.abs(half["y"] - want["y"]).max() > 1
    assert {"Cast_c", "Greater_positive", "Log_l"} <= set(reasons(found))


def test_outputs_that_are_products_of_sigmoids():
    """Beside 1, FP16 probabilities move in steps of 5e-4: the sigmoids and their product stay FP32."""
    source = model(
        [
            node("MatMul", ["x", "w"], "a"),
            node("MatMul", ["x", "v"], "b"),
            node("Sigmoid", ["a"], "pa"),
            node("Sigmoid", ["b"], "pb"),
            node("Mul", ["pa", "pb"], "both"),
            node("Concat", ["pa", "both"], "scores", axis=1),
            node("Reshape", ["scores", "flat"], "y"),
        ],
        [value("x", "N", 8)],
        [value("y", "M")],
        {"w": weights(8, 1), "v": weights(8, 1, seed=1), "flat": np.array([-1], np.int64)},
    )
    found, _, _ = check(source, {"x": normal(64, 8)}, atol=1e-3, clamped=("x",))
    assert found.casts == 3  # in, and one before each sigmoid
    assert set(reasons(found).values()) == {"the output's sigmoid"}


def test_sigmoid_in_the_middle_is_half():
    source = model(
        [node("MatMul", ["x", "w"], "h"), node("Sigmoid", ["h"], "gate"), node("MatMul", ["gate", "w"], "y")],
        [value("x", "N", 4)],
        [value("y", "N", 4)],
        {"w": weights(4, 4)},
    )
    found, _, _ = check(source, {"x": normal(16, 4)})
    assert not found.islands


def test_movers_between_islands():
    """FP32 -> Reshape, Transpose -> FP32 costs no casts."""
    source = model(
        [
            node("MatMul", ["x", "w"], "h"),
            node("Exp", ["h"], "e"),
            node("Reshape", ["e", "shape"], "r"),
            node("Transpose", ["r"], "t", perm=[0, 2, 1]),
            node("Log", ["t"], "l"),
            node("MatMul", ["l", "v"], "y"),
        ],
        [value("x", "N", 4)],
        [value("y", "N", 2, 1)],
        {"w": weights(4, 4), "shape": np.array([-1, 2, 2], np.int64), "v": weights(2, 1)},
    )
    found, _, _ = check(source, {"x": normal(16, 4)}, atol=5e-3)
    assert found.casts == 4
    assert reasons(found)["Transpose_t"] == "between FP32 neighbours"
