"""Control flow: what functional nodes hold, and which nodes a TF1 condition or loop keeps together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tensorflow.core.framework import function_pb2, node_def_pb2

from graph_opt.view import GraphView, node_of

TF1_CONTROL = frozenset(
    {
        "Switch", "RefSwitch", "Merge", "RefMerge", "Enter", "RefEnter", "Exit", "RefExit", "NextIteration",
        "RefNextIteration", "LoopCond",
    }
)  # fmt: skip
_OPENS = frozenset({"Switch", "RefSwitch", "Enter", "RefEnter"})
_CLOSES = frozenset({"Merge", "RefMerge", "Exit", "RefExit"})


def body_ops(
    node: node_def_pb2.NodeDef, functions: Mapping[str, function_pb2.FunctionDef]
) -> Iterator[tuple[str, set[int]]]:
    """(op, DataTypes named in its attributes) of every node that a functional node or a call runs."""
    pending, seen = _called(node), set()
    while pending:
        name = pending.pop()
        if name in seen or name not in functions:
            continue
        seen.add(name)
        for inner in functions[name].node_def:
            types = {value.type for value in inner.attr.values() if value.HasField("type")}
            types |= {t for value in inner.attr.values() for t in value.list.type}
            yield inner.op, types
            pending += _called(inner)


def _called(node: node_def_pb2.NodeDef) -> list[str]:
    names = [node.op]
    for value in node.attr.values():
        if value.HasField("func"):
            names.append(value.func.name)
        names += [f.name for f in value.list.func]
    return names


def regions(view: GraphView, order: Sequence[node_def_pb2.NodeDef]) -> list[set[str]]:
    """The nodes between the Switch or Enter nodes of TF1 control flow and its Merge or Exit nodes, connected ones
    together. What lies between two of them, one after the other, counts too.
    """
    flow = {n.name: n.op for n in order if n.op in TF1_CONTROL}
    if not flow:
        return []
    known = {n.name for n in order}
    behind = _reach((n for n, op in flow.items() if op in _OPENS), view.users, known)
    before = _reach(
        (n for n, op in flow.items() if op in _CLOSES), lambda name: [node_of(i) for i in view.node(name).input], known
    )
    return _connected(view, (behind & before) | flow.keys())


def _reach(start: Iterable[str], step: Callable[[str], Iterable[str]], known: set[str]) -> set[str]:
    pending, found = list(start), set()
    while pending:
        name = pending.pop()
        if name not in found and name in known:
            found.add(name)
            pending += step(name)
    return found


def _connected(view: GraphView, nodes: set[str]) -> list[set[str]]:
    found: list[set[str]] = []
    left = set(nodes)
    while left:
        pending, region = [left.pop()], set()
        while pending:
            name = pending.pop()
            if name in region:
                continue
            region.add(name)
            near = [node_of(i) for i in view.node(name).input] + view.users(name)
            pending += [n for n in near if n in nodes and n not in region]
        left -= region
        found.append(region)
    return found
