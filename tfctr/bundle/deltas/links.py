"""Unchanged files of a new version: hard links to those of the old one, copies where that is not possible, and said."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from pathlib import Path
from typing import Any

# What file systems answer that have no hard links, have too many of this file, or hold the two names apart.
_NO_LINK = frozenset((errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS))


@dataclasses.dataclass
class Links:
    """Files that were linked, and copied with the first reason why; counts and bytes. paths: the linked ones, which
    are on disk already."""

    linked: int = 0
    linked_bytes: int = 0
    copied: int = 0
    copied_bytes: int = 0
    reason: str = ""
    paths: set[str] = dataclasses.field(default_factory=set)

    def add(self, source: Path, target: Path) -> None:
        """``target`` with the contents of ``source`` (a symbolic link: of what it names)."""
        target.parent.mkdir(parents=True, exist_ok=True)
        source = Path(os.path.realpath(source))
        size = source.stat().st_size
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            self.reason = self.reason or f"{source} can't be linked to {target.parent}: {error.strerror}"
            shutil.copyfile(source, target)
            self.copied += 1
            self.copied_bytes += size
        else:
            self.linked += 1
            self.linked_bytes += size
            self.paths.add(str(target))

    def describe(self) -> dict[str, Any]:
        """For reports: everything but the paths."""
        told = dataclasses.asdict(self)
        del told["paths"]
        return told


def possible(source: Path, folder: Path) -> bool:
    """Whether files of ``source`` can have another name in ``folder`` (which exists): both are on one file system."""
    return source.stat().st_dev == folder.stat().st_dev
