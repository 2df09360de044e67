"""The kernel's thread ids of threads that TensorFlow's profiler names by a hash of their pthread_t.

libstdc++'s hash of 8 bytes can be undone. Where a thread keeps its kernel id is found by example: threads of Python
know both of theirs. Memory is read by way of /proc, which refuses an address that is none, and an id counts only while
the process has such a thread; else a thread stays without one.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterable

_MASK = (1 << 64) - 1
_FACTOR = 0xC6A4A7935BD1E995
_INVERSE = pow(_FACTOR, -1, 1 << 64)
_BEGIN = 0xC70F6907 ^ (8 * _FACTOR & _MASK)
_REACH = 4096  # bytes of a thread's own record that are searched


def hash_of(pthread: int) -> int:
    """std::hash<std::thread::id> of libstdc++, as an unsigned number."""
    data = _mixed(pthread * _FACTOR & _MASK) * _FACTOR & _MASK
    value = (_BEGIN ^ data) * _FACTOR & _MASK
    return _mixed(_mixed(value) * _FACTOR & _MASK)


def pthread_of(number: int) -> int:
    """The pthread_t whose hash is ``number`` (signed or unsigned)."""
    value = _mixed(number & _MASK) * _INVERSE & _MASK
    value = _mixed(value) * _INVERSE & _MASK
    return _mixed((value ^ _BEGIN) * _INVERSE & _MASK) * _INVERSE & _MASK


def _mixed(value: int) -> int:
    return value ^ (value >> 47)  # undone by itself


def kernel_ids(numbers: Iterable[int]) -> dict[int, int]:
    """The profiler's number of a thread -> its kernel id, as far as it is known; threads must still be alive."""
    place = _place_of_id()
    if place is None:
        return {}
    alive = {int(name) for name in os.listdir("/proc/self/task")}
    found = {}
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        for number in numbers:
            kernel = _read_int(memory.fileno(), pthread_of(number) + place)
            if kernel in alive:
                found[number] = kernel
    return found


def _place_of_id() -> int | None:
    """Offset of the kernel's id in the record that a pthread_t points to: where it is in two threads' records."""
    known = [(threading.get_ident(), threading.get_native_id())]
    wait = threading.Event()
    other = threading.Thread(target=wait.wait, daemon=True)
    other.start()
    try:
        if other.ident and other.native_id:
            known.append((other.ident, other.native_id))
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            places = [_places(memory.fileno(), *one) for one in known]
    except OSError:
        return None
    finally:
        wait.set()
        other.join()
    both = set.intersection(*places) if len(places) > 1 else set()
    return min(both) if both else None


def _places(memory: int, pthread: int, kernel: int) -> set[int]:
    record = os.pread(memory, _REACH, pthread)
    return {at for at in range(0, len(record) - 3, 4) if struct.unpack_from("i", record, at)[0] == kernel}


def _read_int(memory: int, address: int) -> int:
    try:
        return int(struct.unpack("i", os.pread(memory, 4, address))[0])
    except (OSError, OverflowError, struct.error):  # no address of this process
        return -1
