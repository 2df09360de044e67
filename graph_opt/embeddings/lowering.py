"""A lookup of a frozen embedding variable as stock operations over the rows of its hash file.

One ``TfctrHashLookup`` reads rows; what follows is how `tf.nn.embedding_lookup_sparse` writes it, which the recogniser
knows: rows of the distinct keys, clipped to the norm, summed per row of the batch. A row without keys and one whose
divisor is 0 are zeros, and there are as many rows as row splits say (docs/embedding_variable.md, Combining).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tensorflow.core.framework import node_def_pb2, types_pb2

from graph_opt.embeddings.calls import EvLookup
from graph_opt.hash_files import HASH_LOOKUP
from graph_opt.store_files import constant_node
from graph_opt.view import GraphView, canonical

_SEGMENTS = {"sum": "SparseSegmentSum", "mean": "SparseSegmentMean", "sqrtn": "SparseSegmentSqrtN"}
_FLOAT, _INT32, _INT64 = types_pb2.DT_FLOAT, types_pb2.DT_INT32, types_pb2.DT_INT64


def lower(view: GraphView, prefix: str, store: str, index: int, lookup: EvLookup) -> str:
    """Adds the nodes of ``lookup`` over hash file ``index`` under names that begin with ``prefix``; returns the tensor
    that holds its result: float32 keys.shape + [dim], or [rows, dim] where it combines.
    """
    return _Lowering(view, prefix, store, index, lookup).run()


class _Lowering:
    def __init__(self, view: GraphView, prefix: str, store: str, index: int, lookup: EvLookup) -> None:
        self._view, self._prefix, self._store, self._index, self._lookup = view, prefix, store, index, lookup

    def run(self) -> str:
        if not self._lookup.combiner:
            return self._clipped(self._rows(self._lookup.keys))
        keys, splits = self._lookup.keys, self._lookup.splits
        assert splits is not None
        distinct = self._add("Unique", [keys], T=_INT64, out_idx=_INT32)
        rows = self._clipped(self._rows(canonical(distinct)))
        numbers = self._add("TfctrRowIds", [splits, keys])
        ends = self._add("Size", [splits], T=_INT64, out_type=_INT32)
        count = self._add("Sub", [ends, self._constant("one", np.array(1, np.int32))], T=_INT32)
        if self._lookup.weights is None:
            return self._add(
                _SEGMENTS[self._lookup.combiner] + "WithNumSegments",
                [rows, f"{distinct}:1", numbers, count],
                T=_FLOAT, Tidx=_INT32, Tsegmentids=_INT64, Tnumsegments=_INT32,
            )  # fmt: skip
        return self._weighted(rows, f"{distinct}:1", numbers, count, self._lookup.weights)

    def _rows(self, keys: str) -> str:
        return self._add(HASH_LOOKUP, [self._store, keys], index=self._index, dim=self._lookup.dim, storage=b"float32")

    def _clipped(self, rows: str) -> str:
        """``rows`` with those longer than the limit scaled down to it, as tf.clip_by_norm does."""
        if self._lookup.max_norm is None:
            return rows
        limit = self._constant("max_norm", np.array(self._lookup.max_norm, np.float32))
        last = self._constant("last_axis", np.array([-1], np.int32))
        squares = self._add("Square", [rows], T=_FLOAT)
        sums = self._add("Sum", [squares, last], T=_FLOAT, Tidx=_INT32, keep_dims=True)
        norm = self._add("Sqrt", [sums], T=_FLOAT)
        divisor = self._add("Maximum", [norm, limit], T=_FLOAT)
        return self._add("RealDiv", [self._add("Mul", [rows, limit], T=_FLOAT), divisor], T=_FLOAT)

    def _weighted(self, rows: str, index: str, numbers: str, count: str, weights: str) -> str:
        axis = self._constant("axis", np.array(0, np.int32))
        of_all = self._add("GatherV2", [rows, index, axis], Tparams=_FLOAT, Tindices=_INT32, Taxis=_INT32, batch_dims=0)
        column = self._column(weights)
        total = self._segment_sum(self._add("Mul", [of_all, column], T=_FLOAT), numbers, count)
        if self._lookup.combiner == "sum":
            return total
        if self._lookup.combiner == "mean":
            divisor = self._segment_sum(weights, numbers, count)
        else:
            squares = self._add("Square", [weights], T=_FLOAT)
            divisor = self._add("Sqrt", [self._segment_sum(squares, numbers, count)], T=_FLOAT)
        return self._add("DivNoNan", [total, self._column(divisor)], T=_FLOAT)

    def _segment_sum(self, values: str, numbers: str, count: str) -> str:
        return self._add("UnsortedSegmentSum", [values, numbers, count], T=_FLOAT, Tindices=_INT64, Tnumsegments=_INT32)

    def _column(self, values: str) -> str:
        last = self._constant("last_axis", np.array(-1, np.int32))
        return self._add("ExpandDims", [values, last], T=_FLOAT, Tdim=_INT32)

    def _constant(self, name: str, value: np.ndarray) -> str:
        return self._view.add(constant_node(self._name(name), value)).name

    def _add(self, op: str, inputs: list[str], **attrs: Any) -> str:
        node = node_def_pb2.NodeDef(name=self._name(op), op=op, input=inputs)
        for key, value in attrs.items():
            if isinstance(value, bytes):
                node.attr[key].s = value
            elif isinstance(value, bool):
                node.attr[key].b = value
            elif key in ("index", "dim", "batch_dims"):
                node.attr[key].i = value
            else:
                node.attr[key].type = value
        return self._view.add(node).name

    def _name(self, name: str) -> str:
        return self._view.unique_name(f"{self._prefix}/{name}")
