"""How long threads of this process that could run waited for a processor: what a busy machine does to a recording."""

from __future__ import annotations

import pathlib
import time

_TASKS = pathlib.Path("/proc/self/task")


def waited_ns(tasks: pathlib.Path = _TASKS) -> int | None:
    """Nanoseconds that the threads of this process, taken together, have waited since they began; None where the
    system does not tell. Threads that wait for each other, or for data, are not meant."""
    found, known = 0, False
    for file in tasks.glob("*/schedstat"):
        try:
            found += int(file.read_text(encoding="ascii").split()[1])  # time on a processor, time waiting, turns
        except (OSError, IndexError):
            continue  # the thread has ended
        known = True
    return found if known else None


class ProcessorWait:
    """``threads``: how many waited for a processor inside ``with``, on average; None where nobody tells."""

    threads: float | None = None

    def __enter__(self) -> ProcessorWait:
        self._waited, self._begin = waited_ns(), time.perf_counter_ns()
        return self

    def __exit__(self, *_: object) -> None:
        passed, waited = time.perf_counter_ns() - self._begin, waited_ns()
        if self._waited is not None and waited is not None and passed > 0:
            self.threads = max(0, waited - self._waited) / passed
