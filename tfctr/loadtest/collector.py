"""Python's garbage collector in a process that measures."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def spared() -> Iterator[None]:
    """Meanwhile full collections leave out what is there now. They stop every thread, with TensorFlow's modules there
    for 70 to 500 ms, and all requests that are due meanwhile would count the generator's pause as the server's
    latency."""
    before = gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if before == 0:  # else a server in this process keeps it so
            gc.unfreeze()
