"""Comparing the outputs of one step with the original's: the worst output, its row and by how much."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from graph_opt.bisect.report import Difference
from graph_opt.gate import GateLimits, judge
from graph_opt.parity import ATOL, RTOL, compare
from graph_opt.recheck_users import SPLIT_ATOL


@dataclasses.dataclass(frozen=True)
class Raised:
    """Stands for the outputs of a call that raised."""

    error: str


Outcome = Mapping[str, Any] | Raised


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Floats count as equal where |a-b| <= atol; everything else must be equal. None: |a-b| <= 1e-6 + 1e-5 |b| as in
    ``verify`` (1e-5 in a split form and with an engine), wider for half precision. gate: judged by the accuracy gate
    instead (smaller tables move every value, an engine of less than fp32 does too).
    """

    atol: float | None = None
    gate: GateLimits | None = None

    def text(self) -> str:
        if self.gate is not None:
            return f"max |dp| {self.gate.max_dp:g} and mean bias {self.gate.max_bias:g} (accuracy gate)"
        return f"{ATOL:g} + {RTOL:g} |b|" if self.atol is None else f"{self.atol:g}"


def difference(form: str, got: Outcome, want: Outcome, tolerance: Tolerance) -> tuple[Difference | None, float]:
    """How ``got`` leaves the tolerance around ``want`` (None: it does not), and the largest |difference|."""
    if isinstance(got, Raised) or isinstance(want, Raised):
        if isinstance(got, Raised) and isinstance(want, Raised):
            return None, 0.0
        side, error = ("it", got.error) if isinstance(got, Raised) else ("the original", getattr(want, "error", ""))
        return Difference(form=form, output="", reason=f"{side} raises: {error}"), 0.0
    worst: tuple[float, Difference] | None = None
    drift = 0.0
    passed: set[str] = set()
    if tolerance.gate is not None:
        passed = {verdict.output for verdict in judge(want, got, None, tolerance.gate).outputs if not verdict.failed}
    for name, expected in want.items():
        found = _one(form, name, np.asarray(got[name]), np.asarray(expected), tolerance, name in passed)
        drift = max(drift, found[2])
        if found[0] is not None and (worst is None or found[1] > worst[0]):
            worst = found[1], found[0]
    return (None if worst is None else worst[1]), drift


def _one(
    form: str, name: str, got: np.ndarray, want: np.ndarray, tolerance: Tolerance, passed: bool
) -> tuple[Difference | None, float, float]:
    """(difference, how bad, drift) of one output."""
    # A split form adds a row's products in another order, an engine in an order of its own.
    reordered = form.startswith("split") or "dense" in form.split()
    parity = compare(form, name, got, want, SPLIT_ATOL if reordered else ATOL, reordered=reordered)
    floats = got.dtype.kind in "fV" and got.dtype == want.dtype and got.shape == want.shape
    if not floats:
        if parity.ok:
            return None, 0.0, 0.0
        row = _first_row(got != want) if got.shape == want.shape else None
        was, now = _values(got, want, row)
        return Difference(form=form, output=name, reason=parity.reason, row=row, want=was, got=now), np.inf, 0.0
    gap = _gaps(got, want)
    drift = float(gap[np.isfinite(gap)].max(initial=0.0))
    within = parity.ok if tolerance.atol is None else not bool((gap > tolerance.atol).any())
    if within or passed:
        return None, 0.0, drift
    flat = int(np.argmax(gap))
    index = np.unravel_index(flat, gap.shape) if gap.ndim else ()
    largest = float(gap[index]) if gap.ndim else float(gap)
    count = int((gap > (tolerance.atol or 0.0)).sum())
    found = Difference(
        form=form,
        output=name,
        reason=f"differs by up to {largest:.3g} in {count} of {gap.size} values",
        row=int(index[0]) if index else None,
        max_abs=largest,
        want=repr(want[index].item() if gap.ndim else want.item()),
        got=repr(got[index].item() if gap.ndim else got.item()),
    )
    return found, parity.worst if tolerance.atol is None else largest, drift


def _gaps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """|difference| per value; infinite where one is NaN or infinite and the other is not the same."""
    a, b = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        gap = np.where(same, 0.0, np.abs(a - b))
    return np.where(np.isnan(gap), np.inf, gap)


def _first_row(wrong: np.ndarray) -> int | None:
    return int(np.argwhere(wrong)[0][0]) if wrong.ndim and wrong.any() else None


def _values(got: np.ndarray, want: np.ndarray, row: int | None) -> tuple[str, str]:
    """What was wanted and what came: the row, or dtype and shape."""
    if row is None:
        return f"{want.dtype}{list(want.shape)}", f"{got.dtype}{list(got.shape)}"
    return str(want[row])[:80], str(got[row])[:80]
