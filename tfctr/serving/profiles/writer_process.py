"""The server's side of the writer (writer.py): starts it when there is something to write, anew when it has ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tfctr.serving.profiles.writer import HEADER, MOST_FORMS

_RUN = "import os; os.nice(10); from tfctr.serving.profiles import writer; writer.main()"
_AGAIN_SECONDS = 10.0  # after one that could not be started
_END_SECONDS = 2.0


About = Callable[[], dict[str, Any]]
"""``info`` and ``files`` of a signature, as trace_files.timeline_of wants them; asked once for each form."""


class WriterError(Exception):
    """A trace was not written; says why."""


class WriterClosedError(WriterError):
    """Nothing is written any more."""


class WriterProcess:
    """One process for all models of a server. Thread-safe: one trace at a time, others wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._told: dict[int, None] = {}  # forms whose graph it knows
        self._failed_at = 0.0
        self._closed = False

    def write(self, head: dict[str, Any], metadata: bytes, graphs: bytes, about: About) -> dict[str, Any]:
        """Waits until the trace is written, seconds where the process is started first. The answer has ``file``, and
        ``page_error`` where the last page could not be written. WriterError: why this one could not be."""
        with self._lock:
            for last in (False, True):
                if self._closed:
                    raise WriterClosedError("the writer was closed")
                process = self._running()
                new = head["form"] not in self._told
                message = {**head, "about": about()} if new else head
                try:
                    answer = _ask(process, json.dumps(message).encode(), metadata, graphs if new else b"")
                    break
                except (OSError, ValueError) as error:  # it has ended: it had nothing to do, or was killed
                    self._end()
                    if self._closed:
                        raise WriterClosedError("the writer was closed") from error
                    if last:
                        self._failed_at = time.monotonic()
                        raise WriterError(f"the process that writes traces ended: {error}") from error
            self._told.setdefault(head["form"])
            while len(self._told) > MOST_FORMS:  # as the process itself does
                self._told.pop(next(iter(self._told)))
        if "error" in answer:
            raise WriterError(answer["error"])
        return answer

    def close(self) -> None:
        """Ends it, in the middle of what it writes (which then is not there)."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._end()

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        if self._failed_at and time.monotonic() < self._failed_at + _AGAIN_SECONDS:
            raise WriterError(f"the process that writes traces ended; it is started again {_AGAIN_SECONDS:g} s later")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(one for one in sys.path if one),
            "CUDA_VISIBLE_DEVICES": "",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "OMP_NUM_THREADS": "1",
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _RUN],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                bufsize=0,
            )
        except OSError as error:
            self._failed_at = time.monotonic()
            raise WriterError(f"no process that writes traces: {error}") from error
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        self._told.clear()
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ask(process: subprocess.Popen[bytes], *parts: bytes) -> dict[str, Any]:
    stdin, stdout = process.stdin, process.stdout
    if stdin is None or stdout is None:
        raise OSError("no pipes")
    for data in (HEADER.pack(*map(len, parts)), *parts):
        view = memoryview(data)
        while view:
            view = view[stdin.write(view) :]
    line = b""
    while not line.endswith(b"\n"):
        piece = stdout.read(65536)
        if not piece:
            raise OSError("no answer")
        line += piece
    answer: dict[str, Any] = json.loads(line)
    return answer
