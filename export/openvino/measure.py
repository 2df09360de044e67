"""Times of one tower: OpenVINO's variants, and TensorFlow beside OpenVINO. Contestants run in turns.

A time is the least of its rounds: what else the machine does only adds to it.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from export.feeds import Sizes, random_feeds
from export.openvino.choose import Times
from export.openvino.options import EngineOptions
from export.openvino.tensorflow_runner import TensorFlowRunner
from export.tower import Tower
from tfctr.profiling.paired import Timing, measure_paired

# Static variants that are tried; the dynamic one is measured at the same rows.
CANDIDATES = (1, 8, 32, 64, 128, 256, 512)
# Rows at which the engine is compared with TensorFlow.
COMPARED = (32, 256, 512)
# Of inner sizes that a tower leaves open, such as the length of a history.
INNER = 20
_LEAST_ROUNDS, _MOST_ROUNDS, _WARMUP = 3, 40, 2

Feeds = Mapping[str, np.ndarray]
Calls = Mapping[str, Callable[[], object]]


class Runner(Protocol):
    """An engine, opened."""

    def run(self, feeds: Feeds) -> Mapping[str, np.ndarray]: ...

    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
    """What is measured, and how.

    open_engine: opens the tower with these options. measure: (calls by name, seconds) -> least milliseconds by name.
    """

    tower: Tower
    threads: int
    open_engine: Callable[[EngineOptions], Runner]
    measure: Callable[[Calls, float], Mapping[str, float]]

    def variants(self, candidates: Sequence[int], seconds: float) -> Times:
        """Every candidate as a static variant, and the dynamic one at the same rows."""
        feeds = {rows: feeds_of(self.tower, rows) for rows in candidates}
        calls: dict[str, Callable[[], object]] = {}
        every = EngineOptions(buckets=tuple(candidates), users=users_of(self.tower))
        with self._opened(EngineOptions()) as dynamic, self._opened(every) as static:
            for rows, one in feeds.items():
                calls[f"dynamic {rows}"] = functools.partial(dynamic.run, one)
                calls[f"static {rows}"] = functools.partial(static.run, one)
            found = self.measure(calls, seconds)
        return Times(
            dynamic_ms={rows: found[f"dynamic {rows}"] for rows in candidates},
            static_ms={rows: found[f"static {rows}"] for rows in candidates},
            copy_ms=copy_ms(feeds[max(candidates)]) / max(candidates),
        )

    def against_tensorflow(
        self, options: EngineOptions, compared: Sequence[int], seconds: float
    ) -> tuple[dict[int, float], dict[int, float]]:
        """(TensorFlow, OpenVINO): milliseconds by rows."""
        calls: dict[str, Callable[[], object]] = {}
        with self._opened(options) as engine, TensorFlowRunner(self.tower, self.threads) as reference:
            for rows in compared:
                one = feeds_of(self.tower, rows)
                calls[f"tensorflow {rows}"] = functools.partial(reference.run, one)
                calls[f"openvino {rows}"] = functools.partial(engine.run, one)
            found = self.measure(calls, seconds)
        return (
            {rows: found[f"tensorflow {rows}"] for rows in compared},
            {rows: found[f"openvino {rows}"] for rows in compared},
        )

    @contextmanager
    def _opened(self, options: EngineOptions) -> Iterator[Runner]:
        engine = self.open_engine(options)
        try:
            yield engine
        finally:
            engine.close()


def only_rows_are_open(tower: Tower) -> bool:
    """Whether numbers of rows and users make every shape of the tower known: what a static variant needs."""
    return all(one.shape and None not in one.shape[1:] for one in tower.inputs)


def users_of(tower: Tower) -> int:
    """Users of a static variant: 1, as most requests have it; 0 where the tower knows none."""
    return int(any(one.side == "user" for one in tower.inputs))


def feeds_of(tower: Tower, rows: int) -> dict[str, np.ndarray]:
    """Random inputs of ``rows`` rows, one user."""
    return random_feeds(tower, Sizes(rows=rows, user_rows=1, inner=INNER))


def copy_ms(feeds: Feeds, rounds: int = 3) -> float:
    """Milliseconds that copying these inputs takes: what filling a batch up costs."""
    copies = {name: np.empty_like(array) for name, array in feeds.items()}
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        for name, array in feeds.items():
            np.copyto(copies[name], array)
        best = min(best, (time.perf_counter() - begin) * 1e3)
    return best


def least_ms(calls: Calls, seconds: float) -> dict[str, float]:
    """Least wall time of every call, measured in turns for about ``seconds``."""
    found: dict[str, Timing] = measure_paired(
        calls, _MOST_ROUNDS, _WARMUP, budget_s=seconds, least_rounds=_LEAST_ROUNDS
    )
    return {name: timing.min_ms for name, timing in found.items()}


def as_json(times: Times) -> list[dict[str, Any]]:
    """Measured milliseconds by rows."""
    return [
        {"rows": rows, "dynamic_ms": round(times.dynamic_ms[rows], 4), "static_ms": round(times.static_ms[rows], 4)}
        for rows in sorted(times.dynamic_ms)
    ]
