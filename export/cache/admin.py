"""What people do with a cache: list, look into, check, prune and clear it."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from export.cache.entries import NOT_DAMAGE, Damaged, OtherFormat, hold, read_record, verify
from export.cache.eviction import Stored, evict, remove, stored, sweep
from export.cache.places import DEFAULT_LIMIT_BYTES, OFF, VARIABLE, Places, default_root
from tfctr.errors import CorruptFileError, UsageError

_DAY = 86400.0
LEAST_PREFIX = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listed:
    """An entry for people. state: "damaged: why" (its bytes are not read here), "set aside", "format 7; ..." of another
    version's, else "".
    """

    level: str
    key: str
    state: str
    bytes: int
    label: str
    created: str
    used: str
    build_seconds: float | None
    files: tuple[str, ...]
    folder: str


def open_cache(path: str | Path | None) -> Places | None:
    """The cache at ``path`` (None: the default one); None where none has been made yet. Nothing is written.

    Raises UsageError: the default is switched off, or what lies there is no cache.
    """
    root = path if path is not None else default_root()
    if root is not None and not str(root):
        raise UsageError("--cache-dir is empty; a folder is expected")
    if root is None or str(root) == OFF:
        why = _why_none() if root is None else f"it is {OFF!r}"
        raise UsageError(f"there is no compile cache: {why}; --cache-dir names one")
    places = Places(root)
    if not os.path.lexists(places.root):
        return None
    if not places.root.is_dir():
        raise UsageError(f"{places.root}: is no folder, so no compile cache")
    if places.is_cache:
        return places
    try:
        empty = not os.listdir(places.root)
    except OSError as error:
        raise UsageError(f"{places.root}: can't be read: {error.strerror}") from error
    if empty:
        return None
    raise UsageError(f"{places.root}: is no compile cache of tfctr (it has no CACHEDIR.TAG of ours)")


def _why_none() -> str:
    return f"{VARIABLE}={OFF}" if os.environ.get(VARIABLE) == OFF else f"neither {VARIABLE} nor a home folder is set"


def listing(places: Places) -> list[Listed]:
    """All entries, the one used last first; what was set aside at the end."""
    return [_listed(one) for one in reversed(stored(places))]


def _listed(one: Stored) -> Listed:
    record: dict[str, Any] = {}
    state = ""
    try:
        record = read_record(one.folder)
    except Damaged as error:
        state = f"damaged: {error}"
    except OtherFormat as error:
        state = str(error)
    if one.level == "damaged":
        state = "set aside"
    return Listed(
        level=one.level,
        key=one.name,
        state=state,
        bytes=one.bytes,
        label=str(record.get("label", "")),
        created=str(record.get("created", "")),
        used=datetime.datetime.fromtimestamp(one.used, datetime.UTC).isoformat(timespec="seconds"),
        build_seconds=record.get("build_seconds"),
        files=tuple(file["name"] for file in record.get("files", ())),
        folder=str(one.folder),
    )


def find(places: Places, prefix: str) -> Stored:
    """The entry whose key begins with ``prefix`` ("tower/" or "engine/" may stand before it).

    Raises UsageError: none, or several.
    """
    level, _, start = prefix.rpartition("/")
    if len(start) < LEAST_PREFIX:
        raise UsageError(f"{prefix!r}: give at least {LEAST_PREFIX} digits of an entry's key (`tfctr cache list`)")
    found = [one for one in stored(places) if one.name.startswith(start) and level in ("", one.level)]
    if not found:
        raise UsageError(f"{places.root}: no entry begins with {prefix!r}; `tfctr cache list` shows what there is")
    if len(found) > 1:
        names = ", ".join(f"{one.level}/{one.name[:12]}" for one in found[:5])
        raise UsageError(f"{prefix!r}: {len(found)} entries begin with it ({names}); give more of it")
    return found[0]


def record_of(one: Stored) -> dict[str, Any]:
    """Everything that key.json says. Raises CorruptFileError, or UsageError for another format's."""
    try:
        return read_record(one.folder)
    except Damaged as error:
        raise CorruptFileError(f"{one.folder}: {error}") from error
    except OtherFormat as error:
        raise UsageError(f"{one.folder}: {error}") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """entries, bytes: how much was read. damaged: folder and what is wrong. foreign: folders of other formats."""

    entries: int
    bytes: int
    damaged: tuple[tuple[str, str], ...]
    foreign: tuple[str, ...]


