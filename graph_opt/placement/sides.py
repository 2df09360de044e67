"""Tells the embedding layer of a model from its dense tower, by data flow alone.

An embedding op is a fused lookup, or a gather of rows of something that no input changes. Sparse are these, what only
they need (id preprocessing), what touches strings or resources, the reducers of sparse features, and integer work on
the way from the inputs that makes nothing larger. A matrix product between two lookups is dense all the same: the
second lookup has two stages. Everything else that depends on inputs is dense.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tensorflow.core.framework import node_def_pb2, types_pb2
from tensorflow.python.framework import dtypes, op_def_registry

from graph_opt.functionals import FUNCTIONALS
from graph_opt.fused_node import FUSED_OP
from graph_opt.item import GraphItem
from graph_opt.placement.control import TF1_CONTROL, body_ops, regions
from graph_opt.recognise.facts import Facts, has_effect
from graph_opt.verify import output_dtypes
from graph_opt.view import GraphView, node_of, port_of

SPARSE, DENSE = "sparse", "dense"

_GATHERS = frozenset({"Gather", "GatherV2", "GatherNd", "ResourceGather", "ResourceGatherNd"})
_SEGMENTS = frozenset(
    {
        "SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN", "SparseSegmentSumWithNumSegments",
        "SparseSegmentMeanWithNumSegments", "SparseSegmentSqrtNWithNumSegments",
    }
)  # fmt: skip
# Work of the embedding layer on what lookups give: it reads one entry per id, not per row.
_REDUCERS = frozenset(
    {
        "SegmentSum", "SegmentSumV2", "SegmentMean", "SegmentMax", "SegmentMaxV2", "SegmentMin", "SegmentMinV2",
        "SegmentProd", "UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd",
        "SparseToDense", "ScatterNd", "Unique", "UniqueV2", "UniqueWithCounts", "Where",
    }
)  # fmt: skip
CONTRACTIONS = frozenset(
    {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv1D", "Conv2D", "_FusedMatMul"}
)
# Entry by entry on integers and booleans: cheaper to do before a transfer than after it, where the result is no larger.
_NARROWING = frozenset(
    {
        "Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd", "LogicalOr", "LogicalNot",
        "Cast", "FloorMod", "FloorDiv", "Mod", "Add", "AddV2", "Sub", "Mul", "Maximum", "Minimum", "Bucketize",
        "Squeeze", "ExpandDims", "Reshape", "Identity", "Any", "All",
    }
)  # fmt: skip
PASSES = frozenset({"Identity", "IdentityN", "Snapshot", "StopGradient", "PreventGradient", "CheckNumerics"})
# Only move values about: a model that does nothing else with its lookups has no dense part.
_MOVES = PASSES | {
    "Reshape", "Squeeze", "ExpandDims", "ConcatV2", "Pack", "Unpack", "Split", "SplitV", "Slice", "StridedSlice",
    "Cast",
}  # fmt: skip
# Ops of a split form that belong to the tower; they have CPU kernels only, and are not made for another dense device.
JOINS = frozenset({"TfctrAddUserRows", "TfctrJoinUserRows"})
_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank"})
_HOST_PREFIXES = ("Placeholder", "Sparse", "Ragged", "Tfctr", "Parse", "Decode")
_HOST_TYPES = frozenset({types_pb2.DT_STRING, types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT})


@dataclasses.dataclass(frozen=True)
class Sides:
    """side: node -> SPARSE or DENSE, for the nodes that compute with inputs or hold a state; the others (constants and
    what is made of them, shape arithmetic) go where they are read: ``free``. lookups: embedding ops, in graph order.
    two_stage: lookup -> a dense node that it needs. depends: nodes that depend on an input. why: node -> reason, where
    control flow decided. needed: all nodes that were looked at, in graph order.
    """

    side: dict[str, str]
    free: frozenset[str]
    lookups: tuple[str, ...]
    two_stage: dict[str, str]
    depends: frozenset[str]
    why: dict[str, str]
    needed: tuple[str, ...]

    def dense(self) -> list[str]:
        """Nodes of the dense tower, in graph order."""
        return [n for n in self.needed if self.side.get(n) == DENSE]


def forms(item: GraphItem) -> tuple[str, ...]:
    """The signatures that passes may change, with those that other passes made of them."""
    return (*item.optimise, *(form.signature for form in item.split.values()))


def find_sides(item: GraphItem, facts: Facts, apart: Iterable[str] = ()) -> Sides:
    """See the module docstring. apart: nodes that can't run on the dense device, so that they stay sparse."""
    return _Finder(item, facts, frozenset(apart)).run()


