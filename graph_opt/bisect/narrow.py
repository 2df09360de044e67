"""Smallest sets that still show a difference (delta debugging after Zeller and Hildebrandt, "Simplifying and Isolating
Failure-Inducing Input", 2002).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def smallest(items: Sequence[T], shows: Callable[[list[T]], bool], tests: int = 200) -> list[T]:
    """A subset of ``items`` for which ``shows`` holds and no single part of which can be left out; ``shows(items)``
    is taken as given. One culprit among N is found in about log2(N) calls. At most ``tests`` calls are made; the
    smallest subset so far is returned then.
    """
    current = list(items)
    parts = 2
    while len(current) > 1:
        chunks = _chunks(current, parts)
        reduced = None
        # Parts first, then what is left without each of them (at two parts these are the same).
        for number in range(len(chunks) * (1 if len(chunks) == 2 else 2)):
            kept = chunks[number] if number < len(chunks) else _without(chunks, number - len(chunks))
            tests -= 1
            if tests < 0:
                return current
            if shows(kept):
                reduced, parts = kept, 2 if number < len(chunks) else max(len(chunks) - 1, 2)
                break
        if reduced is not None:
            current = reduced
        elif parts >= len(current):
            break
        else:
            parts = min(2 * parts, len(current))
    return current


def _chunks(items: list[T], count: int) -> list[list[T]]:
    count = min(count, len(items))
    bounds = [len(items) * k // count for k in range(count + 1)]
    return [items[a:b] for a, b in itertools.pairwise(bounds)]


def _without(chunks: list[list[T]], left_out: int) -> list[T]:
    return [item for k, chunk in enumerate(chunks) if k != left_out for item in chunk]
