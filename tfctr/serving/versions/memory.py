"""Memory of a serving process: what an unload gives back to the system, and what Python's collector walks through."""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Callable


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim  # type: ignore[no-any-return]
    except AttributeError:  # another C library than glibc
        return None


def trim() -> bool:
    """Returns freed memory of all arenas to the system, without the GIL. Whether something went back."""
    call = _malloc_trim()
    return bool(call is not None and call(0))


def spare_collector() -> None:
    """Takes everything that is there now (TensorFlow's modules, mostly) out of what Python's garbage collector looks
    at. A full collection walks through it for 200 to 700 ms, with every thread stopped, and loading a model starts one.
    """
    gc.collect()
    gc.freeze()
