"""One process at a time writes one OUT: a lock file beside it, held by ``flock``: no lock outlives its process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tfctr.bundle.writer import disk_error
from tfctr.errors import UsageError


def lock_path(out: Path) -> Path:
    """The file that is locked while ``out`` is written."""
    return out.with_name(f".{out.name}.tfctr-lock")


@contextlib.contextmanager
def only_writer(out: Path) -> Iterator[None]:
    """Holds the lock of ``out``; makes its parent folders, and takes them away again where the body failed and they are
    empty.

    UsageError where another process (or thread) holds it, or the disk can't be written.
    """
    missing = [parent for parent in out.parents if not parent.exists()]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        handle = _acquire(out)
    except OSError as error:
        _remove_empty(missing)
        raise disk_error(error, out) from error
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(lock_path(out))
        os.close(handle)
        if not os.path.lexists(out):
            _remove_empty(missing)


def _acquire(out: Path) -> int:
    path = lock_path(out)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(handle, path):
                os.ftruncate(handle, 0)
                os.write(handle, str(os.getpid()).encode())
                return handle
        except BlockingIOError as error:
            holder = os.read(handle, 32).decode(errors="replace").strip()
            os.close(handle)
            raise UsageError(
                f"{out}: another process is writing it now" + (f" (process {holder})" if holder else "")
            ) from error
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its holder was done and removed it between our open and our lock


def _is_still(handle: int, path: Path) -> bool:
    """Whether ``path`` names the file that ``handle`` has open."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    ours = os.fstat(handle)
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise
            return
