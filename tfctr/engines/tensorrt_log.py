"""The process's TensorRT logger: TensorRT says why something failed there and nowhere else, and keeps the first logger
that it is given, so builder and runtime share this one.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from typing import Any

_KEPT = 200  # messages; a failing build says a handful
_QUOTED = 4


@dataclasses.dataclass(frozen=True)
class Message:
    """severity: "ERROR" or "WARNING" (internal errors are errors)."""

    severity: str
    text: str


class Record:
    """The last errors and warnings, counted. Thread-safe: TensorRT logs from threads of its own too."""

    def __init__(self) -> None:
        self._messages: collections.deque[tuple[int, Message]] = collections.deque(maxlen=_KEPT)
        self._count = 0
        self._lock = threading.Lock()

    def add(self, severity: str, text: str) -> None:
        with self._lock:
            self._count += 1
            self._messages.append((self._count, Message(severity, text)))

    def mark(self) -> int:
        """A point in time for :meth:`since`."""
        return self._count

    def since(self, mark: int) -> list[Message]:
        with self._lock:
            return [message for number, message in self._messages if number > mark]

    def quote(self, mark: int, said: tuple[str, ...] = ()) -> str:
        """What was said since ``mark`` (and ``said``) on one line, errors last: they are what is looked for."""
        logged = [f"{message.severity.lower()}: {message.text}" for message in self.since(mark)]
        ordered = sorted(logged, key=lambda line: line.startswith("error"))
        quoted = dict.fromkeys([*said, *ordered[-_QUOTED:]])
        return "; ".join(" ".join(line.split()) for line in quoted) or "its log is empty"


_LOGGERS: dict[str, Any] = {}
_lock = threading.Lock()


def logger(trt: Any) -> Any:
    """The logger for the module ``trt`` (``tensorrt`` or ``tensorrt_rtx``); its ``record`` is a :class:`Record`."""
    name = getattr(trt, "__name__", "") or str(id(trt))
    with _lock:
        known = _LOGGERS.get(name)
        if known is None or not isinstance(known, trt.ILogger):  # another module of that name: fakes in tests
            known = _LOGGERS[name] = _make(trt)
        return known


def _make(trt: Any) -> Any:
    severities = {
        trt.ILogger.INTERNAL_ERROR: "ERROR",
        trt.ILogger.ERROR: "ERROR",
        trt.ILogger.WARNING: "WARNING",
    }

    class Log(trt.ILogger):  # type: ignore[misc, name-defined]
        """Keeps errors and warnings; the library's chatter goes nowhere."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.record = Record()

        def log(self, severity: Any, text: str) -> None:
            if severity in severities:
                self.record.add(severities[severity], text)

    return Log()
