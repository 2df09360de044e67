"""A bundle's saved_model.pb over another list of files: what opens the store, its assets, and the names of resources.

Nothing else of the graph is touched. TensorFlow is needed for its message types only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from google.protobuf.message import DecodeError
from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tfctr.errors import CorruptFileError

OPEN = "TfctrStoreOpen"
_STORE_NAME = re.compile(rb"^tfctr/[0-9a-f]{32}(?=/|$)")  # what a conversion calls its store
_ASSET = "tfctr/asset/"


def over_files(model: bytes, files: Sequence[Mapping[str, Any]], store_name: str, where: str) -> bytes:
    """``model`` with a store of ``files``.

    model: bytes of a saved_model.pb. files: entries of a manifest's store, overlays last. store_name: of the new
    bundle's store; the names of all resources start with it, so that two versions in one process never meet. where: the
    file, for messages. CorruptFileError where the graph is none that a conversion wrote.
    """
    saved = saved_model_pb2.SavedModel()
    try:
        saved.ParseFromString(model)
    except DecodeError as error:
        raise CorruptFileError(f"{where}: is no SavedModel: {error}") from error
    if len(saved.meta_graphs) != 1:
        raise CorruptFileError(f"{where}: has {len(saved.meta_graphs)} graphs, a bundle has one")
    meta = saved.meta_graphs[0]
    opened = [node.name for node in meta.graph_def.node if node.op == OPEN]
    if len(opened) != bool(files):
        raise CorruptFileError(f"{where}: has {len(opened)} nodes {OPEN} for {len(files)} files")
    if opened:
        _set_files(meta, opened[0], files, where)
    for node in _nodes(meta.graph_def):
        if "shared_name" in node.attr:
            node.attr["shared_name"].s = _STORE_NAME.sub(store_name.encode(), node.attr["shared_name"].s)
    return saved.SerializeToString(deterministic=True)


def _set_files(
    meta: meta_graph_pb2.MetaGraphDef, open_name: str, files: Sequence[Mapping[str, Any]], where: str
) -> None:
    pack, _ = _opening(meta.graph_def, open_name, where)
    old = {name.split(":")[0] for name in pack.input if not name.startswith("^")}
    _remove(meta.graph_def, old)
    pack, opened = _opening(meta.graph_def, open_name, where)  # the list was made anew
    taken = {node.name for node in meta.graph_def.node}
    assets = [one for one in meta.asset_file_def if one.tensor_info.name.split(":")[0] not in old]
    del pack.input[:]
    for index, file in enumerate(files):
        path = PurePosixPath(file["file"])
        name = f"{_ASSET}{index}"
        while name in taken:  # an asset of the model itself
            name += "_"
        meta.graph_def.node.append(_text(name, path.name))
        pack.input.append(name)
        asset = meta_graph_pb2.AssetFileDef(filename=path.relative_to("assets").as_posix())
        asset.tensor_info.name = f"{name}:0"
        assets.append(asset)
    pack.attr["N"].i = len(files)
    del meta.asset_file_def[:]
    meta.asset_file_def.extend(assets)
    _set_list(opened, "kinds", [file["kind"].encode() for file in files])
    _set_list(opened, "fingerprints", [file["fingerprint"].encode() for file in files])
    bases = [file["base"] for file in files if file["kind"] == "overlay"]
    if bases or "bases" in opened.attr:
        opened.attr["bases"].list.SetInParent()
        del opened.attr["bases"].list.i[:]
        opened.attr["bases"].list.i.extend(bases)


def _opening(graph: graph_pb2.GraphDef, name: str, where: str) -> tuple[node_def_pb2.NodeDef, node_def_pb2.NodeDef]:
    """(the node that packs the names of the store's files, the one that opens them)."""
    by_name = {node.name: node for node in graph.node}
    pack = by_name.get(by_name[name].input[1].split(":")[0])
    if pack is None or pack.op != "Pack":
        raise CorruptFileError(f"{where}: the files of {name} come from no Pack node")
    return pack, by_name[name]


def _set_list(node: node_def_pb2.NodeDef, name: str, values: list[bytes]) -> None:
    texts = node.attr[name].list.s
    del texts[:]
    texts.extend(values)


def _remove(graph: graph_pb2.GraphDef, names: set[str]) -> None:
    kept = [node for node in graph.node if node.name not in names]
    del graph.node[:]
    graph.node.extend(kept)


def _text(name: str, value: str) -> node_def_pb2.NodeDef:
    node = node_def_pb2.NodeDef(name=name, op="Const")
    node.attr["dtype"].type = types_pb2.DT_STRING
    tensor = node.attr["value"].tensor
    tensor.dtype = types_pb2.DT_STRING
    tensor.tensor_shape.SetInParent()
    tensor.string_val.append(value.encode())
    return node


def _nodes(graph: graph_pb2.GraphDef) -> list[node_def_pb2.NodeDef]:
    return [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
