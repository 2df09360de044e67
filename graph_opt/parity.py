"""Runs the reference graph and the converted one on the same inputs and compares every output."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

ATOL, RTOL = 1e-6, 1e-5
# Outputs of lower precision are compared at their own resolution.
_RTOL = {"float16": 2e-3, "bfloat16": 1.6e-2}
# Sums in another order: some steps of numbers as large as the terms are, however small their sum.
_ATOL_REORDERED = {"float16": 8e-3, "bfloat16": 6e-2}

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputParity:
    """One output of one signature.

    worst: largest |a-b| / (atol + rtol |b|); at most 1 where ``ok``. reason: why it is not. drift: how far the
    unrewritten reference graph moves (largest absolute difference) when TensorFlow's own optimisers run on it: what a
    user of stock TensorFlow lives with; None: not measured.
    """

    signature: str
    output: str
    ok: bool
    max_abs: float = 0.0
    worst: float = 0.0
    bit_equal: bool = False
    reason: str = ""
    drift: float | None = 0.0


def compare(
    signature: str,
    name: str,
    got: npt.NDArray[Any],
    want: npt.NDArray[Any],
    atol: float = ATOL,
    reordered: bool = False,
) -> OutputParity:
    """``got`` against ``want``: floats within |a-b| <= atol + 1e-5 |b| (NaN equals NaN), everything else equal.

    reordered: sums may have been taken in another order, which moves half and bfloat16 outputs by more than ``atol``.
    """

    def bad(reason: str) -> OutputParity:
        return OutputParity(signature=signature, output=name, ok=False, max_abs=0.0, worst=0.0, reason=reason)

    if got.dtype != want.dtype:
        return bad(f"dtype {got.dtype}, expected {want.dtype}")
    if got.shape != want.shape:
        return bad(f"shape {got.shape}, expected {want.shape}")
    bits = got.tobytes() == want.tobytes() if got.dtype != object else bool(np.array_equal(got, want))
    if bits or got.dtype == object or got.dtype.kind in "biuS":
        equal = bits or bool(np.array_equal(got, want))
        reason = "" if equal else f"{int(np.sum(got != want))} of {want.size} values differ"
        return OutputParity(signature=signature, output=name, ok=equal, bit_equal=bits, reason=reason)
    rtol = _RTOL.get(got.dtype.name, RTOL)
    atol = max(atol, _ATOL_REORDERED.get(got.dtype.name, 0.0)) if reordered else atol
    a, b = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        difference = np.where(same, 0.0, np.abs(a - b))
        scaled = np.where(same, 0.0, difference / (atol + rtol * np.abs(b)))
    scaled = np.where(np.isnan(scaled), np.inf, scaled)
    worst = float(scaled.max(initial=0.0))
    ok = worst <= 1.0
    finite = difference[np.isfinite(difference)]
    return OutputParity(
        signature=signature,
        output=name,
        ok=ok,
        max_abs=float(finite.max(initial=0.0)),
        worst=worst if np.isfinite(worst) else 1e300,
        reason="" if ok else f"differs by up to {float(finite.max(initial=0.0)):.3g}",
    )


def compare_all(
    signature: str, names: Sequence[str], got: Sequence[Any], want: Sequence[Any], atol: float = ATOL
) -> list[OutputParity]:
    return [
        compare(signature, name, np.asarray(a), np.asarray(b), atol)
        for name, a, b in zip(names, got, want, strict=True)
    ]


def with_drift(found: Sequence[OutputParity], moved: Sequence[Any] | None, want: Sequence[Any]) -> list[OutputParity]:
    """``found`` with the drift that outputs ``moved`` (of the optimised reference; None: not run) show."""
    if moved is None:
        return [dataclasses.replace(p, drift=None) for p in found]
    drifts = [
        compare(p.signature, p.output, np.asarray(m), np.asarray(w)) for p, m, w in zip(found, moved, want, strict=True)
    ]
    return [dataclasses.replace(p, drift=d.max_abs) for p, d in zip(found, drifts, strict=True)]
