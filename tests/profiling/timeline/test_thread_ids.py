"""Kernel ids of threads out of the profiler's numbers."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from tfctr.profiling.timeline.thread_ids import hash_of, kernel_ids, pthread_of


@given(st.integers(0, 2**64 - 1))
def test_the_hash_can_be_undone(pthread: int) -> None:
    assert pthread_of(hash_of(pthread)) == pthread
    signed = hash_of(pthread) - (1 << 64 if hash_of(pthread) >= 1 << 63 else 0)
    assert pthread_of(signed) == pthread


def test_threads_have_the_ids_of_the_kernel() -> None:
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        known = {hash_of(t.ident or 0): t.native_id for t in [*threads, threading.current_thread()]}
        assert kernel_ids(known) == known
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_numbers_that_are_no_threads_have_no_id() -> None:
    address_of_nothing = hash_of(0)
    no_thread = hash_of(id(threading.Lock()))
    assert kernel_ids([address_of_nothing, no_thread, -1, 2**63, 12345]) == {}