class _Finder:
    def __init__(self, item: GraphItem, facts: Facts, apart: frozenset[str]) -> None:
        self.item, self.facts, self.view, self.apart = item, facts, facts.view, apart
        fetches = [t for name in forms(item) for t in item.fetches(name)]
        reached = self.view.ancestors(fetches)
        self.order = [n for n in self.view.topological() if n.name in reached]
        self.functions = {f.signature.name: f for f in item.graph_def.library.function}
        self.depends = self._depends({node_of(t) for name in forms(item) for t in item.feeds(name)})
        self.why: dict[str, str] = {}
        self.side: dict[str, str] = {}

    def run(self) -> Sides:
        lookups = [n.name for n in self.order if self._is_lookup(n)]
        above = self._dense_above(lookups)
        for node in self.order:
            if self._is_host(node) or node.name in self.apart:
                self.side[node.name] = SPARSE
        for name in self._needed_by(lookups, above):
            self.side[name] = SPARSE
        for name in above:
            self.side[name] = DENSE
        free: set[str] = set()
        for node in self.order:
            if self._is_free(node, free):
                free.add(node.name)
                self.side.pop(node.name, None)
            elif node.name not in self.side:
                self.side[node.name] = SPARSE if self._narrows(node) else DENSE
        self._moves()
        self._control_regions()
        stages = {name: stage for name in lookups if (stage := self._stage(name, above))}
        names = tuple(n.name for n in self.order)
        return Sides(self.side, frozenset(free), tuple(lookups), stages, self.depends, self.why, names)

    def _depends(self, feeds: set[str]) -> frozenset[str]:
        found = set(feeds)
        for node in self.order:
            if any(node_of(t) in found for t in self.view.inputs(node)):
                found.add(node.name)
        return frozenset(found)

    def _is_lookup(self, node: node_def_pb2.NodeDef) -> bool:
        if node.op == FUSED_OP:
            return True
        if node.op not in _GATHERS and node.op not in _SEGMENTS:
            return False
        inputs = self.view.inputs(node)
        axis = self.facts.const(inputs[2]) if node.op == "GatherV2" else 0
        fixed = node_of(inputs[0]) not in self.depends
        return fixed and node_of(inputs[1]) in self.depends and axis is not None and int(axis) == 0

    def _dense_above(self, lookups: list[str]) -> set[str]:
        """Matrix products above a lookup, and what is computed from them up to the ids."""
        upstream = self.view.ancestors(lookups) & self.depends
        found: set[str] = set()
        for node in self.order:
            if node.name not in upstream or node.name in lookups or self._is_host(node):
                continue
            reads = [t for t in self.view.inputs(node) if node_of(t) in found and self._floating(t)]
            product = node.op in CONTRACTIONS and any(_floats(output_dtypes(node)))
            if reads or (product and any(node_of(t) in self.depends for t in self.view.inputs(node))):
                found.add(node.name)
        return found

    def _needed_by(self, lookups: list[str], above: set[str]) -> set[str]:
        pending, found = list(lookups), set()
        while pending:
            name = pending.pop()
            if name in found or name in above:
                continue
            found.add(name)
            pending += [node_of(t) for t in self.view.inputs(name) if node_of(t) in self.depends or self._stateful(t)]
        return found

    def _stateful(self, tensor: str) -> bool:
        return has_effect(self.view.producer(tensor))

    def _is_host(self, node: node_def_pb2.NodeDef) -> bool:
        """Feeds, and whatever touches strings, resources or the entries of sparse features."""
        if node.op.startswith(_HOST_PREFIXES) and node.op not in JOINS or node.op in _REDUCERS:
            return True
        return any(t in _HOST_TYPES for t in self._dtypes(node))

    def _dtypes(self, node: node_def_pb2.NodeDef) -> list[int]:
        """Types of all inputs and outputs."""
        types = [self.facts.dtype(t).as_datatype_enum for t in self.view.inputs(node)]
        return [t % 100 for t in (*types, *self._outputs(node))]

    def _outputs(self, node: node_def_pb2.NodeDef) -> list[int]:
        if op_def_registry.get(node.op) is not None:
            return output_dtypes(node)
        function = self.functions.get(node.op)
        return [a.type for a in function.signature.output_arg] if function is not None else []

    def _floating(self, tensor: str) -> bool:
        types = self._outputs(self.view.producer(tensor))
        return bool(_floats(types[port_of(tensor) : port_of(tensor) + 1]))

    def _is_free(self, node: node_def_pb2.NodeDef, free: set[str]) -> bool:
        """Constants, what is made of nothing but them, shapes, and arithmetic over shapes."""
        if has_effect(node) or node.op in FUNCTIONALS or node.op in TF1_CONTROL or self._is_host(node):
            return False
        if node.op in _SHAPES or node.name not in self.depends:
            return True
        integers = all(dtypes.as_dtype(t % 100).is_integer for t in self._outputs(node))
        return integers and all(node_of(t) in free for t in self.view.inputs(node))

    def _moves(self) -> None:
        """What only moves values on their way out, past the tower, stays where they are."""
        tower = [n for n in self.side if self.side[n] == DENSE and self.view.node(n).op not in _MOVES]
        used = self.view.ancestors(tower)
        for node in self.order:
            if node.name in used or node.op not in _MOVES or self.side.get(node.name) != DENSE:
                continue
            sources = {self.side.get(node_of(t), SPARSE) for t in self.view.inputs(node)}
            if node.op in PASSES or sources == {SPARSE}:
                self.side[node.name] = SPARSE

    def _narrows(self, node: node_def_pb2.NodeDef) -> bool:
        if node.op not in _NARROWING:
            return False
        inputs = [t for t in self.view.inputs(node) if node_of(t) in self.depends]
        if any(self.side.get(node_of(t)) != SPARSE or self._floating(t) for t in inputs):
            return False
        sizes = [self._row_bytes(t) for t in inputs]
        out = self._row_bytes(f"{node.name}:0")
        return out is not None and None not in sizes and out <= max(s for s in sizes if s is not None)

    def _row_bytes(self, tensor: str) -> int | None:
        """Bytes of one entry of axis 0, None where that is not known."""
        shape = self.facts.shape(tensor)
        if shape is None or None in shape[1:]:
            return None
        size = self.facts.dtype(tensor).size
        for dim in shape[1:]:
            size *= dim or 0
        return size

    def _control_regions(self) -> None:
        """Functional nodes stay whole where their tensors are; the nodes of TF1 conditions and loops stay together."""
        for node in self.order:
            if node.op in FUNCTIONALS:
                host = _host_ops(node, self.functions)
                if self.side.get(node.name) == DENSE and host:
                    self.side[node.name] = SPARSE
                where = self.side.get(node.name, SPARSE)
                because = f"{host} inside" if host else "its tensors are there"
                self.why[node.name] = f"{node.op} {node.name} goes to the {where} device: {because}"
        for region in regions(self.view, self.order):
            held = sorted(n for n in region if self.side.get(n) == SPARSE and self._is_anchor(n))
            where = SPARSE if held else DENSE
            for name in region:
                self.side[name] = where
            because = f"{held[0]} is in it" if held else "nothing in it needs the other"
            self.why[min(region)] = f"the TF1 control flow around {min(region)} goes to the {where} device: {because}"

    def _is_anchor(self, name: str) -> bool:
        node = self.view.node(name)
        return node.op == FUSED_OP or self._is_host(node) or self._is_lookup(node)

    def _stage(self, lookup: str, above: set[str]) -> str:
        """The nearest dense node that a lookup needs, "" where it needs none."""
        found = self.view.ancestors([lookup]) & above
        return next((n.name for n in reversed(self.order) if n.name in found), "")


def _floats(types: Iterable[int]) -> list[int]:
    return [t for t in types if dtypes.as_dtype(t % 100).is_floating]


def _host_ops(node: node_def_pb2.NodeDef, functions) -> str:  # type: ignore[no-untyped-def]
    """An op of its bodies that needs the sparse side, "" where there is none."""
    for op, types in body_ops(node, functions):
        if op.startswith(("Tfctr", "Sparse", "Ragged")) or _HOST_TYPES & types:
            return op
    return ""


def signature_sets(item: GraphItem, view: GraphView) -> dict[str, frozenset[str]]:
    """Node -> all signatures of the model that need it."""
    found: dict[str, set[str]] = {}
    for name in item.signatures:
        for node in view.ancestors(item.fetches(name)):
            found.setdefault(node, set()).add(name)
    return {node: frozenset(names) for node, names in found.items()}
