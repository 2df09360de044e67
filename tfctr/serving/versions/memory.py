"""Giving memory back to the system after an unload: the allocator keeps what was freed unless it is told not to."""

from __future__ import annotations

import ctypes
import functools
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
