"""Cutting the subgraph of one candidate out of the reference graph.

The cone of a candidate is every node between the spec's source tensors and the candidate's output. In the proof graph
the sources become placeholders, so the cone must not read anything else that varies: another input in it, or a stateful
op other than our table and vocabulary readers, is a reason to refuse.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence

from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2
from tensorflow.python.framework import op_def_registry, tensor_util

from graph_opt.view import GraphView, canonical, node_of, port_of

TABLE_OP = "TfctrTable"
VOCAB_OP = "TfctrVocabFind"
HASH_OP = "TfctrHashLookup"
STORE_OP = "TfctrStore"
INPUT_OPS = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "_Arg", "_Retval", "_DeviceArg"})
_READERS = (TABLE_OP, VOCAB_OP, HASH_OP)
_OURS = frozenset({*_READERS, STORE_OP})


class ConeError(Exception):
    """The subgraph can't be proven alone; the message is the refusal's reason, ``nodes`` are the culprits."""

    def __init__(self, reason: str, nodes: Iterable[str]) -> None:
        super().__init__(reason)
        self.nodes = tuple(nodes)


@dataclasses.dataclass(frozen=True)
class Cone:
    """``nodes``: names in topological order, without the sources' producers. ``files``: store indices that are read."""

    output: str
    sources: tuple[str, ...]
    nodes: tuple[str, ...]
    files: frozenset[int]


def extract_cone(view: GraphView, output: str, sources: Sequence[str]) -> Cone:
    """Walks from ``output`` up to ``sources``; :class:`ConeError` with the reason where that is no closed subgraph.

    Control inputs are not followed: they move to the fused op, and what they check goes on being checked.
    """
    stop = {canonical(s) for s in sources}
    order: list[str] = []
    state: dict[str, bool] = {}  # False while a node's inputs are being visited
    stack = [node_of(output)] if canonical(output) not in stop else []
    if not stack:
        raise ConeError("its output is one of its own sources", [output])
    while stack:
        name = stack[-1]
        if name not in state:
            state[name] = False
            node = view.get(name)
            if node is None:
                raise ConeError(f"reads node {name!r}, which is not in the graph", [name])
            _check_node(node)
            stack += [
                producer
                for tensor in view.inputs(node)
                if tensor not in stop and (producer := node_of(tensor)) not in state
            ]
            continue
        stack.pop()
        if not state[name]:
            state[name] = True
            order.append(name)
    files = frozenset(view.node(n).attr["index"].i for n in order if view.node(n).op in _READERS)
    return Cone(canonical(output), tuple(canonical(s) for s in sources), tuple(order), files)


def _check_node(node: node_def_pb2.NodeDef) -> None:
    if node.op in INPUT_OPS:
        raise ConeError(f"depends on input {node.name!r} as well", [node.name])
    if node.op in _OURS:
        return
    op_def = op_def_registry.get(node.op)
    if op_def is None:
        raise ConeError(f"contains {node.name!r}, a call of {node.op!r} that is not inlined", [node.name])
    if op_def.is_stateful:
        raise ConeError(f"contains the stateful op {node.op} ({node.name!r})", [node.name])


def fingerprint(view: GraphView, cone: Cone, table_rows: int) -> str:
    """Equal for two cones that are the same computation, whatever the names and the tables' numbers of rows.

    An integer constant that equals ``table_rows`` (wrapping of negative ids) counts as the number of rows.
    """
    number = {source: f"s{k}" for k, source in enumerate(cone.sources)}
    position = {name: k for k, name in enumerate(cone.nodes)}
    digest = hashlib.sha256()
    for name in cone.nodes:
        node = view.node(name)
        inputs = [number.get(t) or f"{position[node_of(t)]}:{port_of(t)}" for t in view.inputs(node)]
        digest.update(f"{node.op} {' '.join(inputs)}\n".encode())
        if node.op == "Const" and _holds(node, table_rows):
            digest.update(b"rows" + node.attr["dtype"].SerializeToString())
            continue
        for key in sorted(node.attr):
            if key.startswith("_") or key == "shared_name":
                continue
            if node.op == HASH_OP and key == "index":
                continue
            if node.op == TABLE_OP and key in ("index", "shape"):
                digest.update(str([d.size for d in node.attr["shape"].shape.dim][1:]).encode())
                continue
            digest.update(key.encode() + node.attr[key].SerializeToString(deterministic=True))
    return digest.hexdigest()


def inside_nodes(view: GraphView, cone: Cone) -> frozenset[str]:
    """What goes with the lookup when nothing else uses it: the cone, constants included (control inputs hang on them
    too), without tables and the store.
    """
    return frozenset(n for n in cone.nodes if view.node(n).op not in (TABLE_OP, STORE_OP))


def needs_library(nodes: Iterable[node_def_pb2.NodeDef]) -> bool:
    """True when one of the nodes calls a function of the graph's library."""
    return any(
        op_def_registry.get(node.op) is None
        or any(a.WhichOneof("value") == "func" or a.list.func for a in node.attr.values())
        for node in nodes
    )


def _holds(node: node_def_pb2.NodeDef, number: int) -> bool:
    """True for a scalar integer constant of that value."""
    tensor = node.attr["value"].tensor
    if tensor.tensor_shape.dim or tensor.dtype not in (types_pb2.DT_INT32, types_pb2.DT_INT64):
        return False
    return int(tensor_util.MakeNdarray(tensor)) == number


def copy_nodes(
    view: GraphView,
    cone: Cone,
    target: graph_pb2.GraphDef,
    prefix: str,
    placeholders: Mapping[str, str],
    store_node: str,
    file_index: Mapping[int, int],
) -> str:
    """Copies the cone into ``target`` under ``prefix``; returns the copy's output tensor.

    placeholders: source tensor -> tensor of ``target``. store_node: the target's store. file_index: store index of the
    reference graph -> of the target.
    """
    for name in cone.nodes:
        node = view.node(name)
        if node.op == STORE_OP:
            continue
        copy = target.node.add()
        copy.CopyFrom(node)
        copy.name = prefix + name
        copy.device = ""
        for key in [k for k in copy.attr if k.startswith("_")]:
            del copy.attr[key]
        del copy.input[:]
        for tensor in view.inputs(node):
            producer = node_of(tensor)
            if tensor in placeholders:
                copy.input.append(placeholders[tensor])
            elif view.node(producer).op == STORE_OP:
                copy.input.append(store_node)
            else:
                copy.input.append(f"{prefix}{tensor}")
        if node.op in _READERS:
            copy.attr["index"].i = file_index[node.attr["index"].i]
    return prefix + cone.output
