"""Histograms that are filled block by block: of whole numbers by powers of two, of others by quarters of a decade."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

_PER_DECADE = 4


@dataclasses.dataclass(frozen=True)
class Bar:
    """Rows whose number lies in [low, high), or is `low` where both are equal; high None: no upper end."""

    low: float
    high: float | None
    count: int

    def words(self) -> str:
        """The range for people."""
        if self.high is None:
            return f"{_number(self.low)} and more"
        if self.low == self.high:
            return _number(self.low)
        if float(self.low).is_integer() and float(self.high).is_integer():
            return _number(self.low) if self.high == self.low + 1 else f"{_number(self.low)} - {_number(self.high - 1)}"
        return f"{_number(self.low)} - {_number(self.high)}"


def _number(value: float) -> str:
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


class Counts:
    """Of whole numbers >= 0: 0, 1, 2 - 3, 4 - 7, ...; negative ones count as 0."""

    def __init__(self) -> None:
        self._bars: collections.Counter[int] = collections.Counter()
        self.total = self.sum = 0
        self.least: int | None = None
        self.most: int | None = None

    def add(self, numbers: np.ndarray) -> None:
        """Counts whole numbers (int64)."""
        if not len(numbers):
            return
        least, most = int(numbers.min()), int(numbers.max())
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)
        self.total += len(numbers)
        self.sum += int(numbers.sum(dtype=object)) if most > 2**40 else int(numbers.sum())
        # frexp's exponent of n is its number of bits; exact below 2**53, and off by one only right below a power above.
        bits = np.frexp(np.maximum(numbers, 0).astype(np.float64))[1]
        for bit, count in zip(*np.unique(bits, return_counts=True), strict=True):
            self._bars[int(bit)] += int(count)

    def bars(self) -> list[Bar]:
        """From the least to the largest number that came, empty ones between them included."""
        if not self._bars:
            return []
        return [
            Bar(0, 1, self._bars[bit]) if bit == 0 else Bar(1 << (bit - 1), 1 << bit, self._bars[bit])
            for bit in range(min(self._bars), max(self._bars) + 1)
        ]

    def summary(self) -> dict[str, Any]:
        """least, most, mean and bars, for JSON."""
        mean = self.sum / self.total if self.total else None
        return {"min": self.least, "max": self.most, "mean": mean, "histogram": bars_json(self.bars())}


class Magnitudes:
    """Of numbers >= 0: exactly 0, then four bars for each power of ten; NaN and infinity are counted apart."""

    def __init__(self) -> None:
        self._bars: collections.Counter[int] = collections.Counter()
        self.zeros = self.not_finite = self.total = 0
        self.sum = 0.0
        self.least: float | None = None
        self.most: float | None = None

    def add(self, numbers: np.ndarray) -> None:
        """Counts numbers (float64)."""
        finite = np.isfinite(numbers)
        self.total += len(numbers)
        self.not_finite += int(len(numbers) - np.count_nonzero(finite))
        numbers = numbers[finite]
        if not len(numbers):
            return
        least, most = float(numbers.min()), float(numbers.max())
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)
        self.sum += float(numbers.sum())
        positive = numbers[numbers > 0]
        self.zeros += len(numbers) - len(positive)
        places = np.floor(np.log10(positive) * _PER_DECADE).astype(np.int64)
        for place, count in zip(*np.unique(places, return_counts=True), strict=True):
            self._bars[int(place)] += int(count)

    def bars(self) -> list[Bar]:
        """0 first where it came, then from the least to the largest number."""
        zero = [Bar(0.0, 0.0, self.zeros)] if self.zeros else []
        if not self._bars:
            return zero
        return zero + [
            Bar(_edge(place), _edge(place + 1), self._bars[place])
            for place in range(min(self._bars), max(self._bars) + 1)
        ]

    def summary(self) -> dict[str, Any]:
        """min, max, mean, zeros, not_finite and bars, for JSON."""
        counted = self.total - self.not_finite
        return {
            "min": self.least,
            "max": self.most,
            "mean": self.sum / counted if counted else None,
            "zeros": self.zeros,
            "not_finite": self.not_finite,
            "histogram": bars_json(self.bars()),
        }


def _edge(place: int) -> float:
    return float(10.0 ** (place / _PER_DECADE))


MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
_AGES = (0, MINUTE, 10 * MINUTE, HOUR, 6 * HOUR, DAY, 3 * DAY, 7 * DAY, 30 * DAY, 90 * DAY, 365 * DAY)


class Ages:
    """Of ages in milliseconds: under a minute, ten minutes, an hour, ...; those of the future count as 0."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(_AGES), np.int64)
        self.total = 0
        self.least: int | None = None
        self.most: int | None = None

    def add(self, ages: np.ndarray) -> None:
        """Counts ages (int64, milliseconds)."""
        if not len(ages):
            return
        least, most = int(ages.min()), int(ages.max())
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)
        self.total += len(ages)
        places = np.searchsorted(np.array(_AGES, np.int64), np.maximum(ages, 0), "right") - 1
        self._counts += np.bincount(places, minlength=len(_AGES))

    def bars(self) -> list[Bar]:
        """From the youngest to the oldest that came; in milliseconds."""
        used = np.flatnonzero(self._counts)
        if not len(used):
            return []
        ends: list[int | None] = [*_AGES[1:], None]
        return [Bar(_AGES[k], ends[k], int(self._counts[k])) for k in range(used[0], used[-1] + 1)]

    def summary(self) -> dict[str, Any]:
        """min_ms, max_ms and bars, for JSON."""
        return {"min_ms": self.least, "max_ms": self.most, "histogram": bars_json(self.bars())}


def duration_words(milliseconds: float | None) -> str:
    """A time for people: 12 s, 3.5 h, 12 d."""
    if milliseconds is None:
        return ""
    for unit, size in (("d", DAY), ("h", HOUR), ("min", MINUTE), ("s", 1000)):
        if abs(milliseconds) >= size:
            value = milliseconds / size
            return f"{value:.0f} {unit}" if value >= 10 or value.is_integer() else f"{value:.1f} {unit}"
    return f"{milliseconds:.0f} ms" if milliseconds else "0"


def age_words(bar: Bar) -> str:
    """An age bar for people."""
    if bar.high is None:
        return f"over {duration_words(bar.low)}"
    return (
        f"under {duration_words(bar.high)}"
        if bar.low == 0
        else f"{duration_words(bar.low)} - {duration_words(bar.high)}"
    )


def bars_json(bars: Sequence[Bar]) -> list[dict[str, Any]]:
    """Bars as JSON: low, high (null: no end), count."""
    return [{"low": bar.low, "high": bar.high, "count": bar.count} for bar in bars]


def saturated_difference(now: int, past: np.ndarray) -> np.ndarray:
    """now - past (int64) where it fits an int64, else the end of the range: damaged steps must not wrap around."""
    with np.errstate(over="ignore"):
        low = past < now - (2**63 - 1) if now - (2**63 - 1) >= -(2**63) else np.zeros(len(past), bool)
        high = past > now + 2**63 if now + 2**63 <= 2**63 - 1 else np.zeros(len(past), bool)
        difference = np.int64(now) - past
    difference[low] = 2**63 - 1
    difference[high] = -(2**63)
    return difference
