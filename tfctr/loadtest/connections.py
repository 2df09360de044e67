"""Threads that send requests, each with a connection of its own; more are made while requests wait for one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from tfctr.loadtest.channel import Call, Channel

FIRST_THREADS = 4


class Connections:
    """Takes request numbers in order and sends each on the next free connection.

    send: (call of the connection, number); runs on the connection's thread and must not raise.
    limit: connections at most. What comes while all are busy waits here, and the wait counts as latency.
    """

    def __init__(self, channel: Channel, send: Callable[[Call, int], None], limit: int) -> None:
        self._channel = channel
        self._send = send
        self._limit = limit
        self._queue: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._pending = 0
        self._idle = threading.Condition(self._lock)
        self._dropping = False
        self._failure: BaseException | None = None
        for _ in range(min(FIRST_THREADS, limit)):
            self._grow()

    def give(self, number: int) -> None:
        with self._lock:
            self._pending += 1
            grow = self._pending > len(self._threads) < self._limit
        if grow:
            self._grow()
        self._queue.put(number)

    @property
    def in_flight(self) -> int:
        """Given and not answered yet."""
        return self._pending

    @property
    def count(self) -> int:
        return len(self._threads)

    def drain(self, drop: bool = False) -> None:
        """Returns when all that was given is answered. drop: what no connection has taken yet is not sent."""
        self._dropping = drop
        with self._lock:
            self._idle.wait_for(lambda: self._pending == 0)
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _grow(self) -> None:
        thread = threading.Thread(target=self._run, name="tfctr-loadtest", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        call = self._channel.connect()
        while (number := self._queue.get()) is not None:
            try:
                if not self._dropping:
                    self._send(call, number)
            except BaseException as error:  # a fault of the generator: told by drain, and the run ends
                self._failure = error
            with self._lock:
                self._pending -= 1
                if self._pending == 0:
                    self._idle.notify_all()
