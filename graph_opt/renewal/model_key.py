"""A key of a model as it was saved: equal for two exports of one structure, whatever their variables hold.

Names that carry counters of the process that saved the model (of functions, their arguments, lookup tables) are
numbered anew in the order in which the graph reaches them. Nothing else is canonical here: a model whose key differs is
compared node by node.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tensorflow.core.framework import function_pb2, node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from graph_opt.renewal.functions import attr_bytes, function_hash
from tfctr.bundle import manifest

_INITIALISERS = ("saved_model_main_op", "main_op", "legacy_init_op")


def model_key(meta: meta_graph_pb2.MetaGraphDef) -> str:
    """SHA-256 of the graph, its functions, signatures, initialisers, assets and saver, as hexadecimal."""
    digest = hashlib.sha256()
    names = _Names(meta)
    for node in meta.graph_def.node:
        digest.update(names.node(node))
    while names.pending:
        digest.update(function_hash(names.pending.pop(0), names.function).encode())
    rest = meta_graph_pb2.MetaGraphDef()
    rest.CopyFrom(meta)
    for field in ("graph_def", "object_graph_def", "meta_info_def"):
        rest.ClearField(field)
    for name in [n for n in rest.collection_def if n not in _INITIALISERS]:
        del rest.collection_def[name]  # lists of training
    digest.update(rest.SerializeToString(deterministic=True))
    digest.update(repr(sorted(meta.meta_info_def.tags)).encode())
    return digest.hexdigest()


def asset_hashes(folder: Path) -> dict[str, str]:
    """Path below ``folder`` -> SHA-256 of each of the model's assets."""
    if not folder.is_dir():
        return {}
    return {str(p.relative_to(folder)): manifest.file_hash(p) for p in sorted(folder.rglob("*")) if p.is_file()}


class _Names:
    """Functions and lookup tables under numbers given at their first use. pending: functions whose body is to come."""

    def __init__(self, meta: meta_graph_pb2.MetaGraphDef) -> None:
        self._library = {f.signature.name: f for f in meta.graph_def.library.function}
        self._numbers: dict[str, str] = {}
        self._tables: dict[bytes, bytes] = {}
        self.pending: list[function_pb2.FunctionDef] = []

    def node(self, node: node_def_pb2.NodeDef) -> bytes:
        parts = [f"{node.name} {self.function(node.op)} {node.device} {list(node.input)}\n".encode()]
        for key in sorted(k for k in node.attr if k[:1] != "_"):
            if key == "shared_name" and "Table" in node.op:
                name = node.attr[key].s
                parts += [key.encode(), self._tables.setdefault(name, f"table {len(self._tables)}".encode())]
            else:
                parts += [key.encode(), attr_bytes(node.attr[key], self.function)]
        return b"".join(parts)

    def function(self, name: str) -> str:
        if name not in self._library:
            return name
        if name not in self._numbers:
            self._numbers[name] = f"function {len(self._numbers)}"
            self.pending.append(self._library[name])
        return self._numbers[name]
