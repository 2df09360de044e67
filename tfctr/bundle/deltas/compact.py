"""``tfctr.compact``: a version with overlays -> the same version without, its rows in base files again.

The new folder keeps the version's hash, so the next delta fits it as it fits the version that it was made from.
"""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

from tfctr.bundle import naming, reader
from tfctr.bundle.deltas import tables
from tfctr.bundle.deltas.identity import version_of
from tfctr.bundle.deltas.lock import only_writer
from tfctr.bundle.deltas.plan import Plan, PlannedFile, store_files, version_name
from tfctr.bundle.deltas.version_folder import Note, Progress, VersionFolder, VersionReport, open_whole
from tfctr.bundle.writer import BundleWriter, check_target
from tfctr.core import library


def compact(
    bundle_path: str | Path,
    out_path: str | Path,
    *,
    force: bool = False,
    progress: Progress | None = None,
    note: Note | None = None,
) -> VersionReport:
    """Writes the bundle at ``bundle_path`` again with its overlays merged into new table files; other files are linked.

    The arguments are those of ``apply_delta``. A bundle without overlays gives one of linked files, and a note.

    Raises:
      UsageError: no bundle; ``out_path`` exists, lies in the bundle, is being written by another process, or can't be
        written.
      CorruptFileError: a damaged or half-copied bundle: every byte that is merged is checked.
    """
    start = time.perf_counter()
    source, out = Path(bundle_path), Path(os.path.abspath(out_path))
    check_target(out, source, force=force, what="bundle")
    library.load()
    tell, seen = note or (lambda _: None), progress or (lambda *_: None)
    bundle = open_whole(source)
    files = store_files(bundle.manifest, lambda entry: source / entry["file"])
    version = version_of(bundle.manifest, str(source)).compacted()
    if not any(file.overlay for file in files):
        tell(f"{source}: has no overlays: nothing is to be merged")
    plan = Plan(version=version, files=files, model=source / naming.MODEL)
    with only_writer(out), BundleWriter(out, source, force=force, progress=tell, what="bundle") as writer:
        written = _CompactFolder(bundle, plan, writer, seen)
        written.require_space(
            sum(one.source.stat().st_size + _overlay_bytes(one) for one in files if one.overlay), tell
        )
        report = written.write()
    return dataclasses.replace(report, elapsed_ms=round((time.perf_counter() - start) * 1000, 1))


def _overlay_bytes(planned: PlannedFile) -> int:
    return int(planned.overlay["bytes"]) if planned.overlay else 0


class _CompactFolder(VersionFolder):
    """A version folder whose tables have no overlays."""

    def __init__(self, bundle: reader.Bundle, plan: Plan, writer: BundleWriter, progress: Progress) -> None:
        super().__init__(bundle, plan, writer, progress)
        self._total = sum(f.source.stat().st_size for f in plan.files if f.overlay is not None)
        self._done = 0

    def _base_file(self, planned: PlannedFile, name: str) -> dict[str, Any]:
        if planned.overlay is None or planned.overlay_path is None:
            return super()._base_file(planned, name)
        name = version_name(name, self._plan.version.sequence, Path(name).suffix)
        target = self._writer.store_folder / name
        info = tables.compact(planned, target, self._merged)
        self._new(target)
        self._tables.append(
            {
                "index": planned.entry["index"],
                "kind": planned.entry["kind"],
                "name": planned.entry["name"],
                "rows": planned.overlay["rows"],
                "removed": planned.overlay["removed"],
                "table_rows": info["shape"][0] if info["shape"] else 1,
            }
        )
        return {
            "file": f"{naming.STORE_FOLDER}/{name}",
            "shape": list(info["shape"]),
            "bytes": info["file_bytes"],
            "fingerprint": info["fingerprint"],
        }

    def _merged(self, size: int) -> None:
        self._done += size
        self._progress("merge tables", self._done, max(self._done, self._total))

    def _overlays(self, first: int) -> list[dict[str, Any]]:
        return []
