"""The highest rate that keeps a latency budget: doubling, then halving the interval, then runs that confirm."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tfctr.errors import UsageError
from tfctr.loadtest.runs import Run


@dataclasses.dataclass(frozen=True)
class Budget:
    """What a run must keep to pass.

    p99_ms: latency. errors: share of requests that may fail. least_share: of the rate at which requests were due that
    must be answered: a queue that grows all along keeps no latency in a longer run.
    """

    p99_ms: float
    errors: float = 0.0
    least_share: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.p99_ms < float("inf"):
            raise UsageError(f"a p99 of {self.p99_ms:g} ms: expected a positive number")

    def kept(self, run: Run) -> bool:
        return self.reason(run) is None

    def reason(self, run: Run) -> str | None:
        """Why ``run`` does not pass; None where it does."""
        summary = run.summary
        if run.given_up:
            return "answers fell behind; the run was given up"
        if not summary.requests:
            return "no request was due after the warm-up"
        if summary.failed > self.errors * summary.requests:
            code, count = max(summary.errors.items(), key=lambda one: one[1])
            return f"{summary.failed} of {summary.requests} requests failed ({count} {code})"
        if summary.percentile(99.0) > self.p99_ms:
            return f"p99 {summary.percentile(99.0):.1f} ms"
        # Against what was due, not against the rate: 250 Poisson arrivals are 6 % fewer in one run of six.
        if run.rate is not None and summary.due_s < self.least_share * summary.duration_s and summary.requests >= 200:
            return f"{summary.answers_per_s:.0f} answers/s of {summary.requests / max(summary.due_s, 1e-9):.0f} due"
        return None


@dataclasses.dataclass(frozen=True)
class Found:
    """rate: the highest that passed, and its confirming run; None where no rate did. runs: all, in order."""

    rate: float | None
    best: Run | None
    runs: list[Run]
    reasons: list[str | None]
    limited: bool = False  # the highest rate allowed passed

    def as_dict(self) -> dict[str, Any]:
        return {
            "rate": self.rate,
            "limited": self.limited,
            "best": None if self.best is None else self.best.as_dict(),
            "runs": [run.as_dict() | {"missed": why} for run, why in zip(self.runs, self.reasons, strict=True)],
        }


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """start: first rate. lowest, highest: bounds. precision: the last step relative to the rate. confirm: runs at the
    rate found, of which more than half must pass; else the search steps down.
    """

    start: float = 50.0
    lowest: float = 1.0
    highest: float = 100_000.0
    precision: float = 0.04
    confirm: int = 3

    def __post_init__(self) -> None:
        if not 0 < self.lowest <= self.start <= self.highest:
            raise UsageError(
                f"search from {self.start:g} in [{self.lowest:g}, {self.highest:g}] requests/s: "
                "expected 0 < lowest <= start <= highest"
            )
        if not 0 < self.precision < 1:
            raise UsageError(f"a precision of {self.precision:g}: expected a share such as 0.04")


def highest_rate(
    measure: Callable[[float, int], Run],
    budget: Budget,
    options: SearchOptions,
    told: Callable[[float, Run, str | None], None] = lambda rate, run, why: None,
) -> Found:
    """measure: (rate, number of the run) -> a run at that rate; every number gets other arrivals. told: after each."""
    runs: list[Run] = []
    reasons: list[str | None] = []

    def passes(rate: float) -> bool:
        run = measure(rate, len(runs))
        runs.append(run)
        reasons.append(budget.reason(run))
        told(rate, run, reasons[-1])
        return reasons[-1] is None

    def found(rate: float | None, limited: bool = False) -> Found:
        passed = [run for run, why in zip(runs, reasons, strict=True) if why is None and run.rate == rate]
        return Found(rate, passed[-1] if passed else None, runs, reasons, limited)

    low, high = _bracket(passes, options)
    if low is None:
        return found(None)
    while high is not None and high > low * (1 + options.precision):
        middle = (low * high) ** 0.5
        if passes(middle):
            low = middle
        else:
            high = middle
    # A run that just passed may have been lucky: the rate must hold again, with other arrivals.
    rate = low
    while rate >= options.lowest:
        if _confirmed(passes, rate, options.confirm):
            return found(rate, limited=high is None)
        high, rate = rate, rate / (1 + options.precision)
    return found(None)


def _bracket(passes: Callable[[float], bool], options: SearchOptions) -> tuple[float | None, float | None]:
    """(a rate that passed or None, a rate that did not or None)."""
    rate = options.start
    if passes(rate):
        while rate < options.highest:
            higher = min(rate * 2, options.highest)
            if not passes(higher):
                return rate, higher
            rate = higher
        return rate, None
    while rate > options.lowest:
        lower = max(rate / 2, options.lowest)
        if passes(lower):
            return lower, rate
        rate = lower
    return None, rate


def _confirmed(passes: Callable[[float], bool], rate: float, runs: int) -> bool:
    needed = runs // 2 + 1 if runs else 0
    good = bad = 0
    while good < needed:
        if passes(rate):
            good += 1
        else:
            bad += 1
            if bad > runs - needed:
                return False
    return True
