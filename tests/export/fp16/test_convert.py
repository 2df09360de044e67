"""The strongly typed FP16 graph: where the casts are, what is clipped, what is refused."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper

from export.fp16.convert import Fp16Options, count_casts, float_inputs, to_fp16
from export.fp16.half_eval import evaluate
from tests.export.fp16.graphs import mlp, model, node, normal, value, weights
from tfctr.errors import InputError, UsageError


def operations(made):
    return [one.op_type for one in made.graph.node]


def reasons(made):
    return {island.node: island.reason for island in made.islands}


def types(made):
    graph = onnx.shape_inference.infer_shapes(made).graph
    return {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}


def weights_of(made):
    return {one.name: numpy_helper.to_array(one) for one in made.graph.initializer}


def test_plain_mlp_has_two_casts():
    source = mlp()
    before = source.SerializeToString(deterministic=True)
    found = to_fp16(source, Fp16Options(clamped=("x",)))
    assert operations(found.model) == ["Clip", "Cast", "MatMul", "Add", "Relu", "Gemm", "Cast", "Sigmoid"]
    assert found.casts == count_casts(found.model) == 2
    assert (found.heavy, found.heavy_of) == (2, 2)
    assert reasons(found) == {"Sigmoid_p": "the output's sigmoid"}
    assert {array.dtype for name, array in weights_of(found.model).items() if name[0] in "wb"} == {np.dtype("f2")}
    assert types(found.model)["x"] == types(found.model)["p"] == TensorProto.FLOAT
    feeds = {"x": normal(200, 16)}
    assert np.abs(evaluate(found.model, feeds)["p"] - evaluate(source, feeds)["p"]).max() < 1e-3
    assert source.SerializeToString(deterministic=True) == before


def test_same_model_same_bytes():
    made = [to_fp16(mlp(), Fp16Options(clamped=("x",))).model.SerializeToString(deterministic=True) for _ in range(2)]
    assert made[0] == made[1]


def two_inputs():
    """An embedding and a dense feature side by side, ids and a row number that only integers see."""
    return model(
        [
            node("Gather", ["users", "row_to_user"], "user_rows", axis=0),
            node("Concat", ["emb", "dense", "user_rows"], "all", axis=1),
            node("MatMul", ["all", "w"], "logit"),
            node("Sigmoid", ["logit"], "p"),
            node("Identity", ["ids"], "ids_out"),
        ],
        [
            value("emb", "N", 4),
            value("dense", "N", 2),
            value("users", "U", 2),
            value("row_to_user", "N", kind="int64"),
            value("ids", "N", kind="int64"),
        ],
        [value("p", "N", 1), value("ids_out", "N", kind="int64")],
        {"w": weights(8, 1)},
    )


def feeds_of_two(emb=1.0, dense=1.0):
    return {
        "emb": np.full((3, 4), emb, np.float32),
        "dense": np.full((3, 2), dense, np.float32),
        "users": normal(2, 2),
        "row_to_user": np.array([0, 1, 1]),
        "ids": np.array([2**40, 5, -7]),
    }


def test_clamp_is_for_embeddings_only():
    source = two_inputs()
    found = to_fp16(source, Fp16Options(clamped=("emb",)))
    assert found.clamped == ("emb",)
    limits = {
        one.input[0]: weights_of(found.model)[one.input[2]] for one in found.model.graph.node if one.op_type == "Clip"
    }
    assert limits == {"emb": 10, "all": 65504}
    assert found.casts == 2  # the inputs are joined in FP32
    feeds = feeds_of_two(emb=50.0, dense=50.0)
    clamped = evaluate(source, {**feeds, "emb": np.clip(feeds["emb"], -10, 10)})
    got = evaluate(found.model, feeds)
    np.testing.assert_allclose(got["p"], clamped["p"], atol=5e-3)
    np.testing.assert_array_equal(got["ids_out"], feeds["ids"])
    assert types(found.model)["row_to_user"] == TensorProto.INT64


def test_clamp_off():
    source = two_inputs()
    found = to_fp16(source, Fp16Options(clamp=None, clamped=("emb",)))
    assert found.clamped == ()
    feeds = feeds_of_two(emb=20.0)
    np.testing.assert_allclose(evaluate(found.model, feeds)["p"], evaluate(source, feeds)["p"], atol=5e-3)


def test_all_clamped_inputs_joined():
    """Nothing is left to saturate: a clip per input, one cast for all; what else reads an input sees it clamped."""
    source = model(
        [
            node("Reshape", ["a", "flat"], "a1"),
            node("Concat", ["a1", "b"], "all", axis=1),
            node("MatMul", ["all", "w"], "y"),
        ],
        [value("a", "N", 2, 2), value("b", "N", 4)],
        [value("y", "N", 1)],
        {"w": np.ones((8, 1), np.float32), "flat": np.array([-1, 4])},
    )
    found = to_fp16(source, Fp16Options(clamped=("a", "b")))
    assert operations(found.model) == ["Clip", "Reshape", "Clip", "Concat", "Cast", "MatMul", "Cast"]
    feeds = {"a": np.full((1, 2, 2), 50, np.float32), "b": np.full((1, 4), -3, np.float32)}
    assert evaluate(found.model, feeds)["y"] == 40 - 12
    half = to_fp16(source, Fp16Options(clamped=("b",)))
    assert operations(half.model) == ["Reshape", "Clip", "Concat", "Clip", "Cast", "MatMul", "Cast"]
    feeds["a"][:] = 1e6
    assert np.isinf(evaluate(half.model, feeds)["y"]).all()  # 4 * 65504: the sum is beyond FP16, the inputs are not
    feeds["a"][:, 1:] = 0
    feeds["a"][:, :, 1:] = 0
    assert evaluate(half.model, feeds)["y"] == 65504  # less 12, which FP16 rounds away


def test_dense_inputs_saturate():
    """1e6 would be infinite in FP16, and NaN after a subtraction."""
    feeds = feeds_of_two(dense=1e6)
    assert np.isfinite(evaluate(to_fp16(two_inputs()).model, feeds)["p"]).all()


@pytest.mark.parametrize("clamp", [0.0, -1.0, float("nan"), float("inf"), 1e6])
def test_bad_clamp(clamp):
    with pytest.raises(UsageError, match="clamp"):
        Fp16Options(clamp=clamp)


@pytest.mark.parametrize("name", ["ids", "nothing"])
def test_clamped_must_be_a_float_input(name):
    with pytest.raises(UsageError, match=f"'{name}'.*emb, dense, users"):
        to_fp16(two_inputs(), Fp16Options(clamped=(name,)))


def test_islands_by_name():
    found = to_fp16(mlp(), Fp16Options(clamped=("x",), islands={"MatMul_h": "because"}))
    assert reasons(found)["MatMul_h"] == "because"
    assert weights_of(found.model)["w0"].dtype == np.float32
    assert found.heavy == 1
    with pytest.raises(UsageError, match="'nope'.*MatMul_h"):
        to_fp16(mlp(), Fp16Options(islands={"nope": "?"}))


def test_weight_read_in_both_precisions():
    source = model(
        [
            node("MatMul", ["x", "w"], "a", name="wide"),
            node("Relu", ["a"], "r"),
            node("MatMul", ["r", "w"], "b"),
            node("Tanh", ["b"], "t"),
            node("MatMul", ["t", "w"], "y"),
        ],
        [value("x", "N", 4)],
        [value("y", "N", 4)],
        {"w": weights(4, 4)},
    )
    found = to_fp16(source, Fp16Options(islands={"wide": "test"}))
    held = weights_of(found.model)
    assert (held["w"].dtype, held["w/fp32"].dtype) == (np.float16, np.float32)
    feeds = {"x": normal(50, 4)}
    np.testing.assert_allclose(evaluate(found.model, feeds)["y"], evaluate(source, feeds)["y"], atol=1e-2)


def test_weights_are_clipped_and_counted():
    w = np.array([[1e9], [-1e9], [1e-9], [1e-6], [0.5], [0.0]], np.float32)
    source = model([node("MatMul", ["x", "w"], "y")], [value("x", "N", 6)], [value("y", "N", 1)], {"w": w})
    found = to_fp16(source)
    assert weights_of(found.model)["w"][:2, 0].tolist() == [65504, -65504]
    note = found.weights
    assert (note.of, note.clipped, note.vanished, note.subnormal) == (6, 2, 1, 1)
    assert "2 beyond 65504 clipped" in note.text and "1 too small" in note.text
    assert found.to_json()["weights"]["clipped"] == 2


@pytest.mark.parametrize(("bad", "words"), [(np.nan, "1 NaN of 4"), (np.inf, "1 infinite of 4")])
def test_weights_that_are_no_numbers(bad, words):
    w = np.array([[1], [bad], [2], [3]], np.float32)
    source = model([node("MatMul", ["x", "w"], "y")], [value("x", "N", 4)], [value("y", "N", 1)], {"w": w})
    with pytest.raises(InputError, match=f"weight 'w' has {words}"):
        to_fp16(source)


def test_unsorted_graph_is_sorted():
    source = mlp()
    nodes = list(source.graph.node)[::-1]
    del source.graph.node[:]
    source.graph.node.extend(nodes)
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(source)
    assert operations(to_fp16(source).model)[-1] == "Sigmoid"


def test_cycle():
    source = model([node("Add", ["x", "b"], "a"), node("Relu", ["a"], "b")], [value("x", "N")], [value("b", "N")])
    with pytest.raises(UsageError, match="cycle"):
        to_fp16(source)


def test_other_floats_are_refused():
    source = model([node("Relu", ["x"], "y")], [value("x", "N", kind="double")], [value("y", "N", kind="double")])
    with pytest.raises(UsageError, match="'x' is DOUBLE"):
        to_fp16(source)
    with pytest.raises(UsageError, match="is FLOAT16; expected an FP32 tower"):
        to_fp16(to_fp16(mlp()).model)


def test_types_that_do_not_fit():
    source = model([node("Add", ["x", "i"], "y")], [value("x", "N"), value("i", "N", kind="int64")], [value("y", "N")])
    with pytest.raises(UsageError, match="types do not fit"):
        to_fp16(source)


def test_nothing_makes_it():
    with pytest.raises(UsageError, match="'Relu_y'.*reads 'ghost'"):
        to_fp16(model([node("Relu", ["ghost"], "y")], [value("x", "N")], [value("y", "N")]))


def test_subgraphs_are_refused():
    branch = onnx.helper.make_graph([node("Identity", ["x"], "z")], "b", [], [value("z", "N")])
    source = model(
        [node("If", ["c"], "y", then_branch=branch, else_branch=branch)],
        [value("x", "N"), value("c", kind="bool")],
        [value("y", "N")],
    )
    with pytest.raises(UsageError, match="'If_y'.*subgraph"):
        to_fp16(source)


def test_constant_nodes_become_weights():
    source = model([node("MatMul", ["x", "w"], "y")], [value("x", "N", 2)], [value("y", "N", 1)])
    held = numpy_helper.from_array(np.ones((2, 1), np.float32))
    source.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["w"], value=held))
    found = to_fp16(source).model
    assert operations(found) == ["Clip", "Cast", "MatMul", "Cast"]


def test_logit_output_and_inner_use():
    """An output that is FP16 inside keeps its name for the FP32 copy; other readers take the FP16 one."""
    source = model(
        [
            node("MatMul", ["x", "w"], "logit"),
            node("MatMul", ["logit", "v"], "two"),
            node("Exp", ["logit"], "odds"),
        ],
        [value("x", "N", 4)],
        [value("logit", "N", 2), value("two", "N", 1), value("odds", "N", 2)],
        {"w": weights(4, 2), "v": weights(2, 1)},
    )
    found = to_fp16(source, Fp16Options(clamped=("x",)))
    assert found.casts == count_casts(found.model) == 3  # x in, logit out (which Exp reads), two out
    assert [v.name for v in found.model.graph.output] == ["logit", "two", "odds"]
    feeds = {"x": normal(20, 4)}
    want, got = evaluate(source, feeds), evaluate(found.model, feeds)
    for name in want:
        assert got[name].dtype == np.float32
        np.testing.assert_allclose(got[name], want[name], rtol=2e-2, atol=2e-2)


def test_input_handed_through_and_unused_input():
    source = model(
        [node("Identity", ["x"], "same"), node("MatMul", ["x", "w"], "y")],
        [value("x", "N", 4), value("unused", "N", 4)],
        [value("same", "N", 4), value("y", "N", 1)],
        {"w": weights(4, 1)},
    )
    found = to_fp16(source)
    assert [v.name for v in found.model.graph.input] == ["x", "unused"]
    feeds = {"x": normal(5, 4), "unused": normal(5, 4)}
    np.testing.assert_array_equal(evaluate(found.model, feeds)["same"], feeds["x"])


def test_shape_of_a_half_tensor():
    """Shape takes any type: no cast for it, and none of its integers is touched."""
    source = model(
        [
            node("MatMul", ["x", "w"], "h"),
            node("Shape", ["h"], "shape"),
            node("ConstantOfShape", ["shape"], "ones", value=numpy_helper.from_array(np.ones(1, np.float32))),
            node("Add", ["h", "ones"], "y"),
        ],
        [value("x", "N", 4)],
        [value("y", "N", 4)],
        {"w": weights(4, 4)},
    )
    found = to_fp16(source)
    assert found.casts == 2
    feeds = {"x": normal(7, 4)}
    np.testing.assert_allclose(evaluate(found.model, feeds)["y"], evaluate(source, feeds)["y"], atol=1e-2)


def test_float_inputs():
    assert float_inputs(two_inputs()) == ["emb", "dense", "users"]


UNARY = ["Relu", "Tanh", "Sigmoid", "Neg", "Abs", "Identity", "Exp", "Sqrt", "Erf", "Softplus", "Floor"]
BINARY = ["Add", "Sub", "Mul", "Max", "Min", "Div", "MatMul"]


@st.composite
def random_towers(draw):
    """Up to 14 nodes over [N, 4] tensors, from any tensors before them; every leaf is an output."""
    names, nodes = ["x", "z"], []
    for k in range(draw(st.integers(1, 14))):
        pick = st.sampled_from(names)
        if draw(st.booleans()):
            nodes.append(node(draw(st.sampled_from(UNARY)), [draw(pick)], f"t{k}", name=f"n{k}"))
        else:
            op = draw(st.sampled_from(BINARY))
            other = "w" if op == "MatMul" else draw(st.sampled_from([*names, "c", "small", "mask"]))
            nodes.append(node(op, [draw(pick), other], f"t{k}", name=f"n{k}"))
        names.append(f"t{k}")
    read = {name for one in nodes for name in one.input}
    leaves = [name for name in names[2:] if name not in read]
    constants = {"w": weights(4, 4), "c": weights(4), "small": 1e-8, "mask": -(2.0**32)}
    outputs = [value(name, "N", 4) for name in leaves]
    return model(nodes, [value("x", "N", 4), value("z", "N", 4)], outputs, constants)


@settings(max_examples=60, deadline=None)
@given(random_towers(), st.sets(st.integers(0, 13)))
def test_any_graph_converts(source, wide):
    """The checker passes, outputs are FP32, no tensor is cast there and back, twice gives the same bytes."""
    known = {one.name for one in source.graph.node}
    options = Fp16Options(clamped=("x",), islands={f"n{k}": "test" for k in sorted(wide) if f"n{k}" in known})
    found = to_fp16(source, options)
    assert found.casts == count_casts(found.model)
    made_by = {name: one for one in found.model.graph.node for name in one.output}
    for one in found.model.graph.node:
        if one.op_type == "Cast":
            before = made_by.get(one.input[0])
            assert before is None or before.op_type != "Cast"
    again = to_fp16(source, options)
    assert again.model.SerializeToString(deterministic=True) == found.model.SerializeToString(deterministic=True)
    outputs = evaluate(found.model, {"x": normal(6, 4), "z": normal(6, 4)})
    assert all(array.dtype == np.float32 for array in outputs.values())
    everything_wide = to_fp16(source, Fp16Options(islands=dict.fromkeys(known, "test")))
    assert everything_wide.casts == 0
    want = evaluate(source, {"x": normal(6, 4), "z": normal(6, 4)})
    for name, array in evaluate(everything_wide.model, {"x": normal(6, 4), "z": normal(6, 4)}).items():
        np.testing.assert_array_equal(array, want[name])
