"""What the generator itself costs, and whether it was what limited a run."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfctr.loadtest.runs import Run

# One Python process sends from one core, more or less.
_BUSY_CORES = 0.85
_LATE_MS, _LATE_SHARE = 2.0, 0.25


class CpuMeter:
    """Processor time of this process between two moments."""

    def __enter__(self) -> CpuMeter:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wall, self._cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu

    def told(self, requests: int) -> dict[str, float]:
        """cores: that were busy on average; us_per_request; cores_allowed: that this process may run on."""
        return {
            "cores": self._cpu / max(self._wall, 1e-9),
            "us_per_request": self._cpu / max(1, requests) * 1e6,
            "cores_allowed": float(len(os.sched_getaffinity(0))),
        }


def warnings(run: Run, connections: int, in_process: bool = False) -> list[str]:
    """Why the figures of ``run`` may tell of the generator instead of the server. connections: the limit of a run."""
    found: list[str] = []
    summary, cpu = run.summary, run.cpu
    if not in_process and cpu["cores"] > _BUSY_CORES:
        found.append(
            f"the generator used {cpu['cores']:.2f} cores ({cpu['us_per_request']:.0f} us a request), about all that "
            "one process can: the server may be able to do more"
        )
    p99 = summary.percentile(99.0)
    if not in_process and run.mode == "open" and summary.late_ms["p99"] > max(_LATE_MS, _LATE_SHARE * p99):
        found.append(
            f"the generator was late by {summary.late_ms['p99']:.1f} ms for one request of a hundred (p99 {p99:.1f} "
            "ms): its own core is too busy"
        )
    if run.mode == "open" and run.clients >= connections and summary.waited_ms["p99"] > _LATE_MS:
        found.append(
            f"all {connections} connections were in use and requests waited for one "
            f"({summary.waited_ms['p99']:.1f} ms at p99, counted as latency)"
        )
    return found


def stages(timings: list[Any]) -> dict[str, float]:
    """Means of what the server told of itself (nanoseconds by stage), in milliseconds."""
    if not timings:
        return {}
    sums: dict[str, list[float]] = {}
    for timing in timings:
        for name, value in timing.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                sums.setdefault(name, []).append(float(value))
    return {name: sum(values) / len(values) / 1e6 for name, values in sums.items()}
