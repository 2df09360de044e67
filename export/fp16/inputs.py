"""Which inputs of a tower are embeddings: those that a clamp is for."""

from __future__ import annotations

from tensorflow.core.framework import graph_pb2

from export.tower import Tower
from graph_opt.fused_node import FUSED_OP
from graph_opt.view import GraphView, node_of

_GATHERS = frozenset({"Gather", "GatherV2", "GatherNd", "ResourceGather", "ResourceGatherNd"})
_SEGMENTS = frozenset({"SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin"})
_FIRST_INPUT = frozenset(
    {"Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "Slice", "StridedSlice", "Unpack", "SplitV"}
)
_ALL_INPUTS = frozenset({"ConcatV2", "Pack", "IdentityN", "AddN"})


def embedding_inputs(tower: Tower, graph_def: graph_pb2.GraphDef | None = None) -> tuple[str, ...]:
    """Names of the FP32 inputs that hold table rows, of items or users.

    graph_def: the model that the tower was cut from; an input counts where its ``source`` comes from lookups only, by
    way of what moves or sums rows. None: every FP32 input of items and users counts. Dense inputs and masks never do.
    """
    view = None if graph_def is None else GraphView(graph_def)
    return tuple(
        one.name
        for one in tower.inputs
        if one.side in ("item", "user")
        and one.dtype == "float32"
        and (view is None or _from_lookups(view, node_of(one.source), set()))
    )


def _from_lookups(view: GraphView, name: str, seen: set[str]) -> bool:
    if name in seen:
        return True
    seen.add(name)
    node = view.node(name)
    reads = [node_of(t) for t in node.input if not t.startswith("^")]
    if node.op == FUSED_OP or node.op.startswith("SparseSegment") or node.op in _GATHERS:
        return True
    if node.op in _SEGMENTS or node.op in _FIRST_INPUT:
        return _from_lookups(view, reads[0], seen)
    if node.op == "Split":
        return _from_lookups(view, reads[1], seen)
    if node.op in _ALL_INPUTS:
        values = reads[:-1] if node.op == "ConcatV2" else reads
        return all(_from_lookups(view, read, seen) for read in values)
    return False
