"""Names and bytes that are the same in every export."""

import hashlib
import subprocess
import sys

import numpy as np
import onnx
import pytest
import tensorflow as tf

from examples.models.towers import dense_tower
from export.onnx.convert import convert
from export.onnx.exporter import to_onnx
from export.onnx.naming import merge_constants
from export.onnx.runtime import OnnxSession
from export.referee import judge
from tests.export.onnx.exports import exported, ops, small_tower, translated
from tests.export.towers import TOWERS, tower

_HASH = """
import hashlib
from examples.models.towers import dense_tower
from export.onnx.exporter import to_onnx
print(*(hashlib.sha256(to_onnx(dense_tower(name)).bytes()).hexdigest() for name in ("din", "mmoe", "trf")))
"""


@pytest.mark.parametrize("name", ["din", "mmoe", "trf"])
def test_tf2onnx_gives_other_bytes_each_time(name):
    """Object addresses and counters are in its names; ours depend on the structure."""
    again = dense_tower(name)
    assert convert(again).SerializeToString(deterministic=True) != translated(name).SerializeToString(
        deterministic=True
    )
    assert to_onnx(again).bytes() == exported(name).bytes()


@pytest.mark.parametrize("name", ["dlrm", "dcn"])
def test_same_bytes(name):
    assert to_onnx(dense_tower(name)).bytes() == exported(name).bytes()


@pytest.mark.long
def test_same_bytes_in_other_processes(repo_root):
    """Whatever the order of Python's sets."""
    found = [
        subprocess.run(
            [sys.executable, "-c", _HASH], cwd=repo_root, capture_output=True, text=True, check=True,
            env={"PYTHONHASHSEED": seed, "PATH": "", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
        ).stdout.split()
        for seed in ("1", "2")
    ]  # fmt: skip
    here = [hashlib.sha256(exported(name).bytes()).hexdigest() for name in ("din", "mmoe", "trf")]
    assert found[0] == found[1] == here


def test_other_weights_same_structure():
    """Another seed: other bytes, and nothing but numbers differs."""
    other = to_onnx(dense_tower("mmoe", 1)).model
    mine = exported("mmoe").model
    assert other.SerializeToString() != mine.SerializeToString()
    assert other.graph.node == mine.graph.node
    assert [(i.name, i.dims) for i in other.graph.initializer] == [(i.name, i.dims) for i in mine.graph.initializer]


@pytest.mark.parametrize("name", TOWERS)
def test_interface(name):
    """tf2onnx calls the output Identity:0 and the rows unk__12."""
    theirs, model = translated(name), exported(name).model
    assert theirs.graph.output[0].name.startswith("Identity")
    assert [one.name for one in model.graph.input] == [one.name for one in tower(name).inputs]
    assert [one.name for one in model.graph.output] == [one.name for one in tower(name).outputs]
    for one in (*model.graph.input, *model.graph.output):
        dims = one.type.tensor_type.shape.dim
        assert dims[0].dim_param == "N" and all(d.dim_value for d in dims[1:])
    assert model.ir_version == 8 and [(o.domain, o.version) for o in model.opset_import] == [("", 18)]
    assert model.producer_name == "tfctr" and not model.graph.value_info


def test_nodes_are_named_by_position_and_kept_for_people():
    result = exported("trf")
    names = [node.name for node in result.model.graph.node]
    assert len(set(names)) == len(names) and "MatMul_0" in names and "Erf_0" in names
    assert set(result.origins) == set(names)
    assert "Erf" in result.origins["Erf_0"] and result.origins["MatMul_0"] != "MatMul_0"
    assert [one.name for one in result.model.graph.initializer][:3] == ["c/0", "c/1", "c/2"]


def test_awkward_outputs():
    """An input handed through, one tensor under two names, a constant, a name that is also an input's tensor."""

    def build(x, y):
        doubled = x * 2.0
        return {"a": x, "b": doubled, "c": doubled, "d": tf.constant([1.0, 2.0]), "e": y + doubled}

    made = small_tower(build, x=("float32", (None, 2)), y=("float32", (None, 2)))
    model = to_onnx(made).model
    feeds = {"x": np.ones((3, 2), np.float32), "y": np.full((3, 2), 5, np.float32)}
    got = OnnxSession(model).run(feeds)
    assert list(got) == ["a", "b", "c", "d", "e"]
    np.testing.assert_array_equal(got["a"], feeds["x"])
    np.testing.assert_array_equal(got["c"], feeds["x"] * 2)
    np.testing.assert_array_equal(got["d"], [1, 2])
    np.testing.assert_array_equal(got["e"], feeds["x"] * 2 + 5)


def test_inputs_nobody_reads_stay():
    made = small_tower(lambda x, y: {"z": x + 1.0}, x=("float32", (None, 2)), y=("float32", (None, 3)))
    model = to_onnx(made).model
    assert [one.name for one in model.graph.input] == ["x", "y"]
    assert judge(made, model).max_difference == 0


def test_equal_constants_are_one():
    a, b = (np.arange(3, dtype=dtype) for dtype in (np.float32, np.int64))
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["p", "q"], ["y"]), onnx.helper.make_node("Add", ["r", "r"], ["z"])], "g", [],
        [onnx.ValueInfoProto(name="y"), onnx.ValueInfoProto(name="z")],
        [onnx.numpy_helper.from_array(v, n) for n, v in (("p", a), ("q", a.copy()), ("r", b))],
    )  # fmt: skip
    assert merge_constants(graph) == 1
    assert [list(node.input) for node in graph.node] == [["p", "p"], ["r", "r"]]
    assert [one.name for one in graph.initializer] == ["p", "r"]


def test_no_identity_is_left():
    for name in TOWERS:
        assert ops(exported(name).model)["Identity"] == 0
