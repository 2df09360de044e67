"""What a ``TfctrEvLookup`` node asks for, lookup by lookup."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection

from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework import tensor_util

from graph_opt.restore_map import resource_node
from graph_opt.view import GraphView

LOOKUP_OP = "TfctrEvLookup"
_PASSING = ("Identity", "StopGradient", "Snapshot", "PlaceholderWithDefault")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvLookup:
    """One lookup of a call.

    handle: its TfctrEvHandle node. keys, splits, weights: graph tensors; splits None without a combiner.
    combiner: "" (a row per key), "sum", "mean" or "sqrtn". max_norm: None without a limit.
    """

    handle: str
    dim: int
    keys: str
    splits: str | None = None
    weights: str | None = None
    combiner: str = ""
    max_norm: float | None = None


def read_call(view: GraphView, node: node_def_pb2.NodeDef) -> list[EvLookup]:
    """The lookups of a TfctrEvLookup node, in order of its outputs."""
    attr, inputs = node.attr, view.inputs(node)
    count, splits = attr["N"].i, attr["S"].i
    handles, keys = inputs[:count], inputs[count : 2 * count]
    row_splits, weights = inputs[2 * count : 2 * count + splits], inputs[2 * count + splits : -2]
    columns = (attr["dims"], attr["splits_index"], attr["weights_index"])
    dims, splits_index, weights_index = (list(column.list.i) for column in columns)
    combiners, limits = list(attr["combiners"].list.s), list(attr["max_norms"].list.f)
    return [
        EvLookup(
            handle=resource_node(view, handles[i]),
            dim=dims[i],
            keys=keys[i],
            splits=row_splits[splits_index[i]] if combiners[i] else None,
            weights=weights[weights_index[i]] if weights_index[i] >= 0 else None,
            combiner=combiners[i].decode(),
            max_norm=limits[i] if limits[i] >= 0 else None,
        )
        for i in range(count)
    ]


def training_input(view: GraphView, node: node_def_pb2.NodeDef, fed: Collection[str]) -> bool | None:
    """What the call's ``training`` is whenever it is served; None where that is not known. fed: signatures' inputs."""
    tensor = view.inputs(node)[-1]
    while tensor not in fed:
        source = view.producer(tensor)
        if source.op == "Const":
            return bool(tensor_util.MakeNdarray(source.attr["value"].tensor))
        if source.op not in _PASSING:
            return None
        tensor = view.inputs(source)[0]
    return None


def table_config(handle: node_def_pb2.NodeDef) -> dict:
    """The configuration of a TfctrEvHandle node's table (``tfctr.embedding.table_config``)."""
    return json.loads(handle.attr["config"].s)
