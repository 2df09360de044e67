"""The version that a running session serves: its manifest, where its files are, and what deltas make of it in memory.

Overlays, replaced files and new graphs lie in anonymous memory (memfd); nothing is written to disk. Where only rows
change, the session's tables get other overlays in one swap. Where the graph changes too, a new model is loaded beside
the old one, from a temporary folder that holds nothing but symbolic links.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfctr.bundle import naming
from tfctr.bundle.deltas import tables
from tfctr.bundle.deltas.graph import over_files
from tfctr.bundle.deltas.identity import Version, version_of
from tfctr.bundle.deltas.plan import Plan, PlannedFile, make_plan, overlay_entry
from tfctr.bundle.deltas.version_folder import open_whole, table_words
from tfctr.core import library
from tfctr.errors import CorruptFileError, TfctrError

_CHUNK = 1 << 20


class MemoryFile:
    """Bytes in anonymous memory with a path by which this process can open them; gone with the object."""

    def __init__(self, name: str, data: bytes | None = None, copy_of: Path | None = None) -> None:
        handle = os.memfd_create(name[:200], os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, handle)
        self.path = Path(f"/proc/{os.getpid()}/fd/{handle}")
        with open(handle, "wb", closefd=False) as file:
            if data is not None:
                file.write(data)
            elif copy_of is not None:
                with copy_of.open("rb") as source:
                    shutil.copyfileobj(source, file, _CHUNK)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiveVersion:
    """manifest: of the version (its ``file`` entries are only names). folder: the bundle that was opened first. paths:
    where the files of the store are, by index. model: saved_model.pb. others: path in the bundle -> file, of what other
    files deltas replaced. held: what keeps files in memory.
    """

    manifest: Mapping[str, Any]
    folder: Path
    paths: tuple[Path, ...]
    model: Path
    others: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    held: Mapping[Path, Any] = dataclasses.field(default_factory=dict)

    @property
    def version(self) -> Version:
        return version_of(self.manifest, str(self.folder))

    @property
    def overlays(self) -> dict[int, Path]:
        """Index of a table -> path of its overlay."""
        files = self.manifest["store"]["files"]
        return {int(f["base"]): self.paths[f["index"]] for f in files if f["kind"] == "overlay"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextVersion:
    """live: the version. reload: whether its model must be loaded. dense: its graph is another one. tables: for
    reports."""

    live: LiveVersion
    reload: bool
    dense: bool
    tables: tuple[Mapping[str, Any], ...]


def opened(folder: Path, manifest: Mapping[str, Any]) -> LiveVersion:
    """The version of a bundle as it lies on disk."""
    paths = tuple(folder / str(entry["file"]) for entry in manifest["store"]["files"])
    return LiveVersion(manifest=manifest, folder=folder, paths=paths, model=folder / naming.MODEL)


def following(live: LiveVersion, deltas: Sequence[str | Path]) -> NextVersion:
    """What ``deltas``, in this order, make of ``live``; all of it in memory, and ``live`` as it was.

    Errors: see ``apply_delta``; a file of the bundle that is gone or exchanged by now is a CorruptFileError.
    """
    where = f"{live.folder} (in memory)"
    if live.version.sequence == 0:
        open_whole(live.folder)
    plan = make_plan(live.manifest, lambda entry: live.paths[entry["index"]], live.model, deltas, where)
    held: dict[Path, Any] = {}
    others = dict(live.others)
    if plan.changes_files:
        plan, others = _in_memory(plan, others, held)
    entries = [{**planned.entry, "index": index} for index, planned in enumerate(plan.files)]
    paths = [planned.source for planned in plan.files]
    told: list[Mapping[str, Any]] = []
    for base, planned in enumerate(plan.files):
        if planned.overlay is None and not planned.deltas:
            continue
        entry, path = _overlay(planned, base, len(entries), held)
        entries.append(entry)
        paths.append(path)
        told.append(table_words(planned, base, entry))
    store = {**live.manifest["store"], "files": entries}
    manifest = {**live.manifest, **plan.manifest, "store": store, "version": plan.version.to_json()}
    used = {*paths, *others.values(), plan.model}
    kept = {path: one for path, one in {**live.held, **held}.items() if path in used}
    made = LiveVersion(
        manifest=manifest, folder=live.folder, paths=tuple(paths), model=plan.model, others=others, held=kept
    )
    return NextVersion(live=made, reload=plan.changes_files, dense=plan.dense, tables=tuple(told))


def swap(model: Any, live: LiveVersion, made: LiveVersion) -> bool:
    """Lays the overlays of ``made`` over the tables of the loaded ``model``, all as one; False where its graph, from an
    earlier tfctr, has no node for it.
    """
    overlays = made.overlays
    if overlays == live.overlays:
        return True
    names = naming.OVERLAY_NODE, naming.OVERLAY_INDICES, naming.OVERLAY_FILENAMES
    try:
        model.swap_overlays(*names, list(overlays), [str(path) for path in overlays.values()])
    except library.native().LoadFailed as failure:
        code, message = failure.args
        if any(f"{name}:0, specified in either feed_devices" in message for name in names):
            return False  # TensorFlow's words for a fed node that the graph does not have
        text = f"{live.folder}: the deltas were not applied, and version {live.version.sequence} serves on: {message}"
        raise (CorruptFileError if code in ("DATA_LOSS", "NOT_FOUND") else TfctrError)(text) from failure
    return True


class ModelFolder:
    """A temporary folder with a version: its graph in memory, everything else symbolic links. path: the folder.

    It is to stay as long as its model is used: a table that stock ops read whole is mapped by its path again when rows
    of it change. It goes with the object, or with ``close``.
    """

    def __init__(self, live: LiveVersion) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="tfctr-version-"))
        self.close = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        files = live.manifest["store"]["files"]
        entries = [{**entry, "file": f"{naming.STORE_FOLDER}/{_link_name(entry)}"} for entry in files]
        name = str(live.manifest["store"]["shared_name"])
        self._graph: MemoryFile | None = MemoryFile(
            naming.MODEL, over_files(live.model.read_bytes(), entries, name, str(live.model))
        )
        for target, path in (_kept(live) | dict(live.others)).items():
            _link(path, self.path / target)
        for entry, path in zip(entries, live.paths, strict=True):
            _link(path, self.path / str(entry["file"]))
        _link(self._graph.path, self.path / naming.MODEL)

    def loaded(self) -> None:
        """The graph's memory may go."""
        self._graph = None


