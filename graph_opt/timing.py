"""How long the converted graph takes beside the unrewritten one: a first figure for the report of a conversion."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.recheck import call_of, inputs_of

_WARM_UP, _ROUNDS, _BUDGET_S = 3, 40, 0.5


def measure(
    reference: GraphItem, item: GraphItem, described: Mapping[str, Any], options: ConvertOptions, restore: str | None
) -> dict[str, Any]:
    """Times the optimised signature with the most inputs: ``threads``, ``signature``, ``ratio`` of the medians and
    ``rows`` of {batch, name, min_ms, median_ms, p99_ms}.

    Both run in turn in this process, on one thread, under TensorFlow's default optimisers, with inputs ready to feed
    (for the converted graph: packed). The reference is the unrewritten graph over the same table files.
    """
    name = max(item.optimise, key=lambda n: len(described[n]["inputs"]))
    inputs = inputs_of(described[name], options, name)
    with contextlib.ExitStack() as stack:
        calls = {
            "stock operations": call_of(stack, reference, name, described[name], inputs, restore, packed=False),
            "tfctr": call_of(stack, item, name, described[name], inputs, restore, packed=name in item.packed),
        }
        times = _in_turn(calls)
    rows: list[dict[str, Any]] = [
        {"batch": _batch(described[name], inputs), "name": label, **_figures(np.asarray(taken) * 1e3)}
        for label, taken in times.items()
    ]
    return {
        "signature": name,
        "threads": 1,
        "ratio": round(rows[0]["median_ms"] / max(rows[1]["median_ms"], 1e-6), 2),
        "rows": rows,
    }


def _in_turn(calls: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds per call; the contestants take turns, so that the machine's moods hit both."""
    times: dict[str, list[float]] = {label: [] for label in calls}
    for call in calls.values():
        for _ in range(_WARM_UP):
            call()
    end = time.perf_counter() + _BUDGET_S
    for number in range(_ROUNDS):
        if number >= 5 and time.perf_counter() > end:
            break
        for label, call in calls.items():
            start = time.perf_counter()
            call()
            times[label].append(time.perf_counter() - start)
    return times


def _figures(ms: Any) -> dict[str, float]:
    low, median, high = np.percentile(ms, [0, 50, 99])
    return {"min_ms": round(float(low), 4), "median_ms": round(float(median), 4), "p99_ms": round(float(high), 4)}


def _batch(info: Mapping[str, Any], inputs: Mapping[str, Any]) -> int:
    """Rows of the request, from its first feature."""
    for feature in info["features"]:
        parts = feature["parts"]
        if feature["kind"] == "ragged":
            return len(inputs[parts["row_splits"]]) - 1
        if feature["kind"] == "sparse":
            return int(np.asarray(inputs[parts["dense_shape"]])[0])
        if np.ndim(inputs[parts["values"]]) > 0:
            return len(inputs[parts["values"]])
    return 1
