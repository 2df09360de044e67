"""New values for the weights and tables of a reference graph.

Where the new model was saved with the graph, functions and assets of the old one (``model_key``), they are read from
its checkpoint by the places that the record has. Else the new model's reference graph is made and compared node by
node (``matching``), which also tells which new weight is which.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.python.framework import dtypes

from graph_opt import pipeline
from graph_opt.hash_files import HASH, described_hash, table_shape, tensor_key, write_hash
from graph_opt.item import CheckpointRef, GraphItem, MutableState, StoreFile
from graph_opt.options import ConvertOptions
from graph_opt.renewal.matching import changed, match
from graph_opt.renewal.model_key import asset_hashes, model_key
from graph_opt.renewal.record import Record, made_of_values
from graph_opt.renewal.weights import Array, is_weight, value_of
from graph_opt.saved_model import SavedModelSource, inline
from graph_opt.store_files import Checkpoint, append_file, new_path
from tfctr.bundle.reader import Bundle
from tfctr.core import library
from tfctr.errors import ConvertAnewError, CorruptFileError, InternalError, UsageError

_COPIES = min(4, (os.cpu_count() or 1) + 1)  # tables at a time: one waits for the disk while another is summed up


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewValues:
    """weights: by name in the reference graph (those that the record has are left out where they can't differ). files:
    of the reference graph, by index, in the new bundle's folder. key, assets_hashes: of the new model. same_export:
    its graph is the old one's; nodes: how many were compared, where it is not.
    """

    weights: dict[str, Array]
    files: list[StoreFile]
    mutable_state: list[MutableState]
    variables: dict[str, CheckpointRef]
    constants: dict[str, CheckpointRef]
    assets: list[meta_graph_pb2.AssetFileDef]
    key: str
    asset_hashes: dict[str, str]
    same_export: bool
    nodes: int = 0


def read_values(
    record: Record, source: SavedModelSource, bundle: Bundle, work: GraphItem, options: ConvertOptions
) -> NewValues:
    """work: an empty item with the folder for the files and what is to be told of them; where it does not copy tables
    (``GraphItem.copies_tables``), their ``files`` say where the rows lie and have no path. ConvertAnewError where the
    structure is another one.
    """
    key, assets = model_key(source.meta_graph), asset_hashes(source.path / "assets")
    if (key, assets) == (record.key, record.assets):
        found = _Direct(record, source.checkpoint, bundle, work).read(key, assets)
        if found is not None:
            return found
    return _compared(record, source, work, options, key, assets)


def read_recorded(record: Record, checkpoint: Path, bundle: Bundle, work: GraphItem) -> NewValues:
    """From the places that the record has, in a checkpoint of the very same graph. ConvertAnewError where something
    lies neither there nor in the bundle.
    """
    found = _Direct(record, checkpoint, bundle, work).read(record.key, record.assets)
    if found is None:
        raise ConvertAnewError(
            f"{bundle.path}: holds constants of a graph that are stored in fewer bytes there, or changed by deltas, so "
            "that a checkpoint is not enough; give a SavedModel"
        )
    return found


class _Direct:
    """Reads values by the places that the record has."""

    def __init__(self, record: Record, checkpoint: Path, bundle: Bundle, work: GraphItem) -> None:
        self._record = record
        self._reference = record.reference
        self._checkpoint = Checkpoint(checkpoint)
        self._bundle = bundle
        self._work = work

    def read(self, key: str, assets: dict[str, str]) -> NewValues | None:
        """None where something lies neither in the checkpoint nor in the bundle (a table that was a constant and is
        stored in fewer bytes there).
        """
        reference = self._reference
        kept = [None if self._is_read(f) else self._kept(f) for f in reference.files]
        known = made_of_values(reference)
        if any(not self._is_read(f) and path is None for f, path in zip(reference.files, kept, strict=True)):
            return None
        if any(name not in known for name in self._record.empty):
            return None
        shapes = {n.name: n.attr["value"].tensor.tensor_shape for n in reference.graph_def.node if n.name in known}
        weights: dict[str, Array] = {}
        for name, ref in reference.constants.items():
            shape = tuple(d.size for d in shapes[name].dim)
            self._check(f"variable {name.removeprefix('tfctr/constant/')!r}", ref, None, shape)
            weights[name] = self._checkpoint.read(ref)
        self._copy_files(kept)
        dtype = {n.name: n.attr["dtype"].type for n in reference.graph_def.node if n.name in reference.vocabulary_sizes}
        for name, index in reference.vocabulary_sizes.items():
            weights[name] = np.array(reference.files[index].shape[0], dtypes.as_dtype(dtype[name]).as_numpy_dtype)
        return NewValues(
            weights=weights,
            files=self._work.files,
            mutable_state=reference.mutable_state,
            variables=reference.variables,
            constants=reference.constants,
            assets=reference.assets,
            key=key,
            asset_hashes=assets,
            same_export=True,
        )

    @staticmethod
    def _is_read(file: StoreFile) -> bool:
        """Whether it is made from the checkpoint."""
        return file.ref is not None or file.kind == HASH

    def _kept(self, file: StoreFile) -> Path | None:
        """Where the old bundle has a file that no variable is behind; None for one with changed rows over it."""
        entries = self._bundle.manifest["store"]["files"]
        overlaid = {entry.get("base") for entry in entries if entry["kind"] == "overlay"}
        for entry in entries:
            if (entry["kind"], entry.get("source")) == (file.kind, file.source) and entry["index"] not in overlaid:
                return self._bundle.path / entry["file"]
        return None

    def _copy_files(self, kept: Sequence[Path | None]) -> None:
        work, files = self._work, self._reference.files
        for file in files:
            if file.ref is not None:
                self._check(f"table {file.name!r}", file.ref, file.dtype, file.shape)
            elif file.kind == HASH:
                self._check_hash(file)
        if not work.copies_tables:
            work.files += [dataclasses.replace(f, path=kept[k]) for k, f in enumerate(files)]
            return
        suffix = {"table": ".table", "vocab": ".vocab", HASH: ".hash"}
        paths = [new_path(work, f.name, suffix[f.kind], k) for k, f in enumerate(files)]

        def copy(number: int) -> None:
            file, path, old = files[number], paths[number], kept[number]
            assert path is not None
            if file.kind == HASH:
                write_hash(self._checkpoint, file.source, path, file.name, work.on_copied)
            elif file.ref is not None:
                self._checkpoint.copy(file.ref, path, file.name, work.on_copied)
            elif old is not None:
                _copy_checked(old, path)

        with concurrent.futures.ThreadPoolExecutor(_COPIES) as pool:
            for _ in pool.map(copy, range(len(files))):
                pass
        for file, path in zip(files, paths, strict=True):
            assert path is not None
            if file.kind == HASH:
                work.files.append(described_hash(path, file.source, file.name))
            else:
                append_file(work, path, file.kind, file.name, file.dtype, file.shape, file.source, ref=file.ref)

    def _check_hash(self, file: StoreFile) -> None:
        """The width must be as it was; how many rows there are is free."""
        for part in ("keys", "values", "config"):
            key = tensor_key(file.source, part)
            if key not in self._checkpoint.entries:
                raise UsageError(
                    f"{self._checkpoint.prefix}.index has no tensor {key!r}, which the embedding variable "
                    f"{file.name!r} is read from"
                )
        _, dim = table_shape(self._checkpoint, file.source)
        if dim != file.shape[1]:
            raise changed(f"embedding variable {file.name!r}", f"dim {file.shape[1]}", f"dim {dim}")

    def _check(self, what: str, ref: CheckpointRef, dtype: str | None, shape: tuple[int, ...]) -> None:
        if ref.key not in self._checkpoint.entries:
            raise UsageError(f"{self._checkpoint.prefix}.index has no tensor {ref.key!r}, which {what} is read from")
        entry = self._checkpoint.entry(ref)
        if entry.shape != shape or dtype not in (None, entry.dtype):
            raise changed(
                what,
                f"{dtype or ''} {list(shape)}".strip(),
                f"{entry.dtype if dtype else ''} {list(entry.shape)}".strip(),
            )


def _copy_checked(old: Path, new: Path) -> None:
    native = library.native()
    try:
        native.verify_file(old)
    except native.CorruptFile as error:
        raise CorruptFileError(str(error)) from error
    shutil.copyfile(old, new)


def _compared(
    record: Record,
    source: SavedModelSource,
    work: GraphItem,
    options: ConvertOptions,
    key: str,
    assets: dict[str, str],
) -> NewValues:
    old = record.reference
    new = inline(source, [name for name in old.optimise if name in source.signatures] or None)
    new.store_name, new.work_dir, new.on_copied = work.store_name, work.work_dir, work.on_copied
    new.copies_tables = work.copies_tables
    pipeline.run_passes(new, pipeline.REFERENCE_PASSES, options)
    found = match(old, new)
    nodes = {node.name: node for node in new.graph_def.node}
    made = made_of_values(old)
    weights = {n.name: value_of(nodes[found.nodes[n.name]]) for n in old.graph_def.node if is_weight(n, made)}
    unread = [f.name for k, f in enumerate(old.files) if k not in found.files]
    if unread:
        raise InternalError(f"{unread[0]}: a table that nothing of the reference graph reads")
    state = {m.node: m for m in new.mutable_state}
    return NewValues(
        weights=weights,
        files=[new.files[found.files[k]] for k in range(len(old.files))],
        mutable_state=[dataclasses.replace(m, keys=state[found.nodes[m.node]].keys) for m in old.mutable_state],
        variables={n: new.variables[found.nodes[n]] for n in old.variables if found.nodes.get(n) in new.variables},
        constants={n: new.constants[found.nodes[n]] for n in old.constants},
        assets=[_renamed(a, b) for a, b in zip(old.assets, new.assets, strict=True)],
        key=key,
        asset_hashes=assets,
        same_export=False,
        nodes=len(found.nodes),
    )


def _renamed(old: meta_graph_pb2.AssetFileDef, new: meta_graph_pb2.AssetFileDef) -> meta_graph_pb2.AssetFileDef:
    entry = meta_graph_pb2.AssetFileDef(filename=new.filename)
    entry.tensor_info.CopyFrom(old.tensor_info)
    return entry


def describe_values(values: NewValues) -> dict[str, Any]:
    """For the manifest: how the structure was found to be the same."""
    how = "the same export" if values.same_export else f"compared node by node ({values.nodes} nodes)"
    return {"structure": how, "weights": len(values.weights), "tables": sum(f.kind != "vocab" for f in values.files)}
