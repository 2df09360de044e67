"""Adds the nodes of a split form to the graph, each under the form's prefix."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, node_def_pb2

from graph_opt.store_files import constant_node
from graph_opt.verify import output_dtypes
from graph_opt.view import GraphView, canonical, port_of, short
from tfctr.bundle.naming import RULE_ATTR

_INT32 = tf.int32.as_datatype_enum
_INT64 = tf.int64.as_datatype_enum


class Builder:
    """view: of the graph that is added to. prefix: of every new name, ending in "/". custom: whether our own ops may
    be used (they have CPU kernels only).
    """

    def __init__(self, view: GraphView, prefix: str, *, custom: bool) -> None:
        self.view = view
        self.prefix = prefix
        self.custom = custom
        self.rule = ""  # at work: marks what it adds
        self._constants: dict[tuple[bytes, str, tuple[int, ...]], str] = {}

    def dtype(self, tensor: str) -> int:
        """DataType number of a tensor of the graph."""
        return int(output_dtypes(self.view.producer(tensor))[port_of(canonical(tensor))])

    def copy(self, node: node_def_pb2.NodeDef, world: str, inputs: Sequence[str], controls: Sequence[str] = ()) -> str:
        """A copy of ``node`` over other inputs, under ``<prefix><world>/``; returns its name."""
        made = node_def_pb2.NodeDef()
        made.CopyFrom(node)
        made.name = self.view.unique_name(f"{self.prefix}{world}/{node.name}")
        made.attr[RULE_ATTR].s = f"split_user_item:on {world} rows".encode()
        del made.input[:]
        made.input.extend([short(canonical(i)) for i in inputs] + [f"^{c}" for c in controls])
        return self.view.add(made).name

    def op(self, op: str, inputs: Sequence[str], name: str = "", **attrs: Any) -> str:
        """A new node; returns its first output. attrs: int, bool, bytes, str, or ("type", DataType number)."""
        base = f"{self.prefix}{name or op.lower()}"
        made = node_def_pb2.NodeDef(name=self.view.unique_name(base), op=op)
        made.input.extend(short(canonical(i)) for i in inputs)
        made.attr[RULE_ATTR].s = f"split_user_item:{self.rule or 'joins the sides'}".encode()
        for key, value in attrs.items():
            _set(made.attr[key], value)
        return canonical(self.view.add(made).name)

    def add(self, node: node_def_pb2.NodeDef) -> str:
        return self.view.add(node).name

    def constant(self, value: Any, dtype: Any = np.int32, name: str = "const") -> str:
        """A Const; equal small ones are shared within the form."""
        array = np.asarray(value, dtype)
        key = (array.tobytes(), str(array.dtype), array.shape)
        small = array.size <= 64 and array.dtype != object
        if small and key in self._constants:
            return self._constants[key]
        safe = re.sub(r"[^A-Za-z0-9_.\\/-]", "_", name)
        made = canonical(self.view.add(constant_node(self.view.unique_name(f"{self.prefix}{safe}"), array)).name)
        if small:
            self._constants[key] = made
        return made

    def gather(self, params: str, indices: str, axis: int = 0, name: str = "broadcast") -> str:
        return self.op(
            "GatherV2",
            [params, indices, self.constant(axis)],
            name,
            Tparams=("type", self.dtype(params)),
            Tindices=("type", self.dtype(indices)),
            Taxis=("type", _INT32),
            batch_dims=0,
        )

    def concat(self, tensors: Sequence[str], axis: int, name: str = "concat") -> str:
        """The tensors side by side; the one itself where it is one."""
        if len(tensors) == 1:
            return tensors[0]
        kind = ("type", self.dtype(tensors[0]))
        inputs = [*tensors, self.constant(axis)]
        return self.op("ConcatV2", inputs, name, N=len(tensors), T=kind, Tidx=("type", _INT32))

    def pack(self, tensors: Sequence[str], axis: int, name: str = "pack") -> str:
        return self.op("Pack", tensors, name, N=len(tensors), T=("type", self.dtype(tensors[0])), axis=axis)

    def slice(self, tensor: str, rank: int, axis: int, start: int, width: int) -> str:
        """Entries [start, start + width) of one axis."""
        begin, size = [0] * rank, [-1] * rank
        begin[axis], size[axis] = start, width
        return self.op(
            "Slice",
            [tensor, self.constant(begin), self.constant(size)],
            T=("type", self.dtype(tensor)),
            Index=("type", _INT32),
        )

    def element(self, vector: str, index: int) -> str:
        """One element of a vector, as a scalar."""
        return self.op(
            "StridedSlice",
            [vector, self.constant([index]), self.constant([index + 1]), self.constant([1])],
            "element",
            T=("type", self.dtype(vector)),
            Index=("type", _INT32),
            shrink_axis_mask=1,
            begin_mask=0,
            end_mask=0,
            ellipsis_mask=0,
            new_axis_mask=0,
        )

    def shape(self, tensor: str, dtype: int = _INT32) -> str:
        return self.op("Shape", [tensor], T=("type", self.dtype(tensor)), out_type=("type", dtype))

    def cast(self, tensor: str, dtype: int) -> str:
        source = self.dtype(tensor)
        if source == dtype:
            return tensor
        return self.op("Cast", [tensor], SrcT=("type", source), DstT=("type", dtype), Truncate=False)

    def reshape(self, tensor: str, shape: str) -> str:
        return self.op("Reshape", [tensor, shape], T=("type", self.dtype(tensor)), Tshape=("type", self.dtype(shape)))

    def binary(self, op: str, a: str, b: str, name: str = "") -> str:
        return self.op(op, [a, b], name, T=("type", self.dtype(a)))

    def unary(self, op: str, a: str, name: str = "") -> str:
        return self.op(op, [a], name, T=("type", self.dtype(a)))


def _set(attr: attr_value_pb2.AttrValue, value: Any) -> None:
    if isinstance(value, bool):
        attr.b = value
    elif isinstance(value, int):
        attr.i = value
    elif isinstance(value, str):
        attr.s = value.encode()
    elif isinstance(value, tuple):
        attr.type = value[1]
    elif isinstance(value, Mapping):
        raise TypeError("attributes are numbers, texts, types or lists of integers")
    else:
        attr.list.i.extend(value)
