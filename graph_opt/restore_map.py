"""Maps variables, mutable tables and embedding variables to their checkpoint keys by reading the model's own restore
subgraph.

Node names and ``shared_name`` say nothing reliable about the checkpoint; the restore op says it exactly: which key,
which slice, is assigned to which variable.
"""

from __future__ import annotations

from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework import tensor_util

from graph_opt.item import CheckpointRef
from graph_opt.view import GraphView, node_of, port_of

_PASSING = ("Identity", "IdentityN", "Snapshot", "StopGradient", "Reshape", "EnsureShape")
_ASSIGNS = ("AssignVariableOp", "Assign")
_IMPORTS = ("LookupTableImportV2", "LookupTableImport")
VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
EMBEDDING_VARIABLE = "TfctrEvHandle"


def map_restored(
    graph_def: graph_pb2.GraphDef,
) -> tuple[dict[str, CheckpointRef], dict[str, tuple[str, str]]]:
    """(variable node -> CheckpointRef, table node -> (keys key, values key)) from the inlined restore op of
    ``graph_def``.

    Where one variable is reached through two handle nodes of the same shared_name, both are mapped.
    """
    view = GraphView(graph_def)
    variables: dict[str, CheckpointRef] = {}
    tables: dict[str, tuple[str, str]] = {}
    for node in view:
        if node.op in _ASSIGNS and len(node.input) >= 2:
            ref = _restored(view, node.input[1])
            if ref is not None:
                variables.setdefault(resource_node(view, node.input[0]), ref)
        elif node.op in _IMPORTS:
            keys, values = _restored(view, node.input[1]), _restored(view, node.input[2])
            if keys is not None and values is not None:
                tables.setdefault(resource_node(view, node.input[0]), (keys.key, values.key))
    _spread(view, variables)
    return variables, tables


def map_embedding_variables(graph_def: graph_pb2.GraphDef) -> dict[str, str]:
    """TfctrEvHandle node -> the table's name in the checkpoint: what a registered saver's TfctrEvRestore says, or the
    TfctrEvImport of a TF1 Saver. Handles of one table (container and shared_name) are all mapped.
    """
    view = GraphView(graph_def)
    names: dict[str, str] = {}
    for node in view:
        if node.op == "TfctrEvRestore":
            handles = view.inputs(node)[2:]
            for handle, name in zip(handles, node.attr["names"].list.s, strict=True):
                names.setdefault(resource_node(view, handle), name.decode())
        elif node.op == "TfctrEvImport":
            handle, _, keys = view.inputs(node)[:3]
            ref = _restored(view, keys)
            if ref is not None and ref.key.endswith("/keys"):
                names.setdefault(resource_node(view, handle), ref.key.removesuffix("/keys"))
    known = {_identity(view, node): name for node, name in names.items()}
    for node in view:
        if node.op == EMBEDDING_VARIABLE and _identity(view, node.name) in known:
            names.setdefault(node.name, known[_identity(view, node.name)])
    return names


def resource_node(view: GraphView, tensor: str) -> str:
    """Name of the node that makes the resource (or ref variable) behind ``tensor``, Identity chains stepped over."""
    node = view.producer(tensor)
    while node.op in ("Identity", "IdentityN", "RefIdentity"):
        tensor = node.input[port_of(tensor) if node.op == "IdentityN" else 0]
        node = view.producer(tensor)
    return node.name


def _restored(view: GraphView, tensor: str) -> CheckpointRef | None:
    node = view.producer(tensor)
    while node.op in _PASSING:
        tensor = node.input[port_of(tensor) if node.op == "IdentityN" else 0]
        node = view.producer(tensor)
    if node.op != "RestoreV2":
        return None
    names, slices = _strings(view, node.input[1]), _strings(view, node.input[2])
    port = port_of(tensor)
    return CheckpointRef(key=names[port], slice=slices[port]) if port < len(names) else None


def _strings(view: GraphView, tensor: str) -> list[str]:
    node = view.producer(tensor)
    while node.op == "Identity":
        node = view.node(node_of(node.input[0]))
    if node.op != "Const":
        return []
    return [v.decode() for v in tensor_util.MakeNdarray(node.attr["value"].tensor).reshape(-1)]


def _spread(view: GraphView, variables: dict[str, CheckpointRef]) -> None:
    """Other handle nodes with the shared_name and container of a mapped one are the same variable."""
    known = {_identity(view, name): ref for name, ref in variables.items() if view.node(name).op == "VarHandleOp"}
    for node in view:
        if node.op == "VarHandleOp" and node.name not in variables and _identity(view, node.name) in known:
            variables[node.name] = known[_identity(view, node.name)]


def _identity(view: GraphView, name: str) -> tuple[bytes, bytes]:
    node = view.node(name)
    return node.attr["container"].s, node.attr["shared_name"].s or name.encode()
