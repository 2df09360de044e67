"""User features that must be given per item row all the same, and why."""

from __future__ import annotations

from collections.abc import Iterable

from tensorflow.core.framework import node_def_pb2

from graph_opt.fused_node import FUSED_OP
from graph_opt.item import FusedGroup
from graph_opt.rows.analysis import RowFacts
from graph_opt.rows.kinds import STREAMS
from graph_opt.rows.streams import lookup_reason


class OnItemSide(Exception):
    """A user feature must be given per item row: something reads it that can't be repeated afterwards."""

    def __init__(self, feature: str, node: node_def_pb2.NodeDef, reason: str) -> None:
        super().__init__(f"{feature}: {reason}")
        self.feature = feature
        self.op = node.op
        self.node = node.name
        self.reason = reason


def found_beforehand(rows: RowFacts, groups: Iterable[FusedGroup], user: frozenset[str]) -> list[OnItemSide]:
    """Features of ``user`` whose values, indices or splits go into something that mixes rows, one entry each.

    These can be told from the graph as it is; others come up while the split form is written.
    """
    by_node = {g.node: g for g in groups}
    found: dict[str, OnItemSide] = {}
    for node in rows.order:
        inputs = rows.view.inputs(node)
        if node.op == FUSED_OP and node.name in by_node:
            for spec, reason in _unclean(rows, by_node[node.name], inputs):
                _note(found, spec, node, reason, user)
            continue
        out = rows.kind(node.name)
        if out.name != "opaque":
            continue
        reason = out.reason if out.node == node.name else f"it also reads what {out.op} {out.node} has mixed"
        for tensor in inputs:
            kind = rows.kind(tensor)
            if kind.name in STREAMS or kind.name == "limits":
                _note(found, kind.sources, node, reason, user)
    return list(found.values())


def _unclean(rows: RowFacts, group: FusedGroup, inputs: list[str]) -> list[tuple[frozenset[str], str]]:
    """Features of the lookups that can't run on user rows, with reasons."""
    first = len(inputs) - len(group.bind)
    kinds = {t: rows.kind(inputs[first + int(place.removeprefix("arg:"))]) for t, place in group.bind.items()}
    result = []
    for spec, place in group.lookups:
        reason = lookup_reason(spec, kinds)
        if not reason and rows.kind(f"{group.node}:{place.output}").name != "row":
            reason = "the rank of its result is not known"
        if reason:
            used = [kinds[t] for t in spec.sources()]
            streams = frozenset().union(*(k.sources for k in used if k.name in STREAMS or k.name == "limits"))
            result.append((streams, reason))
    return result


def _note(
    found: dict[str, OnItemSide],
    features: Iterable[str],
    node: node_def_pb2.NodeDef,
    reason: str,
    user: frozenset[str],
) -> None:
    for feature in features:
        if feature in user and feature not in found:
            found[feature] = OnItemSide(feature, node, reason)
