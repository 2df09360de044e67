"""Every N-th request of one model, traced and written, for as long as it is switched on.

C++ traces runs and keeps the last few (``serving_group_traces.cc``); a thread here takes them, of every version that is
loaded, and hands them to the process that writes files. When it is slower than the traces come, they are not made, and
counted: requests never wait for any of it.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tfctr.errors import UsageError
from tfctr.serving import warmup
from tfctr.serving.profiles import folder
from tfctr.serving.profiles.writer_process import About, WriterClosedError, WriterError, WriterProcess

MB = 1_000_000
MOST_EVERY = 1_000_000_000
_ROOM = 16  # traces that wait, of each version
_LOOK_SECONDS = 0.1
_FORMS_KEPT = 64
_END_SECONDS = 10.0
_log = logging.getLogger("tfctr")

Versions = Callable[[], Iterable[tuple[int, Any]]]
"""(number, ServedVersion) of all that are loaded, each held while the caller looks at it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplerOptions:
    """every: one request in so many. folder: of the files. max_mb: that they may take there, in megabytes."""

    every: int
    folder: Path
    max_mb: float = 100.0

    def __post_init__(self) -> None:
        if type(self.every) is not int or not 1 <= self.every <= MOST_EVERY:
            raise UsageError(f"every is {self.every!r}, expected a whole number from 1 to {MOST_EVERY}")
        if type(self.max_mb) not in (int, float) or not 1 <= self.max_mb <= 1e6:
            raise UsageError(f"max_mb is {self.max_mb!r}, expected 1 to 1000000")


@dataclasses.dataclass
class Counts:
    """Since the server's start. traced: runs; written: files. dropped: runs that were due and not traced, as those
    before were not written yet. run_failed: traced runs that failed, or can't be traced. write_failed: traces that
    could not be written."""

    traced: int = 0
    dropped: int = 0
    run_failed: int = 0
    written: int = 0
    write_failed: int = 0


