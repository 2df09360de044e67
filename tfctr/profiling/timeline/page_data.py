"""What the picture of a timeline is drawn from: the events of one step of each recording, as numbers over tables of
texts. Nothing of it is markup: the page sets every text as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from tfctr.profiling.timeline.analysis import Analysis
from tfctr.profiling.timeline.events import Event, Lane
from tfctr.profiling.timeline.roles import ROLE_WORDS, ROLES

MAX_ROWS = 6  # of one lane; what lies deeper is drawn in the last of them
_SHOWN_FEATURES = 2000
_LANE_ORDER = ("overhead", "transfers", "thread", "device", "stream", "engine")


def picture(analyses: Sequence[tuple[str, Analysis]]) -> dict[str, Any]:
    """Both recordings on one scale. analyses: (title, what it is of), the upper one first."""
    sides = [_side(title, a) for title, a in analyses if a.drawn is not None]
    return {
        "roles": list(ROLES),
        "words": [ROLE_WORDS[role] for role in ROLES],
        "scale": max((side["step"] for side in sides), default=0),
        "sides": sides,
    }


def embed(data: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can close the element or open a comment."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class _Table:
    """Values by number, each once."""

    def __init__(self) -> None:
        self.values: dict[Hashable, int] = {}

    def __call__(self, value: Hashable) -> int:
        return self.values.setdefault(value, len(self.values))


def _side(title: str, a: Analysis) -> dict[str, Any]:
    assert a.drawn is not None
    step = a.drawn
    events = [event for event in a.timeline.events if event.step == step.index]
    texts, tags = _Table(), _Table()
    lanes: list[dict[str, Any]] = []
    rows: list[list[int]] = []
    for lane in _lanes(a.timeline.lanes, events):
        inside = sorted((e for e in events if e.lane == lane.id), key=lambda e: (e.start_ns, -e.duration_ns))
        depths = stack(inside)
        for event, depth in zip(inside, depths, strict=True):
            rows.append(_numbers(event, len(lanes), depth, step.start_ns, a, texts, tags))
        lanes.append({"name": lane_words(lane), "kind": lane.kind, "rows": max(depths, default=0) + 1})
    return {
        "title": title,
        "step": step.duration_ns,
        "lanes": lanes,
        "events": rows,
        "texts": list(texts.values),
        "tags": [_tag(key) for key in tags.values],
    }


def _numbers(
    event: Event, lane: int, row: int, origin: int, a: Analysis, text: Callable[[Hashable], int], tag: _Table
) -> list[int]:
    role = ROLES.index(a.roles[event.name])
    size = -1 if event.bytes is None else event.bytes
    tags = tag((event.tags.features, event.tags.pass_name, event.tags.rule, event.tags.tables))
    numbers = [lane, row, event.start_ns - origin, event.duration_ns, text(event.name), text(event.op), role, tags]
    return [*numbers, size] if event.kind == "transfer" else numbers


def _tag(key: Any) -> list[Any]:
    """Features (the first ones, then how many more), pass, rule, tables."""
    features, pass_name, rule, tables = key
    return [
        list(features[:_SHOWN_FEATURES]),
        len(features),
        pass_name,
        rule,
        list(tables[:_SHOWN_FEATURES]),
        len(tables),
    ]


def _lanes(lanes: Sequence[Lane], events: Sequence[Event]) -> list[Lane]:
    """Lanes with events in them, in the order in which they are drawn."""
    used = {event.lane for event in events}
    order = {kind: number for number, kind in enumerate(_LANE_ORDER)}
    return sorted((lane for lane in lanes if lane.id in used), key=lambda one: (order.get(one.kind, 9), one.id))


def lane_words(lane: Lane) -> str:
    """ "CPU:0, thread 4711 tf_Compute"; names of pools have a number behind a slash that says nothing."""
    if lane.kind in ("thread", "stream"):
        return f"{lane.device}, {lane.kind} {lane.true_id} {lane.name.partition('/')[0]}".strip()
    return lane.name or f"{lane.device} {lane.kind}".strip()


def stack(events: Sequence[Event]) -> list[int]:
    """The row of each event, in order of their starts: the first one that is free, so a nested or overlapping event
    lies below. Rows beyond MAX_ROWS fall into the last."""
    free: list[int] = []
    found = []
    for event in events:
        row = next((number for number, until in enumerate(free) if until <= event.start_ns), len(free))
        if row == len(free):
            free.append(0)
        free[row] = max(event.end_ns, event.start_ns + 1)
        found.append(min(row, MAX_ROWS - 1))
    return found
