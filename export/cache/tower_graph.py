"""The canonical form of a frozen TensorFlow tower."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from tensorflow.core.framework import attr_value_pb2, graph_pb2, node_def_pb2
from tensorflow.python.framework import dtypes, tensor_util

from export.cache.canonical import Canonical, Node, canonicalise
from export.cache.values import array_digest, digest_bytes, is_weight, value_text
from export.tower import Tower, TowerTensor
from tfctr.errors import InternalError

# Where a node runs, and what grappler once knew of it: the cut drops these too.
_NOT_PART = ("_class", "_output_shapes", "_xla_compile_id", "_tfctr_rule", "_grappler_do_not_remove")


def canonical_tower(tower: Tower) -> Canonical:
    """Without weights in its structure (see ``values.is_weight``); they are hashed beside it."""
    graph = tower.graph_def
    nodes = {node.name: node for node in graph.node}

    def read(name: str) -> Node:
        if name not in nodes:
            raise InternalError(f"the tower of {tower.signature!r} has no node {name!r}")
        return _node(nodes[name])

    return canonicalise(
        read,
        {_source(one.tensor)[0]: number for number, one in enumerate(tower.inputs)},
        [_source(one.tensor) for one in tower.outputs],
        ([_interface(one) for one in tower.inputs], [_interface(one) for one in tower.outputs]),
        extra=_extra(graph),
    )


def _interface(one: TowerTensor) -> str:
    shape = ", ".join("?" if size is None else str(size) for size in one.shape)
    dims = f" {'/'.join(one.dims)}" if any(one.dims) else ""
    return f"{one.name} {one.dtype}[{shape}]{dims}{f' ({one.side})' if one.side else ''}"


def _source(tensor: str) -> tuple[str, int]:
    name, _, port = tensor.partition(":")
    return name, int(port or 0)


def _extra(graph: graph_pb2.GraphDef) -> str:
    """The version that wrote the graph (it decides defaults), and functions, which are what they do and their names:
    another name is another key, never a wrong one.
    """
    bodies = sorted(one.SerializeToString(deterministic=True) for one in graph.library.function)
    return f"producer {graph.versions.producer}" + (f" functions {digest_bytes(b''.join(bodies))}" if bodies else "")


def _node(node: node_def_pb2.NodeDef) -> Node:
    fields = {}
    weight, weight_bytes = "", 0
    for name, value in node.attr.items():
        if name in _NOT_PART:
            continue
        if name == "value" and node.op == "Const":
            fields["value"], weight, weight_bytes = _constant(value.tensor)
            continue
        fields[f"attribute {name}"] = _attribute(value.SerializeToString(deterministic=True))
    return Node(
        name=node.name,
        op=node.op,
        inputs=tuple(_source(text) for text in node.input if not text.startswith("^")),
        waits_for=tuple(text[1:] for text in node.input if text.startswith("^")),
        fields=fields,
        weight=weight,
        weight_bytes=weight_bytes,
    )


@functools.lru_cache(maxsize=4096)
def _attribute(data: bytes) -> str:
    """Short ones as they are: they stand in messages. Most attributes of a graph are one of a few dtypes."""
    text = " ".join(str(attr_value_pb2.AttrValue.FromString(data)).split())
    return f"{text} #{data.hex()}" if len(data) <= 64 else f"{text[:60]}... #{digest_bytes(data)}"


def _constant(tensor: Any) -> tuple[str, str, int]:
    """What stands for it in the structure; its digest and bytes where it is a weight."""
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    dtype = np.dtype(dtypes.as_dtype(tensor.dtype).as_numpy_dtype)
    if not is_weight(dtype, len(shape)):
        return value_text(np.asarray(tensor_util.MakeNdarray(tensor))), "", 0
    count = math.prod(shape)
    whole = len(tensor.tensor_content) == count * dtype.itemsize
    digest = digest_bytes(tensor.tensor_content) if whole else array_digest(tensor_util.MakeNdarray(tensor))
    return f"weight {dtype.name}{shape}", digest, count * dtype.itemsize
