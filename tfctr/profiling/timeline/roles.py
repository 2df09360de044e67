"""What a node of a timeline is there for: reading embeddings, the dense part, moving values, anything else.

A node that reads a table, and all that only prepares its ids, is embedding work; what is computed from the rows that
were read is the dense part. Tags of the recording decide first, the kind of operation second, its place in the graph
third, so models whose lookups nobody recognised are told apart as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tfctr.profiling.timeline.events import Event, Timeline

LOOKUP, DENSE, TRANSFER, OVERHEAD, OTHER = "lookup", "dense", "transfer", "overhead", "other"
ROLES = (LOOKUP, DENSE, TRANSFER, OVERHEAD, OTHER)
ROLE_WORDS = {
    LOOKUP: "embedding lookups",
    DENSE: "dense part",
    TRANSFER: "transfers",
    OVERHEAD: "executor and feed",
    OTHER: "other",
}

ENGINE_OPS = frozenset({"TfctrDenseEngine"})
FUSED_LOOKUPS = frozenset({"TfctrFusedLookup", "TfctrHashLookup", "TfctrVocabFind", "TfctrEvLookup"})
_SPARSE_SEGMENTS = {
    f"SparseSegment{kind}{tail}" for kind in ("Sum", "Mean", "SqrtN") for tail in ("", "WithNumSegments")
}
LOOKUP_OPS = (
    FUSED_LOOKUPS
    | _SPARSE_SEGMENTS
    | {"TfctrTable", "TfctrStore", "TfctrStoreOpen", "TfctrStoreOverlay", "TfctrEvRowSplits", "ResourceGather"}
    | {"ResourceGatherNd", "LookupTableFind", "LookupTableFindV2", "SparseFillEmptyRows", "Bucketize"}
    | {"StringToHashBucketFast", "StringToHashBucketStrong", "StringToHashBucket"}
)  # fmt: skip
STRING_OPS = frozenset(
    {"StringToHashBucketFast", "StringToHashBucketStrong", "StringToHashBucket", "AsString", "StringToNumber"}
    | {"StringSplit", "StringSplitV2", "StringJoin", "StringStrip", "StringLower", "StringUpper", "RegexReplace"}
    | {"StaticRegexReplace", "Substr", "DecodeRaw", "ParseExampleV2", "ParseExample", "LookupTableFindV2"}
    | {"LookupTableFind", "TfctrVocabFind", "SparseCross", "SparseCrossV2", "SparseCrossHashed"}
)  # fmt: skip
DENSE_OPS = ENGINE_OPS | {
    *("MatMul", "_FusedMatMul", "_MklMatMul", "_MklFusedMatMul", "SparseMatMul"),
    *("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "_FusedBatchMatMulV2", "_MklBatchMatMulV2", "Einsum"),
    *("BiasAdd", "Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Softplus", "Softmax", "LogSoftmax", "Sigmoid", "Tanh"),
    *("Conv2D", "_FusedConv2D", "Conv3D", "FusedBatchNormV3", "L2Loss", "Erf", "LSTMBlockCell", "GRUBlockCell"),
}  # fmt: skip
TRANSFER_OPS = frozenset({"_Send", "_Recv", "_HostSend", "_HostRecv", "TfctrPackRows", "MEMCPYHtoD", "MEMCPYDtoH"})
# They hand in everything, so neither their tags nor their place in the graph say what they are for.
FEEDS = frozenset({"TfctrUnpack", "_Arg", "_Retval", "Placeholder", "PlaceholderWithDefault", "NoOp"})
_OF_KIND = {"overhead": OVERHEAD, "layer": DENSE}


def node_of(tensor: str) -> str:
    """ "^a", "a:1" -> "a"."""
    return tensor.lstrip("^").partition(":")[0]


def role_of_nodes(timeline: Timeline) -> dict[str, str]:
    """Names of events -> one of ROLES."""
    first = {event.name: event for event in timeline.events if event.kind in ("op", "kernel", "transfer")}
    edges = {name: [node_of(one) for one in inputs] for name, inputs in timeline.edges.items()}
    sources = {name for name, event in first.items() if _reads_table(event)}
    stops = {name for name, event in first.items() if event.op in DENSE_OPS or event.op in FEEDS}
    lookups = _reach(sources, edges, stops - sources)
    outputs: dict[str, list[str]] = {}
    for name, inputs in edges.items():
        for one in inputs:
            outputs.setdefault(one, []).append(name)
    after = _reach(lookups | {name for name, event in first.items() if event.op in DENSE_OPS}, outputs, set())
    others = {event.name: _OF_KIND[event.kind] for event in timeline.events if event.kind in _OF_KIND}
    return others | {name: _role(event, lookups, after) for name, event in first.items()}


def _role(event: Event, lookups: set[str], after: set[str]) -> str:
    if event.kind == "transfer" or event.op in TRANSFER_OPS:
        return TRANSFER
    if event.op in DENSE_OPS:
        return DENSE
    if event.name in lookups:
        return LOOKUP
    return DENSE if event.name in after and event.op not in FEEDS else OTHER


def _reads_table(event: Event) -> bool:
    if event.kind not in ("op", "kernel") or event.op in FEEDS:
        return False
    return event.tags.embedding or event.op in LOOKUP_OPS


def _reach(starts: Iterable[str], edges: Mapping[str, Iterable[str]], stops: set[str]) -> set[str]:
    """What is reached from ``starts``, themselves included, without going through ``stops``."""
    found = set(starts)
    waiting = list(found)
    while waiting:
        for one in edges.get(waiting.pop(), ()):
            if one not in found and one not in stops:
                found.add(one)
                waiting.append(one)
    return found
