"""Comparing two sets of model outputs: exact for integers and strings, ``|a - b| <= atol + rtol * |b|`` for floats."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

ATOL = 1e-6
RTOL = 1e-5


@dataclasses.dataclass(frozen=True)
class OutputDifference:
    """How one output differs. ``worst`` is the largest ``|a-b| / (atol + rtol*|b|)``: above 1 is a failure."""

    output: str
    shape: tuple[int, ...]
    max_abs: float
    worst: float
    reason: str = ""  # why it fails beyond a numeric difference: missing, shape, dtype, values

    @property
    def ok(self) -> bool:
        return not self.reason and self.worst <= 1.0


def compare_outputs(
    ours: Mapping[str, np.ndarray],
    stock: Mapping[str, np.ndarray],
    atol: float = ATOL,
    rtol: float = RTOL,
) -> list[OutputDifference]:
    """One entry per output of ``stock`` (and per output that only ``ours`` has), in ``stock``'s order."""
    found = []
    for name, b in stock.items():
        if name in ours:
            found.append(_compare(name, np.asarray(ours[name]), np.asarray(b), atol, rtol))
        else:
            found.append(_missing(name, b, "ours lacks it"))
    return found + [_missing(name, a, "stock lacks it") for name, a in ours.items() if name not in stock]


def _missing(name: str, value: np.ndarray, reason: str) -> OutputDifference:
    return OutputDifference(name, np.shape(value), np.inf, np.inf, reason)


def _compare(name: str, a: np.ndarray, b: np.ndarray, atol: float, rtol: float) -> OutputDifference:
    if a.shape != b.shape:
        return OutputDifference(name, b.shape, np.inf, np.inf, f"shape {a.shape} against {b.shape}")
    if a.dtype != b.dtype and not (a.dtype.kind in "OSU" and b.dtype.kind in "OSU"):
        return OutputDifference(name, b.shape, np.inf, np.inf, f"dtype {a.dtype} against {b.dtype}")
    if b.dtype.kind in "OSUb" or b.dtype.kind in "iu":
        same = a == b
        wrong = int(np.size(same) - np.count_nonzero(same))
        return OutputDifference(name, b.shape, 0.0, 0.0, f"{wrong} of {same.size} values differ" if wrong else "")
    x, y = a.astype(np.float64), b.astype(np.float64)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0.0, np.abs(x - y))
        scaled = np.where(same, 0.0, gap / (atol + rtol * np.abs(y)))
    gap, scaled = np.nan_to_num(gap, nan=np.inf), np.nan_to_num(scaled, nan=np.inf)
    return OutputDifference(name, b.shape, float(gap.max(initial=0.0)), float(scaled.max(initial=0.0)))
