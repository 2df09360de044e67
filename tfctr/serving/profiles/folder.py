"""A folder of traces that does not grow beyond its bound: the oldest go. Files are whole, or not there.

Only what was written here is counted and removed: a folder may hold other things.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

TRACE = ".trace.json.gz"
PAGE = "index.html"
XPLANE = ".xplane.pb"
XPLANES = "plugins/profile"  # where TensorBoard looks
HALF = ".half"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One file of ours. written_ns: Unix time."""

    path: Path
    bytes: int
    written_ns: int


def entries(folder: Path) -> list[Entry]:
    """Our files, the oldest first; those that vanish meanwhile are not in it."""
    found = []
    for path in _paths(folder):
        try:
            stat = path.stat()
        except OSError:
            continue
        found.append(Entry(path, stat.st_size, stat.st_mtime_ns))
    return sorted(found, key=lambda one: (one.written_ns, one.path))


def write(folder: Path, name: str, data: bytes, max_bytes: int) -> Path:
    """Writes ``folder/name`` by another name first, then removes the oldest of ours until all fit into ``max_bytes``.

    OSError: it could not be written (a full disk), or is larger than ``max_bytes`` alone; nothing of it stays.
    """
    if len(data) > max_bytes:
        raise OSError(f"{name} has {len(data)} bytes, more than the folder may hold ({max_bytes})")
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_name(f".{target.name}{HALF}")
    try:
        with open(half, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(half, target)
    except OSError:
        half.unlink(missing_ok=True)
        raise
    prune(folder, max_bytes, keep=target)
    return target


def prune(folder: Path, max_bytes: int, keep: Path | None = None) -> int:
    """Removes the oldest until the rest fits; the page goes last, and ``keep`` never. Returns how many."""
    found = entries(folder)
    total, removed = sum(one.bytes for one in found), 0
    for one in sorted(found, key=lambda entry: entry.path.name == PAGE):
        if total <= max_bytes:
            break
        if one.path == keep:
            continue
        one.path.unlink(missing_ok=True)
        if one.path.name.endswith(XPLANE):
            _remove_empty(one.path.parent)
        total -= one.bytes
        removed += 1
    return removed


def clear_halves(folder: Path) -> None:
    """Removes what a process that ended in the middle left behind."""
    for half in (*folder.rglob(f".*{HALF}"), *folder.glob(f".{PAGE}.tmp-*")):
        half.unlink(missing_ok=True)


def _paths(folder: Path) -> Iterator[Path]:
    yield from folder.glob(f"*{TRACE}")
    yield from folder.glob(PAGE)
    yield from folder.glob(f"{XPLANES}/*/*{XPLANE}")


def _remove_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()
