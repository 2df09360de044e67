"""Exports of the five towers, made once per process; and small towers by hand."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import onnx
import tensorflow as tf

from export.onnx.convert import convert
from export.onnx.exporter import OnnxTower, to_onnx
from export.tower import Tower, TowerTensor
from tests.export.towers import tower


@functools.cache
def exported(name: str) -> OnnxTower:
    """``to_onnx`` of one of the five towers. Shared: do not change the model."""
    return to_onnx(tower(name))


@functools.cache
def _translated(name: str, own_handlers: bool) -> bytes:
    return convert(tower(name), None if own_handlers else {}).SerializeToString()


def translated(name: str, *, own_handlers: bool = True) -> onnx.ModelProto:
    """What tf2onnx alone makes of one of the five towers (a copy); with its own handlers only, where asked."""
    return onnx.ModelProto.FromString(_translated(name, own_handlers))


def small_tower(build: Callable[..., Mapping[str, tf.Tensor]], **inputs: tuple[str, tuple[int | None, ...]]) -> Tower:
    """A tower of the operations that ``build`` makes from placeholders by name; constants are its weights.

    inputs: (dtype, shape) by name; a name that starts with ``user_`` is on the user side, ``row_to_user`` is itself.
    """
    graph = tf.Graph()
    with graph.as_default():
        given = {name: tf.compat.v1.placeholder(dtype, shape, name) for name, (dtype, shape) in inputs.items()}
        outputs = dict(build(**given))
    return Tower(
        signature="small",
        graph_def=graph.as_graph_def(),
        inputs=tuple(
            TowerTensor(name=n, tensor=f"{n}:0", source=f"{n}:0", dtype=dtype, shape=shape, side=_side(n))
            for n, (dtype, shape) in inputs.items()
        ),
        outputs=tuple(
            TowerTensor(name=n, tensor=t.name, source=t.name, dtype=t.dtype.name, shape=tuple(t.shape.as_list()))
            for n, t in outputs.items()
        ),
        nodes=frozenset(node.name for node in graph.as_graph_def().node),
    )


def _side(name: str) -> str:
    return "row_to_user" if name == "row_to_user" else "user" if name.startswith("user_") else "item"


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def initializers(model: onnx.ModelProto) -> list[np.ndarray]:
    return [onnx.numpy_helper.to_array(one) for one in model.graph.initializer]