def _kept(live: LiveVersion) -> dict[str, Path]:
    """The bundle's own files that this version has too, the manifest aside."""
    found = {}
    for root, _, names in os.walk(live.folder, followlinks=True):
        for name in names:
            target = (Path(root) / name).relative_to(live.folder)
            ours = target.as_posix() in (naming.MODEL, naming.MANIFEST) or target.as_posix() in live.others
            if not ours and not target.is_relative_to(naming.STORE_FOLDER):
                found[target.as_posix()] = live.folder / target
    return found


def _link_name(entry: Mapping[str, Any]) -> str:
    """A name of its own for each file: of a blob its role is told by it, and engines have files of distinct names."""
    name = Path(str(entry["file"])).name
    return name if entry["kind"] == "blob" else f"{entry['index']:04d}.{entry['kind']}"


def _link(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.symlink(os.path.abspath(path), target)


def _in_memory(plan: Plan, others: dict[str, Path], held: dict[Path, Any]) -> tuple[Plan, dict[str, Path]]:
    """The plan with the deltas' whole files in memory: their folders may go once they are applied."""

    def keep(path: Path) -> Path:
        file = MemoryFile(path.name, copy_of=path)
        held[file.path] = file
        return file.path

    files = [dataclasses.replace(f, source=keep(f.source)) if f.new else f for f in plan.files]
    model = keep(plan.model) if plan.dense else plan.model
    return dataclasses.replace(plan, files=files, model=model), others | {t: keep(p) for t, p in plan.others.items()}


def _overlay(planned: PlannedFile, base: int, index: int, held: dict[Path, Any]) -> tuple[dict[str, Any], Path]:
    if not planned.deltas:
        assert planned.overlay is not None and planned.overlay_path is not None
        return {**planned.overlay, "index": index, "base": base}, planned.overlay_path
    made = tables.merge_in_memory(planned)
    path = Path(made.path)
    held[path] = made
    return overlay_entry(planned, index, base, f"{planned.entry['name']}.overlay", made.info()), path
