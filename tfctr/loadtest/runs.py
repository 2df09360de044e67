"""One run of load: open loop (requests come when they are due, whatever the server does) or closed loop (each of N
clients sends its next request when it has the answer to the last).
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tfctr.loadtest.channel import Call, Channel, Prepared
from tfctr.loadtest.clock import Clock, SystemClock
from tfctr.loadtest.connections import Connections
from tfctr.loadtest.cost import CpuMeter
from tfctr.loadtest.record import Record, Summary, summarise
from tfctr.loadtest.schedule import Schedule

_LEAD_NS = 2_000_000  # from the start of a run to its first moment


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """warmup_s: of each run; what is due in it is sent and not counted. connections: at most (open loop).
    timing_every: one request of so many asks for the server's own timing; 0: none.
    """

    warmup_s: float = 1.0
    connections: int = 256
    timing_every: int = 20


@dataclasses.dataclass(frozen=True)
class Run:
    """A run and what it cost.

    rate: requests per second that were due; None in closed loop. given_up: it was stopped because answers could not
    keep up. cpu: see ``cost``. timings: what the server told of itself, for some requests. connections: that were used.
    """

    mode: str
    rate: float | None
    clients: int
    summary: Summary
    cpu: dict[str, float]
    timings: list[Any]
    given_up: bool = False

    def as_dict(self) -> dict[str, Any]:
        told = dataclasses.asdict(self) | {"summary": self.summary.as_dict()}
        del told["timings"]
        return told


class OpenLoop:
    """Sends requests when they are due.

    A request's latency runs from the moment it was due: what it waits because an earlier answer is late counts, as it
    does for a user (coordinated omission).
    """

    def __init__(
        self,
        channel: Channel,
        requests: Sequence[Prepared],
        options: RunOptions,
        clock: Clock | None = None,
        connect: Callable[[Channel, Callable[[Call, int], None], int], Any] = Connections,
    ) -> None:
        self._channel = channel
        self._requests = requests
        self._options = options
        self._clock = clock or SystemClock()
        self._connect = connect

    def run(self, schedule: Schedule, rate: float, most_in_flight: int | None = None) -> Run:
        """schedule: nanoseconds from the start. most_in_flight: with more unanswered requests the run is given up."""
        clock = self._clock
        start = clock.now_ns() + _LEAD_NS
        record = Record(schedule + start)
        every = self._options.timing_every
        requests, count = self._requests, len(self._requests)

        def send(call: Call, number: int) -> None:
            request = requests[number % count]
            sent = clock.now_ns()
            answer = call(request, every > 0 and number % every == 0)
            record.add(number, sent, clock.now_ns(), request.rows, answer)

        connections = self._connect(self._channel, send, self._options.connections)
        given_up = False
        with CpuMeter() as cpu:
            for number, due in enumerate(record.due.tolist()):
                clock.sleep_until(due)
                record.given[number] = clock.now_ns()
                connections.give(number)
                if most_in_flight is not None and connections.in_flight > most_in_flight:
                    given_up = True
                    break
            connections.drain(drop=given_up)
        summary = summarise(record, start, self._options.warmup_s)
        sent_count = int((record.codes >= 0).sum())
        return Run("open", rate, connections.count, summary, cpu.told(sent_count), record.timings, given_up)


def closed_loop(
    channel: Channel,
    requests: Sequence[Prepared],
    clients: int,
    duration_s: float,
    options: RunOptions,
    clock: Clock | None = None,
) -> Run:
    """Each of ``clients`` threads sends one request after the other for ``duration_s`` seconds after the warm-up."""
    clock = clock or SystemClock()
    numbers = itertools.count()
    start = clock.now_ns()
    end = start + int((options.warmup_s + duration_s) * 1e9)
    found: list[list[tuple[int, int, int, Any]]] = [[] for _ in range(clients)]
    failures: list[BaseException] = []

    def client(out: list[tuple[int, int, int, Any]]) -> None:
        try:
            out.extend(_one_client(channel.connect(), requests, numbers, end, options.timing_every, clock))
        except BaseException as error:  # a fault of the generator: raised below
            failures.append(error)

    with CpuMeter() as cpu:
        if clients == 1:
            client(found[0])
        else:
            threads = [threading.Thread(target=client, args=(out,), daemon=True) for out in found]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    if failures:
        raise failures[0]
    sent = sorted(itertools.chain.from_iterable(found), key=lambda one: one[0])
    record = Record(np.array([one[0] for one in sent], np.int64))
    record.given[:] = record.due
    for index, (begin, done, rows, answer) in enumerate(sent):
        record.add(index, begin, done, rows, answer)
    summary = summarise(record, start, options.warmup_s)
    return Run("closed", None, clients, summary, cpu.told(len(sent)), record.timings)


def _one_client(
    call: Call, requests: Sequence[Prepared], numbers: Iterator[int], end: int, every: int, clock: Clock
) -> Iterator[tuple[int, int, int, Any]]:
    while (begin := clock.now_ns()) < end:
        number = next(numbers)
        request = requests[number % len(requests)]
        answer = call(request, every > 0 and number % every == 0)
        yield begin, clock.now_ns(), request.rows, answer
