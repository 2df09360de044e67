"""Walks a graph once, producers first, and gives every tensor a kind (``graph_opt.rows.kinds``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tensorflow.core.framework import node_def_pb2

from graph_opt.fused_node import FUSED_OP
from graph_opt.item import FusedGroup, GraphItem
from graph_opt.recognise.facts import Facts, has_effect
from graph_opt.rows import elementwise, layout, streams  # noqa: F401 - they register their rules
from graph_opt.rows.dims import of_tensor
from graph_opt.rows.feeds import feed_kinds
from graph_opt.rows.kinds import SHARED, Kind, opaque, row, shared
from graph_opt.rows.site import RULES, Mixes, Site
from graph_opt.rows.sizes import sizes
from graph_opt.verify import output_dtypes
from graph_opt.view import GraphView, canonical, node_of

# Make a tensor of rows from nothing but a shape and constants.
_ROW_MAKERS = frozenset({"Fill", "BroadcastTo", "Tile"})
_UNKNOWN = Kind("opaque", reason="nothing is known about it")


class RowFacts:
    """Kinds of all tensors that ``fetches`` need.

    feeds: kind of each fed tensor. groups: fused lookup nodes, whose specs say what they read. Linear in the number of
    nodes; each rule reads static shapes and constants from ``facts``.
    """

    def __init__(
        self,
        view: GraphView,
        facts: Facts,
        feeds: Mapping[str, Kind],
        fetches: Iterable[str],
        groups: Iterable[FusedGroup] = (),
    ) -> None:
        self.view = view
        self.facts = facts
        needed = view.ancestors(fetches)
        self.order = [node for node in view.topological() if node.name in needed]
        self._groups = {g.node: g for g in groups}
        self._kinds: dict[str, Kind] = {canonical(t): k for t, k in feeds.items()}
        self._feeds = {node_of(t) for t in feeds}
        for node in self.order:
            if node.name not in self._feeds:
                self._visit(node)

    def kind(self, tensor: str) -> Kind:
        """Kind of a tensor; opaque for one that was not reached."""
        return self._kinds.get(canonical(tensor), _UNKNOWN)

    def has_rows(self, tensor: str) -> bool:
        """Whether axis 0 of ``tensor`` is the row axis of the batch."""
        return self.kind(tensor).has_rows

    def _visit(self, node: node_def_pb2.NodeDef) -> None:
        names = self.view.inputs(node)
        kinds = [self.kind(t) for t in names]
        ports = max(len(output_dtypes(node)), 1)
        for port, kind in enumerate(self._judge(node, names, kinds, ports)):
            self._kinds[f"{node.name}:{port}"] = kind

    def _judge(self, node: node_def_pb2.NodeDef, names: list[str], kinds: list[Kind], ports: int) -> list[Kind]:
        sources = frozenset().union(*(k.sources for k in kinds))
        if has_effect(node):
            return self._mixed(node, "it has an effect or a state", sources, ports)
        if not output_dtypes(node):
            return [SHARED]  # a NoOp: nothing that could depend on anything
        if all(k.name == "shared" for k in kinds):
            return [self._shared(f"{node.name}:{port}") for port in range(ports)]
        bad = next((k for k in kinds if k.name == "opaque"), None)
        site = Site(node, names, kinds, self.facts)
        try:
            if node.op == FUSED_OP and node.name in self._groups:
                return streams.lookup_kinds(site, self._groups[node.name])
            if bad is not None:
                return [
                    opaque(bad.op, bad.node, bad.reason, sources) for _ in range(ports)
                ]  # says where it began, not where it ended
            if all(k.fixed or k.name in ("count", "dshape") for k in kinds):
                return self._from_sizes(site, ports)
            if node.op not in RULES:
                raise Mixes(f"{node.op} is not known to work row by row")
            made = RULES[node.op](site)
        except Mixes as error:
            return self._mixed(node, str(error), sources, ports)
        found = [made] if isinstance(made, Kind) else list(made)
        rest = [opaque(node.op, node.name, "this result is not one of rows", sources)] * (ports - len(found))
        return found + rest

    def _from_sizes(self, site: Site, ports: int) -> list[Kind]:
        """An operation over shapes: rows of constants where it makes some, else a count."""
        op = site.node.op
        if op in _ROW_MAKERS:
            try:
                made = RULES[op](site)
                return [row(made.dims or (), frozenset())] if isinstance(made, Kind) else list(made)
            except Mixes:
                pass  # it makes something else: a tensor of sizes like any other
        if op in ("Cast", "Identity") and site.kinds[0].name == "dshape":
            return [site.kinds[0]]
        return [sizes(site, port) for port in range(ports)]

    def _shared(self, tensor: str) -> Kind:
        static = self.facts.shape(tensor)
        return SHARED if static is None else shared(of_tensor(tensor, static))

    @staticmethod
    def _mixed(node: node_def_pb2.NodeDef, reason: str, sources: frozenset[str], ports: int) -> list[Kind]:
        return [opaque(node.op, node.name, reason, sources)] * ports


def rows_of_signature(item: GraphItem, name: str, facts: Facts | None = None) -> RowFacts:
    """Kinds of everything that signature ``name`` of ``item`` computes. facts: of ``item.graph_def``, where there are
    some already.
    """
    facts = facts or Facts(GraphView(item.graph_def))
    feeds = feed_kinds(item, name, facts)
    return RowFacts(facts.view, facts, feeds.kinds, item.fetches(name), item.groups)
