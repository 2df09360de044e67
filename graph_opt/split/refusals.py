"""Why a signature gets no split form, as far as its graph alone tells."""

from __future__ import annotations

from tensorflow.core.framework import node_def_pb2

from graph_opt.domains import PARSERS
from graph_opt.item import GraphItem
from graph_opt.recognise.facts import has_effect
from graph_opt.rows.analysis import RowFacts
from graph_opt.rows.feeds import Feeds
from graph_opt.view import GraphView, canonical

# Every reason for which a signature gets no split form.
REASONS = {
    "none": "none of its features is a user feature",
    "taken": "the model has a signature {name} of its own",
    "examples": "its input {input} holds serialized Examples, each with all features",
    "frames": "control flow: {op} {node} runs in frames that can't be doubled",
    "state": "{op} {node} writes or reads state that must change once per request",
    "inner_state": "control flow: {op} {node} holds {inner}, which must happen once per request",
    "static": "input {input} has a fixed number of rows",
    "all": "all its features are user features, so there is nothing to compute per item",
    "left": "no user feature is left: {features}",
    "dense": "it has no embeddings, and no dense part that could be computed once per user",
    "gain": "nothing could be computed once per user",
    "shape": "the split can't be written: {what}",
    "proof": "not proven: {what}",
}
_LOOPS = frozenset({"Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond", "RefSwitch", "RefMerge"})
_FUNCTIONAL = frozenset({"If", "While", "Case", "StatelessIf", "StatelessWhile", "StatelessCase"})
# Effects that may happen once per request on the item side: they say or check something, and change nothing.
_HARMLESS = frozenset({"Assert", "Print", "PrintV2", "CheckNumerics", "StringFormat", "Timestamp"})


def graph_reason(item: GraphItem, name: str, rows: RowFacts, feeds: Feeds) -> str | None:
    """A reason that holds whichever features are the user's; None where there is none."""
    inputs = set(feeds.kinds)
    for node in rows.order:
        if node.op in PARSERS and any(canonical(i) in inputs for i in node.input[:1]):
            return REASONS["examples"].format(input=_input_name(feeds, node))
        if node.op in _LOOPS:
            return REASONS["frames"].format(op=node.op, node=node.name)
        reason = _state(item, node)
        if reason is not None:
            return reason
    if feeds.static:
        return REASONS["static"].format(input=feeds.static[0])
    return None


def _input_name(feeds: Feeds, node: node_def_pb2.NodeDef) -> str:
    tensor = canonical(node.input[0])
    return next(name for name, fed in feeds.tensors.items() if fed == tensor)


def _state(item: GraphItem, node: node_def_pb2.NodeDef) -> str | None:
    if node.op in _FUNCTIONAL:
        return _state_inside(item, node)
    if has_effect(node) and node.op not in _HARMLESS:
        return REASONS["state"].format(op=node.op, node=node.name)
    return None


def _state_inside(item: GraphItem, node: node_def_pb2.NodeDef) -> str | None:
    """Effects in the branches or the body of a functional If or While."""
    functions = {f.signature.name: f for f in item.graph_def.library.function}
    pending = [value.func.name for value in node.attr.values() if value.HasField("func")]
    pending += [f.name for value in node.attr.values() for f in value.list.func]
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen or name not in functions:
            continue
        seen.add(name)
        for inner in functions[name].node_def:
            calls = [value.func.name for value in inner.attr.values() if value.HasField("func")]
            pending += calls
            if not calls and has_effect(inner) and inner.op not in _HARMLESS:
                return REASONS["inner_state"].format(op=node.op, node=node.name, inner=inner.op)
    return None


def has_lookups(view: GraphView, item: GraphItem, name: str) -> bool:
    """Whether the signature reads any table."""
    needed = view.ancestors(item.fetches(name))
    return any(node in needed for node in item.tables) or any(g.node in needed for g in item.groups)
