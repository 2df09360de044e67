"""Keys of the engine level: the model without names, its weights, and the recipe."""

import copy
import random

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from export.cache import engine_key, model_structure
from export.cache.canonical import difference
from export.cache.entries import canonical_json
from export.cache.keys import canonical_model
from export.fp16.convert import to_fp16
from export.onnx.exporter import to_onnx
from tests.export.towers import tower as made_tower
from tfctr.errors import InternalError

few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
VALUES = {
    "kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bias": np.float32([0.5]),
    "eps": np.float32(1e-5),
    "axes": np.int64([1]),
    "half": np.float16([1, 2]),
}


def value(name: str, dims: list[int | str], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


def model_of(nodes: list[onnx.NodeProto], values: dict[str, np.ndarray], outputs: list[str]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "tower",
        [value("embeddings", ["N", 8]), value("age", ["N", 1])],
        [value(name, ["N", 1]) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """Some nodes over two inputs and constants; each has a number, so all differ."""
    tensors = ["embeddings", "age", *VALUES]
    nodes = []
    used: set[str] = set()
    for k in range(draw(st.integers(1, 7))):
        reads = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3))
        reads = [name if draw(st.integers(0, 5)) else "" for name in reads]
        made = [f"t{k}", f"u{k}"][: draw(st.integers(1, 2))]
        op = draw(st.sampled_from(["Add", "Concat", "Relu", "Gemm"]))
        node = helper.make_node(op, reads, made, name=f"n{k}", number=k, what=draw(st.sampled_from(["a", "b"])))
        node.attribute.append(helper.make_attribute("table", numpy_helper.from_array(np.float32([k, 1]))))
        nodes.append(node)
        used |= set(reads)
        tensors += made
    outputs = [name for node in nodes for name in node.output if name not in used]
    return model_of(nodes, {name: VALUES[name] for name in VALUES if name in used}, outputs)


def renamed(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Other names inside, another order in the file, some constants as nodes."""
    chance = random.Random(seed)
    other = copy.deepcopy(model)
    graph = other.graph
    fixed = {one.name for one in (*graph.input, *graph.output)}
    tensors = {name for node in graph.node for name in (*node.input, *node.output)}
    names = {name: f"x{chance.randrange(10**9)}/{name}" for name in sorted(tensors - fixed - {""})}
    for node in graph.node:
        node.name, node.doc_string = f"einsum{chance.randrange(10**9)}", "a note"
        for field in (node.input, node.output):
            for k, name in enumerate(field):
                field[k] = names.get(name, name)
        attributes = [copy.deepcopy(one) for one in node.attribute]
        chance.shuffle(attributes)
        del node.attribute[:]
        node.attribute.extend(attributes)
    constants = [copy.deepcopy(one) for one in graph.initializer]
    chance.shuffle(constants)
    nodes = [copy.deepcopy(node) for node in graph.node]
    del graph.initializer[:]
    for one in constants:
        one.name = names.get(one.name, one.name)
        if chance.random() < 0.5:
            nodes.append(helper.make_node("Constant", [], [one.name], value=one))
        else:
            graph.initializer.append(one)
    chance.shuffle(nodes)
    del graph.node[:]
    graph.node.extend(nodes)
    graph.name, other.producer_name, other.doc_string = "another", "another", "another"
    graph.value_info.append(value("nobody", [1]))
    return other


def digest(model: onnx.ModelProto, **options: bool) -> str:
    return canonical_json(engine_key(model, {"name": "openvino"}, **options))


@few
@given(models(), st.integers(0, 1000))
def test_names_make_no_difference(model, seed):
    other = renamed(model, seed)
    assert digest(other) == digest(model)
    assert difference(canonical_model(model), canonical_model(other)) == ""


@settings(few, max_examples=60)
@given(st.data())
def test_everything_else_does(data):
    model = data.draw(models())
    other = copy.deepcopy(model)
    graph = other.graph
    node = data.draw(st.sampled_from(list(graph.node)))
    kinds = ["op", "attribute", "tensor", "edge", "more", "output", "domain", "opset", "input", "dtype"]
    kind = data.draw(st.sampled_from(kinds + (["constant", "shape"] if graph.initializer else [])))
    if kind == "op":
        node.op_type = "Sub"
    elif kind == "attribute":
        node.attribute[0].i += 1
    elif kind == "tensor":
        node.attribute[-1].t.CopyFrom(numpy_helper.from_array(np.float32([-1, 1])))
    elif kind == "edge":
        k = data.draw(st.integers(0, len(node.input) - 1))
        node.input[k] = "age" if node.input[k] != "age" else "embeddings"
    elif kind == "more":
        node.input.append("age")
    elif kind == "output":
        graph.output[0].name = "another"
        for one in graph.node:
            for k, name in enumerate(one.output):
                one.output[k] = "another" if name == model.graph.output[0].name else name
    elif kind == "domain":
        node.domain = "com.microsoft"
    elif kind == "opset":
        other.opset_import[0].version = 19
    elif kind == "input":
        graph.input[0].type.tensor_type.shape.dim[1].dim_value += 1
    elif kind == "dtype":
        graph.input[1].type.tensor_type.elem_type = TensorProto.FLOAT16
    else:
        one = data.draw(st.sampled_from(list(graph.initializer)))
        array = numpy_helper.to_array(one)
        array = array + array.dtype.type(1) if kind == "constant" else array[np.newaxis]
        one.CopyFrom(numpy_helper.from_array(array, one.name))
    assert digest(other) != digest(model), kind
    before, after = canonical_model(model), canonical_model(other)
    assert (difference(before, after) == "") == (before.structure() == after.structure())


def clipped(**values: np.ndarray) -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["embeddings", "kernel"], ["m"], name="MatMul_0"),
        helper.make_node("Clip", ["m", "least", "most"], ["out"], name="Clip_0"),
    ]
    defaults = {
        "kernel": np.ones([8, 1], np.float32),
        "least": np.float32(-10),
        "most": np.float32([10]),  # one element, and no weight where it stands
    }
    return model_of(nodes, {**defaults, **values}, ["out"])


def test_weights_and_what_looks_like_them():
    model = clipped()
    assert model_structure(clipped(kernel=np.zeros([8, 1], np.float32))) == model_structure(model)
    assert model_structure(clipped(kernel=np.zeros([8, 2], np.float32))) != model_structure(model)
    assert model_structure(clipped(kernel=np.ones([8, 1], np.float16))) != model_structure(model)
    assert model_structure(clipped(least=np.float32(-5))) != model_structure(model)
    assert model_structure(clipped(most=np.float32([5]))) != model_structure(model)
    assert engine_key(model, {})["weight_bytes"] == 32


def test_refittable_engines():
    """New weights make no new engine; other names of weights do, as they are found by them."""
    model, trained = clipped(), clipped(kernel=np.zeros([8, 1], np.float32))
    assert digest(model) != digest(trained)
    assert digest(model, refittable=True) == digest(trained, refittable=True)
    assert digest(model, refittable=True) != digest(model)
    other = renamed(model, 3)
    assert digest(model) == digest(other)
    assert digest(model, refittable=True) != digest(other, refittable=True)
    assert digest(model, refittable=True) != digest(clipped(least=np.float32(-5)), refittable=True)


def test_a_weight_however_it_is_written():
    model, listed = clipped(), clipped()
    tensor = listed.graph.initializer[0]
    tensor.CopyFrom(helper.make_tensor("kernel", TensorProto.FLOAT, [8, 1], [1.0] * 8))
    assert not tensor.raw_data
    assert digest(model) == digest(listed)


def test_the_recipe_is_part_of_it():
    model = clipped()
    recipes = [
        {"name": "openvino", "version": "2026.4.1", "precision": "fp32", "isa": "avx2", "threads": 1, "buckets": [32]},
        {"name": "openvino", "version": "2026.4.2", "precision": "fp32", "isa": "avx2", "threads": 1, "buckets": [32]},
        {"name": "openvino", "version": "2026.4.1", "precision": "bf16", "isa": "avx2", "threads": 1, "buckets": [32]},
        {
            "name": "openvino",
            "version": "2026.4.1",
            "precision": "fp32",
            "isa": "avx512",
            "threads": 1,
            "buckets": [32],
        },
        {"name": "openvino", "version": "2026.4.1", "precision": "fp32", "isa": "avx2", "threads": 2, "buckets": [32]},
        {"name": "openvino", "version": "2026.4.1", "precision": "fp32", "isa": "avx2", "threads": 1, "buckets": []},
    ]
    assert len({canonical_json(engine_key(model, one)) for one in recipes}) == len(recipes)


def test_what_a_graph_inside_reads():
    """It is an edge, though no input of the node."""

    def chosen(source: str) -> onnx.ModelProto:
        then, other = (
            helper.make_graph([helper.make_node(op, ["seen"], ["y"])], op, [], [value("y", ["N", 1])])
            for op in ("Relu", "Neg")
        )
        nodes = [
            helper.make_node("Identity", [source], ["seen"]),
            helper.make_node("If", ["yes"], ["out"], then_branch=then, else_branch=other),
        ]
        return model_of(nodes, {"yes": np.array(True)}, ["out"])

    assert digest(chosen("age")) == digest(chosen("age"))
    assert digest(chosen("age")) != digest(chosen("embeddings"))


def test_an_output_that_is_an_input():
    model = model_of([helper.make_node("Relu", ["age"], ["out"])], {}, ["out", "embeddings"])
    other = model_of([helper.make_node("Relu", ["age"], ["out"])], {}, ["out", "age"])
    assert digest(model) != digest(other)


@pytest.mark.parametrize("break_it", ["external", "missing", "sparse"])
def test_models_that_are_not_whole(break_it):
    """A key over half of a model would be one for several."""
    model = clipped()
    if break_it == "external":
        model.graph.initializer[0].data_location = TensorProto.EXTERNAL
        model.graph.initializer[0].raw_data = b""
        words = "the constant 'kernel' of the ONNX model lies in a file of its own"
    elif break_it == "missing":
        model.graph.node[0].input[0] = "gone"
        words = "reads 'gone', which nothing makes"
    else:
        model.graph.sparse_initializer.add()
        words = "sparse constants"
    with pytest.raises(InternalError, match=words):
        engine_key(model, {})


def test_what_differs_is_named():
    before, after = clipped(), clipped(least=np.float32(-5))
    told = difference(canonical_model(before), canonical_model(after))
    assert told.startswith("least: value of the Const differs: float32[] [-10.0]")
    assert "is now float32[] [-5.0]" in told


def test_real_models():
    """A second export, and its FP16 form, which is a pass of ours over it, have the same keys."""
    first, again = to_onnx(made_tower("dcn")).model, to_onnx(made_tower("dcn")).model
    assert digest(first) == digest(again)
    halves = [to_fp16(model).model for model in (first, again)]
    assert digest(halves[0], refittable=True) == digest(halves[1], refittable=True)
    assert digest(halves[0]) != digest(first)
