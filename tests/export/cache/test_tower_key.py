"""Keys of the tower level: names make no difference, everything else does."""

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorflow.core.framework import attr_value_pb2, graph_pb2
from tensorflow.python.framework import tensor_util

from export.cache import tower_key, tower_structure
from export.cache.canonical import difference
from export.cache.entries import canonical_json
from export.cache.keys import canonical_tower
from export.onnx.exporter import to_onnx
from export.tower import Tower, TowerTensor
from tests.export.towers import TOWERS
from tests.export.towers import tower as made_tower
from tfctr.errors import InternalError

OPS = ("Add", "Mul", "Relu", "ConcatV2", "Pack")
CONSTANTS = (
    np.float32(1e-5),
    np.int32(-1),
    np.array([1, 2], np.int64),
    np.array([[1.5, -2.0], [0.0, 3.0]], np.float32),
    np.array([0.25], np.float32),
    np.array([True, False]),
    np.array([b"text", b""], object),
)
few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def constant(graph: graph_pb2.GraphDef, name: str, value: np.ndarray) -> None:
    node = graph.node.add(name=name, op="Const")
    tensor = tensor_util.make_tensor_proto(value)
    node.attr["dtype"].type = tensor.dtype
    node.attr["value"].tensor.CopyFrom(tensor)


def built(graph: graph_pb2.GraphDef, outputs: list[str]) -> Tower:
    return Tower(
        signature="serving_default",
        graph_def=graph,
        inputs=(
            TowerTensor(
                name="embeddings", tensor="in/e:0", source="e:0", dtype="float32", shape=(None, 8), side="item"
            ),
            TowerTensor(name="age", tensor="in/a:0", source="a:0", dtype="float32", shape=(None, 1), side="dense"),
        ),
        outputs=tuple(
            TowerTensor(name=f"out{k}", tensor=f"{name}:0", source="s:0", dtype="float32", shape=(None, 1))
            for k, name in enumerate(outputs)
        ),
    )


@st.composite
def towers(draw: st.DrawFn) -> Tower:
    """Some nodes over two inputs and constants, each with an attribute of its own number (so all differ)."""
    graph = graph_pb2.GraphDef()
    graph.versions.producer = 2000
    for name in ("in/e", "in/a"):
        graph.node.add(name=name, op="Placeholder").attr["dtype"].type = 1
    tensors = ["in/e", "in/a"]
    for k, value in enumerate(CONSTANTS):
        constant(graph, f"c{k}", value)
        graph.node[-1].attr["number"].i = k
        tensors.append(f"c{k}")
    used: set[str] = set()
    for k in range(draw(st.integers(1, 8))):
        node = graph.node.add(name=f"n{k}", op=draw(st.sampled_from(OPS)))
        reads = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3))
        node.input.extend(f"{name}:{draw(st.integers(1, 2))}" if draw(st.booleans()) else name for name in reads)
        node.attr["number"].i = 100 + k
        node.attr["T"].type = 1
        node.attr["flag"].b = draw(st.booleans())
        node.attr["what"].s = draw(st.sampled_from([b"", b"NHWC"]))
        used |= set(reads)
        tensors.append(node.name)
    # Everything that nobody reads is an output: so every operation counts.
    outputs = [name for name in tensors if name.startswith("n") and name not in used]
    outputs += [name for name in tensors if name.startswith("c") and name not in used]
    return built(graph, outputs)


def renamed(tower: Tower, seed: int) -> Tower:
    """Other names, another order of nodes, and nodes that no output needs."""
    chance = random.Random(seed)
    numbers = list(range(len(tower.graph_def.node)))
    chance.shuffle(numbers)
    names = {
        node.name: f"einsum{139000 + number}_{number}/part"
        for node, number in zip(tower.graph_def.node, numbers, strict=True)
    }

    def tensor(text: str) -> str:
        name, colon, port = text.partition(":")
        return ("^" if name.startswith("^") else "") + names[name.lstrip("^")] + colon + port

    graph = graph_pb2.GraphDef()
    graph.CopyFrom(tower.graph_def)
    nodes = list(graph.node)
    chance.shuffle(nodes)
    again = graph_pb2.GraphDef(versions=graph.versions)
    for node in nodes:
        copy = again.node.add()
        copy.CopyFrom(node)
        copy.name = names[node.name]
        del copy.input[:]
        copy.input.extend(tensor(text) for text in node.input)
        copy.attr["_class"].CopyFrom(attr_value_pb2.AttrValue())
        copy.attr["_class"].list.s.append(f"loc:@{copy.name}".encode())
        copy.device = chance.choice(["", "/CPU:0"])
    constant(again, "nobody_reads_it", np.float32(chance.random()))
    return dataclasses.replace(
        tower,
        graph_def=again,
        inputs=tuple(dataclasses.replace(one, tensor=tensor(one.tensor), source="x:0") for one in tower.inputs),
        outputs=tuple(dataclasses.replace(one, tensor=tensor(one.tensor), source="y:0") for one in tower.outputs),
        nodes=frozenset(names.values()),
        signature="another",
    )


