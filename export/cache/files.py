"""Files of the cache: written under a temporary name and synced, read with their checksum, removed for good."""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

_PIECE = 1 << 20


def write_synced(path: Path, data: bytes) -> None:
    """Writes all of ``path`` or nothing: temporary name in the same folder, fsync, rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with temporary.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    _sync(path, os.O_RDONLY)


def sync_folder(folder: Path) -> None:
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> tuple[int, str]:
    """Bytes and SHA-256 of a file as it is now. Raises OSError, also where it is no ordinary file."""
    digest, size = hashlib.sha256(), 0
    with open_regular(path) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()


def open_regular(path: Path) -> io.FileIO:
    """Opens a file for reading; OSError where it is a folder, a pipe (which would block) or a device."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path.name} is no ordinary file")
    return io.FileIO(handle, "rb")


def walk(folder: Path) -> Iterator[Path]:
    """Everything below ``folder`` that is no folder, by name, links included."""
    for root, folders, files in os.walk(folder):
        folders.sort()
        yield from (Path(root, name) for name in sorted(files + [f for f in folders if Path(root, f).is_symlink()]))


def size_of(folder: Path) -> int:
    """Bytes of the files below ``folder``; what vanishes meanwhile counts nothing."""
    total, pending = 0, [str(folder)]
    while pending:
        try:
            with os.scandir(pending.pop()) as found:
                for one in found:
                    if one.is_dir(follow_symlinks=False):
                        pending.append(one.path)
                    else:
                        total += one.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total


def remove_tree(folder: Path) -> None:
    """Removes ``folder`` as far as it can be; another process may be at it too."""
    shutil.rmtree(folder, ignore_errors=True)


def size_text(size: int) -> str:
    """1536 -> "1.5 KB" (binary units)."""
    value = float(size)
    for unit in ("bytes", "KB", "MB", "GB"):
        if value < 1024:
            return f"{size} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TB"
