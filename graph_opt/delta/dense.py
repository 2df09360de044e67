"""The dense part of a delta: graph, dense weights, vocabularies, engines and the record of the newer state.

They are made as in a refresh, and compared with the new model over the tables as they will be served: the files of the
version before, with the rows of the delta in overlays. Only tables that are stored in fewer bytes, and parts of merged
ones, are copied from the checkpoint for that comparison.
"""

from __future__ import annotations

import dataclasses
import filecmp
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graph_opt.conversion import Note, Progress
from graph_opt.delta.base import OVERLAY, ROW_KINDS, Base, BaseTable
from graph_opt.delta.training import TrainingSource
from graph_opt.hash_files import HASH, described_hash, write_hash
from graph_opt.item import GraphItem, StoreFile
from graph_opt.narrowing import storage_of
from graph_opt.options import ConvertOptions
from graph_opt.parity import OutputParity
from graph_opt.renewal.rebuild import Changes
from graph_opt.renewal.refresh import Refresh
from graph_opt.renewal.values import NewValues
from graph_opt.renewal.weights import Part, part_of
from graph_opt.saved_model import SavedModelSource
from graph_opt.store_files import Checkpoint, new_path
from tfctr.bundle import naming
from tfctr.bundle.deltas.delta_writer import DeltaWriter
from tfctr.bundle.writer import BundleWriter
from tfctr.core import library

# Fields of the new manifest that are the delta's or the version's own.
_NOT_TAKEN = ("store", "model", "bundle_id", "created", "format", "elapsed_ms", "version")


def dense_reason(base: Base, values: NewValues, changes: Changes) -> str:
    """Why the graph must be in the delta; "" where only rows can have changed."""
    record = base.record
    if changes.weights:
        return f"{len(changes.weights)} dense weights changed"
    if changes.vocabularies:
        return f"{len(changes.vocabularies)} vocabularies changed"
    if any(state.keys for state in values.mutable_state):
        return "the model has variables or tables that serving writes, and the checkpoint has values for them"
    if values.asset_hashes != record.assets:
        return "the model's assets changed"
    return ""


class _Folder(BundleWriter):
    """A folder for the graph and the new files in place of a bundle beside OUT; it goes with the delta's other work."""

    def __init__(self, folder: Path) -> None:
        self.out = self.folder = folder
        self.store_folder.mkdir(parents=True)


