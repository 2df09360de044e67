"""The bundle's saved_model.pb and manifest, from a finished GraphItem."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.saved_model import loader_impl  # noqa: F401 - registers the collections' protos

from graph_opt.item import GraphItem, StoreFile
from graph_opt.narrowing import precision, storage_of
from graph_opt.parity import OutputParity
from graph_opt.report import PassReport
from graph_opt.saved_model import SavedModelSource
from tfctr.bundle import manifest as manifests
from tfctr.bundle import naming
from tfctr.errors import UsageError
from tfctr.version import __version__

_LIMIT = (2 << 30) - 1


def saved_model_bytes(source: SavedModelSource, item: GraphItem) -> bytes:
    """A TF1-format SavedModel with the MetaGraph of ``item``: every signature, assets, init op, restore op of its
    state.
    """
    saved = saved_model_pb2.SavedModel(saved_model_schema_version=1)
    meta = saved.meta_graphs.add()
    meta.meta_info_def.tags.extend(source.tags)
    meta.meta_info_def.tensorflow_version = tf.__version__
    meta.meta_info_def.tensorflow_git_version = tf.version.GIT_VERSION
    meta.graph_def.CopyFrom(item.graph_def)
    for name, signature in item.signatures.items():
        meta.signature_def[name].CopyFrom(signature)
    meta.asset_file_def.extend(item.assets)
    if item.init_op:
        meta.collection_def["saved_model_main_op"].node_list.value.append(item.init_op)
    if item.restore_op:
        meta.saver_def.restore_op_name = item.restore_op
        meta.saver_def.filename_tensor_name = item.restore_filename
        meta.saver_def.save_tensor_name = item.restore_filename
        meta.saver_def.version = meta.saver_def.V2
    if saved.ByteSize() > _LIMIT:
        raise UsageError(f"the graph of {source.path} has more than 2 GB of constants; a SavedModel can't hold that")
    return saved.SerializeToString(deterministic=True)


def bundle_manifest(
    source: SavedModelSource,
    item: GraphItem,
    folder: Path,
    bundle_id: str,
    described: dict[str, Any],
    reports: Sequence[PassReport],
    parity: Sequence[OutputParity],
    ops: tuple[int, int],
) -> dict[str, Any]:
    """See ``tfctr.bundle.manifest`` for the fields."""
    model = folder / naming.MODEL
    return {
        "format": manifests.FORMAT,
        "tfctr": __version__,
        "tensorflow": tf.__version__,
        "created": manifests.now(),
        "bundle_id": bundle_id,
        "isa": os.environ.get("TFCTR_ISA", "dispatched when loaded"),
        "precision": precision(item.files),
        "source": {
            "path": str(source.path.resolve()),
            "tags": list(source.tags),
            "sha256": _source_hash(source.path),
        },
        "model": {"file": naming.MODEL, "bytes": model.stat().st_size, "sha256": manifests.file_hash(model)},
        "store": {
            "shared_name": item.store_name,
            "files": [_file_entry(k, f) for k, f in enumerate(item.files)],
        },
        "signatures": described,
        "ops": {"before": ops[0], "after": ops[1]},
        "passes": [_pass_entry(r) for r in reports],
        "parity": {
            "ok": all(p.ok for p in parity),
            "reference": "the unfused graph over the same tables",
            "outputs": [dataclasses.asdict(p) for p in parity],
        },
        "mutable_state": [dataclasses.asdict(m) for m in item.mutable_state],
    }


def _file_entry(index: int, file: StoreFile) -> dict[str, Any]:
    assert file.path is not None
    return {
        "index": index,
        "kind": file.kind,
        "file": f"{naming.STORE_FOLDER}/{file.path.name}",
        "name": file.name,
        "dtype": file.dtype,
        "shape": list(file.shape),
        "bytes": file.bytes,
        "fingerprint": file.fingerprint,
        "source": file.source,
        **_storage(file),
    }


def _storage(file: StoreFile) -> dict[str, Any]:
    """Of a float32 table that is stored as something else: what it stands for."""
    wide = file.narrowed_from
    if wide is None:
        return {}
    return {"storage": storage_of(file), "stands_for": {"dtype": wide.dtype, "shape": list(wide.shape)}}


def _pass_entry(report: PassReport) -> dict[str, Any]:
    entry = report.to_json()
    del entry["rewrites"]  # for `tfctr bisect`
    # Those stand under signatures.
    entry["details"] = {k: v for k, v in report.details.items() if k not in ("lookups", "dense")}
    entry["reason"] = report.error or "; ".join(report.notes)
    return entry


def _source_hash(path: Path) -> str:
    for name in naming.MODEL_NAMES:
        if (path / name).is_file():
            return manifests.file_hash(path / name)
    return ""
