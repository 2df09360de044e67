"""Static facts about the tensors of a graph: shapes, dtypes, constants, and what a small integer tensor is computed
from.

Shapes come from TensorFlow's own shape inference (the GraphDef is imported once into a scratch graph, nothing runs);
constants
from ``tf.get_static_value``, which folds shape arithmetic as far as shapes are known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework import op_def_registry

from graph_opt.recognise.folding import fold
from graph_opt.view import GraphView, canonical, node_of, port_of

PASS_THROUGH = frozenset(
    {"Identity", "IdentityN", "StopGradient", "Snapshot", "PreventGradient", "EnsureShape", "CheckNumerics"}
)
_SHAPE_READERS = frozenset({"Shape", "Size", "Rank", "ShapeN"})
_FOLDABLE_BYTES = 1 << 20

_ELEMENTWISE = frozenset(
    {
        "Add", "AddV2", "Sub", "Mul", "FloorDiv", "FloorMod", "Mod", "Maximum", "Minimum", "Neg", "Abs", "Square",
        "Cast", "Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual", "LogicalAnd", "LogicalOr",
        "LogicalNot", "Select", "SelectV2", "ZerosLike", "OnesLike",
    }
)  # fmt: skip
# Ops through which row numbers are computed from row_splits or shapes. A cone of these is never looked into: only what
# goes in counts.
_ARITHMETIC = _ELEMENTWISE | frozenset(
    {
        "Range", "Tile", "Pack", "Unpack", "ConcatV2", "StridedSlice", "Slice", "Reshape", "ExpandDims", "Squeeze",
        "BroadcastTo", "BroadcastArgs", "Where", "GatherV2", "GatherNd", "Prod", "Max", "Min", "Sum", "All", "Any",
        "Cumsum", "Fill", "Transpose", "Split", "SplitV", "ScatterNd", "ReverseV2", "SparseReshape", "RaggedRange",
        "Bincount", "DenseBincount",
    }
)  # fmt: skip

# Stateful by registration, because they own or read a resource; running them changes nothing.
_HARMLESS = frozenset(
    {
        "Placeholder", "VarHandleOp", "VariableV2", "ReadVariableOp", "ResourceGather", "HashTableV2",
        "LookupTableFindV2", "LookupTableSizeV2", "TfctrStore", "TfctrTable", "TfctrVocabFind", "TfctrHashLookup",
        "TfctrFusedLookup",
    }
)  # fmt: skip


def has_effect(node: node_def_pb2.NodeDef) -> bool:
    """True for ops that write, check, print or draw random numbers (and for ops nobody registered)."""
    if node.op in _HARMLESS:
        return False
    op_def = op_def_registry.get(node.op)
    return op_def is None or op_def.is_stateful or node.op == "Assert"


class Facts:
    """Cached static facts of one :class:`GraphView`; valid while the graph is not edited."""

    def __init__(self, view: GraphView) -> None:
        self.view = view
        self._graph = tf.Graph()
        with self._graph.as_default():
            tf.graph_util.import_graph_def(view.graph_def, name="")
        self._leaves: dict[str, frozenset[str]] = {}
        self._roots: dict[str, str] = {}
        self._waits: dict[str, bool] = {}
        self._constants: dict[str, np.ndarray | None] = {}

    def tensor(self, name: str) -> tf.Tensor:
        """The symbolic tensor of that name in the scratch graph."""
        operation = self._graph.get_operation_by_name(node_of(name))
        return operation.outputs[port_of(name)]

    def shape(self, name: str) -> list[int | None] | None:
        """Static shape, None where the rank is unknown."""
        shape = self.tensor(name).shape
        return None if shape.rank is None else shape.as_list()

    def rank(self, name: str) -> int | None:
        return self.tensor(name).shape.rank

    def dtype(self, name: str) -> tf.DType:
        return self.tensor(name).dtype

    def const(self, name: str) -> np.ndarray | None:
        """The value of a tensor that is known without running the graph, None otherwise or where it is large."""
        tensor = self.tensor(name)
        if (
            tensor.shape.rank is None
            or (tensor.shape.num_elements() or 0) * max(tensor.dtype.size, 1) > _FOLDABLE_BYTES
        ):
            return None
        if tensor.dtype in (tf.resource, tf.variant):
            return None
        name = canonical(name)
        if name not in self._constants:
            with self._graph.as_default():
                value = tf.get_static_value(tensor)
            self._constants[name] = fold(self, name) if value is None else np.asarray(value)
        return self._constants[name]

    def root(self, name: str) -> str:
        """The tensor behind identities (control edges of the identities are not looked at)."""
        name = canonical(name)
        known = self._roots.get(name)
        if known is not None:
            return known
        node = self.view.get(name)
        found = name
        if node is not None and node.op in PASS_THROUGH and not self.waits_for_effect(node):
            found = self.root(self.view.inputs(node)[port_of(name) if node.op == "IdentityN" else 0])
        self._roots[name] = found
        return found

    def waits_for_effect(self, node: node_def_pb2.NodeDef) -> bool:
        """True when a control input of ``node`` is, or leads through NoOps and identities to, an op with an effect."""
        known = self._waits.get(node.name)
        if known is not None:
            return known
        self._waits[node.name] = False  # a cycle of control edges can only pass through loops, which are never entered
        pending = self.view.control_inputs(node)
        seen = set()
        found = False
        while pending and not found:
            name = pending.pop()
            source = self.view.get(name)
            if source is None or name in seen:
                continue
            seen.add(name)
            found = has_effect(source)
            pending += self.view.control_inputs(source)
            if source.op in PASS_THROUGH:
                pending += [node_of(t) for t in self.view.inputs(source)]
        self._waits[node.name] = found
        return found

    def leaves(self, name: str) -> frozenset[str]:
        """What a tensor is computed from: "shape:TENSOR" where only the shape is read, else "TENSOR".

        Stops at every op that is not plain integer arithmetic or data movement.
        """
        name = self.root(name)
        if name not in self._leaves:
            pending, seen, found = [(name, False)], set(), set()
            while pending:
                current = pending.pop()
                if current in seen:
                    continue
                seen.add(current)
                reached, more = self._one_up(*current)
                found |= reached
                pending += more
            self._leaves[name] = frozenset(found)
        return self._leaves[name]

    def _one_up(self, name: str, shape_only: bool) -> tuple[set[str], list[tuple[str, bool]]]:
        """Leaves reached at a tensor, and the tensors to go on with; ``shape_only``: only its shape matters."""
        name = self.root(name)
        node = self.view.get(name)
        leaf = {f"shape:{name}" if shape_only else name}
        if node is None:
            return leaf, []
        inputs = self.view.inputs(node)
        if node.op == "Const":
            return set(), []
        if node.op in _SHAPE_READERS:
            return set(), [] if shape_only else [(inputs[port_of(name) if node.op == "ShapeN" else 0], True)]
        if node.op not in _ARITHMETIC or not inputs:
            return leaf, []
        if node.op in _ELEMENTWISE:
            return set(), [(i, shape_only) for i in inputs]
        moved = node.op in ("ExpandDims", "Squeeze", "Reshape")  # then the first input's shape is enough
        return set(), [(i, shape_only and moved and k == 0) for k, i in enumerate(inputs)]

    def is_arithmetic(self, name: str) -> bool:
        """True for tensors that :meth:`leaves` looks through."""
        node = self.view.get(self.root(name))
        return node is not None and node.op in _ARITHMETIC

    def depends_only_on(self, name: str, stops: Sequence[str]) -> bool:
        """True when every path from ``name`` up ends in one of ``stops`` or a constant."""
        pending, seen, allowed = [self.root(name)], set(), {self.root(s) for s in stops}
        while pending:
            current = self.root(pending.pop())
            if current in seen or current in allowed:
                continue
            seen.add(current)
            node = self.view.get(current)
            if node is None or (not self.view.inputs(node) and node.op != "Const"):
                return False
            pending += self.view.inputs(node)
        return True
