"""Paired timing: contestants run in turn in one process, so that a machine that drifts drifts for all of them alike."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable, Mapping

import numpy as np


@dataclasses.dataclass(frozen=True)
class Timing:
    """Times of one contestant in milliseconds, of the wall unless another clock was given."""

    name: str
    samples_ms: np.ndarray  # float64 [rounds]

    @property
    def min_ms(self) -> float:
        return float(self.samples_ms.min())

    @property
    def median_ms(self) -> float:
        return float(np.median(self.samples_ms))

    @property
    def p99_ms(self) -> float:
        return float(np.percentile(self.samples_ms, 99))

    def as_dict(self) -> dict[str, float]:
        return {
            "min_ms": self.min_ms,
            "median_ms": self.median_ms,
            "p99_ms": self.p99_ms,
            "rounds": len(self.samples_ms),
        }


def measure_paired(
    contestants: Mapping[str, Callable[[], object]],
    rounds: int = 100,
    warmup_rounds: int = 10,
    budget_s: float | None = None,
    progress: Callable[[int, int], None] | None = None,
    least_rounds: int = 5,
    clock: Callable[[], float] = time.perf_counter,
    settle: bool = False,
) -> dict[str, Timing]:
    """Times every contestant once per round, in an order that turns by one each round.

    Args:
      contestants: name to a call without arguments.
      rounds: measured rounds; fewer if ``budget_s`` seconds are used up first (``least_rounds`` are made).
      warmup_rounds: rounds before, not measured (allocators, lazy kernels, caches).
      progress: called with (rounds done, rounds wanted).
      clock: seconds of a contestant's call; ``budget_s`` is wall time whatever this is.
      settle: every timed call comes right after one of the same contestant that is not timed, so that it finds the
        caches as a process would that runs nothing else.
    """
    names = list(contestants)
    for _ in range(warmup_rounds):
        for name in names:
            contestants[name]()
    samples: dict[str, list[float]] = {name: [] for name in names}
    started = time.perf_counter()
    collecting = gc.isenabled()
    gc.disable()  # a collection would hit one contestant at random
    try:
        for i in range(rounds):
            for name in names[i % len(names) :] + names[: i % len(names)]:
                if settle:
                    contestants[name]()
                begin = clock()
                contestants[name]()
                samples[name].append((clock() - begin) * 1e3)
            if progress is not None:
                progress(i + 1, rounds)
            if budget_s is not None and i + 1 >= least_rounds and time.perf_counter() - started > budget_s:
                break
    finally:
        if collecting:
            gc.enable()
    return {name: Timing(name, np.array(samples[name])) for name in names}


def ratio(slow: Timing, fast: Timing) -> dict[str, float]:
    """How many times faster ``fast`` is: of minima, medians, p99s, and the median of the ratios round by round."""
    rounds = min(len(slow.samples_ms), len(fast.samples_ms))
    return {
        "min": slow.min_ms / fast.min_ms,
        "median": slow.median_ms / fast.median_ms,
        "p99": slow.p99_ms / fast.p99_ms,
        "paired_median": float(np.median(slow.samples_ms[:rounds] / fast.samples_ms[:rounds])),
    }
