"""One call of the cache: look, lock, look again, build in a temporary folder, seal, rename."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from export.cache.entries import NOT_DAMAGE, Damaged, Entry, hold, key_hash, seal, verify
from export.cache.eviction import evict, sweep
from export.cache.files import remove_tree, sync_folder, walk
from export.cache.locks import FileLock
from export.cache.places import Places, Stuck, Unusable, reason
from tfctr.errors import InternalError

if TYPE_CHECKING:
    from export.cache.store import CompileCache

Build = Callable[[Path], None]

# Errors of a folder, not of what is built in it: it is built again elsewhere.
_OF_THE_FOLDER = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.ESTALE)
_inside = threading.local()


class Flight:
    """One key on its way. ``cache`` hears the remarks and keeps what is in use."""

    def __init__(self, cache: CompileCache, level: str, key: Mapping[str, Any], label: str) -> None:
        self._cache, self._level, self._key, self._label = cache, level, key, label
        self._hash = key_hash(level, key)
        self._start = time.perf_counter()
        self._damage = ""
        self._what = f"{level}/{self._hash[:12]}" + (f" ({label})" if label else "")

    @property
    def _places(self) -> Places:
        assert self._cache.places is not None, "a cache without a folder stores nothing"
        return self._cache.places

    @property
    def _folder(self) -> Path:
        return self._places.entry(self._level, self._hash)

    def find(self) -> Entry | None:
        """The entry where it is there and whole. Raises Unusable."""
        try:
            return self._take()
        except Damaged as error:
            self._damage = str(error)
            return None

    def _take(self) -> Entry | None:
        """Marks the entry as in use and checks its bytes. None: there is none. Raises Damaged, Unusable."""
        try:
            handle = hold(self._folder)
        except OSError as error:
            if error.errno in NOT_DAMAGE:
                raise Unusable(f"can't be read: {reason(error)}") from error
            raise Damaged(reason(error)) from error
        if handle is None:
            return None
        try:
            record, files = verify(self._folder, self._level, self._hash)
            with contextlib.suppress(OSError):  # a read-only cache keeps no last use, and evicts nothing
                os.utime(handle)
        except OSError as error:
            os.close(handle)
            raise Unusable(f"can't be read: {reason(error)}") from error
        except BaseException:
            os.close(handle)
            raise
        self._cache.keeper.add_handle(handle)
        return self._entry(self._folder, files, hit=True, stored=True, record=record)

    def build(self, build: Build) -> Entry:
        """Builds and stores, or takes what another builder made meanwhile. Unusable: nothing can be stored."""
        with self._locked():
            self._damage = ""
            found = self.find()
            if found is not None:
                return dataclasses.replace(found, note="another builder made it meanwhile")
            if self._damage:
                self._set_aside()
            return self._build(build)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock = FileLock(self._places.lock(self._level, self._hash))
        with self._not_inside_itself():
            try:
                if not lock.acquire(wait=False):
                    self._cache.say(f"waiting for another builder of {self._what}")
                    lock.acquire()
            except OSError as error:
                raise Unusable(f"can't be written: {reason(error)}") from error
            try:
                yield
            finally:
                lock.release()

    @contextlib.contextmanager
    def _not_inside_itself(self) -> Iterator[None]:
        building = _inside.__dict__.setdefault("building", set())
        mark = (self._places.root, self._hash)
        if mark in building:
            raise InternalError(f"compile cache: the build of {self._what} asks for itself")
        building.add(mark)
        try:
            yield
        finally:
            building.discard(mark)

    def _set_aside(self) -> None:
        damage, self._damage = self._damage, ""
        try:
            where = set_aside(self._places, self._level, self._hash)
        except Stuck as error:
            raise Stuck(f"{self._what} is damaged: {damage}; it {error}") from error
        self._cache.say(f"{self._what} is damaged: {damage}; set aside as {where} and built anew")

    def _build(self, build: Build) -> Entry:
        prefix = self._places.build_prefix(self._level, self._hash)
        temporary = self._places.temporary / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"
        start = time.perf_counter()
        try:
            for left in self._places.temporary.glob(f"{prefix}*"):  # of builders that died
                remove_tree(left)
            temporary.mkdir()
        except OSError as error:
            raise Unusable(f"can't be written: {reason(error)}") from error
        try:
            build(temporary)
            if not temporary.is_dir():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(temporary))
            return self._store(temporary, time.perf_counter() - start)
        except OSError as error:
            if not temporary.is_dir():
                raise Unusable("its folder was removed meanwhile") from error
            if error.errno in _OF_THE_FOLDER:
                raise Unusable(f"can't be written: {reason(error)}") from error
            raise
        finally:
            remove_tree(temporary)

    def _store(self, temporary: Path, seconds: float) -> Entry:
        """Seals what was built and puts it in its place; where that fails, what was built is used all the same."""
        built = list(walk(temporary))
        try:
            record = seal(temporary, self._level, self._key, self._label, seconds)
            handle = hold(temporary)  # before it has its name: so nobody can evict it
            assert handle is not None, "it was just written"
            self._cache.keeper.add_handle(handle)
            temporary.rename(self._folder)
        except OSError as error:
            why = f"can't be written: {reason(error)}"
            entry = self._carry(temporary, built, why)
            self._cache.stop_writing(why)
            return entry
        with contextlib.suppress(OSError):  # it is there; without this it could be lost with the power
            sync_folder(self._folder.parent)
        self._tidy()
        files = {file["name"]: self._folder / file["name"] for file in record["files"]}
        return self._entry(self._folder, files, hit=False, stored=True, record=record)

    def _carry(self, temporary: Path, built: Sequence[Path], why: str) -> Entry:
        """Copies what was built out of the cache's folder. Unusable: it is not there any more."""
        apart = self._apart()
        try:
            for path in built:
                target = apart / path.relative_to(temporary)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        except OSError as error:
            raise Unusable(why) from error
        return dataclasses.replace(self._entry(apart, _files(apart), hit=False, stored=False), note=why)

    def _tidy(self) -> None:
        try:
            sweep(self._places)
            left = evict(self._places, self._cache.limit_bytes, keep=(self._folder,)).left_bytes
        except OSError as error:
            self._cache.say(f"old entries can't be removed: {reason(error)}")
            return
        if left > self._cache.limit_bytes:
            self._cache.over_limit(left)

    def build_apart(self, build: Build, why: str) -> Entry:
        """Builds in a temporary folder that goes with the cache object."""
        if self._damage:
            self._cache.say(f"{self._what} is damaged: {self._damage}; it stays where it is")
        apart = self._apart()
        build(apart)
        files = _files(apart)
        if not files:
            raise InternalError(f"{self._level} entry: no file was built")
        return dataclasses.replace(self._entry(apart, files, hit=False, stored=False), note=why)

    def _apart(self) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="tfctr-compile-"))
        self._cache.keeper.add_folder(folder)
        return folder

    def _entry(
        self,
        folder: Path,
        files: Mapping[str, Path],
        *,
        hit: bool,
        stored: bool,
        record: Mapping[str, Any] | None = None,
    ) -> Entry:
        return Entry(
            folder=folder,
            files=files,
            hit=hit,
            stored=stored,
            level=self._level,
            key=self._hash,
            seconds=time.perf_counter() - self._start,
            record=record or {},
            keeper=self._cache.keeper,
        )


def set_aside(places: Places, level: str, name: str) -> Path:
    """Moves an entry to the damaged ones. Returns where it lies. Raises Stuck."""
    where = places.damaged / f"{level}-{name}-{secrets.token_hex(4)}"
    try:
        places.damaged.mkdir(exist_ok=True)
        places.entry(level, name).rename(where)
    except FileNotFoundError:  # it is gone already
        return where
    except OSError as error:
        raise Stuck(f"can't be set aside: {reason(error)}") from error
    return where


def _files(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in walk(folder)}
