"""What lies in a model's folder, and whether it changed since it was last looked at."""

from __future__ import annotations

import os
from pathlib import Path

from tfctr.bundle import naming
from tfctr.errors import UsageError

ONLY_VERSION = 1
"""Number of a model that lies in its folder without a folder for the version."""

Fingerprint = frozenset[tuple[str, int, int, int]]


def find_versions(base: Path) -> dict[int, Path]:
    """Version -> its folder: folders with a decimal name that an int64 holds (whatever is in them), or ``base`` itself
    as version 1.

    UsageError, saying what is there, where ``base`` can't be read or holds neither.
    """
    if naming.is_saved_model(base):
        return {ONLY_VERSION: base}
    try:
        names = sorted(os.listdir(base))
    except OSError as error:
        raise UsageError(f"{base}: can't be read: {error.strerror}") from error
    found: dict[int, Path] = {}
    for name in names:
        if name.isascii() and name.isdigit() and int(name) < 1 << 63 and (base / name).is_dir():
            found.setdefault(int(name), base / name)
    if not found:
        there = ", ".join(names[:5]) or "nothing"
        raise UsageError(f"{base}: holds no version: neither {naming.MODEL} nor a folder with a number; it has {there}")
    return found


def fingerprint(folder: Path) -> Fingerprint:
    """Path, size, time of change and inode of every file: equal as long as nobody writes to the folder. Files that
    vanish while it is read are not in it."""
    found = set()
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            try:
                stat = os.stat(path)
            except OSError:
                continue
            found.add((os.path.relpath(path, folder), stat.st_size, stat.st_mtime_ns, stat.st_ino))
    return frozenset(found)
