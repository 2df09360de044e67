"""The search for the highest rate, over servers that exist on paper."""

import numpy as np
import pytest

from tests.loadtest.fakes import REQUESTS, FakeChannel, FakeClock, Inline
from tfctr.errors import UsageError
from tfctr.loadtest.runs import OpenLoop, RunOptions
from tfctr.loadtest.schedule import Arrivals
from tfctr.loadtest.search import Budget, SearchOptions, highest_rate

BUDGET = Budget(p99_ms=30)


def server(service_ms):
    """Runs against one worker that takes ``service_ms(number of the run)``; Poisson arrivals, 1000 requests a run."""

    def measure(rate, number):
        clock = FakeClock()
        channel = FakeChannel(clock, lambda n: service_ms(number))
        loop = OpenLoop(channel, REQUESTS, RunOptions(0.0, timing_every=0), clock, connect=Inline)
        return loop.run(Arrivals(seed=number).schedule(rate, 1000 / rate), rate)

    return measure


def passes_often(rate, service_ms=5.0):
    measure = server(lambda number: service_ms)
    return np.mean([BUDGET.kept(measure(rate, 1000 + k)) for k in range(6)])


def test_the_rate_found_holds_and_a_higher_one_does_not():
    found = highest_rate(server(lambda number: 5.0), BUDGET, SearchOptions(start=20))
    # M/D/1 with 5 ms of service: p99 reaches 30 ms at about 0.65 of its capacity of 200/s.
    assert 100 < found.rate < 170
    assert passes_often(found.rate * 0.85) > 0.5
    assert passes_often(found.rate * 1.4) < 0.2
    assert found.best is not None and BUDGET.kept(found.best) and found.best.rate == found.rate
    assert not found.limited


def test_the_first_rate_may_be_too_high():
    found = highest_rate(server(lambda number: 5.0), BUDGET, SearchOptions(start=5000))
    assert 100 < found.rate < 170


def test_no_rate_keeps_a_budget_below_the_service_time():
    found = highest_rate(server(lambda number: 50.0), BUDGET, SearchOptions(start=20, lowest=2))
    assert found.rate is None and found.best is None
    assert found.reasons[-1].startswith("p99 ")


def test_the_highest_allowed_rate_is_told_as_a_limit():
    found = highest_rate(server(lambda number: 0.1), BUDGET, SearchOptions(start=50, highest=300))
    assert found.rate == 300 and found.limited


def test_a_rate_that_does_not_hold_again_is_not_reported():
    seen = []

    def lucky_first(number):
        return 1.0 if len(seen) <= 1 else 5.0

    measure = server(lucky_first)

    def counted(rate, number):
        run = measure(rate, number)
        seen.append(rate)
        return run

    # The first runs pass at 400/s (1 ms), later ones can't (5 ms): only what is confirmed counts.
    found = highest_rate(counted, BUDGET, SearchOptions(start=400, confirm=3))
    assert found.rate < 170
    last = found.reasons[-3:]
    assert sum(reason is None for reason in last) >= 2


@pytest.mark.parametrize(
    ("errors", "allowed", "kept"), [(0, 0.0, True), (1, 0.0, False), (10, 0.01, True), (40, 0.01, False)]
)
def test_errors_over_the_budget_fail_a_run(errors, allowed, kept):
    from tests.loadtest.fakes import FAILED
    from tfctr.loadtest.channel import PLAIN_OK

    clock = FakeClock()
    channel = FakeChannel(clock, lambda n: 1, lambda n: FAILED if n < errors else PLAIN_OK)
    loop = OpenLoop(channel, REQUESTS, RunOptions(0.0, timing_every=0), clock, connect=Inline)
    run = loop.run(Arrivals("uniform").schedule(100, 20), 100)
    assert Budget(30, errors=allowed).kept(run) == kept
    if not kept:
        assert "UNAVAILABLE" in Budget(30, errors=allowed).reason(run)


def test_a_queue_that_grows_all_along_does_not_pass():
    # 11 ms of service each 10 ms: with a budget of ten seconds every single latency is kept.
    clock = FakeClock()
    loop = OpenLoop(FakeChannel(clock, lambda n: 11), REQUESTS, RunOptions(0.0, timing_every=0), clock, connect=Inline)
    run = loop.run(Arrivals("uniform").schedule(100, 10), 100)
    assert "answers/s of 100 due" in Budget(10_000).reason(run)


@pytest.mark.parametrize("seed", range(20))
def test_fewer_arrivals_than_the_rate_says_are_no_fault_of_the_server(seed):
    clock = FakeClock()
    loop = OpenLoop(FakeChannel(clock, lambda n: 1), REQUESTS, RunOptions(0.0, timing_every=0), clock, connect=Inline)
    run = loop.run(Arrivals("poisson", seed=seed).schedule(50, 5), 50)
    assert Budget(30).reason(run) is None


@pytest.mark.parametrize(
    "make", [lambda: Budget(0), lambda: Budget(float("nan")), lambda: SearchOptions(start=5, lowest=10)]
)
def test_budgets_and_bounds_are_checked(make):
    with pytest.raises(UsageError, match="expected"):
        make()
