"""A version of a bundle as a folder: what `apply.py` and `compact.py` write, and what they report.

Unchanged files are hard links; the manifest and the graph name every file with its fingerprint.
"""

from __future__ import annotations

import dataclasses
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfctr.bundle import manifest as manifests
from tfctr.bundle import naming, reader
from tfctr.bundle.deltas import tables
from tfctr.bundle.deltas.identity import Version
from tfctr.bundle.deltas.links import Links, possible
from tfctr.bundle.deltas.plan import Plan, PlannedFile, overlay_entry, version_name
from tfctr.bundle.summary import COMPACT_SHARE, overlay_share
from tfctr.bundle.writer import BundleWriter
from tfctr.errors import CorruptFileError
from tfctr.version import __version__

Progress = Callable[[str, int, int], None]
Note = Callable[[str], None]
OVERLAY_SUFFIX = ".overlay"


@dataclasses.dataclass(frozen=True, kw_only=True)
class VersionReport:
    """What was written. path: the new folder. version: see ``identity.Version``. tables: {index, kind, name, rows,
    removed: of these deltas, overlay_rows, overlay_removed, table_rows, share} of those that have an overlay. files:
    names of those replaced as a whole. dense: whether the graph with its dense weights was replaced. links: {linked,
    linked_bytes, copied, copied_bytes, reason}. written_bytes: of all that is neither linked nor copied. reloaded: why
    a session loaded its model again, "" where only tables were swapped. advice: what should be done next, "" for
    nothing.
    """

    path: Path
    version: Version
    tables: tuple[Mapping[str, Any], ...] = ()
    files: tuple[str, ...] = ()
    dense: bool = False
    links: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    written_bytes: int = 0
    reloaded: str = ""
    elapsed_ms: float = 0.0
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        told = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return told | {"path": str(self.path), "version": self.version.to_json(), "tables": list(self.tables)}


