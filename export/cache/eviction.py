"""What leaves the cache: entries that were not used for longest, damaged ones first, and what dead builders left."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from export.cache.entries import KEY_FILE, OtherFormat, is_hash, read_record
from export.cache.entries import Damaged as _Damaged
from export.cache.files import remove_tree, size_of
from export.cache.locks import FileLock, is_at, unused
from export.cache.places import LEVELS, Places

_TRASH = "trash-"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stored:
    """An entry as it lies there. level: "damaged" for what was set aside. used: seconds since 1970, never later than
    now, of the last use. foreign: why another version of the format has to look after it, "" for ours.
    """

    folder: Path
    level: str
    name: str
    bytes: int
    used: float
    foreign: str = ""


def stored(places: Places) -> list[Stored]:
    """All entries and what was set aside, the longest unused first, damaged ones before all others."""
    now = time.time()
    found = []
    for level in (*LEVELS, "damaged"):
        for folder in _folders(places.level(level)):
            if level == "damaged" or is_hash(folder.name):
                used, foreign = _last_use(folder), _foreign(folder) if level != "damaged" else ""
                # A clock that was set back leaves times in the future: they count as now.
                used = min(used, now)
                found.append(
                    Stored(
                        folder=folder, level=level, name=folder.name, bytes=size_of(folder), used=used, foreign=foreign
                    )
                )
    return sorted(found, key=lambda one: (one.level != "damaged", one.used, one.level, one.name))


def _folders(folder: Path) -> list[Path]:
    try:
        return [Path(one.path) for one in os.scandir(folder)]
    except OSError:
        return []


def _last_use(folder: Path) -> float:
    for path in (folder / KEY_FILE, folder):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
    return 0.0


def _foreign(folder: Path) -> str:
    try:
        read_record(folder)
    except OtherFormat as other:
        return str(other)
    except _Damaged:
        return ""
    return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evicted:
    """gone: what went. left_bytes: of what is still there. in_use: how many would have gone, and are used."""

    gone: tuple[Stored, ...]
    left_bytes: int
    in_use: int


def evict(places: Places, limit_bytes: int, keep: Sequence[Path] = ()) -> Evicted:
    """Removes what was not used for longest until the cache is within its limit. keep: folders that stay.

    Entries in use stay, here and in other processes, and those of other formats. Raises OSError where nothing can be
    removed.
    """
    total = sum(size_of(places.level(level)) for level in (*LEVELS, "damaged"))
    if total <= limit_bytes:  # nothing has to be looked at more closely
        return Evicted(gone=(), left_bytes=total, in_use=0)
    with _one_evictor(places):
        there = [one for one in stored(places) if not one.foreign]
        total = sum(one.bytes for one in there)
        gone, in_use = [], 0
        for one in there:
            if total <= limit_bytes:
                break
            if one.folder in keep or not remove(places, one):
                in_use += 1
                continue
            gone.append(one)
            total -= one.bytes
        return Evicted(gone=tuple(gone), left_bytes=total, in_use=in_use)


def remove(places: Places, one: Stored) -> bool:
    """Removes one entry unless somebody uses it (False): it vanishes at once, its bytes a little later. OSError: it
    can't be removed.
    """
    try:
        handle = _open(one.folder / KEY_FILE)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):  # without key.json nobody uses an entry
        _throw_away(places, one.folder)
        return True
    try:
        if not unused(handle):
            return False
        if is_at(handle, one.folder / KEY_FILE):
            _throw_away(places, one.folder)
        return True
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    """For locking it: where `flock` is made of locks on ranges (NFS), that takes a file open for writing."""
    flags = os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, os.O_RDWR | flags)
    except PermissionError:
        return os.open(path, os.O_RDONLY | flags)


def _throw_away(places: Places, folder: Path) -> None:
    trash = places.temporary / f"{_TRASH}{secrets.token_hex(8)}"
    try:
        folder.rename(trash)
    except FileNotFoundError:  # another process was faster
        return
    if trash.is_dir() and not trash.is_symlink():
        remove_tree(trash)
    else:
        trash.unlink(missing_ok=True)


def sweep(places: Places) -> int:
    """Removes what builders and evictors that were killed left behind. Returns how many folders that were."""
    gone = 0
    for folder in _folders(places.temporary):
        level, _, rest = folder.name.partition("-")
        if folder.name.startswith(_TRASH):
            remove_tree(folder)
            gone += 1
        elif level in LEVELS and is_hash(rest[:64]):
            lock = FileLock(places.lock(level, rest[:64]))
            if lock.acquire(wait=False):
                remove_tree(folder)
                gone += 1
                lock.release()
    for path in _folders(places.locks):
        lock = FileLock(path)
        if path.suffix == ".lock" and path.name != _EVICTOR and lock.acquire(wait=False):
            lock.release()
    return gone


_EVICTOR = "evict.lock"


@contextlib.contextmanager
def _one_evictor(places: Places) -> Iterator[None]:
    """Two evictors at once would both see too much and remove twice what is too much."""
    lock = FileLock(places.locks / _EVICTOR)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()
