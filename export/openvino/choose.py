"""From measured times to decisions: which static variants the engine gets, and whether it beats TensorFlow. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from export.openvino.options import EngineOptions

# Rows that requests may have: evenly spread as ratios, with what lies just above a bucket; and round sizes, which
# clients prefer, so often that they weigh as much as all the others.
_SPREAD = sorted({*(round(2 ** (k / 6)) for k in range(61)), *(2**k + 1 for k in range(3, 10))})
_ROUND = (1, 8, 16, 32, 64, 100, 128, 200, 256, 500, 512, 1000)
WORKLOAD = {rows: 1.0 + (len(_SPREAD) / len(_ROUND) if rows in _ROUND else 0.0) for rows in sorted({*_SPREAD, *_ROUND})}
# A variant holds the weights once more and is compiled at every load: the workload must gain this much by it.
LEAST_GAIN = 1.015
MOST_VARIANTS = 5
# What the weights of all static variants of a tower may take.
MOST_BYTES = 256 * 2**20
# No batch size of the workload may be expected to be slower than with the dynamic variant alone, by more than this.
LOSES_AT_MOST = 1.1
# A batch is filled up only where that is expected to be this much faster than the dynamic variant.
PADDING_PAYS = 1.03
# Against TensorFlow.
CLEARLY_FASTER, NEVER_BELOW = 1.05, 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class Times:
    """Milliseconds by rows. copy_ms: what filling up costs per row that is copied."""

    dynamic_ms: Mapping[int, float]
    static_ms: Mapping[int, float]
    copy_ms: float = 0.0

    def dynamic(self, rows: int) -> float:
        """Of the dynamic variant, for any number of rows: on the line through the two measured ones next to it."""
        known = sorted(self.dynamic_ms)
        if len(known) == 1:
            return self.dynamic_ms[known[0]] * max(rows, 1) / known[0]
        after = next((k for k, one in enumerate(known) if one >= rows), len(known) - 1)
        low, high = known[max(after - 1, 0)], known[max(after, 1)]
        slope = (self.dynamic_ms[high] - self.dynamic_ms[low]) / (high - low)
        return max(self.dynamic_ms[low] + slope * (rows - low), 1e-6)

    def of(self, rows: int, options: EngineOptions) -> float:
        """Of a batch as ``options`` have it run."""
        whole = options.whole_pieces(rows)
        rest = rows - whole * options.chunk
        return self._last(rest, options.bucket(rest)) + (whole * self.static_ms[options.chunk] if whole else 0.0)

    def _last(self, rows: int, bucket: int) -> float:
        if not bucket:
            return self.dynamic(rows)
        return self.static_ms[bucket] + (self.copy_ms * rows if rows < bucket else 0.0)


def most_variants(weights_bytes: int) -> int:
    """How many static variants a tower with so many bytes of weights may have."""
    return min(MOST_VARIANTS, MOST_BYTES // max(weights_bytes, 1))


def choose_options(
    times: Times, users: int = 0, most: int = MOST_VARIANTS, workload: Mapping[int, float] = WORKLOAD
) -> EngineOptions:
    """The variants that pay, added one by one while the workload's geometric mean gains ``LEAST_GAIN``."""
    dynamic = {rows: times.dynamic(rows) for rows in workload}
    chosen, cost = EngineOptions(users=users), _cost(times, EngineOptions(), workload)
    while len(chosen.buckets) < most:
        better = [
            (_cost(times, options, workload), options)
            for bucket in sorted(set(times.static_ms) - set(chosen.buckets))
            for options in _with(times, chosen, bucket)
            if all(times.of(rows, options) <= LOSES_AT_MOST * dynamic[rows] for rows in workload)
        ]
        best_cost, best = min(better, key=lambda one: one[0], default=(math.inf, chosen))
        if best_cost > cost - math.log(LEAST_GAIN):
            break
        chosen, cost = best, best_cost
    return chosen


def gain(times: Times, options: EngineOptions, workload: Mapping[int, float] = WORKLOAD) -> float:
    """How many times faster the workload is than with the dynamic variant alone (geometric mean)."""
    return math.exp(_cost(times, EngineOptions(), workload) - _cost(times, options, workload))


def _cost(times: Times, options: EngineOptions, workload: Mapping[int, float]) -> float:
    return sum(weight * math.log(times.of(rows, options)) for rows, weight in workload.items()) / sum(workload.values())


def _with(times: Times, options: EngineOptions, bucket: int) -> list[EngineOptions]:
    """``options`` with one more bucket, for every size of the pieces that there is then."""
    buckets = tuple(sorted({*options.buckets, bucket}))
    pad = {
        one: rows
        for one, before in zip(buckets, (0, *buckets), strict=False)
        if (rows := _fewest(times, one, before)) < one
    }
    return [dataclasses.replace(options, buckets=buckets, pad=pad, chunk=chunk) for chunk in (0, *buckets)]


def _fewest(times: Times, bucket: int, before: int) -> int:
    """The fewest rows above ``before`` for which filling up to ``bucket`` pays; ``bucket`` where it never does."""
    for rows in range(before + 1, bucket):
        if (times.static_ms[bucket] + times.copy_ms * rows) * PADDING_PAYS < times.dynamic(rows):
            return rows
    return bucket


def compare(tensorflow_ms: Mapping[int, float], openvino_ms: Mapping[int, float]) -> dict[str, Any]:
    """Whether OpenVINO is faster, by milliseconds at equal rows. JSON-able (``Tuned.versus_tensorflow``)."""
    rows = [
        {
            "rows": n,
            "tensorflow_ms": round(tensorflow_ms[n], 4),
            "openvino_ms": round(openvino_ms[n], 4),
            "ratio": round(tensorflow_ms[n] / openvino_ms[n], 4),
        }
        for n in sorted(tensorflow_ms)
    ]
    worst = min(rows, key=lambda row: row["ratio"])
    mean = math.exp(sum(math.log(row["ratio"]) for row in rows) / len(rows))
    faster = mean >= CLEARLY_FASTER and worst["ratio"] >= NEVER_BELOW
    at = ", ".join(f"{row['ratio']:.2f}x at {row['rows']} rows" for row in rows)
    if faster:
        reason = f"OpenVINO is {mean:.2f}x as fast as TensorFlow ({at})"
    elif mean < CLEARLY_FASTER:
        reason = f"OpenVINO is not clearly faster: {mean:.2f}x TensorFlow's speed, {CLEARLY_FASTER:g}x is wanted ({at})"
    else:
        reason = f"OpenVINO is slower at {worst['rows']} rows ({at}; never below {NEVER_BELOW:g}x)"
    return {
        "faster": faster,
        "reason": reason,
        "geometric_mean": round(mean, 4),
        "least": worst["ratio"],
        "rows": rows,
    }
