"""Profiling of the models that a server serves: who is traced, where the files are, and recordings of the process.

Files lie below one folder that the server was started with (``profile.folder``), or below a temporary one: whoever may
use the admin port chooses a name in there, never a place.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfctr.core import library
from tfctr.errors import InputError, UnavailableError
from tfctr.serving.profiles import folder
from tfctr.serving.profiles.sampler import MB, Counts, Sampler, SamplerOptions
from tfctr.serving.profiles.writer_process import WriterProcess
from tfctr.serving.server.config import ProfileConfig

if TYPE_CHECKING:
    from tfctr.serving.versions import ModelManager

MOST_SECONDS = 60.0
_HOST_LEVEL, _DEVICE_LEVEL = 2, 1  # at 3 cheap ops, too, which costs every request more
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def _recording_name(where: Path) -> str:
    """Where TensorBoard finds it, by the time; several may end in one second."""
    run = f"{folder.XPLANES}/{time.strftime('%Y_%m_%d_%H_%M_%S')}"
    number = itertools.count(2)
    free = run
    while (where / free).exists():
        free = f"{run}_{next(number)}"
    return f"{free}/{socket.gethostname()}{folder.XPLANE}"


class Profiles:
    """Thread-safe. Nothing of it exists, no thread and no folder, until something is switched on."""

    def __init__(self, manager: ModelManager, config: ProfileConfig | None = None) -> None:
        self.config = config or ProfileConfig()
        self._manager = manager
        self._lock = threading.Lock()
        self._root: Path | None = Path(self.config.folder) if self.config.folder else None
        self._samplers: dict[str, Sampler] = {}
        self._folders: dict[str, Path] = {}
        self._writer = WriterProcess()
        self._recording = threading.Lock()
        self._recorded: tuple[str, float, float] | None = None  # model, seconds, since
        self._closing = threading.Event()

    def start_configured(self) -> None:
        """Switches on what the configuration asks for. UsageError: the folder can't be written to."""
        if self.config.every is not None:
            for name in self._manager.names:
                self.start(name, self.config.every)

    def start(self, model: str, every: int, name: str | None = None, max_mb: float | None = None) -> None:
        """Traces one request in ``every`` of a model from now on.

        Args:
          name: of a folder below the server's own.
          max_mb: at most what the server was started with.

        Raises:
          NotFoundError: no such model.
          InputError, UsageError: a setting that can't be; the folder can't be written to.
        """
        self._check(model)
        limit = self.config.max_mb if max_mb is None else max_mb
        if limit > self.config.max_mb:
            raise InputError(f"max_mb is {limit:g}; this server was started with {self.config.max_mb:g} at most")
        options = SamplerOptions(every=every, folder=self._folder(model, name), max_mb=limit)
        self._sampler(model).start(options)
        self._folders[model] = options.folder

    def stop(self, model: str) -> None:
        """Switches it off; its files stay."""
        self._check(model)
        with self._lock:
            sampler = self._samplers.get(model)
        if sampler is not None:
            sampler.stop()

    def record(self, model: str, seconds: float) -> Path:
        """Records the whole process by TensorFlow's profiler; the file is where TensorBoard finds it in the model's
        folder. Sampling goes on meanwhile.

        Raises:
          InputError: not between 0 and 60 seconds.
          UnavailableError: another recording is under way.
        """
        self._check(model)
        if not 0 < seconds <= MOST_SECONDS:
            raise InputError(f"seconds is {seconds:g}, expected more than 0 and at most {MOST_SECONDS:g}")
        if not self._recording.acquire(blocking=False):
            raise UnavailableError(f"one recording at a time: {self._under_way()}")
        try:
            self._recorded = (model, seconds, time.monotonic())
            seen = self._record(model, seconds)
            where = self._folders.setdefault(model, self._folder(model, None))
            return folder.write(where, _recording_name(where), seen, int(self.config.max_mb * MB))
        except OSError as error:
            raise UnavailableError(f"the recording was not written: {error}") from error
        finally:
            self._recorded = None
            self._recording.release()

    def _record(self, model: str, seconds: float) -> bytes:
        """An XSpace. It is not looked at here: that would keep Python's lock from requests."""
        from tfctr.profiling.timeline.xplane import Profiler

        with Profiler(f"model '{model}'"):
            try:
                session = library.native().Profiler(_HOST_LEVEL, _DEVICE_LEVEL)
            except RuntimeError as error:
                raise UnavailableError(f"TensorFlow's profiler is in use in this process: {error}") from error
            stopped = self._closing.wait(seconds)
            seen: bytes = session.stop()
        if stopped:
            raise UnavailableError("the server is going down")
        return seen

    def describe(self, model: str) -> dict[str, Any]:
        """What ``tfctr admin profile MODEL --status`` shows."""
        self._check(model)
        with self._lock:
            sampler = self._samplers.get(model)
        where = self._folders.get(model)
        made: dict[str, Any] = {"every": 0, **dataclasses.asdict(Counts()), "error": "", "latest": ""}
        if sampler is not None:
            made |= sampler.describe()
        files = folder.entries(where) if where is not None else []
        page = None if where is None else where / folder.PAGE
        limit = self.config.max_mb if sampler is None or sampler.options is None else sampler.options.max_mb
        return made | {
            "folder": None if where is None else str(where),
            "files": len(files),
            "bytes": sum(one.bytes for one in files),
            "max_mb": limit,
            "page": str(page) if page is not None and page.is_file() else None,
            "recording": self._under_way() or None,
        }

    def counts(self) -> Iterator[tuple[str, Counts, int]]:
        """(model, counts, bytes on disk) of each that was ever switched on."""
        with self._lock:
            samplers = dict(self._samplers)
        for model, sampler in samplers.items():
            where = self._folders.get(model)
            yield model, sampler.counts, sum(one.bytes for one in folder.entries(where)) if where else 0

    def close(self) -> None:
        """Ends all of it; files stay."""
        self._closing.set()
        self._writer.close()
        with self._lock:
            samplers = list(self._samplers.values())
        for sampler in samplers:
            sampler.stop()
        for where in self._folders.values():
            folder.clear_halves(where)

    def _sampler(self, model: str) -> Sampler:
        with self._lock:
            if model not in self._samplers:
                self._samplers[model] = Sampler(model, lambda: self._manager.versions(model), self._writer)
            return self._samplers[model]

    def _check(self, model: str) -> None:
        self._manager.status(model, describe=False)

    def _folder(self, model: str, name: str | None) -> Path:
        if name is not None and not _NAME.fullmatch(name):
            raise InputError(
                f"folder: {name[:100]!r} is no name of a folder below the server's own; places are chosen when the "
                "server is started (--profile-folder)"
            )
        with self._lock:
            if self._root is None:
                self._root = Path(tempfile.mkdtemp(prefix="tfctr-profile-"))
            root = self._root
        where = root / name / model if name else root / model
        if root.resolve() not in where.resolve().parents:
            raise InputError(f"folder: {name or model!r} is a link that leads out of {root}")
        return where

    def _under_way(self) -> str:
        recorded = self._recorded
        if recorded is None:
            return ""
        model, seconds, since = recorded
        return f"model {model!r} is recorded for {seconds:g} s, since {time.monotonic() - since:.1f} s"