def verify_all(places: Places, progress: Callable[[str, int], None] | None = None) -> Checked:
    """Reads every byte of every entry. Nothing is changed; what was set aside before is not looked at.

    progress: is told each entry before it is read, and how many there are.
    """
    count, size = 0, 0
    damaged, foreign = [], []
    there = [one for one in stored(places) if one.level != "damaged"]
    for one in there:
        if one.foreign:
            foreign.append(str(one.folder))
            continue
        if progress is not None:
            progress(f"{one.level}/{one.name[:12]}", len(there))
        try:
            with _held(one.folder) as still:
                if still:
                    verify(one.folder, one.level, one.name)
                    count, size = count + 1, size + one.bytes
        except (Damaged, OtherFormat) as error:
            damaged.append((str(one.folder), str(error)))
    return Checked(entries=count, bytes=size, damaged=tuple(damaged), foreign=tuple(foreign))


@contextlib.contextmanager
def _held(folder: Path) -> Any:
    """The entry in use, so that nobody evicts it; False where it is gone."""
    try:
        handle = hold(folder)
    except OSError as error:
        if error.errno in NOT_DAMAGE:
            raise
        raise Damaged(str(error.strerror or error)) from error
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Removed:
    """entries, bytes: what went. left, left_bytes: what is still there. in_use: how many should have gone and are used.

    leftovers: half-built folders of processes that died.
    """

    entries: int
    bytes: int
    left: int
    left_bytes: int
    in_use: int
    leftovers: int


def prune(places: Places, max_bytes: int | None = None, older_than_days: float | None = None) -> Removed:
    """Removes what was set aside, leftovers, entries not used for ``older_than_days``, and then the longest unused ones
    until ``max_bytes`` are left (without either: the default limit).
    """
    _check_writable(places)
    leftovers = sweep(places)
    old = time.time() - older_than_days * _DAY if older_than_days is not None else None
    gone, in_use = [], 0
    for one in stored(places):
        if one.level == "damaged" or old is not None and one.used < old and not one.foreign:
            if remove(places, one):
                gone.append(one)
            else:
                in_use += 1
    limit = max_bytes if max_bytes is not None or old is not None else DEFAULT_LIMIT_BYTES
    if limit is not None:
        evicted = evict(places, limit)
        gone += evicted.gone
        in_use += evicted.in_use
    return _removed(places, gone, in_use, leftovers)


def clear(places: Places) -> Removed:
    """Removes every entry that nobody uses, those of other formats too. Other files in the folder stay."""
    _check_writable(places)
    leftovers = sweep(places)
    gone, in_use = [], 0
    for one in stored(places):
        if remove(places, one):
            gone.append(one)
        else:
            in_use += 1
    return _removed(places, gone, in_use, leftovers)


def _check_writable(places: Places) -> None:
    try:
        places.temporary.mkdir(exist_ok=True)
        places.locks.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"{places.root}: can't be written: {error.strerror}") from error
    for folder in (places.temporary, places.locks):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise UsageError(f"{folder}: can't be written")


def _removed(places: Places, gone: list[Stored], in_use: int, leftovers: int) -> Removed:
    left = stored(places)
    return Removed(
        entries=len(gone),
        bytes=sum(one.bytes for one in gone),
        left=len(left),
        left_bytes=sum(one.bytes for one in left),
        in_use=in_use,
        leftovers=leftovers,
    )