class DensePart(Refresh):
    """A refresh over files that are served already."""

    def __init__(
        self,
        source: SavedModelSource,
        folder: Path,
        options: ConvertOptions,
        progress: Progress,
        tell: Note,
        *,
        base: Base,
        values: NewValues,
    ) -> None:
        super().__init__(source, folder, options, progress, tell, bundle=base.bundle, record=base.record)
        self._base = base
        self._new = values
        self._overlays: dict[Path, StoreFile] = {}  # file of the base -> its overlay with the delta's rows
        self._files: list[StoreFile] = []
        self.manifest: dict[str, Any] = {}
        self.keep: list[int] = []  # of each new file: number of the same one in the base, or -1

    def make(self, deltas: Mapping[int, Path]) -> None:
        """deltas: by number of the table in the base, those that have rows or removed keys."""
        for index, path in deltas.items():
            self._overlay(self._base.tables[index], path)
        item, needed = self._read()
        item.store_name = f"tfctr/{self.bundle_id}"
        self.manifest = self._make(item, needed, _Folder(self.out))
        self._files = [f for f in item.files if f.kind != OVERLAY]
        self.keep = [self._same(file) for file in self._files]

    def new_index(self, table: BaseTable) -> int | None:
        """Number of the table in the new store; None where it is stored otherwise there."""
        return self.keep.index(table.index) if table.index in self.keep else None

    def write(self, writer: DeltaWriter) -> None:
        """Enters graph, record, state, changed assets and whole files."""
        entries = self.manifest["store"]["files"]
        for index, was in enumerate(self.keep):
            if was == -1:
                path = self._files[index].path
                assert path is not None
                target = writer.file_path(index, path.name)
                shutil.move(path, target)
                writer.add_file(target, {k: v for k, v in entries[index].items() if k != "bytes"})
        for path in sorted(self.out.rglob("*")):
            relative = path.relative_to(self.out)
            if path.is_file() and not relative.is_relative_to(naming.STORE_FOLDER) and self._is_new(path, relative):
                shutil.move(path, writer.dense_path(relative.as_posix()))
        manifest = {key: value for key, value in self.manifest.items() if key not in _NOT_TAKEN}
        same = self.keep == list(range(len(self._base.files)))
        writer.set_dense(manifest=manifest, keep=None if same else self.keep)

    def _is_new(self, path: Path, relative: Path) -> bool:
        old = self._base.path / relative
        if relative.as_posix() in (naming.MODEL, naming.REFRESH) or not old.is_file():
            return True
        return not filecmp.cmp(path, old, shallow=False)

    def _overlay(self, table: BaseTable, delta: Path) -> None:
        """The overlay that applying the delta will give the table."""
        path = delta.with_suffix(".overlay")
        native = library.native()
        with library.native_errors():
            native.build_overlay(path, table.path, table.overlay, [delta])
            info = native.overlay_info(path)
        self._overlays[table.path] = StoreFile(
            kind=OVERLAY, path=path, name=table.name, dtype=table.dtype, shape=(info["rows"], *table.shape[1:]),
            source="deltas", bytes=path.stat().st_size, fingerprint=info["fingerprint"],
        )  # fmt: skip

    def _values(self, item: GraphItem) -> NewValues:
        """The newer weights over tables as they are served."""
        served = {(t.kind, t.source): t for t in self._base.tables.values() if t.storage is None}
        taken_apart = _read_by_others(self._old.template)
        checkpoint = Checkpoint(self.source.checkpoint)
        files: list[StoreFile] = []
        for number, (file, old) in enumerate(zip(self._new.files, self._old.reference.files, strict=True)):
            table = served.get((old.kind, old.source)) if number not in taken_apart else None
            if table is not None:
                # A static table keeps its name; a hash file's source is its place in the newest checkpoint.
                source = file.source if file.kind == HASH else table.source
                told = _told(table.path)
                files.append(
                    dataclasses.replace(
                        file, path=table.path, shape=table.shape, name=table.name, source=source, **told
                    )
                )
            elif file.path is not None:
                files.append(dataclasses.replace(file, **_told(file.path)))
            else:
                files.append(self._copied(item, checkpoint, file, number))
        item.files = files
        return dataclasses.replace(self._new, files=files)

    def _renew_record(self, values: NewValues, changes: Changes) -> None:
        if isinstance(self.source, TrainingSource):
            # The next export calls its variables what the last one did, not what a checkpoint does.
            old = self._old.reference
            files = [
                dataclasses.replace(new, ref=was.ref, source=was.source)
                for new, was in zip(values.files, old.files, strict=True)
            ]
            values = dataclasses.replace(
                values, files=files, mutable_state=old.mutable_state, variables=old.variables, constants=old.constants
            )
        super()._renew_record(values, changes)

    def _names(self, reference: GraphItem) -> dict[str, str]:
        return self._old.names if isinstance(self.source, TrainingSource) else super()._names(reference)

    def _copied(self, item: GraphItem, checkpoint: Checkpoint, file: StoreFile, number: int) -> StoreFile:
        path = new_path(item, file.name, f".{file.kind}", number)
        assert path is not None
        if file.kind == HASH:
            write_hash(checkpoint, file.source, path, file.name, item.on_copied)
            return described_hash(path, file.source, file.name)
        assert file.ref is not None
        checkpoint.copy(file.ref, path, file.name, item.on_copied)
        return dataclasses.replace(file, path=path, **_told(path))

    def _compare(
        self, reference: GraphItem, item: GraphItem, described: dict[str, Any], writer: BundleWriter
    ) -> list[OutputParity]:
        for one in (reference, item):
            self._add_overlays(one, self._overlaid())
        return super()._compare(reference, item, described, writer)

    def _overlaid(self) -> dict[Path, StoreFile]:
        """Overlays by the file they lie over: the delta's, and those of the version before that it leaves alone."""
        found = dict(self._overlays)
        entries = {e["base"]: e for e in self._base.bundle.manifest["store"]["files"] if e["kind"] == OVERLAY}
        for index, entry in entries.items():
            table = self._base.tables[index]
            if table.path not in found and table.overlay is not None:
                found[table.path] = StoreFile(
                    kind=OVERLAY, path=table.overlay, name=table.name, dtype=entry["dtype"],
                    shape=tuple(entry["shape"]), source="deltas", bytes=entry["bytes"],
                    fingerprint=entry["fingerprint"],
                )  # fmt: skip
        return found

    @staticmethod
    def _add_overlays(item: GraphItem, overlays: Mapping[Path, StoreFile]) -> None:
        for index, file in enumerate(list(item.files)):
            if file.path is not None and file.path in overlays:
                item.files.append(dataclasses.replace(overlays[file.path], base=index))

    def _same(self, file: StoreFile) -> int:
        """Number of the base's file that stands where ``file`` does and needs no whole new one; -1 for none."""
        for old in self._base.files:
            if file.path == self._base.path / old["file"]:
                return int(old["index"])
            if (old["kind"], old["name"], old["source"]) != (file.kind, file.name, file.source):
                continue
            if file.kind in ROW_KINDS:
                same = (old["dtype"], old["shape"][1:], old.get("storage")) == (
                    file.dtype, list(file.shape[1:]), storage_of(file),
                )  # fmt: skip
            else:
                assert file.path is not None
                same = filecmp.cmp(file.path, self._base.path / old["file"], shallow=False)
            if same:
                return int(old["index"])
        return -1


def _read_by_others(template: GraphItem) -> set[int]:
    """Numbers of tables that others are made from: merged ones, parts of one."""
    found: set[int] = set()
    for file in template.files:
        found |= set(file.merged[1]) if file.merged is not None else set()
        part = Part.parse(file.part) if file.part else None
        found |= {part.file} if part is not None and not part.weight else set()
    for node in template.graph_def.node:
        of = part_of(node) if node.op == "Const" else None
        found |= {of.file} if of is not None and not of.weight else set()
    return found


def _told(path: Path) -> dict[str, Any]:
    """Size and fingerprint of a file of the store."""
    return {"bytes": path.stat().st_size, "fingerprint": library.native().file_info(path)["fingerprint"]}
