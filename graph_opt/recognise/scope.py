"""Where a lookup begins and ends in the graph: cones, outside users, control edges, control flow, dependencies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensorflow.core.framework import node_def_pb2

from graph_opt.recognise import reasons
from graph_opt.recognise.facts import PASS_THROUGH, Facts, has_effect
from graph_opt.view import GraphView, canonical, node_of, port_of

FUNCTIONAL_CONTROL_FLOW = frozenset(
    {"If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase", "For", "MapDefun", "SymbolicGradient",
     "PartitionedCall", "StatefulPartitionedCall", "RemoteCall"}
)  # fmt: skip
LOOP_OPS = frozenset({"Enter", "RefEnter", "Switch", "RefSwitch", "NextIteration", "RefNextIteration", "LoopCond"})
_COMPUTING = ("TfctrVocabFind", "TfctrHashLookup")  # readers of the store that depend on the request
_INPUTS = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "_Arg"})


class Scope:
    """Questions about one graph and the outputs that count (``fetches``, graph tensors)."""

    def __init__(self, view: GraphView, facts: Facts, fetches: Iterable[str]) -> None:
        self._view = view
        self._facts = facts
        self._fetches = {canonical(f) for f in fetches}
        self._live = view.ancestors(self._fetches)
        self._in_control_flow = _in_control_flow(view)

    def reaches(self, node: str) -> bool:
        """True when an output needs ``node``."""
        return node in self._live

    def why_not(self, gather: str) -> str | None:
        """The reason not to touch a gather that has nothing to do with what it computes."""
        node = self._view.node(gather)
        if gather in self._in_control_flow:
            return reasons.CONTROL_FLOW
        if "GPU" in node.device.upper():
            return reasons.ON_GPU
        if self._facts.waits_for_effect(node):
            return reasons.CONTROL_EDGE
        return None

    def cone(self, output: str, sources: Sequence[str]) -> frozenset[str] | None:
        """Nodes between ``sources`` and ``output``, constants included; None where something else is read too."""
        stop = {canonical(s) for s in sources}
        pending, found = [node_of(output)], set()
        while pending:
            name = pending.pop()
            if name in found:
                continue
            node = self._view.get(name)
            if node is None or node.op in _INPUTS or "GPU" in node.device.upper():
                return None
            if self._facts.waits_for_effect(node) or (has_effect(node) and not _is_ours(node)):
                return None
            found.add(name)
            pending += [node_of(t) for t in self._view.inputs(node) if t not in stop]
        return frozenset(n for n in found if not _is_ours(self._view.node(n)) or self._view.node(n).op in _COMPUTING)

    def why_open(self, output: str, sources: Sequence[str]) -> str | None:
        """The reason why there is no :meth:`cone`, where it is one to report."""
        stop = {canonical(s) for s in sources}
        pending, seen = [node_of(output)], set()
        while pending:
            name = pending.pop()
            node = self._view.get(name)
            if name in seen or node is None:
                continue
            seen.add(name)
            if "GPU" in node.device.upper():
                return reasons.ON_GPU
            if self._facts.waits_for_effect(node) or (has_effect(node) and not _is_ours(node)):
                return reasons.CONTROL_EDGE
            pending += [node_of(t) for t in self._view.inputs(node) if t not in stop]
        return None

    def used_outside(self, tensors: Iterable[str], cone: frozenset[str]) -> bool:
        """True when one of the tensors is an output or has a user outside ``cone`` (identities are looked through)."""
        return any(self._is_used_outside(t, cone) for t in tensors)

    def _is_used_outside(self, tensor: str, cone: frozenset[str]) -> bool:
        if canonical(tensor) in self._fetches:
            return True
        for user, _ in self._view.consumers(tensor):
            if user.name in cone or user.name not in self._live:
                continue
            passes = user.op in PASS_THROUGH and user.op != "IdentityN"
            if not passes or self._is_used_outside(f"{user.name}:0", cone):
                return True
        return False

    def depends_on(self, sources: Sequence[str], nodes: Sequence[str]) -> bool:
        """True when one of ``nodes`` is needed to compute a source."""
        wanted = set(nodes)
        pending, seen = [node_of(s) for s in sources], set()
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in wanted:
                return True
            node = self._view.get(name)
            pending += [node_of(i) for i in node.input] if node is not None else []
        return False

    def origins(self, tensor: str) -> list[str]:
        """Where ``tensor``'s elements come from: placeholders ("node:0") and keys of parsed Examples ("=key")."""
        pending, seen, found = [tensor], set(), set()
        while pending:
            current = canonical(pending.pop())
            if current in seen:
                continue
            seen.add(current)
            node = self._view.get(current)
            if node is None:
                continue
            if node.op in _INPUTS:
                found.add(current)
            elif node.op.startswith("ParseExample"):
                found.add("=" + (self._example_key(node, port_of(current)) or node.name))
            elif node.op != "Shape":
                pending += self._view.inputs(node)
        return sorted(found)

    def _example_key(self, node: node_def_pb2.NodeDef, port: int) -> str | None:
        """The feature key of an output of ParseExample(V2)."""
        inputs = self._view.inputs(node)
        if node.op == "ParseExampleV2":
            keys = [self._facts.const(t) for t in inputs[2:5]]
            sparse, dense, ragged = ([] if k is None else k.reshape(-1).tolist() for k in keys)
            names = [*sparse, *sparse, *sparse, *dense, *ragged, *ragged]
        else:
            count, dense_count = node.attr["Nsparse"].i, node.attr["Ndense"].i
            arrays = [self._facts.const(t) for t in inputs[2 : 2 + count + dense_count]]
            texts = [b"" if a is None else a.reshape(-1)[0] for a in arrays]
            names = [*texts[:count], *texts[:count], *texts[:count], *texts[count:]]
        return names[port].decode("utf-8", "replace") if port < len(names) else None


def _is_ours(node: node_def_pb2.NodeDef) -> bool:
    return node.op in ("TfctrTable", "TfctrStore", *_COMPUTING)


def _in_control_flow(view: GraphView) -> set[str]:
    """Nodes inside TF1 loops and branches."""
    inside: set[str] = set()
    if not any(node.op in LOOP_OPS for node in view):
        return inside
    for node in view.topological():
        sources = [node_of(i) for i in node.input]
        entered = any(s in inside for s in sources) or node.op in LOOP_OPS
        is_loop_merge = node.op in ("Merge", "RefMerge") and any(
            "Enter" in view.node(s).op for s in sources if s in view
        )
        leaves = node.op in ("Exit", "RefExit") or (node.op in ("Merge", "RefMerge") and not is_loop_merge)
        if entered and not leaves:
            inside.add(node.name)
    return inside
