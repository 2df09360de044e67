"""Small towers as ONNX files, and graphs with one TfctrDenseEngine, for the tests of engines."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import tensorflow as tf
from onnx import TensorProto, helper, numpy_helper

from tfctr.core import library
from tfctr.engines import native
from tfctr.engines.node import engine_node
from tfctr.engines.spec import EngineFile, EngineSpec, EngineTensor

WIDTH = 24


@dataclasses.dataclass(frozen=True)
class SmallTower:
    """A tower with its ONNX file. users: whether it has inputs of users (a split form)."""

    path: Path
    users: bool

    def spec(self, **changes) -> EngineSpec:
        """The engine of openvino in fp32, or as ``changes`` say."""
        inputs = [EngineTensor("x", "float32", ("N", WIDTH)), EngineTensor("scale", "float32", (1,))]
        if self.users:
            inputs += [EngineTensor("user", "float32", ("U", 8)), EngineTensor("row_to_user", "int64", ("N",))]
        given = {
            "provider": "openvino",
            "precision": "fp32",
            "inputs": tuple(inputs),
            "outputs": (EngineTensor("hidden", "float32", ("N", 8)), EngineTensor("score", "float32", ("N",))),
            "files": (EngineFile("onnx", self.path),),
            "label": "small",
        }
        return EngineSpec(**(given | changes))

    def feeds(self, rows: int, users: int = 1, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([rows, users, seed])
        feeds = {"x": rng.normal(size=(rows, WIDTH)).astype(np.float32), "scale": np.float32([1.5])}
        if self.users:
            feeds["user"] = rng.normal(size=(users, 8)).astype(np.float32)
            feeds["row_to_user"] = rng.integers(0, users, rows)
        return feeds

    def expected(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        session = onnxruntime.InferenceSession(str(self.path))
        return dict(zip(["hidden", "score"], session.run(["hidden", "score"], feeds), strict=True))


def write_tower(path: Path, *, users: bool = False, seed: int = 1) -> SmallTower:
    """hidden = relu(x @ a * scale [+ user[row_to_user]]), score = sigmoid(hidden @ b)."""
    rng = np.random.default_rng(seed)
    value = helper.make_tensor_value_info
    constants = {
        "a": rng.normal(size=(WIDTH, 8)).astype(np.float32),
        "b": rng.normal(size=(8, 1)).astype(np.float32),
        "axis": np.int64([1]),
    }
    nodes = [helper.make_node("MatMul", ["x", "a"], ["p"]), helper.make_node("Mul", ["p", "scale"], ["q"])]
    inputs = [value("x", TensorProto.FLOAT, ["N", WIDTH]), value("scale", TensorProto.FLOAT, [1])]
    if users:
        inputs += [
            value("user", TensorProto.FLOAT, ["U", 8]),
            value("row_to_user", TensorProto.INT64, ["N"]),
        ]
        nodes += [
            helper.make_node("Gather", ["user", "row_to_user"], ["g"], axis=0),
            helper.make_node("Add", ["q", "g"], ["r"]),
        ]
    nodes += [
        helper.make_node("Relu", ["r" if users else "q"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "b"], ["s"]),
        helper.make_node("Sigmoid", ["s"], ["t"]),
        helper.make_node("Squeeze", ["t", "axis"], ["score"]),
    ]
    # The order of outputs is not the one that specs ask for: engines bind by name.
    outputs = [value("score", TensorProto.FLOAT, ["N"]), value("hidden", TensorProto.FLOAT, ["N", 8])]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "tower", inputs, outputs, initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))
    return SmallTower(path, users)


def check(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Equal within what an engine in fp32 may differ by."""
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name].shape == value.shape and got[name].dtype == value.dtype
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5)


class EngineGraph:
    """A session over a graph of a store and one TfctrDenseEngine whose inputs are placeholders."""

    def __init__(self, spec: EngineSpec, name: str = "store", fingerprints: list[str] | None = None):
        library.load()
        self.spec = spec
        graph = tf.compat.v1.GraphDef()
        store = graph.node.add(name="store", op="TfctrStore")
        store.attr["container"].s, store.attr["shared_name"].s = b"", name.encode()
        for one in spec.inputs:
            node = graph.node.add(name=f"in_{one.name}", op="Placeholder")
            node.attr["dtype"].type = tf.as_dtype(one.dtype).as_datatype_enum
            node.attr["shape"].shape.unknown_rank = True
        inputs = [f"in_{one.name}" for one in spec.inputs]
        graph.node.append(engine_node("engine", "store", inputs, spec, range(len(spec.files))))
        paths = [str(file.path) for file in spec.files]
        if fingerprints is None:
            fingerprints = [native.blob_info(path)["fingerprint"] for path in paths]
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.import_graph_def(graph, name="")
            ops = library.load()
            self._opened = ops.tfctr_store_open(
                self.graph.get_tensor_by_name("store:0"), paths, kinds=["blob"] * len(paths), fingerprints=fingerprints
            )
        self.session = tf.compat.v1.Session(graph=self.graph)

    def open(self) -> EngineGraph:
        self.session.run(self._opened)
        return self

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        fetches = {one.name: f"engine:{k}" for k, one in enumerate(self.spec.outputs)}
        return self.session.run(fetches, {f"in_{name}:0": array for name, array in feeds.items()})

    def __enter__(self) -> EngineGraph:
        return self

    def __exit__(self, *_) -> None:
        self.session.close()
