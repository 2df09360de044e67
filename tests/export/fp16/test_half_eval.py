"""The judge: rounding per operation, FP32 inside; FP32 graphs as ONNX Runtime has them."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

from export.fp16.convert import to_fp16
from export.fp16.half_eval import HalfEvaluator, evaluate
from export.onnx.checks import KNOWN_OPS
from tests.export.fp16.graphs import mlp, model, naive, node, normal, value, weights
from tests.export.onnx.exports import exported
from tests.export.towers import TOWERS, tower_inputs
from tfctr.errors import InputError, UsageError

KINDS = {"f": "float", "i": "int64", "b": "bool"}


def runtime(source, feeds):
    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, feeds), strict=True))


@pytest.mark.parametrize("name", TOWERS)
def test_towers_in_fp32_equal_onnxruntime(name):
    source, feeds = exported(name).model, tower_inputs(name, rows=64, seed=3)
    want = runtime(source, feeds)
    for output, array in evaluate(source, feeds).items():
        np.testing.assert_allclose(array, want[output], atol=3e-6)


X, POSITIVE = normal(5, 6), np.abs(normal(5, 6)) + 0.1
ROWS, AXIS = np.array([4, 0, 2]), np.array([1])
# Operation -> inputs (arrays; None: absent), attributes, and how many outputs.
CASES = {
    **{op: ([X], {}, 1) for op in ("Abs", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "Identity")},
    **{op: ([X], {}, 1) for op in ("LeakyRelu", "LogSoftmax", "Neg", "Relu", "Round", "Selu", "Shape", "Sigmoid")},
    **{op: ([X], {}, 1) for op in ("Sign", "Sin", "Softmax", "Softplus", "Softsign", "Tan", "Tanh", "Transpose")},
    **{op: ([POSITIVE], {}, 1) for op in ("Log", "Reciprocal", "Sqrt")},
    **{op: ([X, normal(5, 6, seed=1)], {}, 1) for op in ("Add", "Mul", "Sub", "Max", "Min", "Mean", "Sum", "PRelu")},
    **{op: ([X, POSITIVE], {}, 1) for op in ("Div", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")},
    **{op: ([X > 0, X < 0.5], {}, 1) for op in ("And", "Or", "Xor")},
    **{
        op: ([POSITIVE, AXIS], {"keepdims": 1}, 1)
        for op in ("ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")
    },
    **{op: ([POSITIVE, AXIS], {"keepdims": 0}, 1) for op in ("ReduceSumSquare", "ReduceLogSumExp")},
    "ArgMax": ([X], {"axis": 1}, 1),
    "ArgMin": ([X], {"axis": 1}, 1),
    "Cast": ([X], {"to": TensorProto.INT64}, 1),
    "Clip": ([X, np.float32(-1), np.float32(0.5)], {}, 1),
    "Concat": ([X, X], {"axis": 1}, 1),
    "Conv": ([normal(2, 3, 8), normal(4, 3, 2), normal(4)], {"strides": [2]}, 1),
    "ConstantOfShape": ([np.array([2, 3])], {}, 1),
    "CumSum": ([X, np.int64(1)], {}, 1),
    "Einsum": ([X, normal(6, 2, 3)], {"equation": "bi,ieo->beo"}, 1),
    "Expand": ([X[:, :1], np.array([5, 4])], {}, 1),
    "Gather": ([X, ROWS], {"axis": 0}, 1),
    "GatherElements": ([X, np.array([[1], [0], [5], [2], [3]])], {"axis": 1}, 1),
    "GatherND": ([X, np.array([[1, 2], [4, 0]])], {}, 1),
    "Gemm": ([X, normal(6, 3), normal(3)], {"alpha": 0.5, "beta": 2.0}, 1),
    "MatMul": ([X, normal(6, 3)], {}, 1),
    "Mod": ([np.arange(6) - 3, np.full(6, 4)], {}, 1),
    "Not": ([X > 0], {}, 1),
    "OneHot": ([ROWS, np.array([5]), np.array([0, 1], np.float32)], {"axis": -1}, 1),
    "Pad": ([X, np.array([0, 1, 2, 0]), np.float32(7)], {}, 1),
    "Pow": ([POSITIVE, np.float32(1.5)], {}, 1),
    "Range": ([np.int64(1), np.int64(9), np.int64(2)], {}, 1),
    "Reshape": ([X, np.array([-1, 3])], {}, 1),
    "Slice": ([X, np.array([1]), np.array([4]), np.array([0]), np.array([2])], {}, 1),
    "Split": ([X, np.array([2, 4])], {"axis": 1}, 2),
    "Squeeze": ([X[:, None], AXIS], {}, 1),
    "Tile": ([X, np.array([2, 1])], {}, 1),
    "TopK": ([X, np.array([2])], {"axis": 1}, 2),
    "Trilu": ([X], {"upper": 0}, 1),
    "Unsqueeze": ([X, AXIS], {}, 1),
    "Where": ([X > 0, X, POSITIVE], {}, 1),
}


def single(op, inputs, attributes, outputs):
    """A model of one node; its feeds."""
    names = [f"i{k}" for k in range(len(inputs))]
    arrays = [np.asarray(array) for array in inputs]
    fixed = [value(n, *a.shape, kind=KINDS[a.dtype.kind]) for n, a in zip(names, arrays, strict=True)]
    ends = [f"o{k}" for k in range(outputs)]
    probe = model([node(op, names, ends, **attributes)], fixed, [])
    results = HalfEvaluator(probe).run(dict(zip(names, arrays, strict=True)), keep=ends)
    for name in ends:
        array = results[name]
        probe.graph.output.append(value(name, *array.shape, kind=KINDS[array.dtype.kind]))
    return probe, dict(zip(names, arrays, strict=True))


def test_every_allowed_operation_has_a_case():
    assert set(CASES) == set(KNOWN_OPS)


@pytest.mark.parametrize("op", sorted(CASES))
def test_operation_equals_onnxruntime(op):
    source, feeds = single(op, *CASES[op])
    want, got = runtime(source, feeds), evaluate(source, feeds)
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_allclose(got[name], array, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("op", sorted(CASES))
def test_operation_in_fp16(op):
    """Rounded once: within half a step of the FP32 result on inputs that FP16 holds; or kept FP32 by the rules."""
    source, feeds = single(op, *CASES[op])
    feeds = {k: v.astype(np.float16).astype(np.float32) if v.dtype == np.float32 else v for k, v in feeds.items()}
    want, got = evaluate(source, feeds), evaluate(to_fp16(source).model, feeds)
    for name, array in want.items():
        if array.dtype == np.float32:
            np.testing.assert_allclose(got[name], array, rtol=2.0**-11, atol=1e-7)
        else:
            np.testing.assert_array_equal(got[name], array)


def test_sums_and_products_are_exactly_half():
    """One rounding from FP32 is what NumPy's own float16 gives."""
    a, b = normal(300, seed=1, scale=30).astype("f2"), normal(300, seed=2, scale=30).astype("f2")
    for op, want in (("Add", a + b), ("Mul", a * b), ("Sub", a - b)):
        source = naive(model([node(op, ["a", "b"], "y")], [value("a", 300), value("b", 300)], [value("y", 300)]))
        got = evaluate(source, {"a": a.astype("f4"), "b": b.astype("f4")})["y"]
        np.testing.assert_array_equal(got, want.astype("f4"))