def digest(tower: Tower) -> str:
    key = tower_key(tower, {})
    return canonical_json(key)


@few
@given(towers(), st.integers(0, 1000))
def test_names_make_no_difference(tower, seed):
    other = renamed(tower, seed)
    assert digest(other) == digest(tower)
    assert difference(canonical_tower(tower), canonical_tower(other)) == ""


def changed(tower: Tower, draw: st.DrawFn) -> tuple[str, Tower]:
    """One thing that is different, and what it is."""
    graph = graph_pb2.GraphDef()
    graph.CopyFrom(tower.graph_def)
    operations = [node for node in graph.node if node.op in OPS]
    constants = [node for node in graph.node if node.op == "Const"]
    node = draw(st.sampled_from(operations))
    kind = draw(st.sampled_from(["op", "number", "flag", "dtype", "edge", "port", "more", "value", "shape", "attr"]))
    if kind == "op":
        node.op = next(op for op in OPS if op != node.op)
    elif kind == "number":
        node.attr["number"].i += 1
    elif kind == "flag":
        node.attr["flag"].b = not node.attr["flag"].b
    elif kind == "dtype":
        node.attr["T"].type = 2
    elif kind == "edge":
        k = draw(st.integers(0, len(node.input) - 1))
        node.input[k] = next(n for n in ("in/e", "in/a", "c0") if n != node.input[k].partition(":")[0])
    elif kind == "port":
        k = draw(st.integers(0, len(node.input) - 1))
        name, _, port = node.input[k].partition(":")
        node.input[k] = f"{name}:{int(port or 0) + 1}"
    elif kind == "more":
        node.input.append(node.input[0])
    elif kind == "attr":
        node.attr["new"].i = 0
    else:
        one = draw(st.sampled_from(constants))
        value = tensor_util.MakeNdarray(one.attr["value"].tensor)
        if kind == "value":
            other = value.copy()
            other[(0,) * value.ndim] = (
                b"another" if value.dtype == object else not value.flat[0] if value.dtype == bool else value.flat[0] + 1
            )
            value = other
        else:
            value = value[np.newaxis]
        one.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto(value))
    return kind, dataclasses.replace(tower, graph_def=graph)


@settings(few, max_examples=60)
@given(st.data())
def test_everything_else_does(data):
    tower = data.draw(towers())
    kind, other = changed(tower, data.draw)
    assert digest(other) != digest(tower), kind
    before, after = canonical_tower(tower), canonical_tower(other)
    assert (difference(before, after) == "") == (before.structure() == after.structure())


def small(**values: np.ndarray) -> Tower:
    """One MatMul with constants as they are given."""
    graph = graph_pb2.GraphDef()
    for name in ("in/e", "in/a"):
        graph.node.add(name=name, op="Placeholder")
    for name, value in values.items():
        constant(graph, name, np.asarray(value))
    graph.node.add(name="n", op="MatMul", input=["in/e", "in/a", *values])
    return built(graph, ["n"])


WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    ("value", "is_weight"),
    [
        (WEIGHT, True),
        (WEIGHT.astype(np.float16), True),
        (np.float32([0.5]), True),  # the bias of one unit
        (np.zeros([0, 4], np.float32), None),
        (np.float32(1e-5), False),  # an epsilon
        (np.int32([0, -1]), False),
        (np.array([True, False]), False),
    ],
)
def test_what_a_weight_is(value, is_weight):
    """New weights leave the structure as it is; anything else of another value is another structure."""
    tower = small(w=value)
    if is_weight is None:
        assert tower_key(tower, {})["weight_bytes"] == 0
        return
    other = small(w=~value if value.dtype == bool else value + value.dtype.type(1))
    assert (tower_structure(tower) == tower_structure(other)) == is_weight
    assert digest(tower) != digest(other)
    assert tower_key(tower, {})["weight_bytes"] == (value.nbytes if is_weight else 0)


