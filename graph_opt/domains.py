"""Which values each input may hold, read backwards from where the graph uses them.

From every row-gather, one-hot or dictionary lookup the walk goes up to the signature's inputs (or the outputs of a
tf.Example parser) and turns "ids must be in [0, V)" into a statement about the input. Used to generate inputs, never to
rewrite.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tensorflow.core.framework import node_def_pb2

from graph_opt.recognise.facts import Facts
from graph_opt.resources import ROW_READERS, constant, is_row_gather
from graph_opt.view import GraphView, canonical, node_of, port_of

WIDE = 1 << 30
_FIRST = frozenset(
    ("Identity", "Cast", "Reshape", "ExpandDims", "Squeeze", "Unique", "UniqueV2", "StridedSlice", "Slice", "Tile",
     "Snapshot", "StopGradient",
     "EnsureShape", "GatherV2", "GatherNd", "Transpose", "DynamicPartition", "BroadcastTo", "Split", "SplitV", "Pad",
     "PadV2",
     "Abs", "IdentityN", "Unpack", "ReverseV2", "StringLower", "StringUpper", "StringStrip", "RaggedGather", "Bitcast")
)  # fmt: skip
_FINDS = ("TfctrVocabFind", "LookupTableFindV2")
PARSERS = ("ParseExampleV2", "ParseExample", "ParseSingleExample")


class Domains:
    """Statements about source tensors: {"kind": "ids", low, high} | {"kind": "keys", "file": index} (of a vocabulary) |
    {"kind": "table_keys", "file": index} (of a hash file, where others are legal too) | {"kind": "text"} |
    {"kind": "float", low, high}. ``of`` maps a source tensor (a feed or a parser's output) to its statement."""

    def __init__(self, view: GraphView, sources: set[str], facts: Facts | None = None) -> None:
        self.view = view
        self.facts = facts or Facts(view)
        self.sources = sources | {
            f"{node.name}:{k}" for node in view if node.op in PARSERS for k in range(_outputs(node))
        }
        self.of: dict[str, dict[str, Any]] = {}
        self._seen: set[tuple[str, Any]] = set()
        for node in view:
            self._start(node)

    def state(self, tensor: str, domain: dict[str, Any]) -> None:
        """Adds a statement about any tensor, and what follows from it for the sources."""
        self._walk(tensor, domain)

    def _start(self, node: node_def_pb2.NodeDef) -> None:
        inputs = self.view.inputs(node)
        if node.op == "ResourceGather" or node.op in ROW_READERS or is_row_gather(self.view, node):
            rows = self._rows(inputs[0])
            if rows is not None:
                self._walk(inputs[1], {"kind": "ids", "low": 0, "high": rows})
        elif node.op == "OneHot":
            depth = self.facts.const(inputs[1])
            if depth is not None:
                self._walk(inputs[0], {"kind": "ids", "low": 0, "high": int(depth)})
        elif node.op == "DynamicPartition":
            self._walk(inputs[1], {"kind": "ids", "low": 0, "high": node.attr["num_partitions"].i})
        elif node.op in _FINDS:
            self._walk(inputs[1], _keys(node))
        elif node.op == "TfctrHashLookup":
            self._walk(inputs[1], {"kind": "table_keys", "file": node.attr["index"].i})
        elif node.op == "Bucketize":
            bounds = list(node.attr["boundaries"].list.f)
            self._walk(inputs[0], _floats(bounds))
        elif node.op.startswith("StringToHashBucket"):
            self._walk(inputs[-1], {"kind": "text"})

    def _rows(self, tensor: str) -> int | None:
        node = self.view.producer(tensor)
        while node.op in ("Identity", "ReadVariableOp"):
            node = self.view.node(node_of(node.input[0]))
        if node.op in ("TfctrTable", "VarHandleOp", "VariableV2", "Variable"):
            dims = node.attr["shape"].shape.dim
            return dims[0].size if dims else None
        if node.op == "Const":
            dims = node.attr["value"].tensor.tensor_shape.dim
            return dims[0].size if dims else None
        return None

    def _walk(self, tensor: str, domain: dict[str, Any]) -> None:
        tensor = canonical(tensor)
        mark = (tensor, tuple(sorted((k, str(v)) for k, v in domain.items())))
        if mark in self._seen:
            return
        self._seen.add(mark)
        if tensor in self.sources:
            self.of[tensor] = _meet(self.of.get(tensor), domain)
            return
        node = self.view.producer(tensor)
        for above, changed in self._above(node, port_of(tensor), domain):
            self._walk(above, changed)

    def _above(self, node: node_def_pb2.NodeDef, port: int, domain: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        inputs = self.view.inputs(node)
        if node.op in _FINDS:
            return [(inputs[1], _keys(node))]
        if node.op == "IdentityN":
            return [(inputs[port], domain)]
        if node.op in _FIRST:
            return [(inputs[1 if node.op == "Split" else 0], domain)]
        if node.op in ("SparseFillEmptyRows",):
            return [(inputs[1], domain)] if port == 1 else []
        if node.op == "RaggedFillEmptyRows":
            return [(inputs[1], domain)] if port == 1 else []
        if node.op == "SparseToDense":
            return [(inputs[2], domain)]
        if node.op in ("Select", "SelectV2"):
            return [(inputs[1], domain), (inputs[2], domain)]
        if node.op in ("ConcatV2", "Pack", "Maximum", "Minimum", "AddN"):
            return [(i, domain) for i in (inputs[:-1] if node.op == "ConcatV2" else inputs)]
        if node.op.startswith("StringToHashBucket"):
            return [(inputs[-1], {"kind": "text"})]
        if node.op == "Fingerprint":
            return [(inputs[0], {"kind": "text"})]
        if node.op == "AsString":
            return [(inputs[0], {"kind": "ids", "low": 0, "high": WIDE})]
        if node.op == "Bucketize":
            return [(inputs[0], _floats(list(node.attr["boundaries"].list.f)))]
        return self._arithmetic(node, inputs, domain)

    def _arithmetic(
        self, node: node_def_pb2.NodeDef, inputs: list[str], domain: dict[str, Any]
    ) -> list[tuple[str, dict[str, Any]]]:
        if domain["kind"] != "ids" or len(inputs) != 2:
            return []
        left, right = (self.facts.const(i) for i in inputs)
        low, high = domain["low"], domain["high"]
        if node.op in ("FloorMod", "Mod", "TruncateMod") and right is not None:
            return [(inputs[0], {"kind": "ids", "low": 0, "high": WIDE})]
        if node.op in ("AddV2", "Add"):
            if left is None and right is None:
                return []
            value, other = (right, inputs[0]) if right is not None else (left, inputs[1])
            assert value is not None
            return [(other, _ids(low - int(value.min()), high - int(value.max())))]
        if node.op == "Sub" and right is not None:
            return [(inputs[0], _ids(low + int(right.max()), high + int(right.min())))]
        if node.op in ("FloorDiv", "TruncateDiv", "Div") and right is not None and right.size == 1 and int(right) > 0:
            return [(inputs[0], _ids(low * int(right), high * int(right)))]
        if node.op == "Mul":
            return [(i, domain) for i, v in zip(inputs, (left, right), strict=True) if v is None]
        return []


def _outputs(node: node_def_pb2.NodeDef) -> int:
    from graph_opt.verify import output_dtypes

    return len(output_dtypes(node))


def _keys(node: node_def_pb2.NodeDef) -> dict[str, Any]:
    if node.op == "TfctrVocabFind":
        return {"kind": "keys", "file": node.attr["index"].i}
    return {"kind": "text"}


def _floats(bounds: list[float]) -> dict[str, Any]:
    if not bounds:
        return {"kind": "float", "low": -1.0, "high": 1.0}
    spread = max(bounds[-1] - bounds[0], 1.0)
    return {"kind": "float", "low": float(bounds[0] - spread / 4), "high": float(bounds[-1] + spread / 4)}


def _ids(low: int, high: int) -> dict[str, Any]:
    return {"kind": "ids", "low": int(low), "high": int(high)}


def _meet(known: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """What satisfies both statements; dictionary keys beat everything (a key file says exactly what is useful)."""
    if known is None or known == new:
        return new
    order = {"keys": 0, "ids": 1, "table_keys": 2, "float": 3, "text": 4}
    if known["kind"] != new["kind"] or known["kind"] in ("keys", "table_keys", "text"):
        return min((known, new), key=lambda d: order[d["kind"]])
    low, high = max(known["low"], new["low"]), min(known["high"], new["high"])
    return {**new, "low": low, "high": high} if low < high else known


def parser_features(view: GraphView, node: node_def_pb2.NodeDef, domains: Domains) -> list[dict[str, Any]]:
    """The features a ParseExample node expects: {key, dtype, kind "dense" | "sparse" | "ragged", shape, domain}."""
    import tensorflow as tf

    def keys(tensor: str) -> list[bytes]:
        value = constant(view, tensor)
        return [] if value is None else list(np.asarray(value).reshape(-1))

    def domain(port: int) -> dict[str, Any] | None:
        return domains.of.get(f"{node.name}:{port}")

    def types(attr: str) -> list[str]:
        return [tf.as_dtype(t).name for t in node.attr[attr].list.type]

    sparse, dense = types("sparse_types"), types("Tdense")
    shapes = [[d.size for d in s.dim] for s in node.attr["dense_shapes"].list.shape]
    inputs = view.inputs(node)
    if node.op == "ParseExampleV2":
        sparse_keys, dense_keys, ragged_keys = keys(inputs[2]), keys(inputs[3]), keys(inputs[4])
    else:
        sparse_keys = [k for i in inputs[2 : 2 + len(sparse)] for k in keys(i)]
        dense_keys = [k for i in inputs[2 + len(sparse) : 2 + len(sparse) + len(dense)] for k in keys(i)]
        ragged_keys = []
    ns, nd = len(sparse), len(dense)
    found: list[dict[str, Any]] = [
        {"key": k.decode(), "dtype": t, "kind": "sparse", "shape": [], "domain": domain(ns + j)}
        for j, (k, t) in enumerate(zip(sparse_keys, sparse, strict=False))
    ]
    found += [
        {"key": k.decode(), "dtype": t, "kind": "dense", "shape": s, "domain": domain(3 * ns + j)}
        for j, (k, t, s) in enumerate(zip(dense_keys, dense, shapes, strict=False))
    ]
    found += [
        {"key": k.decode(), "dtype": t, "kind": "ragged", "shape": [], "domain": domain(3 * ns + nd + j)}
        for j, (k, t) in enumerate(zip(ragged_keys, types("ragged_value_types"), strict=False))
    ]
    return found
