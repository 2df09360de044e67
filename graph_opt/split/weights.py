"""Parts of constants: the rows of a weight matrix that belong to one side of a split product."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.framework import tensor_util

from graph_opt.item import GraphItem
from graph_opt.renewal.weights import PART, Part, part_of
from graph_opt.split.builder import Builder
from graph_opt.store_files import add_array, constant_node, table_node
from graph_opt.view import canonical, node_of

Columns = npt.NDArray[np.int64]


# (constant or table, axis, entries) -> the tensor that holds them.
Taken = dict[tuple[str, int, bytes], str]


class Weights:
    """Takes entries of constant tensors along one axis. Constants become constants, table files table files.

    taken: parts that forms of other signatures have already.
    """

    def __init__(self, item: GraphItem, build: Builder, limit_bytes: int, taken: Taken) -> None:
        self._item = item
        self._build = build
        self._limit = limit_bytes
        self.taken: Taken = dict(taken)

    def value(self, tensor: str) -> npt.NDArray[np.generic] | None:
        """The value of a constant or table; None for a tensor that is computed. A table's is mapped, not read."""
        node = self._build.view.producer(tensor)
        if node.op == "Const":
            return np.asarray(tensor_util.MakeNdarray(node.attr["value"].tensor))
        if node.op == "TfctrTable" and node.name in self._item.tables:
            file = self._item.files[self._item.tables[node.name]]
            if file.path is not None:
                dtype = tf.as_dtype(file.dtype).as_numpy_dtype
                return np.memmap(file.path, dtype=dtype, mode="r", shape=file.shape)
        return None

    def take(self, tensor: str, columns: Columns, axis: int) -> str:
        """``tensor`` reduced to the entries ``columns`` of ``axis``, in that order."""
        key = (canonical(tensor), axis, columns.tobytes())
        if key not in self.taken:
            self.taken[key] = self._take(tensor, columns, axis)
        return self.taken[key]

    def _take(self, tensor: str, columns: Columns, axis: int) -> str:
        value = self.value(tensor)
        name = node_of(tensor)
        if value is None:
            return self._build.gather(tensor, self._build.constant(columns, np.int64), axis, f"part/{name}")
        if len(columns) == value.shape[axis] and np.array_equal(columns, np.arange(len(columns))):
            return tensor
        part = np.ascontiguousarray(np.take(value, columns, axis))
        origin = self._origin(tensor)
        text = origin.then(axis, columns).text() if origin is not None else ""
        if part.nbytes > self._limit and self._item.work_dir is not None:
            index = add_array(self._item, part, f"{name}/part_{len(self.taken)}", text)
            return canonical(table_node(self._item, self._build.view, index))
        if not text:
            return self._build.constant(part, part.dtype, f"part/{name}")
        # A node of its own: another weight that holds the same today need not do so tomorrow.
        made = constant_node(self._build.view.unique_name(f"{self._build.prefix}part/{name}"), part)
        made.attr[PART].s = text.encode()
        return canonical(self._build.add(made))

    def _origin(self, tensor: str) -> Part | None:
        """The weight that a constant is, or has entries of; None for one that is none."""
        node = self._build.view.producer(tensor)
        if node.op != "TfctrTable":
            return part_of(node)
        index = self._item.tables[node.name]
        known = self._item.files[index].part
        return Part.parse(known) if known else Part("", index, ())
