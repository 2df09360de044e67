"""Which version answers a request: one immutable object, exchanged whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from tfctr.serving.versions.lease import Slot
from tfctr.serving.versions.spec import Traffic

Route = Callable[[str], int | None]
"""Field -> a hash of the request's first value of it; None where it has none."""

_MASK = (1 << 64) - 1
_GAP = -1  # in place of a version: the default's


@dataclasses.dataclass(frozen=True, kw_only=True)
class Routes:
    """slots: what is loaded, by number. default: the version of requests that name none. labels: name -> number, loaded
    or not. away: labels of versions that were unloaded by hand, which come back with them. shares: (end of its part of
    [0, 1), version), ascending; field: whose hash decides."""

    slots: Mapping[int, Slot] = dataclasses.field(default_factory=dict)
    default: int | None = None
    labels: Mapping[str, int] = dataclasses.field(default_factory=dict)
    away: Mapping[str, int] = dataclasses.field(default_factory=dict)
    shares: tuple[tuple[float, int], ...] = ()
    field: str = ""

    def pick(self, route: Route | None) -> int | None:
        """The version of a request that names none: its share of the traffic; the default where it lacks the field."""
        if self.shares and route is not None:
            value = route(self.field)
            if value is not None:
                place = position(value)
                for end, number in self.shares:
                    if place < end:
                        return self.default if number == _GAP else number
        return self.default


def position(value: int) -> float:
    """Where in [0, 1) a hash lies; mixed, so that numbers which only count up are spread too."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return float((value ^ (value >> 31)) >> 11) / (1 << 53)


def shares(traffic: Traffic, labels: Mapping[str, int], loaded: Mapping[int, Slot]) -> tuple[tuple[float, int], ...]:
    """Parts of [0, 1) by version, in the order of the names in ``traffic``. What is not loaded has its part left to the
    default: no value moves between those that are."""
    total = sum(traffic.weights.values())
    made, end = [], 0.0
    for name, weight in sorted(traffic.weights.items()):
        start, end = end, end + weight / total
        number = int(name) if name.isdecimal() else labels.get(name)
        if number is not None and number in loaded and end > start:
            made.append((start, end, number))
    return _with_gaps(made)


def _with_gaps(parts: list[tuple[float, float, int]]) -> tuple[tuple[float, int], ...]:
    """(end, version), with the gaps between the parts."""
    made: list[tuple[float, int]] = []
    last = 0.0
    for start, end, number in parts:
        if start > last:
            made.append((start, _GAP))
        made.append((end, number))
        last = end
    return tuple(made)
