"""A tower as tfctr serves it on TensorFlow: what OpenVINO has to be faster than.

By our own executor, not by ``tf.compat.v1.Session``: TensorFlow gives all sessions of a process one intra-op pool,
sized by whichever came first, so the threads asked for there need not be those that run. Default grappler.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from export.tower import Tower, TowerTensor
from tfctr.core import library

_SIGNATURE = "serving_default"


class TensorFlowRunner:
    """threads: of one operation; 1: the caller's own. Close it, or use it in a ``with`` statement."""

    def __init__(self, tower: Tower, threads: int = 1) -> None:
        native = library.native()
        with tempfile.TemporaryDirectory(prefix="tfctr-tower-") as folder:
            (Path(folder) / "saved_model.pb").write_bytes(_saved_model(tower).SerializeToString())
            self._model: Any = native.Model(folder, ["serve"], threads)
        self._predictor: Any = native.Predictor(self._model, _description(tower))

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name."""
        return dict(self._predictor.predict(feeds))

    def close(self) -> None:
        self._predictor = self._model = None

    def __enter__(self) -> TensorFlowRunner:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _saved_model(tower: Tower) -> saved_model_pb2.SavedModel:
    model = saved_model_pb2.SavedModel(saved_model_schema_version=1)
    graph = model.meta_graphs.add()
    graph.meta_info_def.tags.append("serve")
    graph.graph_def.CopyFrom(tower.graph_def)
    signature = graph.signature_def[_SIGNATURE]
    for kind, tensors in ((signature.inputs, tower.inputs), (signature.outputs, tower.outputs)):
        for one in tensors:
            kind[one.name].CopyFrom(_info(one))
    return model


def _info(one: TowerTensor) -> meta_graph_pb2.TensorInfo:
    shape = tf.TensorShape(one.shape).as_proto()
    return meta_graph_pb2.TensorInfo(name=one.tensor, dtype=_dtype(one).as_datatype_enum, tensor_shape=shape)


def _description(tower: Tower) -> dict[str, Any]:
    """What ``_native.Predictor`` takes."""
    parts = [
        {
            "name": one.name,
            "tensor": one.tensor,
            "dtype": _dtype(one).as_datatype_enum,
            "numpy": np.dtype(_dtype(one).as_numpy_dtype),
            "shape": [-1 if size is None else size for size in one.shape],
            "like": None,
        }
        for one in tower.inputs
    ]
    outputs = [
        {"name": one.name, "tensor": one.tensor, "numpy": np.dtype(_dtype(one).as_numpy_dtype)} for one in tower.outputs
    ]
    context = f"the tower of {tower.signature!r} on TensorFlow"
    return {"context": context, "parts": parts, "features": [], "packed": None, "outputs": outputs, "users": None}


def _dtype(one: TowerTensor) -> tf.DType:
    return tf.as_dtype(one.dtype)
