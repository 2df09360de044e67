"""Sums of time over operations, features and passes; of one recording, or of two side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence

from tfctr.bundle.summary import node_words
from tfctr.profiling.timeline.events import Event
from tfctr.profiling.timeline.roles import ROLE_WORDS

NAMES_SHOWN = 3
TOP = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """A part of the step. key: what it is the part of; time_ns: per step, of the wall clock; share: of the step, 0..1;
    calls: operations per step; nodes: different ones."""

    key: Hashable
    time_ns: float
    share: float
    calls: float
    nodes: int

    @property
    def label(self) -> str:
        return str(self.key)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """One event of one of the steps that are counted, with the time that is its own."""

    event: Event
    time_ns: float
    role: str


def group(
    samples: Iterable[Sample], key_of: Callable[[Sample], Hashable], steps: int, step_ns: float
) -> tuple[Share, ...]:
    """Sums by key, largest first. steps: how many the samples are of; step_ns: mean duration of these."""
    times: dict[Hashable, float] = {}
    calls: dict[Hashable, int] = {}
    nodes: dict[Hashable, set[str]] = {}
    for sample in samples:
        key = key_of(sample)
        times[key] = times.get(key, 0.0) + sample.time_ns
        calls[key] = calls.get(key, 0) + 1
        nodes.setdefault(key, set()).add(sample.event.name)
    found = [
        Share(
            key=key,
            time_ns=time / steps,
            share=time / steps / step_ns if step_ns else 0.0,
            calls=calls[key] / steps,
            nodes=len(nodes[key]),
        )
        for key, time in times.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.time_ns, str(one.key))))


def feature_words(features: Sequence[str], shown: int = NAMES_SHOWN) -> str:
    """ "user_id, item_id, age and 23 more"; lookups on computed ids, which have the names of nodes, come last."""
    named = sorted(features, key=lambda name: "/" in name)
    some = [node_words(name) for name in (named if len(named) <= shown + 1 else named[:shown])]
    return ", ".join(some) + (f" and {len(named) - shown} more" if len(named) > shown + 1 else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table of two recordings. before, after: None where there is nothing of it; notes: what stands in such
    a place instead. detail: all of what the label cuts short."""

    label: str
    detail: str = ""
    before: Share | None = None
    after: Share | None = None
    before_note: str = ""
    after_note: str = ""


def side_by_side(
    before: Sequence[Share] | None, after: Sequence[Share], label: Callable[[Hashable], tuple[str, str]]
) -> list[Row]:
    """A row per key of either. label: key -> label and detail."""
    old = {share.key: share for share in before or ()}
    new = {share.key: share for share in after}
    keys = list(dict.fromkeys([*old, *new]))
    rows = [Row(label=label(key)[0], detail=label(key)[1], before=old.get(key), after=new.get(key)) for key in keys]
    return sorted(rows, key=weight, reverse=True)


def weight(row: Row) -> tuple[float, float]:
    """Rows are ordered by the larger of their two times."""
    times = (row.before.time_ns if row.before else 0.0, row.after.time_ns if row.after else 0.0)
    return max(times), sum(times)


def rest_of(rows: Sequence[Row], top: int = TOP) -> tuple[list[Row], Row | None]:
    """The first ``top`` rows, and one that sums the others; None where there are no more."""
    if len(rows) <= top + 1:
        return list(rows), None
    others = rows[top:]
    return list(rows[:top]), Row(
        label=f"{len(others)} others",
        detail=", ".join(row.label for row in others[:200]),
        before=_sum([row.before for row in others if row.before]),
        after=_sum([row.after for row in others if row.after]),
    )


def _sum(shares: Sequence[Share]) -> Share | None:
    if not shares:
        return None
    return Share(
        key="others",
        time_ns=sum(share.time_ns for share in shares),
        share=sum(share.share for share in shares),
        calls=sum(share.calls for share in shares),
        nodes=sum(share.nodes for share in shares),
    )


def by_feature(before: Sequence[Share] | None, after: Sequence[Share], no_feature: str) -> list[Row]:
    """Rows of features. Time of an operation that works for many of them at once is nobody's alone: such a group has a
    row of its own, and its features say which one they are in. Keys of the shares are tuples of features."""
    groups = {share.key: share for share in (*(before or ()), *after) if len(_features(share)) > 1}
    numbers = {key: f"group {number + 1}" for number, key in enumerate(groups)}
    inside = [_inside(side, numbers) for side in (before or (), after)]
    rows = side_by_side(before, after, lambda key: _feature_label(key, numbers, no_feature))
    return [
        dataclasses.replace(row, before_note=_note(row, inside[0]), after_note=_note(row, inside[1])) for row in rows
    ]


def _note(row: Row, inside: dict[str, str]) -> str:
    """Which group all features of a row are in on the side that has nothing of the row itself."""
    share = row.before or row.after
    notes = {inside.get(name, "") for name in _features(share)} if share else set()
    return notes.pop() if len(notes) == 1 else ""


def _features(share: Share) -> tuple[str, ...]:
    return share.key if isinstance(share.key, tuple) else ()


def _inside(shares: Sequence[Share], numbers: dict[Hashable, str]) -> dict[str, str]:
    """Feature -> "in group 1" or "in groups 1, 2"."""
    found: dict[str, list[str]] = {}
    for share in shares:
        if share.key in numbers:
            for name in _features(share):
                found.setdefault(name, []).append(numbers[share.key].removeprefix("group "))
    return {
        name: f"in group{'s' if len(some) > 1 else ''} {', '.join(some[:4])}{' …' if len(some) > 4 else ''}"
        for name, some in found.items()
    }


def _feature_label(key: Hashable, numbers: dict[Hashable, str], no_feature: str) -> tuple[str, str]:
    if not isinstance(key, tuple):
        return ROLE_WORDS[str(key)], ""
    if not (features := key):
        return no_feature, ""
    if len(features) == 1:
        return node_words(features[0]), features[0]
    number = numbers[key].capitalize()
    return f"{number}: {len(features)} features together: {feature_words(features)}", ", ".join(features)
