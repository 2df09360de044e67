"""Readers of tables that are no lookups of the spec language, and why each stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorflow.core.framework import node_def_pb2

from graph_opt.candidates import Refusal
from graph_opt.recognise import reasons
from graph_opt.recognise.engine import Walk
from graph_opt.recognise.facts import PASS_THROUGH
from graph_opt.recognise.scope import FUNCTIONAL_CONTROL_FLOW, LOOP_OPS, Scope
from graph_opt.view import canonical

_GATHERS = frozenset({"GatherV2", "Gather", "ResourceGather", "GatherNd", "ResourceGatherNd"})
_SEGMENTS = ("SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN")


def other_readers(walk: Walk, scope: Scope, tables: Mapping[str, Any]) -> list[Refusal]:
    """Refusals for table readers that the walk did not take as lookups; whole reads only of tables that are also looked up in."""
    looked_up = {t for states in walk.found.values() for s in states for t in s.tables}
    gathers = {g for states in walk.found.values() for s in states for g in s.gathers}
    refusals = []
    for table in tables:
        for reader in _readers(walk, table) if table in walk.view else ():
            if reader.name in gathers or not scope.reaches(reader.name):
                continue
            reason = _reason(walk, scope, reader)
            if reason == reasons.READ_DENSELY and table not in looked_up:
                continue
            name = getattr(tables[table], "name", table)
            refusals.append(
                Refusal(gather=reader.name, reason=reason, nodes=(reader.name,), name=reader.name, table=name)
            )
    return refusals + _mutable_lookups(walk, scope)


def _readers(walk: Walk, table: str) -> list[node_def_pb2.NodeDef]:
    found, pending = [], [f"{table}:0"]
    while pending:
        for user, _ in walk.view.consumers(pending.pop()):
            if user.op in PASS_THROUGH:
                pending.append(canonical(user.name))
            elif user not in found:
                found.append(user)
    return found


def _reason(walk: Walk, scope: Scope, reader: node_def_pb2.NodeDef) -> str:
    if reader.op in FUNCTIONAL_CONTROL_FLOW or reader.op in LOOP_OPS:
        return reasons.CONTROL_FLOW
    if reader.op not in _GATHERS and not reader.op.startswith(_SEGMENTS):
        return reasons.READ_DENSELY
    reason = scope.why_not(reader.name)
    if reason is not None:
        return reason
    inputs = walk.view.inputs(reader)
    if reader.op in ("GatherNd", "ResourceGatherNd") or reader.attr["batch_dims"].i:
        return reasons.GATHER_AXIS
    if reader.op == "GatherV2" and walk.scalar(inputs[2]) != 0:
        return reasons.GATHER_AXIS
    if walk.const(inputs[1]) is not None:
        return reasons.CONSTANT_IDS
    return reasons.IDS_DTYPE


def _mutable_lookups(walk: Walk, scope: Scope) -> list[Refusal]:
    """Row gathers from variables that stayed variables."""
    refusals = []
    for node in walk.view:
        if node.op != "ResourceGather" or not scope.reaches(node.name):
            continue
        handle = walk.facts.root(walk.view.inputs(node)[0])
        if walk.view.producer(handle).op == "VarHandleOp":
            refusals.append(
                Refusal(
                    gather=node.name, reason=reasons.MUTABLE_TABLE, nodes=(node.name,), name=node.name, table=handle
                )
            )
    return refusals
