"""The edges between the two devices, in groups that can cross as one tensor without a cycle.

The stage of a node is the number of times that its inputs left the dense device on the way to it. Tensors of one stage
do not wait for what reads them, so they may be packed; and what is packed together is read by the same signatures, so
that no signature computes what another one needs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from graph_opt.item import GraphItem
from graph_opt.placement.devices import canonical_device
from graph_opt.placement.sides import PASSES, forms, signature_sets
from graph_opt.signature_info import composite_parts
from graph_opt.view import GraphView, canonical, is_control, node_of


@dataclasses.dataclass
class Group:
    """Tensors that cross one way together. signatures: those that read it. stage: see above. tensors: in graph order,
    with the nodes that read each. outputs: signature -> {output: tensor}, of a group towards the sparse side.
    """

    signatures: frozenset[str]
    stage: int
    tensors: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    outputs: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)


class Crossings:
    """Of one graph; valid while it is not edited."""

    def __init__(self, item: GraphItem, view: GraphView, sparse: str, dense: str) -> None:
        self.item, self.view = item, view
        self.sparse, self.dense = sparse, dense
        self.signatures = signature_sets(item, view)
        needed = view.ancestors(t for name in forms(item) for t in item.fetches(name))
        self.order = [n.name for n in view.topological() if n.name in needed]
        self.device = {name: canonical_device(view.node(name).device) for name in self.order}
        self.stage = self._stages()

    def _stages(self) -> dict[str, int]:
        stage: dict[str, int] = {}
        for name in self.order:
            found = 0
            for source in {node_of(i) for i in self.view.node(name).input}:
                leaves = self.device.get(source) == self.dense != self.device[name]
                found = max(found, stage.get(source, 0) + leaves)
            stage[name] = found
        return stage

    def to_dense(self) -> list[Group]:
        return self._groups(self.sparse, self.dense)

    def to_sparse(self) -> list[Group]:
        """Edges and signature outputs: these are fetched by the client, whose memory is the sparse device's."""
        groups = self._groups(self.dense, self.sparse)
        for name in forms(self.item):
            outputs = {
                key: canonical(info.name)
                for key, info in sorted(self.item.signatures[name].outputs.items())
                if composite_parts(info)[0] == "dense" and self.device.get(node_of(info.name)) == self.dense
            }
            self._add_outputs(groups, name, outputs)
        return groups

    def _groups(self, source: str, target: str) -> list[Group]:
        uses: dict[str, list[str]] = {}
        for name in self.order:
            if self.device[name] == target:
                for tensor in self.view.inputs(name):
                    if self.device.get(node_of(tensor)) == source:
                        uses.setdefault(tensor, []).append(name)
        found: dict[tuple[frozenset[str], int], Group] = {}
        for tensor, readers in uses.items():
            largest = _largest({self.signatures[r] for r in readers})
            for reader in dict.fromkeys(readers):
                signatures = next(s for s in largest if s >= self.signatures[reader])
                key = (signatures, self.stage[node_of(tensor)])
                group = found.setdefault(key, Group(*key))
                group.tensors.setdefault(tensor, []).append(reader)
        return list(found.values())

    def _add_outputs(self, groups: list[Group], name: str, outputs: dict[str, str]) -> None:
        """Outputs go with what crosses last; one that crosses anyway is taken from there."""
        left = {}
        for key, tensor in outputs.items():
            there = next((g for g in groups if tensor in g.tensors and name in g.signatures), None)
            if there is None:
                left[key] = tensor
            else:
                there.outputs.setdefault(name, {})[key] = tensor
        if not left:
            return
        stage = max(self.stage[node_of(t)] for t in left.values())
        wanted = (frozenset({name}), stage)
        group = next((g for g in groups if (g.signatures, g.stage) == wanted), None)
        if group is None:
            group = Group(*wanted)
            groups.append(group)
        for key, tensor in left.items():
            group.tensors.setdefault(tensor, [])
            group.outputs.setdefault(name, {})[key] = tensor

    def outputs_behind(self, tensor: str, signature: str) -> list[str]:
        """Outputs of ``signature`` that are ``tensor``, passed on by nothing but identities."""
        named = {canonical(i.name): k for k, i in self.item.signatures[signature].outputs.items()}
        pending, found = [canonical(tensor)], []
        while pending:
            one = pending.pop()
            found += [named[one]] if one in named else []
            pending += [
                f"{n.name}:{k if n.op == 'IdentityN' else 0}" for n, k in self.view.consumers(one) if n.op in PASSES
            ]
        return sorted(found)

    def control(self) -> list[tuple[str, str]]:
        """(source, node) of control edges from one of the two devices to the other."""
        ends = {self.sparse, self.dense}
        return [
            (node_of(i), name)
            for name in self.order
            for i in self.view.node(name).input
            if is_control(i) and {self.device.get(node_of(i)), self.device[name]} == ends
        ]


def _largest(sets: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """The sets that are part of no other, in a fixed order."""
    every = set(sets)
    return sorted((s for s in every if not any(s < other for other in every)), key=sorted)
