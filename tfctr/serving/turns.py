"""Turns of Python threads: what a load does in Python must not keep the threads that answer requests waiting.

A thread asks for the interpreter's lock only after it has waited a whole switch interval in which the lock was never
free. NumPy lets go of it for microseconds in many calls and takes it again before a thread that was woken gets there,
so that others may starve for as long as such code runs. Hence :func:`give`, between pieces of work.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

_SWITCH_SECONDS = 0.0005
_PIECE_SECONDS = 0.0005
_NAP_SECONDS = 0.00005  # longer than another thread takes to wake up
_switching = threading.Lock()
_loads = 0
_before = 0.0
_mine = threading.local()


@contextlib.contextmanager
def short_switches() -> Iterator[None]:
    """While something loads, Python changes threads after 0.5 ms rather than 5: what a load does in Python then stalls
    no other thread."""
    global _loads, _before
    with _switching:
        if _loads == 0:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(min(_before, _SWITCH_SECONDS))
        _loads += 1
    try:
        yield
    finally:
        with _switching:
            _loads -= 1
            if _loads == 0:
                sys.setswitchinterval(_before)


def give() -> None:
    """Lets other threads run, where this one did not for half a millisecond."""
    if time.perf_counter() - getattr(_mine, "given", 0.0) < _PIECE_SECONDS:
        return
    time.sleep(_NAP_SECONDS)
    _mine.given = time.perf_counter()
