"""What of a graph is weights, and which weight a constant of the converted graph came from.

A weight is a Const that was made of a variable, or a floating Const of one and more dimensions (the weights of a frozen
graph). Everything else is structure. While a conversion runs, weights carry their name in the reference graph as an
attribute; it goes along where a pass copies a node.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.python.framework import dtypes, tensor_util

# Attributes: the name of the weight in the reference graph; the entries of one that a Const has (``Part`` as text).
WEIGHT, PART = "_tfctr_weight", "_tfctr_part"

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Part:
    """Entries of a weight: ``takes`` are (axis, entries), one after the other. weight: its name in the reference graph;
    "" where it is file number ``file``.
    """

    weight: str
    file: int
    takes: tuple[tuple[int, tuple[int, ...]], ...]

    def text(self) -> str:
        return json.dumps(dataclasses.astuple(self))

    @staticmethod
    def parse(text: str) -> Part:
        weight, file, takes = json.loads(text)
        return Part(weight, file, tuple((axis, tuple(entries)) for axis, entries in takes))

    def then(self, axis: int, entries: npt.NDArray[np.int64]) -> Part:
        return dataclasses.replace(self, takes=(*self.takes, (axis, tuple(entries.tolist()))))

    def of(self, value: Array) -> Array:
        for axis, entries in self.takes:
            value = np.take(value, np.array(entries, np.int64), axis)
        return np.ascontiguousarray(value)


def is_weight(node: node_def_pb2.NodeDef, from_variables: Collection[str]) -> bool:
    """See the module docstring. from_variables: names of the Const nodes that were made of variables."""
    if node.op != "Const":
        return False
    floating = dtypes.as_dtype(node.attr["dtype"].type).is_floating
    return node.name in from_variables or (floating and len(node.attr["value"].tensor.tensor_shape.dim) > 0)


def mark(graph_def: graph_pb2.GraphDef, from_variables: Collection[str]) -> None:
    """Gives every weight its name as an attribute."""
    for node in graph_def.node:
        if is_weight(node, from_variables):
            node.attr[WEIGHT].s = node.name.encode()


def unmark(graph_def: graph_pb2.GraphDef) -> None:
    for node in graph_def.node:
        for key in (WEIGHT, PART):
            node.attr.pop(key, None)


def part_of(node: node_def_pb2.NodeDef) -> Part | None:
    """What a marked Const has of a weight: all of it, or some entries; None for one without a mark."""
    if PART in node.attr:
        return Part.parse(node.attr[PART].s.decode())
    return Part(node.attr[WEIGHT].s.decode(), -1, ()) if WEIGHT in node.attr else None


def value_of(node: node_def_pb2.NodeDef) -> Array:
    return np.asarray(tensor_util.MakeNdarray(node.attr["value"].tensor))


def content_hash(value: Array) -> str:
    """Equal for equal contents, dtype and shape (NaNs by their bits)."""
    digest = hashlib.sha256(f"{value.dtype} {value.shape}\n".encode())
    if value.dtype == object:
        for one in value.reshape(-1):
            digest.update(len(one).to_bytes(8, "little") + one)
    else:
        digest.update(np.ascontiguousarray(value).view(np.uint8).data if value.size else b"")
    return digest.hexdigest()


def strip(node: node_def_pb2.NodeDef) -> None:
    """Leaves dtype and shape of a Const, without its contents."""
    tensor = node.attr["value"].tensor
    shape, dtype = tensor.tensor_shape, tensor.dtype
    kept = type(tensor)(dtype=dtype)
    kept.tensor_shape.CopyFrom(shape)
    tensor.CopyFrom(kept)


def fill(node: node_def_pb2.NodeDef, value: Array) -> None:
    """Gives a stripped Const contents of its dtype and shape."""
    dtype = node.attr["dtype"].type
    node.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto(value, dtype=dtype, shape=value.shape))
