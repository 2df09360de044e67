"""A whole load test: runs at one rate or several, a closed loop, or the search for the highest rate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tfctr.errors import UsageError
from tfctr.loadtest import collector
from tfctr.loadtest.channel import OK, Channel, Prepared
from tfctr.loadtest.cost import stages, warnings
from tfctr.loadtest.runs import OpenLoop, Run, RunOptions, closed_loop
from tfctr.loadtest.schedule import Arrivals
from tfctr.loadtest.search import Budget, Found, SearchOptions, highest_rate

# Answers behind by so many budgets (Little's law: requests inside = rate x latency) will not catch up in one run.
_HOPELESS = 8
_LEAST_HOPELESS = 100


@dataclasses.dataclass(frozen=True)
class Plan:
    """rates: open loop, one run each. clients: closed loop, where there are no rates. search: instead of both.

    least_requests: a run of a low rate is made longer until so many are due: a p99 of fewer says nothing.
    """

    rates: tuple[float, ...] = ()
    clients: int = 1
    duration_s: float = 10.0
    arrivals: Arrivals = dataclasses.field(default_factory=Arrivals)
    run: RunOptions = dataclasses.field(default_factory=RunOptions)
    budget: Budget | None = None
    search: SearchOptions | None = None
    least_requests: int = 0


@dataclasses.dataclass
class Outcome:
    """runs: in order. batches: of each run, where the server tells (see ``server_metrics.achieved``)."""

    runs: list[Run]
    found: Found | None = None
    batches: list[dict[str, float]] = dataclasses.field(default_factory=list)

    def as_dict(self, connections: int, in_process: bool) -> dict[str, Any]:
        told = []
        for number, run in enumerate(self.runs):
            batch = self.batches[number] if number < len(self.batches) else {}
            told.append(
                run.as_dict()
                | {"batch": batch, "server": stages(run.timings), "warnings": warnings(run, connections, in_process)}
            )
        found = self.found
        search = None
        if found is not None:
            search = {"rate": found.rate, "limited": found.limited, "missed": found.reasons}
        return {"runs": told, "search": search}


@collector.spared()
def carry_out(
    channel: Channel,
    requests: Sequence[Prepared],
    plan: Plan,
    told: Callable[[Run, str | None], None] = lambda run, missed: None,
    read_batches: Callable[[], dict[str, float]] | None = None,
) -> Outcome:
    """Sends one request, then what ``plan`` says.

    told: after each run, with the reason for which it misses the budget. read_batches: after each run, what the
    server says of the batches since the last reading.
    """
    probe(channel, requests)
    outcome = Outcome([])
    if read_batches is not None:
        read_batches()  # what came before is not ours

    def keep(run: Run) -> Run:
        outcome.runs.append(run)
        if read_batches is not None:
            outcome.batches.append(read_batches())
        return run

    if plan.search is not None and plan.budget is not None:
        budget = plan.budget
        outcome.found = highest_rate(
            lambda rate, number: keep(open_run(channel, requests, plan, rate, number)),
            budget,
            plan.search,
            lambda rate, run, missed: told(run, missed),
        )
        return outcome
    for number, rate in enumerate(plan.rates):
        run = keep(open_run(channel, requests, plan, rate, number))
        told(run, None if plan.budget is None else plan.budget.reason(run))
    if not plan.rates:
        run = keep(closed_loop(channel, requests, plan.clients, plan.duration_s, plan.run))
        told(run, None if plan.budget is None else plan.budget.reason(run))
    return outcome


def probe(channel: Channel, requests: Sequence[Prepared]) -> None:
    """One request, before thousands fail for the same reason.

    Raises:
      UsageError: it failed.
    """
    answer = channel.connect()(requests[0], False)
    if answer.code != OK:
        raise UsageError(f"the first request failed with {answer.code}: {answer.message}")


def open_run(channel: Channel, requests: Sequence[Prepared], plan: Plan, rate: float, number: int) -> Run:
    """One open-loop run. number: of the run; each has arrivals of its own."""
    arrivals = dataclasses.replace(plan.arrivals, seed=plan.arrivals.seed + number)
    duration = plan.run.warmup_s + max(plan.duration_s, plan.least_requests / rate)
    most = None
    if plan.search is not None and plan.budget is not None:
        bursts = arrivals.burst_size if arrivals.kind == "bursts" else 1
        most = int(max(_LEAST_HOPELESS, _HOPELESS * rate * plan.budget.p99_ms / 1e3)) + 4 * bursts
    return OpenLoop(channel, requests, plan.run).run(arrivals.schedule(rate, duration), rate, most)
