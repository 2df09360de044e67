"""Paired measurement and tables for the benchmarks of embedding variables.

A contestant is a call ``run(k) -> seconds``: it runs its k-th batch and times itself, so that one that lives in another
process (TFRA) is not charged for the pipe between the two.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Run = Callable[[int], float]
HUGE = "glibc.malloc.hugetlb=1"
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
_clock = time.perf_counter


def use_clock(name: str) -> None:
    """ "wall", or "cpu": seconds of all threads of the process, which waiting for a busy core does not lengthen."""
    global _clock
    _clock = CLOCKS[name]


def now() -> float:
    """Seconds on the clock in use."""
    return _clock()


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of one contestant, one entry per round."""

    seconds: np.ndarray

    def as_dict(self) -> dict[str, float]:
        """min_ms, median_ms, p99_ms, rounds."""
        ms = self.seconds * 1e3
        return {
            "min_ms": float(ms.min()),
            "median_ms": float(np.median(ms)),
            "p99_ms": float(np.percentile(ms, 99)),
            "rounds": len(ms),
        }


def duel(contestants: Mapping[str, Run], rounds: int, warmup: int = 2, batches: int = 1) -> dict[str, Times]:
    """All contestants once per round, the first place turning; batch k = round modulo ``batches``."""
    names = list(contestants)
    samples: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()  # a collection would hit one contestant at random
    try:
        for r in range(-warmup, rounds):
            turn = r % len(names)
            for place, name in enumerate(names[turn:] + names[:turn]):
                # Each its own batch of the ring, so that none finds index and row numbers fetched by the one before.
                taken = contestants[name]((r + place * (batches // len(names))) % batches)
                if r >= 0:
                    samples[name].append(taken)
    finally:
        gc.enable()
    return {name: Times(np.array(s)) for name, s in samples.items()}


def ratio(slow: Times, fast: Times) -> dict[str, float]:
    """How many times faster ``fast`` is: of minima, of medians, and the median of the ratios round by round."""
    return {
        "min": float(slow.seconds.min() / fast.seconds.min()),
        "median": float(np.median(slow.seconds) / np.median(fast.seconds)),
        "paired": float(np.median(slow.seconds / fast.seconds)),
    }


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else float("nan")


def verdict(value: float, floor: float) -> str:
    """The floor in words; values are "times faster", so higher is better."""
    return f"floor {floor:g}: {'held' if value >= floor else 'MISSED'}"


def times_line(what: str, name: str, times: Times, million_rows: float) -> str:
    """One line of a table: minimum / median / p99 in ms, and million rows per second at the minimum."""
    d = times.as_dict()
    return (
        f"{what:<26}{name:<24}{d['min_ms']:9.2f} /{d['median_ms']:9.2f} /{d['p99_ms']:9.2f} ms"
        f"{million_rows / d['min_ms'] * 1e3:9.2f} Mrows/s"
    )


def free_memory() -> None:
    """Gives freed heap back to the kernel, so that the next contestant pays for its own pages."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def restart_with_huge_pages() -> None:
    """Starts this process anew with glibc asking for transparent huge pages (for every contestant); once."""
    if HUGE not in os.environ.get("GLIBC_TUNABLES", ""):
        os.environ["GLIBC_TUNABLES"] = HUGE
        spec = sys.modules["__main__"].__spec__
        assert spec is not None, "run with python -m"
        os.execv(sys.executable, [sys.executable, "-m", spec.name, *sys.argv[1:]])


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    model = [x for x in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")]
    return {
        "cpu": model[0].partition(":")[2].strip() if model else "unknown",
        "cores": os.cpu_count(),
        "clock": next(name for name, clock in CLOCKS.items() if clock is _clock),
        "load": os.getloadavg()[0],
        "huge_pages": HUGE in os.environ.get("GLIBC_TUNABLES", ""),
    }


def write_json(path: pathlib.Path | None, figures: Any) -> None:
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=1, default=float) + "\n")
