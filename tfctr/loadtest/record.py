"""What is written down of each request, and what a run comes to."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tfctr.loadtest.channel import OK, Answer

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
CURVE = (0.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 97.5, 99.0, 99.5, 99.9, 99.95, 99.99, 100.0)
UNSENT = "NOT_SENT"  # the run was given up first


class Record:
    """Times of each request in nanoseconds of one clock; a request is written by one thread, then never again.

    due: when it was to be sent. given: when the generator had it ready for a connection. sent: when a connection took
    it. done: when its answer was there.
    """

    def __init__(self, due_ns: npt.NDArray[np.int64]) -> None:
        count = len(due_ns)
        self.due = due_ns
        self.given = np.zeros(count, np.int64)
        self.sent = np.zeros(count, np.int64)
        self.done = np.zeros(count, np.int64)
        self.rows = np.zeros(count, np.int32)
        self.codes = np.full(count, -1, np.int16)
        self.timings: list[Mapping[str, Any]] = []
        self.messages: dict[str, str] = {}
        self._names: list[str] = [OK]
        self._lock = threading.Lock()

    def add(self, index: int, sent: int, done: int, rows: int, answer: Answer) -> None:
        self.sent[index] = sent
        self.done[index] = done
        self.rows[index] = rows
        self.codes[index] = 0 if answer.code == OK else self._code(answer)
        if answer.timing is not None:
            self.timings.append(answer.timing)

    def _code(self, answer: Answer) -> int:
        with self._lock:
            self.messages.setdefault(answer.code, answer.message)
            if answer.code not in self._names:
                self._names.append(answer.code)
            return self._names.index(answer.code)

    def counts(self, chosen: npt.NDArray[Any]) -> dict[str, int]:
        """Requests by code."""
        found = Counter(self.codes[chosen].tolist())
        return {UNSENT if code < 0 else self._names[code]: found[code] for code in sorted(found)}


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a run came to, after its warm-up.

    Latencies are of answers without error, in milliseconds, from the moment a request was due (open loop) or sent
    (closed loop) to its answer. ``percentiles_ms`` has PERCENTILES, ``curve_ms`` has CURVE. duration_s: to the last
    answer; due_s: to the moment when the last request was due.
    """

    requests: int
    ok: int
    errors: dict[str, int]
    messages: dict[str, str]
    duration_s: float
    due_s: float
    answers_per_s: float
    rows_per_s: float
    mean_ms: float | None
    percentiles_ms: dict[str, float | None]
    curve_ms: list[tuple[float, float]]
    late_ms: dict[str, float]  # p50 and p99 of how late the generator itself was
    waited_ms: dict[str, float]  # p50 and p99 of the wait for a connection
    over_time: list[dict[str, float]]  # second of the run, answers, p50, p99

    def percentile(self, which: float) -> float:
        """Milliseconds; infinity where nothing was answered."""
        value = self.percentiles_ms[name_of(which)]
        return float("inf") if value is None else value

    @property
    def failed(self) -> int:
        return sum(self.errors.values())

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"failed": self.failed}


def name_of(percentile: float) -> str:
    return f"p{percentile:g}"


def summarise(record: Record, start_ns: int, warmup_s: float = 0.0, end_ns: int | None = None) -> Summary:
    """start_ns: of the run; requests due in its first ``warmup_s`` seconds are left out. end_ns: when it ended, where
    that is not the last answer.
    """
    first = start_ns + int(warmup_s * 1e9)
    measured = record.due >= first
    ok = measured & (record.codes == 0)
    latency = (record.done[ok] - record.due[ok]) / 1e6
    sent = measured & (record.codes >= 0)
    last = int(record.done[sent].max(initial=first)) if end_ns is None else end_ns
    duration = max(1e-9, (last - first) / 1e9)
    counts = record.counts(measured)
    answered = counts.pop(OK, 0)
    return Summary(
        requests=int(measured.sum()),
        ok=answered,
        errors=counts,
        messages=dict(record.messages),
        duration_s=duration,
        due_s=max(0, int(record.due[measured].max(initial=first)) - first) / 1e9,
        answers_per_s=answered / duration,
        rows_per_s=float(record.rows[ok].sum()) / duration,
        mean_ms=float(latency.mean()) if len(latency) else None,
        percentiles_ms=_percentiles(latency, PERCENTILES),
        curve_ms=[(q, value) for q, value in zip(CURVE, _at(latency, CURVE), strict=False)],
        late_ms=_two((record.given[sent] - record.due[sent]) / 1e6),
        waited_ms=_two((record.sent[sent] - record.given[sent]) / 1e6),
        over_time=_by_second(record, ok, first),
    )


def _at(values: npt.NDArray[np.float64], percentiles: tuple[float, ...]) -> list[float]:
    """Values that were measured, never one between two: a p99 is a latency that some request had."""
    return np.percentile(values, percentiles, method="inverted_cdf").tolist() if len(values) else []


def _percentiles(values: npt.NDArray[np.float64], which: tuple[float, ...]) -> dict[str, float | None]:
    found: list[float | None] = [*_at(values, which)] or [None] * len(which)
    return {name_of(q): value for q, value in zip(which, found, strict=True)}


def _two(values: npt.NDArray[np.float64]) -> dict[str, float]:
    p50, p99 = _at(values, (50.0, 99.0)) or (0.0, 0.0)
    return {"p50": p50, "p99": p99}


def _by_second(record: Record, ok: npt.NDArray[np.bool_], first: int) -> list[dict[str, float]]:
    if not ok.any():
        return []
    seconds = (record.due[ok] - first) // 1_000_000_000
    latency = (record.done[ok] - record.due[ok]) / 1e6
    order = np.argsort(seconds, kind="stable")
    names, starts = np.unique(seconds[order], return_index=True)
    found = []
    for second, group in zip(names.tolist(), np.split(latency[order], starts[1:]), strict=True):
        p50, p99 = _at(group, (50.0, 99.0))
        found.append({"second": second, "answers": len(group), "p50_ms": p50, "p99_ms": p99})
    return found