class VersionFolder:
    """Fills a BundleWriter's folder with one version and commits it."""

    def __init__(self, bundle: reader.Bundle, plan: Plan, writer: BundleWriter, progress: Progress) -> None:
        self._bundle, self._plan, self._writer, self._progress = bundle, plan, writer, progress
        self.links = Links()
        self._written = 0
        self._tables: list[dict[str, Any]] = []

    def require_space(self, delta_bytes: int, tell: Note) -> None:
        """Room for what can't be linked; UsageError where the file system has less."""
        needed = delta_bytes + self._plan.model.stat().st_size
        needed += sum(f.overlay["bytes"] for f in self._plan.files if f.overlay is not None and f.deltas)
        if not possible(self._bundle.path, self._writer.folder):
            needed += sum(path.stat().st_size for path in self._kept_files().values())
            needed += sum(f.source.stat().st_size for f in self._plan.files if not f.new)
            tell(f"{self._writer.out} is on another file system than the bundle: files are copied, not linked")
        self._writer.require_space(needed)

    def write(self) -> VersionReport:
        plan, writer = self._plan, self._writer
        for target, path in self._kept_files().items():
            self.links.add(path, writer.folder / target)
        for target, path in plan.others.items():
            self._create(writer.folder / target, path.read_bytes())
        entries = self._base_files()
        entries += self._overlays(len(entries))
        manifest = self._manifest(entries)
        manifest["model"] = self._write_model(manifest)
        self._create(writer.folder / naming.MANIFEST, manifests.dump(manifest))
        self._progress("write the version", 0, 1)
        path = writer.commit(self.links.paths)
        self._progress("write the version", 1, 1)
        return VersionReport(
            path=path,
            version=plan.version,
            tables=tuple(self._tables),
            files=tuple(str(f.entry["name"]) for f in plan.files if f.new),
            dense=plan.dense,
            links=self.links.describe(),
            written_bytes=self._written,
            advice=advice(self._tables, f"it (tfctr compact {writer.out} NEW)"),
        )

    def _kept_files(self) -> dict[str, Path]:
        """Files outside the store that stay: path in the bundle -> where it is."""
        ours = {naming.MODEL, naming.MANIFEST, *self._plan.others}
        kept, top = {}, str(self._bundle.path)
        for root, _, names in os.walk(top, followlinks=True):
            inside = os.path.relpath(root, top)
            if inside == naming.STORE_FOLDER or inside.startswith(naming.STORE_FOLDER + "/"):
                continue
            for name in names:
                target = os.path.normpath(os.path.join(inside, name))
                if target not in ours:
                    kept[target] = Path(root, name)
        return kept

    def _base_files(self) -> list[dict[str, Any]]:
        taken: set[str] = {Path(f.entry["file"]).name for f in self._plan.files if not f.new}
        entries = []
        for index, planned in enumerate(self._plan.files):
            name = Path(planned.entry["file"]).name
            if planned.new and name in taken:
                name = f"v{self._plan.version.sequence}_{name}"
            taken.add(name)
            entries.append({**planned.entry, "index": index, **self._base_file(planned, name)})
        return entries

    def _base_file(self, planned: PlannedFile, name: str) -> dict[str, Any]:
        """Puts one file of the store, without its overlay, in place; what its entry says anew."""
        target = self._writer.store_folder / name
        if planned.new:
            self._create(target, planned.source.read_bytes())
        else:
            self.links.add(planned.source, target)
        return {"file": f"{naming.STORE_FOLDER}/{name}"}

    def _overlays(self, first: int) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        merged = [planned for planned in self._plan.files if planned.deltas]
        for base, planned in enumerate(self._plan.files):
            if planned.overlay is None and not planned.deltas:
                continue
            if planned.deltas:
                self._progress("merge rows", merged.index(planned), len(merged))
            entries.append(self._overlay(planned, base, first + len(entries)))
            self._tables.append(table_words(planned, base, entries[-1]))
        return entries

    def _overlay(self, planned: PlannedFile, base: int, index: int) -> dict[str, Any]:
        folder = self._writer.store_folder
        if not planned.deltas:
            assert planned.overlay is not None and planned.overlay_path is not None
            name = Path(planned.overlay["file"]).name
            self.links.add(planned.overlay_path, folder / name)
            return {**planned.overlay, "index": index, "base": base}
        name = version_name(planned.entry["file"], self._plan.version.sequence, OVERLAY_SUFFIX)
        info = tables.merge(planned, folder / name)
        self.links.paths.add(str(folder / name))  # the native writer has synced it
        self._new(folder / name)
        return overlay_entry(planned, index, base, f"{naming.STORE_FOLDER}/{name}", info)

    def _manifest(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        bundle_id = uuid.uuid4().hex
        return {
            **self._bundle.manifest,
            **self._plan.manifest,
            "format": manifests.FORMAT,
            "tfctr": __version__,
            "created": manifests.now(),
            "bundle_id": bundle_id,
            "store": {"shared_name": f"tfctr/{bundle_id}", "files": entries},
            "version": self._plan.version.to_json(),
        }

    def _write_model(self, manifest: dict[str, Any]) -> dict[str, Any]:
        from tfctr.bundle.deltas.graph import over_files  # needs TensorFlow

        store = manifest["store"]
        model = over_files(self._plan.model.read_bytes(), store["files"], store["shared_name"], str(self._plan.model))
        path = self._create(self._writer.folder / naming.MODEL, model)
        return {"file": naming.MODEL, "bytes": len(model), "sha256": manifests.file_hash(path)}

    def _create(self, path: Path, data: bytes) -> Path:
        """A file of its own: never the one of the old version that a link of this name would be."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(data)
        self._new(path)
        return path

    def _new(self, path: Path) -> None:
        self._written += path.stat().st_size


def open_whole(path: Path) -> reader.Bundle:
    """Opens a bundle that a version is to be made from: its graph has the hash, and every file of its store the
    fingerprint, of the manifest. Reads the graph and footers, no rows.
    """
    bundle = reader.open_bundle(path)
    model = bundle.manifest["model"]
    if manifests.file_hash(path / model["file"]) != model["sha256"]:
        raise CorruptFileError(f"{path / model['file']}: its SHA-256 is not the manifest's")
    for entry in bundle.manifest["store"]["files"]:
        if entry["kind"] != "blob":
            reader.check_fingerprint(path / entry["file"], entry)
    return bundle


def table_words(planned: PlannedFile, index: int, overlay: Mapping[str, Any]) -> dict[str, Any]:
    """What reports say about one table with an overlay."""
    return {
        "index": index,
        "kind": planned.entry["kind"],
        "name": planned.entry["name"],
        "rows": planned.rows,
        "removed": planned.removed,
        "overlay_rows": overlay["rows"],
        "overlay_removed": overlay["removed"],
        "table_rows": planned.table_rows,
        "share": round(overlay_share(planned.table_rows, overlay), 6),
    }


def advice(told: Sequence[Mapping[str, Any]], what: str) -> str:
    """Which tables have so much in their overlays that a compaction pays; "" where none has."""
    large = sorted((one for one in told if one.get("share", 0) > COMPACT_SHARE), key=lambda one: -float(one["share"]))
    if not large:
        return ""
    named = ", ".join(f"{one['name']} ({one['share']:.0%})" for one in large[:3])
    more = f" and {len(large) - 3} more" if len(large) > 3 else ""
    return (
        f"more than {COMPACT_SHARE:.0%} of the rows of {named}{more} lie in overlays: compact {what} for faster lookups"
    )
