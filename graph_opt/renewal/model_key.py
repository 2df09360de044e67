"""A key of a model as it was saved: equal for two exports of one structure, whatever their variables hold.

Names of functions carry counters of the process that saved the model; they are numbered anew in the order in which the
graph reaches them. Nothing else is canonical here: a model whose key differs is compared node by node.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tensorflow.core.framework import function_pb2, node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from tfctr.bundle import manifest


def model_key(meta: meta_graph_pb2.MetaGraphDef) -> str:
    """SHA-256 of the graph, its functions, signatures, initialisers, assets and saver, as hexadecimal."""
    digest = hashlib.sha256()
    functions = _Functions(meta)
    for node in meta.graph_def.node:
        digest.update(functions.canonical(node))
    while functions.pending:
        function = functions.pending.pop(0)
        digest.update(functions.canonical_function(function))
    rest = meta_graph_pb2.MetaGraphDef()
    rest.CopyFrom(meta)
    rest.ClearField("graph_def")
    rest.ClearField("object_graph_def")
    rest.ClearField("meta_info_def")
    for name in [n for n in rest.collection_def if n not in ("saved_model_main_op", "main_op", "legacy_init_op")]:
        del rest.collection_def[name]  # lists of training
    digest.update(rest.SerializeToString(deterministic=True))
    digest.update(repr(sorted(meta.meta_info_def.tags)).encode())
    return digest.hexdigest()


def asset_hashes(folder: Path) -> dict[str, str]:
    """Path below ``folder`` -> SHA-256 of each of the model's assets."""
    if not folder.is_dir():
        return {}
    return {str(p.relative_to(folder)): manifest.file_hash(p) for p in sorted(folder.rglob("*")) if p.is_file()}


class _Functions:
    """Functions of the library under numbers given at their first use. pending: those used, whose body is to come."""

    def __init__(self, meta: meta_graph_pb2.MetaGraphDef) -> None:
        self._library = {f.signature.name: f for f in meta.graph_def.library.function}
        self._numbers: dict[str, str] = {}
        self.pending: list[function_pb2.FunctionDef] = []

    def canonical(self, node: node_def_pb2.NodeDef) -> bytes:
        called = node.op in self._library
        funcs = [key for key, value in node.attr.items() if value.HasField("func") or value.list.func]
        if called or funcs:
            copy = node_def_pb2.NodeDef()
            copy.CopyFrom(node)
            if called:
                copy.op = self._number(node.op)
            for key in sorted(funcs):
                value = copy.attr[key]
                for func in value.list.func or [value.func]:
                    func.name = self._number(func.name)
            node = copy
        return node.SerializeToString(deterministic=True)

    def canonical_function(self, function: function_pb2.FunctionDef) -> bytes:
        copy = function_pb2.FunctionDef()
        copy.CopyFrom(function)
        copy.signature.name = ""
        del copy.node_def[:]
        body = b"".join(self.canonical(node) for node in function.node_def)
        return copy.SerializeToString(deterministic=True) + body

    def _number(self, name: str) -> str:
        if name not in self._library:
            return name
        if name not in self._numbers:
            self._numbers[name] = f"function {len(self._numbers)}"
            self.pending.append(self._library[name])
        return self._numbers[name]
