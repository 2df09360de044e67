"""Reads a SavedModel folder into a flat GraphItem.

``find`` answers what a path is, ``load`` reads one MetaGraph, ``inline`` makes it flat; ``load_inlined`` does all
three. No variable value is read here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2
from tensorflow.python.saved_model import loader_impl

from graph_opt.embeddings.handles import unwrap_handles
from graph_opt.inlining import inline_functions, missing_ops
from graph_opt.item import GraphItem
from graph_opt.restore_map import map_embedding_variables, map_restored
from graph_opt.signature_info import composite_parts
from graph_opt.view import node_of
from tfctr.errors import CorruptFileError, UsageError

DEFAULT_TAGS = ("serve",)
MANIFEST = Path("assets.extra") / "tfctr_manifest.json"
# Signatures that belong to the loader, not to users.
_INTERNAL_SIGNATURES = ("__saved_model_init_op", "__saved_model_train_op")
_INIT_COLLECTIONS = ("saved_model_main_op", "main_op", "legacy_init_op")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedModelSource:
    """One MetaGraph of a SavedModel as it lies on disk.

    path: the folder that holds saved_model.pb. note: what was chosen for the user ("" where nothing was).
    """

    path: Path
    tags: tuple[str, ...]
    meta_graph: meta_graph_pb2.MetaGraphDef
    note: str = ""

    @property
    def checkpoint(self) -> Path:
        """Prefix of the variables' checkpoint (it need not exist)."""
        return self.path / "variables" / "variables"

    @property
    def signatures(self) -> dict[str, meta_graph_pb2.SignatureDef]:
        """The users' signatures by name."""
        found = self.meta_graph.signature_def
        return {name: found[name] for name in sorted(found) if name not in _INTERNAL_SIGNATURES}

    @property
    def init_op(self) -> str | None:
        """Name of the node that initialises tables, None where there is none."""
        meta = self.meta_graph
        if "__saved_model_init_op" in meta.signature_def:
            for info in meta.signature_def["__saved_model_init_op"].outputs.values():
                return info.name.split(":")[0]
        for collection in _INIT_COLLECTIONS:
            if collection in meta.collection_def:
                names = meta.collection_def[collection].node_list.value
                if names:
                    return names[0].split(":")[0].removeprefix("^")
        return None

    @property
    def is_bundle(self) -> bool:
        nodes = self.meta_graph.graph_def.node  # a copy may have lost the manifest
        return (self.path / MANIFEST).is_file() or any(node.op == "TfctrStore" for node in nodes)


def find(path: str | Path) -> tuple[Path, str]:
    """The SavedModel folder meant by ``path``, and a note where a choice was made.

    A version root (``model/`` holding ``1/``, ``2/``) means its highest version. Raises UsageError for anything else,
    saying what it is and what to do instead.
    """
    folder = Path(path)
    if not folder.exists():
        raise UsageError(f"{path}: no such file or folder")
    if folder.is_file():
        raise UsageError(_not_a_folder(folder))
    if _holds_model(folder):
        return folder, ""
    versions = sorted((int(p.name), p) for p in folder.iterdir() if p.name.isdecimal() and _holds_model(p))
    if versions:
        chosen = versions[-1][1]
        others = f" (of {len(versions)})" if len(versions) > 1 else ""
        return chosen, f"{path} holds versions; taking the highest{others}: {chosen}"
    raise UsageError(f"{path}: not a SavedModel: it holds no saved_model.pb and no numbered version folder with one")


def _holds_model(folder: Path) -> bool:
    names = ("saved_model.pb", "saved_model.pbtxt", "saved_model.cpb")
    return folder.is_dir() and any((folder / n).is_file() for n in names)


def _not_a_folder(file: Path) -> str:
    if file.name in ("saved_model.pb", "saved_model.pbtxt", "saved_model.cpb"):
        return f"{file}: give the folder that holds it: {file.parent}"
    keras = "load it with keras.saving.load_model and write a SavedModel with model.export(FOLDER)"
    advice = {
        ".keras": f"a Keras file; {keras}",
        ".h5": f"a Keras HDF5 file; {keras}",
        ".hdf5": f"a Keras HDF5 file; {keras}",
        ".pb": "a frozen graph; its tables are constants without signatures. Export a SavedModel from the training "
        "code (tf.saved_model.save, or tf.compat.v1.saved_model.simple_save after importing the graph)",
        ".onnx": "an ONNX file; tfctr converts TensorFlow SavedModels",
        ".tflite": "a TensorFlow Lite file; tfctr converts TensorFlow SavedModels",
    }
    what = advice.get(file.suffix.lower(), "a file; a SavedModel is a folder that holds saved_model.pb")
    return f"{file}: not a SavedModel: {what}"


