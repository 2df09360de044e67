"""Writes the split form of one signature: walks the graph once, producers first, and decides for each node where it
runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tensorflow.core.framework import node_def_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from graph_opt.fused_node import FUSED_OP
from graph_opt.item import FusedGroup, GraphItem
from graph_opt.lookup_spec import CopySpec
from graph_opt.recognise.facts import Facts, has_effect
from graph_opt.rows.analysis import RowFacts
from graph_opt.rows.feeds import Feeds
from graph_opt.rows.kinds import STREAMS, Kind
from graph_opt.rows.streams import parts_of
from graph_opt.split import rules_entries, rules_layout, rules_products  # noqa: F401 - they register their rules
from graph_opt.split.builder import Builder
from graph_opt.split.flops import Flops, flops_of
from graph_opt.split.item_side import OnItemSide
from graph_opt.split.lookups import split_lookups, worlds_of
from graph_opt.split.site import RULES, SplitSite
from graph_opt.split.views import DUAL, SHARED, View, full_view, joined_past, user_view
from graph_opt.split.weights import Taken, Weights
from graph_opt.split.worlds import ITEM, USER, CannotTell, Worlds
from graph_opt.verify import output_dtypes
from graph_opt.view import GraphView, canonical, node_of

SUFFIX = "__split"


@dataclasses.dataclass(frozen=True)
class Written:
    """The nodes of a split form. signature: the new SignatureDef; groups: its fused ops; worlds: what became of each
    tensor; taken: parts of weights that it uses."""

    signature: meta_graph_pb2.SignatureDef
    row_to_user: str
    groups: tuple[FusedGroup, ...]
    worlds: Worlds
    flops: Flops
    taken: Taken


class Splitter:
    """One attempt. user: names of the features with one row per user. prefix: of the new nodes."""

    def __init__(
        self,
        item: GraphItem,
        name: str,
        facts: Facts,
        rows: RowFacts,
        feeds: Feeds,
        user: frozenset[str],
        *,
        prefix: str,
        custom: bool,
        limit_bytes: int,
        taken: Taken,
    ) -> None:
        self.item = item
        self.name = name
        self.rows = rows
        self.feeds = feeds
        self.user = user
        self.view: GraphView = facts.view
        self.build = Builder(self.view, prefix, custom=custom)
        self.row_to_user_input = _free_name("row_to_user", item.signatures[name].inputs)
        row_to_user = self._placeholder()
        self.worlds = Worlds(self.build, rows, row_to_user)
        self.weights = Weights(item, self.build, limit_bytes, taken)
        self.flops = Flops()
        self.groups = {g.node: g for g in item.groups}
        self.made: list[FusedGroup] = []
        self.copies: dict[str, str] = {}  # original node -> a copy of it, for control edges

    def run(self) -> Written:
        """Adds the nodes. Raises OnItemSide where a feature must be taken out of ``user`` first."""
        self._feed()
        fed = {node_of(t) for t in self.feeds.kinds}
        for node in self.rows.order:
            if node.name not in fed:
                self.flops.before += flops_of(node, self.rows)
                self.worlds.set(node, self._visit(node))
        signature = self._signature()
        return Written(signature, self.row_to_user_input, tuple(self.made), self.worlds, self.flops, self.weights.taken)

    def _placeholder(self) -> str:
        node = node_def_pb2.NodeDef(
            name=self.view.unique_name(f"{self.build.prefix}{self.row_to_user_input}"), op="Placeholder"
        )
        node.attr["dtype"].type = types_pb2.DT_INT64
        node.attr["shape"].shape.dim.add().size = -1
        return canonical(self.view.add(node).name)

    def _feed(self) -> None:
        for tensor, kind in self.feeds.kinds.items():
            if kind.name == "shared":
                view = SHARED
            else:
                mine = bool(kind.sources) and kind.sources <= self.user
                if kind.name == "dshape":
                    view = View("dual", past=(USER if mine else ITEM,))
                else:
                    view = user_view(tensor) if mine else full_view(tensor)
                if mine and kind.name in ("row", "dshape", "splits"):
                    self.worlds.user_inputs.append((tensor, kind.name))
            self.worlds.views[tensor] = view

    # Nodes

    def _visit(self, node: node_def_pb2.NodeDef) -> list[View]:
        ports = max(len(output_dtypes(node)), 1)
        kinds = [self.rows.kind(f"{node.name}:{port}") for port in range(ports)]
        waits = any(name in self.copies for name in self.view.control_inputs(node))
        if all(k.name == "shared" for k in kinds) and not waits:
            return [SHARED] * ports
        site = SplitSite(node, self.rows, self.worlds, self.weights, self.flops)
        if node.op == FUSED_OP and node.name in self.groups:
            return self._lookups(site)
        if all(k.dual for k in kinds):
            return [self._dual(site, kind) for kind in kinds]
        if self._only_user(site, kinds):
            return self._on_user_rows(site, ports)
        plain = kinds[0].name == "row" and not has_effect(node) and not self._controls(node)
        if any(v.split for v in site.views) and node.op in RULES and plain:
            found = self._by_rule(site)
            if found is not None:
                return found
        return self._on_item_rows(site, ports)

    def _dual(self, site: SplitSite, kind: Kind) -> View:
        """A shape (or zeros) can be made for both sides; a cast of a dense shape keeps the side it belongs to."""
        source = site.views[0] if site.views else DUAL
        if kind.name == "dshape" and site.node.op in ("Cast", "Identity"):
            return View("dual", past=source.past)
        return DUAL

    def _only_user(self, site: SplitSite, kinds: list[Kind]) -> bool:
        """Whether the node works row by row on user rows, and on them only."""
        if has_effect(site.node) or not any(v.form == "user" for v in site.views):
            return False
        if any(v.form not in ("user", "shared", "dual") for v in site.views):
            return False
        return all(k.name in ("row", "limits") or k.name in STREAMS for k in kinds[:1])

    def _on_user_rows(self, site: SplitSite, ports: int) -> list[View]:
        try:
            inputs = [self.worlds.user(t) for t in site.names]
        except CannotTell:
            return self._on_item_rows(site, ports)
        name = self.build.copy(site.node, USER, inputs, self._controls(site.node))
        self.copies[site.node.name] = name
        self.flops.add(USER, flops_of(site.node, self.rows))
        past = joined_past(site.views)
        past = past if site.node.op in past else (*past, site.node.op)
        return [user_view(f"{name}:{port}", past) for port in range(ports)]

    def _by_rule(self, site: SplitSite) -> list[View] | None:
        self.build.rule = f"{site.node.op} in two parts"
        try:
            found = RULES[site.node.op](site)
        except CannotTell:
            return None
        finally:
            self.build.rule = ""
        return None if found is None else [found] if isinstance(found, View) else list(found)

    def _lookups(self, site: SplitSite) -> list[View]:
        self._keep_streams_together(site)
        views, groups = split_lookups(site, self.groups[site.node.name])
        self.made += groups
        for group in groups:
            waits = [f"^{c}" for c in self._controls(site.node)]
            self.view.set_inputs(group.node, [*self.view.node(group.node).input, *waits])
        self.copies[site.node.name] = groups[-1].node
        return views

    def _on_item_rows(self, site: SplitSite, ports: int) -> list[View]:
        for tensor in site.names:
            self._repeatable(tensor, site.node, "")
        inputs = [self.worlds.full(t, site.node) for t in site.names]
        name = self.build.copy(site.node, ITEM, inputs, self._controls(site.node))
        self.copies[site.node.name] = name
        self.flops.add(ITEM, flops_of(site.node, self.rows))
        return [full_view(f"{name}:{port}") for port in range(ports)]

    def _repeatable(self, tensor: str, node: node_def_pb2.NodeDef, reason: str) -> None:
        """OnItemSide where ``tensor`` is a user's, and has no rows that could be repeated."""
        kind = self.rows.kind(tensor)
        user_shape = kind.name == "dshape" and self.worlds.view(tensor).past == (USER,) and kind.sources <= self.user
        view = self.worlds.view(tensor)
        if (view.form != "user" and not user_shape) or kind.name == "row":
            return
        out = self.rows.kind(node.name)
        why = reason or (out.reason if out.name == "opaque" and out.node == node.name else "")
        feature = min(kind.sources & self.user)
        raise OnItemSide(feature, node, why or f"{node.op} needs its values for each item row")

    def _keep_streams_together(self, site: SplitSite) -> None:
        """A lookup that stays on item rows must not read streams of user features."""
        group = self.groups[site.node.name]
        first = len(site.names) - len(group.bind)
        inputs = {t: site.names[first + int(p.removeprefix("arg:"))] for t, p in group.bind.items()}
        for number in range(len(group.outputs)):
            parts = parts_of(group, number)
            for part, world in zip(parts, worlds_of(site, number, parts, inputs), strict=True):
                if world == ITEM:
                    for tensor in (part.source,) if isinstance(part, CopySpec) else part.sources():
                        self._repeatable(inputs[tensor], site.node, "it is looked up together with item features")

    def _controls(self, node: node_def_pb2.NodeDef) -> list[str]:
        """Copies of the nodes that ``node`` waits for; inputs are there from the start."""
        fed = {node_of(t) for t in self.feeds.kinds}
        found = []
        for name in self.view.control_inputs(node):
            if name in self.copies:
                found.append(self.copies[name])
            elif name not in fed and self.rows.kind(name).name == "shared":
                found.append(name)
        return list(dict.fromkeys(found))

    # The signature

    def _signature(self) -> meta_graph_pb2.SignatureDef:
        made = meta_graph_pb2.SignatureDef()
        made.CopyFrom(self.item.signatures[self.name])
        info = made.inputs[self.row_to_user_input]
        info.name = self.worlds.row_to_user
        info.dtype = types_pb2.DT_INT64
        info.tensor_shape.dim.add().size = -1
        for output in made.outputs.values():
            self._rename(output)
        return made

    def _rename(self, info: meta_graph_pb2.TensorInfo) -> None:
        encoding = info.WhichOneof("encoding")
        if encoding == "name":
            info.name = self._output(info.name)
        elif encoding == "coo_sparse":
            for field in ("values_tensor_name", "indices_tensor_name", "dense_shape_tensor_name"):
                setattr(info.coo_sparse, field, self._output(getattr(info.coo_sparse, field)))
        elif encoding == "composite_tensor":
            for part in info.composite_tensor.components:
                self._rename(part)

    def _output(self, tensor: str) -> str:
        tensor = canonical(tensor)
        node = self.view.producer(tensor)
        self._repeatable(tensor, node, "the signature returns it as it is")
        return canonical(self.worlds.full(tensor))


def _free_name(base: str, taken: Mapping[str, object]) -> str:
    name, number = base, 0
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    return name
