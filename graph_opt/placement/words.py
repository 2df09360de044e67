"""Nodes that turn tensors of rows into rows of 32-bit words and back, with operations that a GPU has kernels for.

A row of ``columns`` elements is their bytes, filled up to whole words. The words are called float32 because TensorFlow
keeps int32 in host memory on a GPU; nothing computes with them, so any bits survive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from graph_opt.store_files import constant_node
from graph_opt.view import GraphView, canonical
from tfctr.bundle.naming import RULE_ATTR

WORD = 4
PACKABLE = frozenset(
    {
        tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64, tf.uint64, tf.float16,
        tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128,
    }
)  # fmt: skip


def words_of(columns: Sequence[int], dtype: tf.DType) -> int:
    """Words of one row."""
    return -(-math.prod(columns) * dtype.size // WORD)


class Nodes:
    """Adds nodes to a graph, all on one device and under one scope."""

    def __init__(self, view: GraphView, scope: str, device: str) -> None:
        self.view, self.scope, self.device = view, scope, device

    def const(self, name: str, value: Any, dtype: type = np.int32) -> str:
        return self._add(constant_node(self.view.unique_name(f"{self.scope}/{name}"), np.asarray(value, dtype)))

    def op(self, op: str, name: str, inputs: Sequence[str], **attrs: Any) -> str:
        """Adds a node and returns its first output. attrs: DTypes, ints, bools, or lists of DTypes, ints or bytes."""
        node = node_def_pb2.NodeDef(name=self.view.unique_name(f"{self.scope}/{name}"), op=op, input=inputs)
        for key, value in attrs.items():
            _set(node, key, value)
        return self._add(node)

    def reshape(self, tensor: str, dtype: tf.DType, shape: Sequence[int | str], name: str) -> str:
        """shape: numbers, and names of int32 scalars."""
        return self.op("Reshape", name, [tensor, self.vector(shape, f"{name}/shape")], T=dtype, Tshape=tf.int32)

    def vector(self, values: Sequence[int | str], name: str) -> str:
        """int32 vector of numbers and named scalars."""
        if not any(isinstance(v, str) for v in values):
            return self.const(name, values)
        elements = [v if isinstance(v, str) else self.const(f"{name}/{k}", v) for k, v in enumerate(values)]
        return self.op("Pack", name, elements, T=tf.int32, N=len(elements), axis=0)

    def bitcast(self, tensor: str, source: tf.DType, target: tf.DType, name: str) -> str:
        return self.op("Bitcast", name, [tensor], T=source, type=target)

    def slice(
        self, tensor: str, dtype: tf.DType, begin: Sequence[int | str], size: Sequence[int | str], name: str
    ) -> str:
        ends = [self.vector(begin, f"{name}/begin"), self.vector(size, f"{name}/size")]
        return self.op("Slice", name, [tensor, *ends], T=dtype, Index=tf.int32)

    def cast(self, tensor: str, source: tf.DType, target: tf.DType, name: str) -> str:
        return self.op("Cast", name, [tensor], SrcT=source, DstT=target, Truncate=False)

    def from_words(self, words: str, columns: Sequence[int], dtype: tf.DType, lead: Sequence[int | str] = (-1,)) -> str:
        """[*lead, *columns] from float32 words that lie row after row, in whatever shape."""
        if dtype == tf.float32:
            return self.reshape(words, tf.float32, [*lead, *columns], "rows")
        if dtype.size >= WORD:
            more = [dtype.size // WORD] if dtype.size > WORD else []
            shaped = self.reshape(words, tf.float32, [*lead, *columns, *more], "rows")
            return self.bitcast(shaped, tf.float32, dtype, "value")
        width, used = words_of(columns, dtype), math.prod(columns) * dtype.size
        shaped = self.reshape(words, tf.float32, [-1, width], "rows")
        parts = self.bitcast(shaped, tf.float32, tf.int8, "bytes")
        flat = self.reshape(parts, tf.int8, [-1, width * WORD], "bytes/rows")
        if used != width * WORD:
            flat = self.slice(flat, tf.int8, [0, 0], [-1, used], "bytes/used")
        more = [dtype.size] if dtype.size > 1 else []
        shaped = self.reshape(flat, tf.int8, [*lead, *columns, *more], "bytes/elements")
        if dtype == tf.bool:
            return self.cast(shaped, tf.int8, tf.bool, "value")
        return shaped if dtype == tf.int8 else self.bitcast(shaped, tf.int8, dtype, "value")

    def to_words(self, tensor: str, columns: Sequence[int], dtype: tf.DType) -> str:
        """float32 [-1, words] from [rows, *columns]."""
        width, used = words_of(columns, dtype), math.prod(columns) * dtype.size
        if dtype.size >= WORD:
            words = tensor if dtype == tf.float32 else self.bitcast(tensor, dtype, tf.float32, "words")
            return self.reshape(words, tf.float32, [-1, width], "words/rows")
        if dtype == tf.bool:
            parts = self.cast(tensor, tf.bool, tf.int8, "bytes")
        else:
            parts = tensor if dtype == tf.int8 else self.bitcast(tensor, dtype, tf.int8, "bytes")
        flat = self.reshape(parts, tf.int8, [-1, used], "bytes/rows")
        if used != width * WORD:
            fill = self.const("bytes/fill", [[0, 0], [0, width * WORD - used]])
            flat = self.op("Pad", "bytes/padded", [flat, fill], T=tf.int8, Tpaddings=tf.int32)
        shaped = self.reshape(flat, tf.int8, [-1, width, WORD], "bytes/words")
        return self.bitcast(shaped, tf.int8, tf.float32, "words")

    def arithmetic(self, op: str, a: str, b: str | int, name: str) -> str:
        """An operation on int32 scalars."""
        other = self.const(f"{name}/by", b) if isinstance(b, int) else b
        return self.op(op, name, [a, other], T=tf.int32)

    def size_of(self, tensor: str, dtype: tf.DType, axis: int, name: str) -> str:
        """int32 scalar: the size of one axis."""
        shape = self.op("Shape", f"{name}/shape", [tensor], T=dtype, out_type=tf.int32)
        ends = [self.const(f"{name}/{k}", [v]) for k, v in (("begin", axis), ("end", axis + 1), ("step", 1))]
        return self.op("StridedSlice", name, [shape, *ends], T=tf.int32, Index=tf.int32, shrink_axis_mask=1)

    def _add(self, node: node_def_pb2.NodeDef) -> str:
        node.device = self.device
        node.attr[RULE_ATTR].s = b"merge_transfers"
        return canonical(self.view.add(node).name)


def _set(node: node_def_pb2.NodeDef, key: str, value: Any) -> None:
    attr = node.attr[key]
    if isinstance(value, tf.DType):
        attr.type = value.as_datatype_enum
    elif isinstance(value, bool):
        attr.b = value
    elif isinstance(value, int):
        attr.i = value
    elif value and isinstance(value[0], tf.DType):
        attr.list.type.extend(v.as_datatype_enum for v in value)
    elif value and isinstance(value[0], bytes):
        attr.list.s.extend(value)
    else:
        attr.list.SetInParent()
        attr.list.i.extend(value)
