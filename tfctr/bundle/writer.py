"""Writes a bundle so that no reader ever sees half of one.

Everything goes into a hidden folder beside OUT; it is synced to disk and renamed in one step. Whatever goes wrong
before the rename (an error, a full disk, Ctrl-C) removes that folder and leaves OUT and the model as they were.
"""

from __future__ import annotations

import concurrent.futures
import errno
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Any

from tfctr.bundle import manifest, naming
from tfctr.errors import UsageError

Progress = Callable[[str], None]
_SYNCS = 8  # at once


class BundleWriter:
    """Use as a context manager; nothing exists at ``out`` until :meth:`commit`.

    out: the bundle to be. source: the SavedModel it is made from; what: what messages call that. force: replace ``out``
    where it is a saved model. Raises UsageError where ``out`` may not be written, with nothing changed.
    """

    def __init__(
        self,
        out: Path,
        source: Path,
        *,
        force: bool = False,
        progress: Progress = lambda _: None,
        what: str = "model",
    ) -> None:
        self.out = Path(os.path.abspath(out))
        self._progress = progress
        self._made: list[Path] = []
        self.replaces = check_target(self.out, source, force=force, what=what)
        self.folder = naming.temporary(self.out)

    @property
    def store_folder(self) -> Path:
        """Where table and vocabulary files are to be written."""
        return self.folder / naming.STORE_FOLDER

    def __enter__(self) -> BundleWriter:
        try:
            self._make_parents()
            self._clean_leftovers()
            self.store_folder.mkdir(parents=True)
        except OSError as error:
            self._undo()
            raise disk_error(error, self.out) from error
        except BaseException:
            self._undo()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.folder.exists():
            self._undo()
        if isinstance(error, OSError):
            raise disk_error(error, self.out) from error

    def require_space(self, needed_bytes: int) -> None:
        """States the disk space that the bundle needs; UsageError where the file system has less."""
        free = shutil.disk_usage(self.folder).free
        self._progress(f"the bundle needs about {size_text(needed_bytes)} of disk; {size_text(free)} are free")
        if needed_bytes > free:
            raise UsageError(
                f"{self.out}: the bundle needs about {size_text(needed_bytes)} of disk, {size_text(free)} are free"
            )

    def copy_tree(self, source: Path, folder: str, *, without: tuple[str, ...] = ()) -> None:
        """Copies the files below ``source`` (which need not exist) to ``folder`` of the bundle."""
        for path in sorted(source.rglob("*")) if source.is_dir() else ():
            relative = path.relative_to(source)
            if path.is_file() and str(relative) not in without:
                target = self.folder / folder / relative
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)

    def write(self, name: str, data: bytes) -> Path:
        """Writes one file of the bundle."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def write_manifest(self, content: dict[str, Any]) -> None:
        self.write(naming.MANIFEST, manifest.dump(content))

    def commit(self, synced: Collection[str] = ()) -> Path:
        """Syncs everything but the files ``synced`` (they are on disk already) and puts the bundle in place; returns
        its path.
        """
        try:
            sync_tree(self.folder, synced)
            put_in_place(self.folder, self.out, replaces=self.replaces)
            self._made = []
        except OSError as error:
            raise disk_error(error, self.out) from error
        return self.out

    def _make_parents(self) -> None:
        missing = [p for p in self.out.parents if not p.exists()]
        for folder in reversed(missing):
            folder.mkdir()
            self._made.append(folder)

    def _clean_leftovers(self) -> None:
        for path, kind in naming.leftovers(self.out):
            if kind == "old" and not self.out.exists():
                os.rename(path, self.out)
                raise UsageError(
                    f"an interrupted conversion had moved {self.out} to {path.name}; it is back in place. Run again"
                )
            self._progress(f"removing {path}, left by an interrupted conversion")
            remove(path)

    def _undo(self) -> None:
        remove(self.folder)
        for folder in reversed(self._made):
            folder.rmdir()
        self._made = []


def check_target(out: Path, source: Path, *, force: bool, what: str = "model") -> bool:
    """Whether writing ``out`` replaces something; UsageError where it may not be written at all. what: what messages
    call ``source``.
    """
    real, model = Path(os.path.realpath(out)), Path(os.path.realpath(source))
    if real == model:
        raise UsageError(f"{out}: the bundle can't replace the {what} that it is made from; choose another OUT")
    if model in real.parents:
        raise UsageError(f"{out}: lies inside the {what} {source}; choose an OUT outside it")
    for parent in out.parents:
        if parent.exists() and not parent.is_dir():
            raise UsageError(f"{out}: {parent} is a file")
    if not os.path.lexists(out):
        return False
    if real in model.parents:
        raise UsageError(f"{out}: holds the {what} {source}; choose another OUT")
    if not force:
        raise UsageError(f"{out}: exists already; --force replaces it")
    if not naming.is_saved_model(real):
        raise UsageError(f"{out}: exists and holds no {naming.MODEL}; --force replaces saved models only")
    return True


def put_in_place(folder: Path, out: Path, *, replaces: bool) -> None:
    """Renames ``folder`` to ``out``, synced; what was there (replaces) goes, or is back where that fails."""
    aside = naming.temporary(out, "old") if replaces else None
    if aside is not None:
        os.rename(out, aside)
    try:
        os.rename(folder, out)
    except BaseException:
        if aside is not None:
            os.rename(aside, out)
        raise
    sync_folder(out.parent)
    if aside is not None:
        remove(aside)


def remove(path: Path) -> None:
    """Removes a file, link or tree; a missing one is fine."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def sync_tree(folder: Path, synced: Collection[str] = ()) -> None:
    """fsync of every file but ``synced`` and every folder below ``folder``, itself included."""
    files, folders = [], []
    for root, _, names in os.walk(folder):
        folders.append(root)
        files += [path for path in (os.path.join(root, name) for name in names) if path not in synced]
    with concurrent.futures.ThreadPoolExecutor(_SYNCS) as pool:  # a journal takes several at once for one
        for flags, paths in ((os.O_RDONLY, files), (os.O_RDONLY | os.O_DIRECTORY, folders)):
            for _ in pool.map(_sync, paths, [flags] * len(paths)):
                pass


def sync_folder(folder: Path) -> None:
    _sync(str(folder), os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: str, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def disk_error(error: OSError, out: Path) -> UsageError:
    """One line for a write that failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UsageError(f"{out}: the disk is full; nothing was written")
    where = f" ({error.filename})" if error.filename else ""
    return UsageError(f"{out}: can't be written: {error.strerror or error}{where}")


def size_text(size: int) -> str:
    """1536 -> "1.5 KB" (binary units)."""
    value, unit = float(size), "bytes"
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if value < 1024 or unit == "TB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
