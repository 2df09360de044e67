"""Handles of embedding variables that a function makes: a model that was loaded and saved again has its tables so."""

from __future__ import annotations

from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2

from graph_opt.restore_map import EMBEDDING_VARIABLE
from graph_opt.view import is_control

_CALLS = ("StatefulPartitionedCall", "PartitionedCall")


def unwrap_handles(graph_def: graph_pb2.GraphDef) -> None:
    """Calls without arguments whose only result is a TfctrEvHandle become that node, under their own name, in place."""
    library = {f.signature.name: f for f in graph_def.library.function}
    for node in graph_def.node:
        handle = _made_by(node, library)
        if handle is not None:
            node.op = handle.op
            node.attr.clear()
            for key, value in handle.attr.items():
                node.attr[key].CopyFrom(value)


def _made_by(node: node_def_pb2.NodeDef, library: dict[str, function_pb2.FunctionDef]) -> node_def_pb2.NodeDef | None:
    """The TfctrEvHandle node inside the function that ``node`` calls; None where it is no such call."""
    function = library.get(node.attr["f"].func.name) if node.op in _CALLS else None
    if function is None or any(not is_control(i) for i in node.input) or len(function.ret) != 1:
        return None
    inside = {n.name: n for n in function.node_def}
    name = next(iter(function.ret.values())).split(":")[0]
    while name in inside and inside[name].op == "Identity":
        name = inside[name].input[0].split(":")[0]
    made = inside.get(name)
    if made is None or made.op == EMBEDDING_VARIABLE:
        return made
    return _made_by(made, library)
