"""How a tensor of the original graph is held in the split form.

shared  as it was: it depends on no row
user    one tensor with U rows, to be repeated for each item row that belongs to the user where someone needs that
full    one tensor with B rows
dual    a tensor that depends on the number of rows only (a shape, zeros); made for U or for B rows when asked for
mixed   two tensors, ``user`` with U rows and ``full`` with B rows, whose segments along ``axis`` make up the tensor:
        a segment of side "user" is in the first, "item" in the second, "both" is the sum of a segment of each. Each
        tensor holds its segments side by side, in order, and nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

SIDES = ("user", "item", "both")


@dataclasses.dataclass(frozen=True)
class Segment:
    """``width`` entries along the axis of a mixed view; side: who has them."""

    width: int
    side: str


@dataclasses.dataclass(frozen=True)
class View:
    """See the module docstring. past: names of the ops that user rows went through on their way here."""

    form: str
    user: str = ""
    full: str = ""
    axis: int = 0
    segments: tuple[Segment, ...] = ()
    past: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        return sum(s.width for s in self.segments)

    @property
    def sums(self) -> bool:
        """Whether any segment is a sum of both sides."""
        return any(s.side == "both" for s in self.segments)

    @property
    def all_sum(self) -> bool:
        """Whether the whole view is the sum of its two tensors."""
        return self.form == "mixed" and all(s.side == "both" for s in self.segments)

    @property
    def split(self) -> bool:
        """Whether some of it still has one row per user."""
        return self.form in ("user", "mixed")

    def columns(self, side: str) -> npt.NDArray[np.int64]:
        """Which entries of the whole the tensor of ``side`` ("user" or "item") holds, in its order."""
        found: list[int] = []
        start = 0
        for segment in self.segments:
            if segment.side in (side, "both"):
                found += range(start, start + segment.width)
            start += segment.width
        return np.array(found, np.int64)

    def with_past(self, op: str) -> View:
        past = self.past if op in self.past else (*self.past, op)
        return dataclasses.replace(self, past=past)


SHARED = View("shared")
DUAL = View("dual")


def user_view(tensor: str, past: Sequence[str] = ()) -> View:
    return View("user", user=tensor, past=tuple(past))


def full_view(tensor: str) -> View:
    return View("full", full=tensor)


def mixed_view(user: str, full: str, axis: int, segments: Iterable[Segment], past: Sequence[str] = ()) -> View:
    """A mixed view with neighbours of one side merged; a plain one where only one side has anything."""
    merged: list[Segment] = []
    for segment in segments:
        if merged and merged[-1].side == segment.side:
            merged[-1] = Segment(merged[-1].width + segment.width, segment.side)
        elif segment.width:
            merged.append(segment)
    sides = {s.side for s in merged}
    if sides == {"user"}:
        return user_view(user, past)
    if sides == {"item"} or not sides:  # nothing at all: a tensor without entries
        return full_view(full)
    return View("mixed", user, full, axis, tuple(merged), tuple(past))


def sum_view(user: str, full: str, axis: int, width: int, past: Sequence[str] = ()) -> View:
    """The sum of a tensor of user rows and one of item rows."""
    return View("mixed", user, full, axis, (Segment(width, "both"),), tuple(past))


def joined_past(views: Iterable[View]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(op for view in views for op in view.past))
