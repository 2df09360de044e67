"""``CompileCache``: what was exported or compiled once is taken from a folder; what is not there is built, once."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from export.cache.entries import Entry
from export.cache.files import remove_tree, size_text
from export.cache.flight import Build, Flight, set_aside
from export.cache.places import DEFAULT_LIMIT_BYTES, LEVELS, Places, Stuck, Unusable
from tfctr.errors import InternalError, UsageError

_LOG = logging.getLogger("tfctr.cache")


class Keeper:
    """What stays while a cache is open: marks of use on its entries, and folders of what could not be stored."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles: dict[tuple[int, int], int] = {}  # by device and inode
        self._folders: list[Path] = []
        self._process = os.getpid()
        weakref.finalize(self, _drop, self._handles, self._folders, self._process)

    def add_handle(self, handle: int) -> None:
        """``handle`` is kept; or closed, where the same file is held already."""
        with self._lock:
            found = os.fstat(handle)
            if self._handles.setdefault((found.st_dev, found.st_ino), handle) != handle:
                os.close(handle)

    def add_folder(self, folder: Path) -> None:
        self._folders.append(folder)

    def drop(self) -> None:
        """Frees everything; it can be used again."""
        _drop(self._handles, self._folders, self._process)


def _drop(handles: dict[tuple[int, int], int], folders: list[Path], process: int) -> None:
    while handles:
        with contextlib.suppress(OSError):
            os.close(handles.popitem()[1])
    while folders:
        folder = folders.pop()
        if os.getpid() == process:  # a forked child ends without its parent's files
            remove_tree(folder)


class CompileCache:
    """A compile cache below ``root``; thread-safe, and safe with other processes on the same folder.

        with CompileCache(default_root()) as cache:
            entry = cache.get_or_build("tower", tower_key(tower, recipe), build, label="model/ serving_default")
            model = onnx.load(entry.files["tower.onnx"])

    root: None: no cache; everything is built in a temporary folder. It need not exist. limit_bytes: of all entries
    together; those that were not used for longest go first. note: is given each remark once (a line); None: they go to
    the log ``tfctr.cache``. label: what all its entries are for (a model's path), before the label of each.

    Entries are in use, and their files stay, until the cache is closed.
    """

    def __init__(
        self,
        root: Path | str | None,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        note: Callable[[str], None] | None = None,
        *,
        label: str = "",
    ) -> None:
        if limit_bytes < 0:
            raise UsageError(f"compile cache: a limit of {limit_bytes} bytes; expected 0 or more")
        self.places = Places(root) if root is not None else None
        self.limit_bytes = limit_bytes
        self.label = label
        self.notes: list[str] = []
        self.keeper = Keeper()
        self._note = note or _LOG.warning
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._opened, self._too_small = False, False
        # Why nothing is read, and why nothing is written; "": it is.
        self._no_reads = "" if root is not None else "no compile cache"
        self._no_writes = self._no_reads

    def get_or_build(self, level: str, key: Mapping[str, Any], build: Build, *, label: str = "") -> Entry:
        """The entry of ``key``, from the folder or built now.

        level: one of ``LEVELS``. build: writes files into the folder it is given; what it raises is raised here, and
        nothing is kept then. It may be called a second time, where the cache's folder turns out to be full. One thread
        of one process builds; others with the same key wait and take what it made. label: what it is for, for people;
        no part of the key.
        """
        flight = self._flight(level, key, label)
        try:
            if self._readable():
                found = flight.find()
                if found is not None:
                    return found
            if not self._no_writes:
                return flight.build(build)
        except Stuck as error:
            self.say(f"{error}; going on without this entry")
            return flight.build_apart(build, str(error))
        except Unusable as error:
            self.stop_writing(str(error))
        return flight.build_apart(build, self._no_writes)

    def find(self, level: str, key: Mapping[str, Any]) -> Entry | None:
        """The entry of ``key`` where there is one and it is whole."""
        try:
            return self._flight(level, key, "").find() if self._readable() else None
        except Unusable as error:
            self.say(str(error))
            return None

    def reject(self, entry: Entry, why: str) -> None:
        """Sets an entry aside that turned out to be of no use though its bytes are right; the next call builds anew."""
        if self.places is None or not entry.stored:
            return
        what = f"{entry.level}/{entry.key[:12]} can't be used: {why}"
        try:
            where = set_aside(self.places, entry.level, entry.key)
        except Stuck as error:
            self.say(f"{what}; it {error}")
            return
        self.say(f"{what}; set aside as {where}")

    def say(self, text: str) -> None:
        """Passes a remark on, once."""
        line = f"compile cache{f' {self.places.root}' if self.places else ''}: {text}"
        line = line.encode("utf-8", "replace").decode()  # names of files that are no text
        with self._lock:
            if line in self.notes:
                return
            self.notes.append(line)
        self._note(line)

    def stop_writing(self, why: str) -> None:
        """Nothing is stored from here on; said once."""
        with self._lock:
            before, self._no_writes = self._no_writes, self._no_writes or why
        if not before:
            self.say(f"{why}; going on without it")

    def over_limit(self, left: int) -> None:
        """Said once where entries in use alone are more than the limit."""
        with self._lock:
            before, self._too_small = self._too_small, True
        if not before:
            self.say(f"{size_text(left)} are in use, which is more than its limit of {size_text(self.limit_bytes)}")

    def close(self) -> None:
        """Frees the entries: they may be evicted then, and files that could not be stored go."""
        self.keeper.drop()

    def __enter__(self) -> CompileCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _flight(self, level: str, key: Mapping[str, Any], label: str) -> Flight:
        if level not in LEVELS:
            raise InternalError(f"compile cache: no level {level!r}; there are {', '.join(LEVELS)}")
        return Flight(self, level, key, " ".join(part for part in (self.label, label) if part))

    def _readable(self) -> bool:
        if self.places is None:
            return False
        with self._opening:
            if not self._opened:
                self._opened = True
                try:
                    self.places.open()
                except Unusable as error:
                    self._no_reads = str(error)
                    self.stop_writing(str(error))
        return not self._no_reads
