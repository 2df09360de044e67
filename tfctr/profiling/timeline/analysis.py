"""What a timeline says: where the time of a step goes, and how the embedding work lies in it."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence

from tfctr.profiling.timeline.attribution import Attribution, attribute
from tfctr.profiling.timeline.critical_path import CriticalPath, critical_path
from tfctr.profiling.timeline.events import Event, Step, Timeline
from tfctr.profiling.timeline.grouping import Sample, Share, group
from tfctr.profiling.timeline.roles import DENSE_OPS, FEEDS, LOOKUP, OVERHEAD, ROLES, STRING_OPS, role_of_nodes

# They do no work of their own, so one between two lookups does not part them.
_NEUTRAL = frozenset({"Const", "NoOp", "Identity", "IdentityN", "_Arg", "_Retval", "Placeholder", "VarHandleOp"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spread:
    """How embedding work lies in the step that is drawn. first_ns, last_ns: since its beginning; share: of the step
    between them, 0..1; stretches: runs of lookup operations without other work in between; ops: operations."""

    first_ns: int
    last_ns: int
    share: float
    stretches: int
    ops: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overhead:
    """Time per step in which no operation ran. share: of the step; before: until the first operation (feeding), after:
    from the last one on (fetching), between: what the executor needs from one operation to the next."""

    total_ns: float
    share: float
    before_ns: float
    between_ns: float
    after_ns: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Analysis:
    """Sums of a recording. All times are per step and means over the ``typical`` steps (the middle half by duration),
    so one slow step moves nothing; shares of roles, ops, features and passes each add up to 1.

    drawn: the step of median duration; step_ns: mean duration; untraced_ns: median of the same calls when nothing
    records, None where none was timed. by_role: one Share per role, in their order. ops: operations per step.
    features: that lookups work for, as far as the recording tells.
    """

    timeline: Timeline
    drawn: Step | None
    typical: int
    step_ns: float
    fastest_ns: int
    slowest_ns: int
    untraced_ns: float | None
    by_role: tuple[Share, ...]
    by_op: tuple[Share, ...]
    by_feature: tuple[Share, ...]
    by_pass: tuple[Share, ...]
    ops: float
    features: tuple[str, ...]
    strings_ns: float
    spread: Spread | None
    overhead: Overhead
    path: CriticalPath
    roles: dict[str, str]

    def role(self, name: str) -> Share:
        return next(share for share in self.by_role if share.key == name)

    def time_of(self, ops: Iterable[str]) -> float:
        """Nanoseconds per step of the operations of these kinds."""
        wanted = frozenset(ops)
        return sum(share.time_ns for share in self.by_op if share.key in wanted)

    def share_of(self, ops: Iterable[str]) -> float:
        return self.time_of(ops) / self.step_ns if self.step_ns else 0.0

    def calls_of(self, ops: Iterable[str]) -> float:
        wanted = frozenset(ops)
        return sum(share.calls for share in self.by_op if share.key in wanted)

    @property
    def call_ns(self) -> float:
        """What a call takes for its user: untraced where that was timed."""
        return self.untraced_ns if self.untraced_ns is not None else self.step_ns

    @property
    def recording_cost(self) -> float | None:
        """By how much recording makes the step slower: 0.3 is 30 %."""
        return self.step_ns / self.untraced_ns - 1 if self.untraced_ns else None


def analyse(timeline: Timeline) -> Analysis:
    """Takes the typical steps apart. A recording without steps gives zeros."""
    roles = role_of_nodes(timeline)
    events = _by_step(timeline)
    # A long recording keeps the events of its first steps only.
    known = [step for step in timeline.steps if step.index in events] or timeline.steps
    steps = typical_steps(known)
    parts = [attribute(step, events.get(step.index, ())) for step in steps]
    samples = [
        Sample(event=event, time_ns=own, role=roles[event.name])
        for part in parts
        for event, own in zip(part.events, part.event_ns, strict=True)
        if event.kind in ("op", "kernel")
    ]
    step_ns = statistics.fmean(step.duration_ns for step in steps) if steps else 0.0
    count = max(1, len(steps))
    overhead = _overhead(parts, step_ns)
    idle = Share(key=OVERHEAD, time_ns=overhead.total_ns, share=overhead.share, calls=0.0, nodes=0)
    drawn = median_step(known)
    shown = events.get(drawn.index, ()) if drawn else ()
    durations = [step.duration_ns for step in known]
    return Analysis(
        timeline=timeline,
        drawn=drawn,
        typical=len(steps),
        step_ns=step_ns,
        fastest_ns=min(durations, default=0),
        slowest_ns=max(durations, default=0),
        untraced_ns=statistics.median(timeline.untraced_ns) if timeline.untraced_ns else None,
        by_role=_all_roles(group(samples, lambda s: s.role, count, step_ns), idle),
        by_op=_largest_first((*group(samples, lambda s: s.event.op, count, step_ns), idle)),
        by_feature=_largest_first((*group(samples, _features_of, count, step_ns), idle)),
        by_pass=_largest_first(
            (*group(samples, lambda s: (s.event.tags.pass_name, s.event.tags.rule), count, step_ns), idle)
        ),
        ops=len(samples) / count,
        features=_features(samples),
        strings_ns=sum(s.time_ns for s in samples if s.event.op in STRING_OPS) / count,
        spread=_spread(drawn, shown, roles),
        overhead=overhead,
        path=critical_path(drawn, shown, timeline.edges) if drawn else CriticalPath(),
        roles=roles,
    )


def typical_steps(steps: Sequence[Step]) -> list[Step]:
    """The middle half by duration, at least one; all of three or fewer."""
    ordered = sorted(steps, key=lambda step: (step.duration_ns, step.index))
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut]


def median_step(steps: Sequence[Step]) -> Step | None:
    """The step of median duration (the lower one of two)."""
    ordered = sorted(steps, key=lambda step: (step.duration_ns, step.index))
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def _by_step(timeline: Timeline) -> dict[int, tuple[Event, ...]]:
    found: dict[int, list[Event]] = {}
    for event in timeline.events:
        found.setdefault(event.step, []).append(event)
    return {index: tuple(sorted(some, key=lambda e: (e.start_ns, -e.duration_ns))) for index, some in found.items()}


def _features_of(sample: Sample) -> tuple[str, ...]:
    return sample.event.tags.features if sample.event.op not in FEEDS else ()


def _features(samples: Iterable[Sample]) -> tuple[str, ...]:
    """Those that lookups work for."""
    return tuple(sorted({name for s in samples if s.role == LOOKUP for name in _features_of(s)}))


def _overhead(parts: Sequence[Attribution], step_ns: float) -> Overhead:
    if not parts:
        return Overhead(total_ns=0.0, share=0.0, before_ns=0.0, between_ns=0.0, after_ns=0.0)
    total = statistics.fmean(part.idle_ns for part in parts)
    return Overhead(
        total_ns=total,
        share=total / step_ns if step_ns else 0.0,
        before_ns=statistics.fmean(part.before_ns for part in parts),
        between_ns=statistics.fmean(part.between_ns for part in parts),
        after_ns=statistics.fmean(part.after_ns for part in parts),
    )


def _all_roles(found: Sequence[Share], idle: Share) -> tuple[Share, ...]:
    known = {share.key: share for share in (*found, idle)}
    empty = [Share(key=role, time_ns=0.0, share=0.0, calls=0.0, nodes=0) for role in ROLES]
    return tuple(known.get(one.key, one) for one in empty)


def _largest_first(shares: Iterable[Share]) -> tuple[Share, ...]:
    return tuple(sorted(shares, key=lambda share: -share.time_ns))


def _spread(step: Step | None, events: Sequence[Event], roles: dict[str, str]) -> Spread | None:
    """None where no lookup ran."""
    ran = [event for event in events if event.kind in ("op", "kernel") and event.op not in _NEUTRAL]
    lookups = [event for event in ran if roles[event.name] == LOOKUP]
    if step is None or not lookups or not step.duration_ns:
        return None
    stretches, inside = 0, False
    for event in ran:
        now = roles[event.name] == LOOKUP
        stretches += now and not inside
        inside = now
    first = max(min(event.start_ns for event in lookups), step.start_ns)
    last = min(max(event.end_ns for event in lookups), step.end_ns)
    return Spread(
        first_ns=first - step.start_ns,
        last_ns=last - step.start_ns,
        share=max(0, last - first) / step.duration_ns,
        stretches=stretches,
        ops=len(lookups),
    )


def dense_ops_of(analysis: Analysis) -> list[Share]:
    """The matrix products and activations, largest first."""
    return [share for share in analysis.by_op if share.key in DENSE_OPS]
