"""What Perfetto and chrome://tracing ask of a trace, checked strictly: whatever they would drop or mend is an error."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

_PHASES = {"X", "i", "M"}
_METADATA = {"process_name": str, "thread_name": str, "thread_sort_index": int}


def read_trace(path: Path) -> dict[str, Any]:
    """The trace, checked."""

    def constant(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    trace = json.loads(path.read_text(encoding="utf-8"), parse_constant=constant)
    check_trace(trace)
    return trace


def check_trace(trace: Any) -> None:
    assert isinstance(trace, dict)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events = trace["traceEvents"]
    assert isinstance(events, list)
    named: set[tuple[int, int]] = set()
    processes: set[int] = set()
    slices = defaultdict(list)
    for event in events:
        _check_event(event)
        place = (event["pid"], event["tid"])
        if event["ph"] == "M":
            assert event["name"] in _METADATA, event
            (value,) = event["args"].values()
            assert isinstance(value, _METADATA[event["name"]]), event
            if event["name"] == "process_name":
                assert event["pid"] not in processes, f"process {event['pid']} is named twice"
                processes.add(event["pid"])
            elif event["name"] == "thread_name":
                assert place not in named, f"thread {place} is named twice"
                named.add(place)
        else:
            slices[place].append(event)
    for place, found in slices.items():
        assert place in named and place[0] in processes, f"{place} has no name"
        _check_nested([e for e in found if e["ph"] == "X"])


def _check_event(event: Any) -> None:
    assert isinstance(event, dict) and event["ph"] in _PHASES, event
    assert isinstance(event["name"], str) and event["name"], event
    for key in ("pid", "tid"):
        assert type(event[key]) is int and 0 <= event[key] < 2**31, event
    if event["ph"] == "M":
        return
    assert isinstance(event["args"], dict), event
    assert isinstance(event["cat"], str) and event["cat"], event
    for key in ("ts", "dur") if event["ph"] == "X" else ("ts",):
        value = event[key]
        assert type(value) in (int, float) and math.isfinite(value) and value >= 0, event
    if event["ph"] == "i":
        assert event["s"] in ("g", "p", "t") and "dur" not in event, event


def _check_nested(slices: list[dict[str, Any]]) -> None:
    """Slices of one thread lie beside or inside each other, in whole nanoseconds."""
    open_: list[tuple[int, int]] = []
    spans = sorted(((round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in slices), key=lambda s: (s[0], -s[1]))
    for start, duration in spans:
        while open_ and open_[-1][1] <= start:
            open_.pop()
        assert not open_ or start + duration <= open_[-1][1], f"{start} + {duration} overlaps {open_[-1]}"
        open_.append((start, start + duration))
