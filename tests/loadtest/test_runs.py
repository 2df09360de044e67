"""Open and closed loops on a clock that only the test moves; connections that grow."""

import threading

import numpy as np
import pytest

from tests.loadtest.fakes import FAILED, REQUESTS, FakeChannel, FakeClock, Inline
from tfctr.loadtest.channel import PLAIN_OK, Answer
from tfctr.loadtest.connections import Connections
from tfctr.loadtest.cost import stages, warnings
from tfctr.loadtest.runs import OpenLoop, RunOptions, closed_loop
from tfctr.loadtest.schedule import Arrivals

PLAIN = RunOptions(warmup_s=0.0, timing_every=0)
EVERY_10_MS = Arrivals("uniform").schedule(100, 1)


def stalls_once(number):
    """1 ms each; the 20th request takes 200 ms."""
    return 200 if number == 20 else 1


def open_loop(channel, clock, options=PLAIN):
    return OpenLoop(channel, REQUESTS, options, clock, connect=Inline)


def test_what_waits_behind_a_stall_counts_from_when_it_was_due():
    clock = FakeClock()
    run = open_loop(FakeChannel(clock, stalls_once), clock).run(EVERY_10_MS, 100)
    # 200 ms of stall make up to 20 requests late, each a little less: 191 ms, 182 ms, ...
    assert run.summary.requests == run.summary.ok == 100
    assert run.summary.percentile(99.0) == pytest.approx(191)
    assert run.summary.percentile(90.0) > 80
    assert run.summary.percentile(50.0) == pytest.approx(1)


def test_a_closed_loop_sees_the_stall_once():
    clock = FakeClock()
    run = closed_loop(FakeChannel(clock, stalls_once), REQUESTS, 1, 0.3, PLAIN, clock)
    assert run.summary.percentile(99.9) == pytest.approx(200)
    assert run.summary.percentile(90.0) == pytest.approx(1)
    assert run.rate is None and run.clients == 1


def test_requests_take_turns_and_their_rows_are_counted():
    clock = FakeClock()
    channel = FakeChannel(clock, lambda number: 1)
    run = open_loop(channel, clock).run(EVERY_10_MS, 100)
    assert [r.body for r in channel.seen[:4]] == [b"a", b"b", b"a", b"b"]
    assert run.summary.rows_per_s == pytest.approx(4 * run.summary.answers_per_s)


def test_the_warm_up_is_sent_but_not_counted():
    clock = FakeClock()
    channel = FakeChannel(clock, lambda number: 50 if number == 0 else 1)
    run = open_loop(channel, clock, RunOptions(warmup_s=0.5, timing_every=0)).run(EVERY_10_MS, 100)
    assert len(channel.seen) == 100
    assert run.summary.requests == 50
    assert run.summary.percentile(99.9) == pytest.approx(1)


def test_errors_are_counted_by_code_and_have_no_latency():
    clock = FakeClock()
    channel = FakeChannel(clock, lambda number: 1, lambda number: FAILED if number % 4 == 0 else PLAIN_OK)
    summary = open_loop(channel, clock).run(EVERY_10_MS, 100).summary
    assert (summary.ok, summary.failed, summary.errors) == (75, 25, {"UNAVAILABLE": 25})
    assert summary.messages == {"UNAVAILABLE": "gone"}


def test_nothing_answered_is_no_latency():
    clock = FakeClock()
    summary = open_loop(FakeChannel(clock, lambda n: 1, lambda n: FAILED), clock).run(EVERY_10_MS, 100).summary
    assert summary.percentile(50.0) == float("inf")
    assert summary.percentiles_ms["p50"] is None and summary.mean_ms is None and summary.curve_ms == []


def test_one_request_of_n_asks_for_the_servers_timing():
    clock = FakeClock()
    channel = FakeChannel(
        clock, lambda n: 1, lambda n: Answer("OK", timing={"run": n * 10**6, "queue": 2 * 10**6, "where": "x"})
    )
    run = open_loop(channel, clock, RunOptions(0.0, timing_every=25)).run(EVERY_10_MS, 100)
    assert channel.timed == 4
    assert stages(run.timings[:4]) == {"run": 1.5, "queue": 2}


class Growing(Inline):
    """As if nothing were ever answered."""

    def give(self, number):
        self.in_flight += 1

    def drain(self, drop=False):
        assert drop


def test_a_run_that_falls_behind_is_given_up():
    clock = FakeClock()
    loop = OpenLoop(FakeChannel(clock, lambda n: 1), REQUESTS, PLAIN, clock, connect=Growing)
    run = loop.run(EVERY_10_MS, 100, most_in_flight=10)
    assert run.given_up
    assert run.summary.errors == {"NOT_SENT": 100}


def test_the_generator_says_when_it_was_the_limit():
    clock = FakeClock()
    run = open_loop(FakeChannel(clock, stalls_once), clock).run(EVERY_10_MS, 100)
    # Inline sends on the scheduling thread, so what the stall delayed was given late: as a busy core would do.
    assert any("the generator was late" in text for text in warnings(run, 10))
    calm = open_loop(FakeChannel(clock, lambda n: 1), clock).run(EVERY_10_MS, 100)
    assert not any("late" in text for text in warnings(calm, 10))


class Waiting:
    """Answers nothing until it is let go."""

    def __init__(self):
        self.free, self.inside = threading.Event(), threading.Semaphore(0)

    def connect(self):
        def call(request, timing):
            self.inside.release()
            self.free.wait(120)
            return PLAIN_OK

        return call


def test_connections_grow_to_their_limit_and_no_further():
    channel, done = Waiting(), []
    connections = Connections(channel, lambda call, n: done.append((call(None, False), n)), limit=12)
    for number in range(20):
        connections.give(number)
    for _ in range(12):
        assert channel.inside.acquire(timeout=120)
    assert (connections.count, connections.in_flight) == (12, 20)
    channel.free.set()
    connections.drain()
    assert sorted(n for _, n in done) == list(range(20))


def test_dropped_requests_are_not_sent():
    channel, done = Waiting(), []
    connections = Connections(channel, lambda call, n: done.append((call(None, False), n)), limit=2)
    for number in range(9):
        connections.give(number)
    for _ in range(2):
        assert channel.inside.acquire(timeout=120)
    stopper = threading.Timer(0, channel.free.set)
    connections._dropping = True
    stopper.start()
    connections.drain(drop=True)
    assert len(done) == 2


def test_a_fault_of_the_generator_ends_the_run():
    def broken(call, number):
        raise RuntimeError("broken")

    connections = Connections(FakeChannel(FakeClock(), lambda n: 1), broken, limit=2)
    connections.give(0)
    with pytest.raises(RuntimeError, match="broken"):
        connections.drain()


def test_closed_loop_with_several_clients_sends_every_request_once():
    clock = FakeClock()
    channel = FakeChannel(clock, lambda number: 1)
    run = closed_loop(channel, REQUESTS, 3, 0.05, PLAIN, clock)
    assert run.summary.requests == len(channel.seen) > 0
    assert np.isfinite(run.summary.percentile(99.0))
