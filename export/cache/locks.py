"""A lock file per key: one builder at a time among threads and processes, freed by the kernel when its holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


class FileLock:
    """An exclusive ``flock`` on a file that is made for it and removed again.

    Every lock opens the file itself, so two threads exclude each other as two processes do. A file that was removed
    while somebody waited for it is not the lock any more; the waiter opens the new one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = -1

    def acquire(self, *, wait: bool = True) -> bool:
        """Whether the lock is held now; always True with ``wait``. OSError: such a file can't be made or locked."""
        while True:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                if is_at(handle, self.path):
                    self._handle = handle
                    return True
            except BlockingIOError:
                os.close(handle)
                return False
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)

    def release(self) -> None:
        """Removes the file, then frees the lock. Nothing where it is not held."""
        if self._handle < 0:
            return
        handle, self._handle = self._handle, -1
        with contextlib.suppress(OSError):  # a folder that was made read-only meanwhile: an empty file stays
            self.path.unlink()
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # for children that were forked with it
        os.close(handle)


def is_at(handle: int, path: Path) -> bool:
    """Whether the open file ``handle`` is what lies at ``path`` now."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    mine = os.fstat(handle)
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def share(handle: int) -> None:
    """Marks the open file as in use; waits for whoever is removing it."""
    fcntl.flock(handle, fcntl.LOCK_SH)


def unused(handle: int) -> bool:
    """Takes the open file for removal; False where somebody uses it. Freed when it is closed."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
