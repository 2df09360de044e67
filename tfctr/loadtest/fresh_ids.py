"""Ids that no request had before, written into bodies that were serialised beforehand.

While a request is serialised its fresh ids hold markers; where the markers lie in the bytes, every sending writes the
next number of one counter. In process the arrays themselves are copied and written.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

DIGITS = 18  # of a number in text: a marker and what replaces it have the same length
_MARK = 700_000_000_000_000_000  # markers are this and the numbers after it; 18 digits
_FIRST = 100_000_000_000_000_000  # fresh ids are this and the numbers after it


class Counter:
    """Numbers that are handed out once."""

    def __init__(self, first: int = _FIRST) -> None:
        self._next = first
        self._lock = threading.Lock()

    def take(self, count: int) -> npt.NDArray[np.int64]:
        with self._lock:
            first = self._next
            self._next += count
        return np.arange(first, first + count, dtype=np.int64)


class Markers:
    """The markers of one request, in the order in which they were given out."""

    def __init__(self) -> None:
        self.count = 0

    def take(self, count: int) -> npt.NDArray[np.int64]:
        first = _MARK + self.count
        self.count += count
        return np.arange(first, first + count, dtype=np.int64)


class FreshIds:
    """Where the fresh ids of one body lie.

    binary: offsets of 8-byte little-endian numbers. text: offsets of DIGITS decimal digits.
    """

    def __init__(self, binary: Sequence[int], text: Sequence[int], counter: Counter) -> None:
        self._binary = np.array(binary, np.int64)[:, None] + np.arange(8)
        self._text = np.array(text, np.int64)[:, None] + np.arange(DIGITS)
        self._counter = counter

    @classmethod
    def find(cls, body: bytes, markers: Markers, counter: Counter) -> FreshIds:
        """Looks for every marker, as a number and as text.

        Raises:
          ValueError: a marker is not in the body: this protocol writes its ids in another way.
        """
        binary, text = [], []
        for number in range(_MARK, _MARK + markers.count):
            at = body.find(number.to_bytes(8, "little"))
            if at >= 0:
                binary.append(at)
                continue
            at = body.find(str(number).encode())
            if at < 0:
                raise ValueError(f"id {number} is not in the body as 8 bytes or {DIGITS} digits")
            text.append(at)
        return cls(binary, text, counter)

    def fill(self, body: bytes) -> bytes:
        """``body`` with numbers that were never sent before."""
        filled = np.frombuffer(body, np.uint8).copy()
        if len(self._binary):
            numbers = self._counter.take(len(self._binary))
            filled[self._binary] = numbers.view(np.uint8).reshape(-1, 8)
        if len(self._text):
            numbers = self._counter.take(len(self._text))
            powers = 10 ** np.arange(DIGITS - 1, -1, -1, dtype=np.int64)
            filled[self._text] = numbers[:, None] // powers % 10 + ord("0")
        return filled.tobytes()


class FreshArrays:
    """The same for arrays by input name (a model in this process)."""

    def __init__(self, arrays: Mapping[str, Any], markers: Markers, counter: Counter) -> None:
        self._places = {
            name: places for name, array in arrays.items() if len(places := _marked(np.asarray(array), markers))
        }
        self._counter = counter

    def fill(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        filled = dict(arrays)
        for name, places in self._places.items():
            array = np.array(filled[name])
            numbers = self._counter.take(len(places))
            array.flat[places] = words(numbers) if array.dtype == object else numbers
            filled[name] = array
        return filled


def _marked(array: npt.NDArray[Any], markers: Markers) -> npt.NDArray[np.int64]:
    if array.dtype == object:
        known = {b"%d" % number for number in range(_MARK, _MARK + markers.count)}
        return np.array([k for k, value in enumerate(array.flat) if value in known], np.int64)
    if array.dtype != np.int64:
        return np.empty(0, np.int64)
    flat = array.reshape(-1)
    return np.flatnonzero((flat >= _MARK) & (flat < _MARK + markers.count))


def words(numbers: npt.NDArray[np.int64]) -> list[bytes]:
    """Numbers as the text that ``FreshIds`` finds and replaces."""
    return [b"%d" % number for number in numbers.tolist()]
