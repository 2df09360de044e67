"""Which inputs are the parts of one sparse or ragged feature, read from how the graph uses them.

An op that takes indices, values and dense shape together says that they belong together; so do row splits whose
differences are taken as row lengths. Lookup specs say the same for fused lookups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from graph_opt.embeddings.calls import LOOKUP_OP, read_call
from graph_opt.lookup_spec import LookupSpec
from graph_opt.resources import ROW_READERS
from graph_opt.view import GraphView, canonical, node_of, port_of

_PASSING = frozenset(
    (
        "Identity",
        "Cast",
        "GatherV2",
        "GatherNd",
        "Reshape",
        "Snapshot",
        "StopGradient",
        "EnsureShape",
        "Unique",
        "UniqueV2",
        "Fingerprint",
        "Bitcast",
    )
)
_VALUE_BY_VALUE = frozenset(
    ("TfctrVocabFind", "LookupTableFindV2", "AsString", "AddV2", "Add", "Sub", "Mul", "FloorMod", "FloorDiv",
     "Select", "SelectV2",
     "Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "LogicalAnd", "LogicalOr", "Maximum",
     "Minimum")
)  # fmt: skip
# op -> input numbers of (indices, values, dense_shape); None = it takes none.
_SPARSE_OPS: Mapping[str, tuple[int, int | None, int | None]] = {
    "SparseFillEmptyRows": (0, 1, 2),
    "SparseReshape": (0, None, 1),
    "SparseToDense": (0, 2, 1),
    "SparseTensorDenseMatMul": (0, 1, 2),
    "SparseReorder": (0, 1, 2),
    "SparseSoftmax": (0, 1, 2),
    "SparseReduceSum": (0, 1, 2),
    "SparseReduceMax": (0, 1, 2),
    "SparseSlice": (0, 1, 2),
}


class Streams:
    """Sparse and ragged features of a graph in terms of ``feeds`` (graph tensors).

    sparse: indices feed -> {"values": [feeds], "dense_shape": feed or None}; ragged: row_splits feed -> [value feeds].
    """

    def __init__(self, view: GraphView, feeds: Iterable[str], specs: Iterable[LookupSpec] = ()) -> None:
        self.view = view
        self.feeds = set(feeds)
        self.sparse: dict[str, dict[str, Any]] = {}
        self.ragged: dict[str, list[str]] = {}
        for spec in specs:
            self._add_spec(spec)
        for node in view:
            if node.op in _SPARSE_OPS:
                self._add_sparse(view.inputs(node), _SPARSE_OPS[node.op])
            elif node.op in ROW_READERS or node.op.startswith("Segment"):
                self._add_segments(view.inputs(node))
            elif node.op == LOOKUP_OP:  # in a graph as it was saved
                for lookup in read_call(view, node):
                    for values in (lookup.keys, lookup.weights):
                        if lookup.splits is not None and values is not None:
                            self._add_row_ids(lookup.splits, values)
            elif node.op == "TfctrRowIds":
                self._add_row_ids(*view.inputs(node))
            elif node.op == "RaggedTensorToSparse":
                *splits, values = view.inputs(node)
                self._add_ragged(splits[-1], values)
            elif node.op == "Sub":
                self._add_row_lengths(view.inputs(node))

    def features(self) -> list[dict[str, str]]:
        """Complete features, as ``signature_info`` takes them."""
        found = [
            {"values": entry["values"][0], "indices": indices, "dense_shape": entry["dense_shape"]}
            for indices, entry in self.sparse.items()
            if entry["values"] and entry["dense_shape"]
        ]
        found += [{"values": values[0], "row_splits": splits} for splits, values in self.ragged.items() if values]
        return found

    def aligned(self) -> dict[str, str]:
        """Feeds with one value per value of a feature (weights): feed -> that feature's values feed."""
        groups = [entry["values"] for entry in self.sparse.values()] + list(self.ragged.values())
        return {other: values[0] for values in groups if values for other in values[1:]}

    def _add_spec(self, spec: LookupSpec) -> None:
        if spec.form == "sparse" and spec.rows in self.feeds:
            self._note(spec.rows, self._behind(spec.ids), spec.shape)
            self._note(spec.rows, self._behind(spec.weights), None)
        elif spec.form == "ragged" and spec.rows in self.feeds:
            for values in (self._behind(spec.ids), self._behind(spec.weights)):
                if values in self.feeds and values not in self.ragged.setdefault(spec.rows, []):
                    self.ragged[spec.rows].append(values)

    def _behind(self, tensor: str | None) -> str | None:
        """The feed that a source of a spec is, or is computed from value by value (a spec may be of another graph)."""
        return self._feed(tensor) if tensor is not None and node_of(tensor) in self.view else None

    def _add_sparse(self, inputs: list[str], places: tuple[int, int | None, int | None]) -> None:
        indices, values, shape = (None if p is None else self._feed(inputs[p]) for p in places)
        if indices is not None:
            self._note(indices, values, shape)

    def _add_segments(self, inputs: list[str]) -> None:
        """data, [ids,] segment ids, where the segment ids are a column of a feed's indices."""
        column = self.view.producer(inputs[-1] if len(inputs) < 4 else inputs[2])
        while column.op in ("Cast", "Identity", "Squeeze", "Reshape"):
            column = self.view.producer(column.input[0])
        if column.op != "StridedSlice":
            return
        indices = self._feed(column.input[0])
        if indices is not None and len(inputs) >= 3:
            self._note(indices, self._feed(inputs[1]), None)

    def _add_row_ids(self, splits: str, values: str) -> None:
        made = self.view.producer(splits)
        if made.op != "TfctrEvRowSplits":
            self._add_ragged(splits, values)
            return
        indices, shape = (self._feed(t) for t in self.view.inputs(made))
        if indices is not None:
            self._note(indices, self._feed(values), shape)

    def _add_ragged(self, splits: str, values: str) -> None:
        found = self._feed(splits)
        if found is not None:
            known = self.ragged.setdefault(found, [])
            feed = self._feed(values)
            if feed is not None and feed not in known:
                known.append(feed)

    def _add_row_lengths(self, inputs: list[str]) -> None:
        producers = [self.view.producer(i) for i in inputs]
        if len(inputs) == 2 and all(p.op == "StridedSlice" for p in producers):
            feeds = {self._feed(p.input[0]) for p in producers}
            if len(feeds) == 1 and (feed := feeds.pop()) is not None:
                self.ragged.setdefault(feed, [])

    def _note(self, indices: str, values: str | None, shape: str | None) -> None:
        entry = self.sparse.setdefault(indices, {"values": [], "dense_shape": None})
        if values in self.feeds and values not in entry["values"] and values != indices:
            entry["values"].append(values)
        if shape in self.feeds and entry["dense_shape"] is None:
            entry["dense_shape"] = shape

    def _feed(self, tensor: str) -> str | None:
        """The one feed that ``tensor`` is computed from value by value (selected, cast, looked up, hashed), None
        otherwise.
        """
        found: set[str] = set()
        pending, seen = [canonical(tensor)], set()
        while pending:
            tensor = pending.pop()
            if tensor in seen:
                continue
            seen.add(tensor)
            node = self.view.producer(tensor)
            inputs = self.view.inputs(node)
            if tensor in self.feeds:
                found.add(tensor)
            elif node.op in ("SparseFillEmptyRows", "SparseReshape", "SparseReorder"):
                if port_of(tensor) > 1:
                    return None
                pending.append(inputs[port_of(tensor)])
            elif node.op in _PASSING:
                pending.append(inputs[0])
            elif node.op in _VALUE_BY_VALUE or node.op.startswith("StringToHashBucket"):
                pending += inputs
            elif inputs:
                return None
        return found.pop() if len(found) == 1 else None


def unused(view: GraphView, feeds: Iterable[str]) -> list[str]:
    """Feeds that nothing reads."""
    return [feed for feed in feeds if not view.data_consumers(node_of(feed))]
