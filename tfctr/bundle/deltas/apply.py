"""``tfctr.apply_delta``: BUNDLE and deltas in order -> a new version folder, in a time that the changes alone decide.

Unchanged files are hard links. Rows go into an overlay file per table, merged with the one of before. saved_model.pb is
written with the new list of files and their fingerprints, so a folder that lacks one of them does not open.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path

from tfctr.bundle import naming
from tfctr.bundle.deltas.delta_folder import Delta
from tfctr.bundle.deltas.lock import only_writer
from tfctr.bundle.deltas.plan import make_plan
from tfctr.bundle.deltas.version_folder import Note, Progress, VersionFolder, VersionReport, open_whole
from tfctr.bundle.writer import BundleWriter, check_target
from tfctr.core import library
from tfctr.errors import UsageError


def apply_delta(
    bundle_path: str | Path,
    deltas: str | Path | Sequence[str | Path],
    out_path: str | Path,
    *,
    force: bool = False,
    progress: Progress | None = None,
    note: Note | None = None,
) -> VersionReport:
    """Writes the version that ``deltas``, in this order, make of the bundle at ``bundle_path``, which is only read.

    force: replace ``out_path`` where it is a SavedModel or bundle. progress is called with (stage, done, total), note
    with one line for people. Nothing is at ``out_path`` unless all went well.

    Raises:
      UsageError: no bundle, no delta, a delta of another model or base, a gap, the wrong order, the same delta twice;
        ``out_path`` exists, lies in the bundle, is being written by another process, or can't be written.
      CorruptFileError: a damaged or half-copied bundle or delta.
      VersionError: a newer tfctr wrote one of them.
    """
    start = time.perf_counter()
    paths = [Path(one) for one in ([deltas] if isinstance(deltas, str | os.PathLike) else deltas)]
    if not paths:
        raise UsageError(f"{bundle_path}: no delta was given")
    source, out = Path(bundle_path), Path(os.path.abspath(out_path))
    _check_apart(out, paths)
    check_target(out, source, force=force, what="bundle")
    library.load()
    tell, seen = note or (lambda _: None), progress or (lambda *_: None)
    opened: list[Delta] = []

    def on_delta(delta: Delta) -> None:
        seen("read the deltas", len(opened), len(paths))
        opened.append(delta)

    bundle = open_whole(source)
    plan = make_plan(
        bundle.manifest, lambda entry: source / entry["file"], source / naming.MODEL, paths, str(source), on_delta
    )
    with only_writer(out), BundleWriter(out, source, force=force, progress=tell, what="bundle") as writer:
        written = VersionFolder(bundle, plan, writer, seen)
        written.require_space(sum(delta.size() for delta in opened), tell)
        report = written.write()
    return dataclasses.replace(report, elapsed_ms=round((time.perf_counter() - start) * 1000, 1))


def _check_apart(out: Path, deltas: Sequence[Path]) -> None:
    real = Path(os.path.realpath(out))
    for path in deltas:
        other = Path(os.path.realpath(path))
        if real == other or other in real.parents or real in other.parents:
            raise UsageError(f"{out}: is, holds or lies in the delta {path}; choose another OUT")