def test_matrix_products_accumulate_in_fp32():
    """4096 ones add up to 4096; an FP16 accumulator stops at 2048."""
    source = model(
        [node("MatMul", ["x", "w"], "y")],
        [value("x", "N", 4096)],
        [value("y", "N", 1)],
        {"w": np.ones((4096, 1), "f4")},
    )
    assert evaluate(naive(source), {"x": np.ones((1, 4096), "f4")})["y"] == 4096
    total = np.float16(0)
    for _ in range(4096):
        total += np.float16(1)
    assert total == 2048


def test_onnxruntime_is_no_judge():
    """It removes the casts between operations and computes in FP32, so that an overflow does not show."""
    source = naive(
        model(
            [node("Mul", ["x", "c"], "big"), node("Mul", ["big", "d"], "y")],
            [value("x", "N")],
            [value("y", "N")],
            {"c": 300.0, "d": 1 / 300},
        )
    )
    feeds = {"x": np.full(4, 300, np.float32)}
    assert np.isinf(evaluate(source, feeds)["y"]).all()
    np.testing.assert_allclose(runtime(source, feeds)["y"], 300, rtol=1e-2)


def test_layer_norm_statistics_are_fp32_results():
    """Its second and third outputs are FP32 whatever the first is."""
    source = model(
        [node("LayerNormalization", ["x", "g"], ["y", "mean", "inverse"])],
        [value("x", "N", 4)],
        [value("y", "N", 4), value("mean", "N", 1), value("inverse", "N", 1)],
        {"g": np.ones(4, np.float32)},
    )
    half = naive(source)
    for one in half.graph.node:
        one.output[:] = [name.removesuffix("_half") if name[:4] in ("mean", "inve") else name for name in one.output]
    nodes = [one for one in half.graph.node if one.name not in ("out_mean", "out_inverse")]
    del half.graph.node[:]
    half.graph.node.extend(nodes)
    got = evaluate(half, {"x": normal(3, 4)})
    assert {array.dtype for array in got.values()} == {np.dtype("f4")}
    np.testing.assert_allclose(got["mean"], evaluate(source, {"x": normal(3, 4)})["mean"], atol=1e-3)


def test_unknown_operation():
    source = model([node("Frobnicate", ["x"], "y")], [value("x", "N")], [value("y", "N")])
    with pytest.raises(UsageError, match="'Frobnicate_y'.*does not know the operation Frobnicate"):
        HalfEvaluator(source)


def test_missing_input_and_bad_shape():
    evaluator = HalfEvaluator(mlp())
    with pytest.raises(InputError, match="input 'x' is missing; given: z"):
        evaluator.run({"z": normal(2, 16)})
    with pytest.raises(InputError, match="node 'MatMul_h' \\(MatMul\\) of float32\\[2, 9\\], float32\\[16, 8\\]"):
        evaluator.run({"x": normal(2, 9)})


def test_watch_and_keep():
    seen = {}
    got = HalfEvaluator(mlp()).run({"x": normal(2, 16)}, lambda name, array: seen.update({name: array.shape}), ["h2"])
    assert seen == {"h": (2, 8), "h1": (2, 8), "h2": (2, 8), "logit": (2, 1), "p": (2, 1)}
    assert set(got) == {"p", "h2"}


def test_one_node_in_half():
    """Equal to the model in which only that node is FP16, casts around it."""
    source = model(
        [node("MatMul", ["x", "w"], "a"), node("MatMul", ["a", "w"], "b"), node("Relu", ["b"], "y")],
        [value("x", "N", 4)],
        [value("y", "N", 4)],
        {"w": weights(4, 4)},
    )
    evaluator = HalfEvaluator(source)
    values = evaluator.run_all({"x": normal(6, 4)})
    half = values["a"].astype("f2").astype("f4") @ weights(4, 4).astype("f2").astype("f4")
    want = np.maximum(half.astype("f2").astype("f4"), 0)
    np.testing.assert_array_equal(evaluator.run_with_half_node(values, 1)["y"], want)
    assert np.abs(want - values["y"]).max() > 0
