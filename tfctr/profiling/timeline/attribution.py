"""Whom each moment of a step belongs to: shares of the wall clock that add up to the whole step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfctr.profiling.timeline.events import Event, Step

_COUNTED = ("op", "kernel")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attribution:
    """A step taken apart. event_ns: beside each event, the time that is its own; idle: the stretches (start, end) in
    which nothing ran. All of them together are the step."""

    step: Step
    events: tuple[Event, ...]
    event_ns: tuple[float, ...]
    idle: tuple[tuple[int, int], ...]

    @property
    def before_ns(self) -> int:
        """Before the first operation: handing the inputs over."""
        return sum(end - start for start, end in self.idle if start == self.step.start_ns)

    @property
    def after_ns(self) -> int:
        """After the last operation: fetching the outputs. 0 where no operation ran at all."""
        return sum(end - start for start, end in self.idle if end == self.step.end_ns and start > self.step.start_ns)

    @property
    def idle_ns(self) -> int:
        return sum(end - start for start, end in self.idle)

    @property
    def between_ns(self) -> int:
        return self.idle_ns - self.before_ns - self.after_ns


def attribute(step: Step, events: Sequence[Event]) -> Attribution:
    """Goes through the step once. A moment belongs to the innermost event of each lane; where several lanes are busy,
    each gets an equal part of it. Layers of engines and instants count for nothing: their op is there."""
    own = [0.0] * len(events)
    active: dict[int, list[int]] = {}
    idle: list[tuple[int, int]] = []
    now = step.start_ns
    for at, begins, number in _moments(step, events):
        if at > now:
            if active:
                part = (at - now) / len(active)
                for running in active.values():
                    own[running[-1]] += part
            else:
                idle.append((now, at))
            now = at
        lane = events[number].lane
        if begins:
            active.setdefault(lane, []).append(number)
        else:
            active[lane].remove(number)
            if not active[lane]:
                del active[lane]
    if step.end_ns > now:
        idle.append((now, step.end_ns))
    return Attribution(step=step, events=tuple(events), event_ns=tuple(own), idle=tuple(idle))


def _moments(step: Step, events: Sequence[Event]) -> list[tuple[int, bool, int]]:
    """(time, whether it begins, number of the event) in order: ends before beginnings, the outer event begins first."""
    found = []
    for number, event in enumerate(events):
        start, end = max(event.start_ns, step.start_ns), min(event.end_ns, step.end_ns)
        if event.kind in _COUNTED and end > start:
            found += [(start, 1, -end, number), (end, 0, 0, number)]
    return [(at, bool(begins), number) for at, begins, _, number in sorted(found)]