class Sampler:
    """One model's. Thread-safe; ``start`` and ``stop`` wait for each other."""

    def __init__(self, model: str, versions: Versions, writer: WriterProcess) -> None:
        self.model = model
        self.counts = Counts()
        self.error = ""
        self.untraced: dict[str, None] = {}
        self.page_error = ""
        self.latest = ""
        self.options: SamplerOptions | None = None  # None: off
        self._versions = versions
        self._writer = writer
        self._changing = threading.Lock()
        self._stopping = threading.Event()  # of the thread that runs
        self._thread: threading.Thread | None = None
        self._seen: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()  # by version
        self._graphs: dict[int, bytes] = {}  # by form

    def start(self, options: SamplerOptions) -> None:
        """Switches on, or over to other options. UsageError: the folder can't be made or written to."""
        with self._changing:
            self._end()
            _prepare(options.folder)
            self.error = self.page_error = ""
            self.untraced = {}
            self.options = options
            self._stopping = threading.Event()
            arguments = (options, self._stopping)
            self._thread = threading.Thread(
                target=self._follow, args=arguments, name=f"tfctr-traces-{self.model}", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Switches off; what was traced and not written yet is dropped, and the memory that tracing took is free."""
        with self._changing:
            self._end()

    def describe(self) -> dict[str, Any]:
        """Settings, counts and files, as ``tfctr admin profile --status`` shows them."""
        options = self.options
        made: dict[str, Any] = {"every": 0 if options is None else options.every, **dataclasses.asdict(self.counts)}
        made |= {"error": self.error, "page_error": self.page_error, "untraced": list(self.untraced)}
        return made | {"latest": self.latest}

    def _end(self) -> None:
        self.options = None
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_END_SECONDS)  # longer only where a disk hangs: then it ends when that does
        self._thread = None
        for _, version in self._versions():
            self._count(version)
            version.group.trace_stop()
        self._graphs.clear()

    def _follow(self, options: SamplerOptions, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                busy = self._look(options, stopping)
            except Exception as error:  # whatever a version does while it goes away, the others are traced
                busy = False
                self._say(f"{type(error).__name__}: {error}")
            stopping.wait(0.0 if busy else _LOOK_SECONDS)

    def _look(self, options: SamplerOptions, stopping: threading.Event) -> bool:
        """One trace of each version; whether there was any, and all were written: else it is no use to hurry."""
        taken = []
        for number, version in self._versions():
            if stopping.is_set():
                return False
            group = version.group
            if group.trace_counts()["every"] != options.every:
                group.trace_start(options.every, _ROOM, not warmup.writes_state(version.manifest))
            for error in group.trace_prepare():
                self.untraced.setdefault(f"version {number}: {error}")
                _log.warning("model %r: profile: version %d can't be traced as a whole: %s", self.model, number, error)
            trace = group.trace_take(set(self._graphs))
            self._count(version)
            if trace is not None:
                about = functools.partial(about_signature, version, trace["signature"])
                taken.append((self._head(number, version, trace, options), trace, about))
        written = [self._write(head, trace, about) for head, trace, about in taken]  # no version is held meanwhile
        return bool(written) and all(written)

    def _head(self, number: int, version: Any, trace: dict[str, Any], options: SamplerOptions) -> dict[str, Any]:
        head = {key: value for key, value in trace.items() if key not in ("metadata", "graphs")}
        return head | {
            "model": self.model,
            "version": number,
            "path": str(version.folder),
            "threads": version.options.intra_op_threads,
            "bundle": version.manifest is not None,
            "folder": str(options.folder),
            "max_bytes": int(options.max_mb * MB),
        }

    def _write(self, head: dict[str, Any], trace: dict[str, Any], about: About) -> bool:
        if trace["graphs"] is not None:
            while len(self._graphs) >= _FORMS_KEPT:
                self._graphs.pop(next(iter(self._graphs)))
            self._graphs[trace["form"]] = trace["graphs"]
        try:
            answer = self._writer.write(head, trace["metadata"], self._graphs[trace["form"]], about)
        except WriterClosedError:
            return False
        except WriterError as error:
            self._say(f"a trace was not written: {error}")
            self.counts.write_failed += 1  # last: who sees it reads what goes with it
            return False
        self.latest = answer["file"]
        self.page_error = answer.get("page_error", "")
        self.error = ""
        self.counts.written += 1
        return True

    def _count(self, version: Any) -> None:
        """Adds what a version's group has counted since the last look."""
        now, before = version.group.trace_counts(), self._seen.get(version, {})
        self.counts.traced += now["traced"] - before.get("traced", 0)
        self.counts.dropped += now["dropped"] - before.get("dropped", 0)
        self.counts.run_failed += now["failed"] - before.get("failed", 0)
        self._seen[version] = now

    def _say(self, error: str) -> None:
        if error != self.error:
            _log.warning("model %r: profile: %s", self.model, error)
        self.error = error


def about_signature(version: Any, signature: str) -> dict[str, Any]:
    """Where the nodes of a signature come from, as far as the model tells."""
    if version.manifest is not None:
        files = [{"index": k, "name": one["name"]} for k, one in enumerate(version.manifest["store"]["files"])]
        return {"info": version.manifest["signatures"].get(signature), "files": files}
    handle = version.signatures[signature]
    features = [{"name": one.name, "kind": one.kind, "parts": dict(one.parts)} for one in handle.features]
    inputs = [{"name": one.name, "tensor": one.tensor} for one in handle.inputs]
    return {"info": {"inputs": inputs, "features": features, "lookups": []}, "files": []}


def _prepare(where: Path) -> None:
    try:
        where.mkdir(parents=True, exist_ok=True)
        folder.clear_halves(where)
        probe = where / f".probe{folder.HALF}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise UsageError(f"{where}: no folder that traces can be written to: {error.strerror}") from error
