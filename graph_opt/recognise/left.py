"""Readers of tables that are no lookups of the spec language, and why each stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorflow.core.framework import node_def_pb2

from graph_opt.candidates import Refusal
from graph_opt.recognise import reasons
from graph_opt.recognise.engine import HASH_LOOKUP, Walk
from graph_opt.recognise.facts import PASS_THROUGH
from graph_opt.recognise.scope import FUNCTIONAL_CONTROL_FLOW, LOOP_OPS, Scope
from graph_opt.view import canonical

_GATHERS = frozenset({"GatherV2", "Gather", "ResourceGather", "GatherNd", "ResourceGatherNd"})
_SEGMENTS = ("SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN")


def other_readers(walk: Walk, scope: Scope, tables: Mapping[str, Any]) -> list[Refusal]:
    """Refusals for readers that the walk did not take as lookups; whole reads only of tables also looked up in."""
    looked_up = {t for states in walk.found.values() for s in states for t in s.tables}
    gathers = {g for states in walk.found.values() for s in states for g in s.gathers}
    refusals = []
    for table in tables:
        if table in walk.view and walk.view.node(table).op == HASH_LOOKUP:
            if table not in gathers and scope.reaches(table):
                refusals.append(_unknown_keys(walk, scope, table, tables[table]))
            continue
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
    return refusals + _mutable_lookups(walk, scope) + _inside_functions(walk, scope)


def _unknown_keys(walk: Walk, scope: Scope, lookup: str, file: Any) -> Refusal:
    """A lookup in a hash file whose keys the walk could make nothing of."""
    constant = walk.const(walk.view.inputs(lookup)[1]) is not None
    reason = scope.why_not(lookup) or (reasons.CONSTANT_IDS if constant else reasons.NOT_IN_LANGUAGE)
    return Refusal(gather=lookup, reason=reason, nodes=(lookup,), name=lookup, table=getattr(file, "name", lookup))


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
    known = walk.dtype(inputs[1]) in ("int32", "int64")
    return reasons.NOT_IN_LANGUAGE if known else reasons.IDS_DTYPE


def _mutable_lookups(walk: Walk, scope: Scope) -> list[Refusal]:
    """Row gathers from variables that stayed variables, and vectors kept in mutable hash tables."""
    refusals = []
    for node in walk.view:
        if not scope.reaches(node.name) or not walk.view.inputs(node):
            continue
        source = walk.view.producer(walk.facts.root(walk.view.inputs(node)[0]))
        if source.op == "ReadVariableOp":
            source = walk.view.producer(walk.facts.root(walk.view.inputs(source)[0]))
        found = node.op in _GATHERS or node.op.startswith(_SEGMENTS)
        if node.op == "LookupTableFindV2":
            found = walk.facts.dtype(f"{node.name}:0").is_floating
        elif source.op not in ("VarHandleOp", "VariableV2"):
            continue
        if found:
            reason = scope.why_not(node.name) or reasons.MUTABLE_TABLE
            refusals.append(
                Refusal(gather=node.name, reason=reason, nodes=(node.name,), name=node.name, table=source.name)
            )
    return refusals


def _inside_functions(walk: Walk, scope: Scope) -> list[Refusal]:
    """Control flow nodes whose functions read rows of a variable or table."""
    library = {f.signature.name: f for f in walk.view.graph_def.library.function}
    refusals = []
    for node in walk.view:
        if node.op not in FUNCTIONAL_CONTROL_FLOW or not scope.reaches(node.name):
            continue
        pending, seen, found = _called(node), set(), False
        while pending and not found:
            name = pending.pop()
            if name in seen or name not in library:
                continue
            seen.add(name)
            for inner in library[name].node_def:
                found |= inner.op == "ResourceGather" or inner.op.startswith(_SEGMENTS)
                pending += _called(inner)
        if found:
            refusals.append(Refusal(gather=node.name, reason=reasons.CONTROL_FLOW, nodes=(node.name,), name=node.name))
    return refusals


def _called(node: node_def_pb2.NodeDef) -> list[str]:
    """Names of the functions in a node's attributes."""
    names = [a.func.name for a in node.attr.values() if a.HasField("func")]
    return names + [f.name for a in node.attr.values() for f in a.list.func]
