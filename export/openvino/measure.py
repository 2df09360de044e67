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
# Of a tower so large that all of these at once would take this much for weights.
_FEW, _MOST_BYTES = (8, 64, 256), 2**30
# Rows at which the engine is compared with TensorFlow.
COMPARED = (32, 256, 512)
# Of inner sizes that a tower leaves open, such as the length of a history.
INNER = 20
_LEAST_ROUNDS, _MOST_ROUNDS, _WARMUP = 3, 40, 1
# Rows of a short run, and the share of the seconds that all of these get.
_SMALL, _SMALL_SHARE = 64, 0.35

Feeds = Mapping[str, np.ndarray]
_Call = Callable[[], object]
Calls = Mapping[str, _Call]


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
        """Every candidate as a static variant, and the dynamic one at the same rows.

        Every call of the dynamic one comes after a call of another size, as it does where requests differ: shapes are
        inferred anew then.
        """
        feeds = {rows: feeds_of(self.tower, rows) for rows in candidates}
        other = {rows: feeds_of(self.tower, 2 if rows > 2 else 3) for rows in candidates}
        every = EngineOptions(buckets=tuple(candidates), users=users_of(self.tower))
        calls: dict[int, dict[str, _Call]] = {}
        with self._opened(EngineOptions()) as dynamic, self._opened(every) as static:
            for rows, one in feeds.items():
                calls[rows] = {
                    f"size before dynamic {rows}": functools.partial(dynamic.run, other[rows]),
                    f"dynamic {rows}": functools.partial(dynamic.run, one),
                    **_warmed(f"static {rows}", rows, functools.partial(static.run, one)),
                }
            found = self._measured(calls, seconds)
        return Times(
            dynamic_ms={rows: found[f"dynamic {rows}"] for rows in candidates},
            static_ms={rows: found[f"static {rows}"] for rows in candidates},
            copy_ms=copy_ms(feeds[max(candidates)]) / max(candidates),
        )

    def against_tensorflow(
        self, options: EngineOptions, compared: Sequence[int], seconds: float
    ) -> tuple[dict[int, float], dict[int, float]]:
        """(TensorFlow, OpenVINO): milliseconds by rows."""
        calls: dict[int, dict[str, _Call]] = {}
        with self._opened(options) as engine, TensorFlowRunner(self.tower, self.threads) as reference:
            for rows in compared:
                one = feeds_of(self.tower, rows)
                calls[rows] = {
                    **_warmed(f"tensorflow {rows}", rows, functools.partial(reference.run, one)),
                    **_warmed(f"openvino {rows}", rows, functools.partial(engine.run, one)),
                }
            found = self._measured(calls, seconds)
        return (
            {rows: found[f"tensorflow {rows}"] for rows in compared},
            {rows: found[f"openvino {rows}"] for rows in compared},
        )

    def _measured(self, calls: Mapping[int, Calls], seconds: float) -> dict[str, float]:
        """Short runs in turns among themselves: many rounds of them take little time, and they need them."""
        found: dict[str, float] = {}
        for small, share in ((True, _SMALL_SHARE), (False, 1 - _SMALL_SHARE)):
            group = {
                name: call for rows, some in calls.items() if (rows <= _SMALL) == small for name, call in some.items()
            }
            if group:
                found |= self.measure(group, seconds * share)
        return found

    @contextmanager
    def _opened(self, options: EngineOptions) -> Iterator[Runner]:
        engine = self.open_engine(options)
        try:
            yield engine
        finally:
            engine.close()


def _warmed(name: str, rows: int, call: _Call) -> dict[str, _Call]:
    """A contestant; a short one right after an equal call, so that its own weights are in the cache and no other's."""
    return {f"weights of {name}": call, name: call} if rows <= _SMALL else {name: call}


def only_rows_are_open(tower: Tower) -> bool:
    """Whether numbers of rows and users make every shape of the tower known: what a static variant needs."""
    return all(one.shape and None not in one.shape[1:] for one in tower.inputs)


def candidates(weights_bytes: int) -> tuple[int, ...]:
    """Static variants to try. All are in memory at once, each with its own weights."""
    return CANDIDATES if weights_bytes * len(CANDIDATES) <= _MOST_BYTES else _FEW


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


def least_ms(calls: Calls, seconds: float, threads: int = 1) -> dict[str, float]:
    """The least time of every call, measured in turns for about ``seconds``.

    With one thread it is the process's CPU time: it does not grow when other processes take the CPU away.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    found: dict[str, Timing] = measure_paired(
        calls, _MOST_ROUNDS, _WARMUP, budget_s=seconds, least_rounds=_LEAST_ROUNDS, clock=clock
    )
    return {name: timing.min_ms for name, timing in found.items()}


def as_json(times: Times) -> list[dict[str, Any]]:
    """Measured milliseconds by rows."""
    return [
        {"rows": rows, "dynamic_ms": round(times.dynamic_ms[rows], 4), "static_ms": round(times.static_ms[rows], 4)}
        for rows in sorted(times.dynamic_ms)
    ]
