"""Structured logs: one JSON object per line, written by a thread of its own, so that no request waits for a disk.

A request gets a line when it failed or was slow (or always, `logs.requests` = "all"), at most so many per second; what
is left out is counted in the next line and in metrics. Where a line can't be written (disk full, stderr closed) it is
dropped and counted; the request never notices. The handlers are the standard library's; libraries that log (uvicorn,
grpc, TensorFlow) share them.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import logging.handlers
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

from tfctr.errors import UsageError
from tfctr.serving.server.config import LogsConfig

LOGGER = "tfctr.server"
WAITING_LINES = 10_000
"""Lines that may wait for the writing thread; more are dropped and counted."""
_LONGEST = 2000
_OTHERS = ("uvicorn", "uvicorn.error", "grpc", "tfctr", "asyncio", "py.warnings")
_FAILURES_OF_THE_SERVER = frozenset({"INTERNAL", "UNKNOWN", "DATA_LOSS", "UNAVAILABLE"})


class RequestLog:
    """The log of a server. Thread-safe; nothing here raises or waits.

    Args:
      config: where lines go, which requests get one, how many per second.
      stream: instead of the file or stderr.
      clock: seconds, monotonic.
    """

    def __init__(
        self,
        config: LogsConfig | None = None,
        *,
        stream: IO[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.config = config = config or LogsConfig()
        self._all = config.requests == "all"
        self._slow = float("inf") if config.slow_ms is None else config.slow_ms / 1000
        self._bucket = TokenBucket(config.lines_per_second, clock)
        self._level = logging.getLevelNamesMapping()[config.level.upper()]
        self._queue: queue.Queue[logging.LogRecord] = queue.Queue(WAITING_LINES)
        self._sink = _handler(config, stream)
        self._front = _Front(self._queue)
        self._writer = logging.handlers.QueueListener(self._queue, self._sink)
        self._writer.start()
        self._open = True

    @property
    def dropped(self) -> dict[str, int]:
        """Lines that were not written: over the rate, while the writer was behind, or because writing failed."""
        return {"rate": self._bucket.refused, "behind": self._front.dropped, "failed": self._sink.failures}

    def wants(self, code: str, seconds: float) -> bool:
        """Whether a request with this end gets a line (if the rate allows)."""
        return self._all or code != "OK" or seconds >= self._slow

    def answered(
        self,
        transport: str,
        api: str,
        method: str,
        model: str,
        version: int | None,
        code: str,
        seconds: float,
        request_id: str,
        details: Mapping[str, Any],
    ) -> None:
        """One line about a request; see ServerContext.answered."""
        if not self._bucket.take():
            return
        fields = {
            "request_id": request_id,
            "transport": transport,
            "api": api,
            "method": method,
            "model": model,
            "version": version,
            "code": code,
            "ms": round(seconds * 1000, 3),
            **{key: value for key, value in details.items() if value},
        }
        left_out = self._bucket.left_out()
        if left_out:
            fields["left_out"] = left_out
        slow = code == "OK" and seconds >= self._slow
        level = (
            logging.ERROR
            if code in _FAILURES_OF_THE_SERVER
            else logging.WARNING
            if slow or code != "OK"
            else logging.INFO
        )
        self._emit(level, "slow request" if slow else "request", fields)

    def event(self, message: str, *, level: int = logging.INFO, **fields: Any) -> None:
        """One line about the server itself: a version loaded, rejected, a port opened. Never left out by the rate."""
        self._emit(level, message, fields)

    def _emit(self, level: int, message: str, fields: Mapping[str, Any]) -> None:
        if level < self._level:
            return
        record = logging.LogRecord(LOGGER, level, "", 0, message, None, None)
        record.fields = fields
        self._front.handle(record)

    def take_over(self) -> None:
        """From now on the loggers of libraries write here too; for the process that is the server."""
        for name in _OTHERS:
            logger = logging.getLogger(name)
            logger.handlers[:] = [self._front]
            logger.propagate = False
            # uvicorn tells of every start and stop; so do we, once.
            logger.setLevel(max(self._level, logging.WARNING if name.startswith("uvicorn") else logging.INFO))
        logging.captureWarnings(True)

    def close(self) -> None:
        """Writes what waits; nothing after that."""
        if self._open:
            self._open = False
            self._writer.stop()
            for name in _OTHERS:
                logger = logging.getLogger(name)
                if self._front in logger.handlers:
                    logger.handlers.remove(self._front)
                    logger.propagate = True
            with contextlib.suppress(OSError, ValueError):
                self._sink.close()


class TokenBucket:
    """At most ``per_second`` on average, twice as many in a burst; counts what it refuses."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic):
        self._rate = per_second
        self._most = max(1.0, 2 * per_second)
        self._tokens = self._most
        self._clock = clock
        self._then = clock()
        self._lock = threading.Lock()
        self._told = 0
        self.refused = 0

    def take(self) -> bool:
        with self._lock:
            now = self._clock()
            self._tokens = min(self._most, self._tokens + max(0.0, now - self._then) * self._rate)
            self._then = now
            if self._tokens < 1:
                self.refused += 1
                return False
            self._tokens -= 1
            return True

    def left_out(self) -> int:
        """How many were refused since the last call."""
        with self._lock:
            count, self._told = self.refused - self._told, self.refused
            return count


class JsonFormatter(logging.Formatter):
    """{"time", "level", "event", ...}: time in UTC with milliseconds; values that JSON lacks become text."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": _short(record.getMessage()),
        }
        if record.name != LOGGER:
            line["logger"] = record.name
        for key, value in getattr(record, "fields", {}).items():
            line[key] = _short(value) if isinstance(value, str) else value
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Front(logging.handlers.QueueHandler):
    """Hands records to the writer; when that is too far behind, drops and counts."""

    def __init__(self, lines: queue.Queue[logging.LogRecord]):
        super().__init__(lines)
        self.dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # formatted by the writer, not on the caller's thread

    def handleError(self, record: logging.LogRecord) -> None:
        self.dropped += 1


class _FileSink(logging.handlers.WatchedFileHandler):
    """A file; opened anew after logrotate has moved it."""

    failures = 0

    def handleError(self, record: logging.LogRecord) -> None:
        self.failures += 1
        stream, self.stream = self.stream, None  # type: ignore[assignment]
        with contextlib.suppress(OSError, ValueError):  # what it holds can't be written either
            if stream is not None:
                stream.close()


class _StreamSink(logging.StreamHandler[Any]):
    failures = 0

    def handleError(self, record: logging.LogRecord) -> None:
        self.failures += 1


def _handler(config: LogsConfig, stream: IO[str] | None) -> _FileSink | _StreamSink:
    sink: _FileSink | _StreamSink
    if stream is None and config.file is not None:
        try:
            sink = _FileSink(config.file, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{config.file}: log file can't be opened: {error.strerror}") from error
    else:
        sink = _StreamSink(stream or sys.stderr)
    sink.setFormatter(JsonFormatter())
    return sink


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"