def load(path: str | Path, tags: Sequence[str] | None = None) -> SavedModelSource:
    """Reads the MetaGraph with exactly ``tags`` (None: the only one, which must be tagged "serve").

    Raises UsageError for a missing or unreadable model, unknown tags, several MetaGraphs without ``tags``.
    """
    folder, note = find(path)
    try:
        saved_model = loader_impl.parse_saved_model(str(folder))
    except Exception as error:  # the loader raises OSError, protobuf errors and TF errors alike
        raise UsageError(f"{folder}: saved_model.pb can't be read: {_first_line(error)}") from error
    meta = _choose(saved_model, folder, tags)
    return SavedModelSource(path=folder, tags=tuple(meta.meta_info_def.tags), meta_graph=meta, note=note)


def _choose(
    saved_model: saved_model_pb2.SavedModel, folder: Path, tags: Sequence[str] | None
) -> meta_graph_pb2.MetaGraphDef:
    graphs = list(saved_model.meta_graphs)
    have = "; ".join(",".join(sorted(g.meta_info_def.tags)) or "(no tags)" for g in graphs) or "none"
    if tags is None and len(graphs) > 1:
        raise UsageError(f"{folder} holds {len(graphs)} MetaGraphs: choose one with --tags. Their tags: {have}")
    wanted = set(DEFAULT_TAGS if tags is None else tags)
    for meta in graphs:
        if set(meta.meta_info_def.tags) == wanted:
            return meta
    raise UsageError(f"{folder} has no MetaGraph tagged {','.join(sorted(wanted))}. Tags that exist: {have}")


def inline(source: SavedModelSource, signatures: Sequence[str] | None = None) -> GraphItem:
    """The flat graph of ``source``; ``signatures`` names those to optimise (None: all).

    Raises UsageError for unknown signatures, a model without signatures, and ops that no loaded library registers.
    """
    have = source.signatures
    if not have:
        raise UsageError(f"{source.path} (tags {','.join(source.tags)}) has no signature: nothing can be served")
    unknown = [s for s in signatures or () if s not in have]
    if unknown:
        raise UsageError(f"{source.path} has no signature {unknown[0]!r}; it has: {', '.join(have)}")
    missing = missing_ops(source.meta_graph.graph_def)
    if missing:
        raise UsageError(
            f"{source.path} uses ops that are not registered: {', '.join(missing)}; "
            "name the library that registers them with --op-library LIB.so"
        )
    item = GraphItem(
        graph_def=source.meta_graph.graph_def,
        signatures=have,
        optimise=tuple(dict.fromkeys(signatures)) if signatures else tuple(have),
        init_op=source.init_op,
        assets=list(source.meta_graph.asset_file_def),
        source_path=source.path,
        tags=source.tags,
    ).copy()
    saver = source.meta_graph.saver_def
    restore = [n for n in (saver.restore_op_name, saver.filename_tensor_name) if n]
    _check_signatures(source)
    try:
        item.graph_def = inline_functions(source.meta_graph, sorted(item.keep()) + restore)
    except (ValueError, tf.errors.OpError) as error:
        raise CorruptFileError(f"{source.path}: TensorFlow can't read its graph: {_first_line(error)}") from error
    unwrap_handles(item.graph_def)
    item.variables, item.restored_tables = map_restored(item.graph_def)
    item.embedding_tables = map_embedding_variables(item.graph_def)
    return item


def _check_signatures(source: SavedModelSource) -> None:
    """CorruptFileError where a signature names a tensor of no node."""
    nodes = {node.name for node in source.meta_graph.graph_def.node}
    for name, signature in source.signatures.items():
        for kind, infos in (("input", signature.inputs), ("output", signature.outputs)):
            for key, info in infos.items():
                tensors = [part["tensor"] for part in composite_parts(info)[1].values()] or [info.name]
                for tensor in tensors:
                    if node_of(tensor) not in nodes:
                        raise CorruptFileError(
                            f"{source.path}: signature {name!r}: its {kind} {key!r} is the tensor {tensor!r}, "
                            "which the graph does not have"
                        )


def load_inlined(
    path: str | Path, tags: Sequence[str] | None = None, signatures: Sequence[str] | None = None
) -> GraphItem:
    """``inline(load(path, tags), signatures)``."""
    return inline(load(path, tags), signatures)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
