"""The folder that a profile leaves: written beside what it replaces, synced, and renamed file by file at the end."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from tfctr.bundle.writer import disk_error
from tfctr.errors import CorruptFileError, UsageError
from tfctr.profiling.timeline.chrome_trace import write_trace
from tfctr.profiling.timeline.events import Timeline, from_json
from tfctr.profiling.timeline.recording import Recording

TRACE = "trace.json"
PAGE = "index.html"
TIMELINE = "timeline.json"
BASELINE = "baseline.json"
# Where TensorBoard's profile plugin looks: plugins/profile/RUN/HOST.xplane.pb.
XPLANE = "plugins/profile/{run}/tfctr.xplane.pb"
WORK = ".tfctr-tmp-"
_RUNS = ("profile", "baseline")

WritePage = Callable[[Path, Timeline, Timeline | None], object]


def check_folder(out: Path) -> None:
    """UsageError where a profile can't be written to ``out``: it is a file, lies below one or in a folder that may not
    be written, or holds things that are no profile."""
    try:
        if os.path.lexists(out) and not out.is_dir():
            raise UsageError(f"{out}: is a file; --out names a folder")
        if out.is_dir() and _holds_others(out):
            raise UsageError(f"{out}: holds files that are no profile; give an empty or new folder")
        there = next(folder for folder in (out, *out.absolute().parents) if os.path.lexists(folder))
        if not there.is_dir():
            raise UsageError(f"{out}: can't be written: {there} is a file")
        if not os.access(there, os.W_OK | os.X_OK):
            raise UsageError(f"{out}: can't be written: {there} is read-only")
        os.lstat(out)
    except FileNotFoundError:
        return
    except OSError as error:
        raise disk_error(error, out) from error


def _holds_others(out: Path) -> bool:
    """Whether there is anything in it, and no profile. What an attempt left that was killed does not count."""
    return not (out / TRACE).is_file() and any(not path.name.startswith(WORK) for path in out.iterdir())


def write_profile(out: Path, ours: Recording, baseline: Recording | None, write_page: WritePage) -> list[Path]:
    """Writes trace, timelines, TensorBoard's files and the page into ``out``; the files of an earlier profile there are
    replaced, those that this one lacks are removed. Returns the paths.

    UsageError: the disk is full, or may not be written; what was in ``out`` is as before.
    """
    check_folder(out)
    made = [] if out.exists() else [p for p in (out, *out.parents) if not p.exists()]
    work = out / f"{WORK}{os.getpid()}"
    try:
        work.mkdir(parents=True)
        names = _write(work, ours, baseline, write_page)
        for name in names:
            _sync(work / name)
        for name in names:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(work / name, out / name)
        _remove_stale(out, names)
    except BaseException as error:
        shutil.rmtree(work, ignore_errors=True)
        for folder in made:
            _remove_empty(folder)
        if isinstance(error, OSError):
            raise disk_error(error, out) from error
        raise
    shutil.rmtree(work)
    _sync(out)
    return [out / name for name in names]


def _write(work: Path, ours: Recording, baseline: Recording | None, write_page: WritePage) -> list[str]:
    recordings = [ours] if baseline is None else [ours, baseline]
    timelines = [one.timeline for one in recordings]
    _text(work / TRACE, lambda file: write_trace(file, timelines))
    names = [TRACE]
    for name, run, one in zip((TIMELINE, BASELINE), _RUNS, recordings, strict=False):
        write_timeline(work / name, one.timeline)
        xplane = XPLANE.format(run=run)
        (work / xplane).parent.mkdir(parents=True)
        (work / xplane).write_bytes(one.xspace)
        names += [name, xplane]
    write_page(work / PAGE, ours.timeline, baseline.timeline if baseline else None)
    return [*names, PAGE]


def write_timeline(path: Path, timeline: Timeline) -> None:
    """One timeline as JSON."""
    data = timeline.to_json()
    _text(path, lambda file: json.dump(data, file, separators=(",", ":"), allow_nan=False))


def read_timeline(path: Path) -> Timeline:
    """UsageError: no such file; CorruptFileError: it is no timeline."""
    try:
        return from_json(json.loads(path.read_bytes()))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise CorruptFileError(f"{path}: not JSON: {error}") from error
    except CorruptFileError as error:
        raise CorruptFileError(f"{path}: {error}") from error


def _text(path: Path, write: Callable[[IO[str]], object]) -> None:
    with path.open("w", encoding="utf-8") as file:
        write(file)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_stale(out: Path, names: Sequence[str]) -> None:
    for name in (BASELINE, XPLANE.format(run=_RUNS[1])):
        if name not in names:
            (out / name).unlink(missing_ok=True)
            _remove_empty((out / name).parent)
    for work in out.glob(f"{WORK}*"):  # of one that was killed
        number = work.name.removeprefix(WORK)
        if number.isdecimal() and not Path(f"/proc/{number}").exists():
            shutil.rmtree(work, ignore_errors=True)


def _remove_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
