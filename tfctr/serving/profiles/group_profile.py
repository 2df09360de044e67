"""Profiling of a :class:`tfctr.SessionGroup`, for programs that serve by themselves."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfctr.serving.profiles import folder
from tfctr.serving.profiles.sampler import Sampler, SamplerOptions
from tfctr.serving.profiles.writer_process import WriterProcess


class GroupProfile:
    """One version's sampler, with a writer of its own."""

    def __init__(self, version: Any) -> None:
        self._version = version
        self._writer = WriterProcess()
        self._sampler = Sampler(version.folder.name, self._versions, self._writer)
        self._folder: Path | None = None

    def set(self, every: int, where: str | os.PathLike[str] | None, max_mb: float) -> None:
        """every 0: off. where None: the folder that it had, else a temporary one. UsageError: as SamplerOptions."""
        if every == 0:
            return self._sampler.stop()
        chosen = Path(where) if where is not None else self._folder
        chosen = chosen or Path(tempfile.mkdtemp(prefix="tfctr-profile-"))
        self._sampler.start(SamplerOptions(every=every, folder=chosen, max_mb=max_mb))
        self._folder = chosen

    def describe(self) -> dict[str, Any]:
        found = folder.entries(self._folder) if self._folder else []
        where = str(self._folder) if self._folder else None
        return self._sampler.describe() | {
            "folder": where,
            "files": len(found),
            "bytes": sum(one.bytes for one in found),
        }

    def close(self) -> None:
        self._writer.close()
        self._sampler.stop()
        if self._folder is not None:
            folder.clear_halves(self._folder)

    def _versions(self) -> Iterator[tuple[int, Any]]:
        if not self._version.closed:
            yield self._version.number, self._version
