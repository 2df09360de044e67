"""The chain of nodes that a step can't be faster than, however many threads it has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from tfctr.profiling.timeline.events import Event, Step
from tfctr.profiling.timeline.roles import node_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """A node of the chain. duration_ns: that it ran in this step, its repetitions in a loop together."""

    event: Event
    duration_ns: int


@dataclasses.dataclass(frozen=True)
class CriticalPath:
    """The longest chain, first node first. Its links follow each other in the graph and in time."""

    links: tuple[Link, ...] = ()

    @property
    def total_ns(self) -> int:
        return sum(link.duration_ns for link in self.links)


@dataclasses.dataclass(frozen=True)
class _Ran:
    event: Event
    start_ns: int
    end_ns: int
    duration_ns: int


def critical_path(step: Step, events: Sequence[Event], edges: Mapping[str, tuple[str, ...]]) -> CriticalPath:
    """The longest chain of one step by duration. A node that waited for another began after it had ended, so an edge
    that the step's clock contradicts (a loop's way back) is no part of a chain."""
    ran = _ran(step, events)
    sources = _sources(ran, edges)
    best: dict[str, int] = {}
    previous: dict[str, str | None] = {}
    for name in sorted(ran, key=lambda one: (ran[one].start_ns, ran[one].end_ns, one)):
        length, chosen = 0, None
        for source in sorted(sources[name]):
            if source in best and ran[source].end_ns <= ran[name].start_ns and best[source] > length:
                length, chosen = best[source], source
        best[name], previous[name] = length + ran[name].duration_ns, chosen
    if not best:
        return CriticalPath()
    chain: list[Link] = []
    at: str | None = max(best, key=lambda one: (best[one], one))
    while at is not None:
        chain.append(Link(event=ran[at].event, duration_ns=ran[at].duration_ns))
        at = previous[at]
    return CriticalPath(tuple(reversed(chain)))


def _ran(step: Step, events: Sequence[Event]) -> dict[str, _Ran]:
    """By node: when it ran. A node of a loop ran from its first to its last time, for as long as all its times."""
    times: dict[str, list[tuple[int, int]]] = {}
    first: dict[str, Event] = {}
    for event in events:
        start, end = max(event.start_ns, step.start_ns), min(event.end_ns, step.end_ns)
        if event.kind in ("op", "kernel") and end >= start:
            times.setdefault(event.name, []).append((start, end))
            first.setdefault(event.name, event)
    return {
        name: _Ran(first[name], min(s for s, _ in spans), max(e for _, e in spans), _covered(spans))
        for name, spans in times.items()
    }


def _covered(spans: Sequence[tuple[int, int]]) -> int:
    """Length of the union."""
    total, until = 0, min(start for start, _ in spans)
    for start, end in sorted(spans):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


def _sources(ran: Mapping[str, _Ran], edges: Mapping[str, tuple[str, ...]]) -> dict[str, set[str]]:
    """By node that ran: the nodes that ran which it waits for, looking through nodes that did not run."""
    through: dict[str, set[str]] = {}
    for name in _inputs_first([one for one in edges if one not in ran], ran, edges):
        through[name] = _gather(name, ran, edges, through)
    return {name: _gather(name, ran, edges, through) - {name} for name in ran}


def _gather(
    name: str, ran: Mapping[str, _Ran], edges: Mapping[str, tuple[str, ...]], through: Mapping[str, set[str]]
) -> set[str]:
    found: set[str] = set()
    for one in map(node_of, edges.get(name, ())):
        if one in ran:
            found.add(one)
        else:
            found |= through.get(one, set())
    return found


def _inputs_first(names: Sequence[str], ran: Mapping[str, _Ran], edges: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """``names`` and the nodes behind them that did not run, each after its inputs; a loop is cut where it is met."""
    seen: set[str] = set()
    for root in names:
        stack = [(root, False)]
        while stack:
            name, done = stack.pop()
            if done:
                yield name
            elif name not in seen and name not in ran:
                seen.add(name)
                stack.append((name, True))
                stack += [(node_of(one), False) for one in edges.get(name, ())]