def test_values_however_they_are_written():
    """TensorFlow writes equal numbers once, or bytes, or a list of numbers."""
    repeated, whole, listed = (small(w=np.full([2, 3], 0.5, np.float32)) for _ in range(3))
    tensor = repeated.graph_def.node[2].attr["value"].tensor
    tensor.tensor_content = b""
    del tensor.float_val[:]
    tensor.float_val.append(0.5)
    tensor = listed.graph_def.node[2].attr["value"].tensor
    tensor.tensor_content = b""
    del tensor.float_val[:]
    tensor.float_val.extend([0.5] * 6)
    whole.graph_def.node[2].attr["value"].tensor.tensor_content = np.full([2, 3], 0.5, np.float32).tobytes()
    assert digest(repeated) == digest(whole) == digest(listed)


def test_sharing_counts():
    """One constant read twice is not two: the exported models differ."""
    once, twice = small(w=WEIGHT), small(w=WEIGHT, v=WEIGHT)
    once.graph_def.node[-1].input.append("w")
    assert tower_structure(once) != tower_structure(twice)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"dtype": "int32"},
        {"shape": (None, 9)},
        {"side": "user"},
        {"dims": ("", "T")},
    ],
)
def test_the_interface(change):
    tower = small(w=WEIGHT)
    other = dataclasses.replace(tower, inputs=(dataclasses.replace(tower.inputs[0], **change), *tower.inputs[1:]))
    assert digest(tower) != digest(other)
    assert "input: embeddings float32[?, 8] (item) is now " in difference(
        canonical_tower(tower), canonical_tower(other)
    )


def test_which_input_is_which():
    tower = small(w=WEIGHT)
    swapped = dataclasses.replace(
        tower,
        inputs=tuple(
            dataclasses.replace(one, tensor=other.tensor)
            for one, other in zip(tower.inputs, tower.inputs[::-1], strict=True)
        ),
    )
    assert digest(tower) != digest(swapped)


def test_waits():
    """A control edge counts; the order in which several are written does not."""
    found = []
    for waits in ([], ["^w"], ["^w", "^in/a"], ["^in/a", "^w"]):
        tower = small(w=WEIGHT)
        tower.graph_def.node[-1].input.extend(waits)
        found.append(digest(tower))
    assert found[2] == found[3] and len(set(found)) == 3


def test_functions_count_however_deep():
    found = []
    for op in ("Relu", "Tanh"):
        tower = small(w=WEIGHT)
        outer, inner = (tower.graph_def.library.function.add() for _ in range(2))
        outer.signature.name, inner.signature.name = "outer", "inner"
        outer.node_def.add(name="call", op="PartitionedCall").attr["f"].func.name = "inner"
        inner.node_def.add(name="act", op=op)
        tower.graph_def.node[-1].attr["f"].func.name = "outer"
        found.append(digest(tower))
    assert found[0] != found[1]


def test_recipe_and_tools_are_part_of_it(monkeypatch):
    tower = small(w=WEIGHT)
    key = tower_key(tower, {"precision": "fp16", "clamp": 10.0})
    assert key["recipe"] == {"precision": "fp16", "clamp": 10.0}
    assert key["tools"]["tf2onnx"] == "1.17.0" and key["tools"]["tensorflow"].startswith("2.21")
    assert key != tower_key(tower, {"precision": "fp16", "clamp": None})
    monkeypatch.setattr("export.onnx.exporter.EXPORTER_VERSION", 10**6)
    assert tower_key(tower, {})["exporter"] == {"version": 10**6, "opset": 18}


def test_graphs_that_do_not_hang_together():
    tower = small(w=WEIGHT)
    tower.graph_def.node[-1].input.append("nothing")
    with pytest.raises(InternalError, match="has no node 'nothing'"):
        tower_key(tower, {})
    tower = small(w=WEIGHT)
    tower.graph_def.node[-1].input.append("n")
    with pytest.raises(InternalError, match="goes in a circle at n"):
        tower_key(tower, {})


def test_what_differs_is_named():
    before = small(w=WEIGHT, eps=np.float32(1e-3), axis=np.int32([1]))
    after = small(w=WEIGHT + 1, eps=np.float32(1e-5), axis=np.int32([1]))
    told = difference(canonical_tower(before), canonical_tower(after))
    assert told.startswith("eps: value of the Const differs: float32[] [0.001") and "is now float32[] [9.99" in told
    after = small(w=WEIGHT[:, :2], eps=np.float32(1e-3), axis=np.int32([1]))
    told = difference(canonical_tower(before), canonical_tower(after))
    assert told == "w: value of the Const differs: weight float32[2, 3] is now weight float32[2, 2]"


@pytest.mark.parametrize("name", TOWERS)
def test_real_towers(name):
    tower = made_tower(name)
    other = renamed(tower, seed=7)
    assert digest(tower) == digest(other)
    key = tower_key(tower, {})
    assert key["nodes"] > 30 and key["weight_bytes"] > 200_000
    if name == "mmoe":
        assert to_onnx(tower).bytes() == to_onnx(other).bytes()
