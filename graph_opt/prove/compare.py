"""Comparing what the original and the fused side gave on one probe."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from graph_opt.lookup_spec import LookupSpec

# (absolute, relative to |b|) by table dtype, for pooled values whose order of additions is not fixed by stock's kernel.
TOLERANCES = {"float32": (1e-6, 1e-5), "float64": (1e-12, 1e-11), "float16": (2e-3, 4e-3), "bfloat16": (2e-2, 2e-2)}


def must_be_bit_equal(spec: LookupSpec, ops: Collection[str]) -> bool:
    """True where only gathers and SparseSegment reductions are involved. ``ops``: op types of the original subgraph."""
    if spec.max_norm is not None:
        return False
    if spec.combiner == "none" or (spec.accumulation == "segment" and spec.weights is None):
        return True
    return any(op.startswith("SparseSegment") for op in ops)


def difference(original: np.ndarray, fused: np.ndarray, dtype: str, exact: bool) -> str:
    """ "" where the two agree, else what differs first. NaN equals NaN."""
    if original.dtype != fused.dtype:
        return f"dtype {fused.dtype.name} instead of {original.dtype.name}"
    if original.shape != fused.shape:
        return f"shape {list(fused.shape)} instead of {list(original.shape)}"
    a, b = np.asarray(fused, np.float64), np.asarray(original, np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if exact or same.all():
        return "" if same.all() else _first(a, b, ~same)
    absolute, relative = TOLERANCES[dtype]
    finite = np.abs(b[np.isfinite(b)])
    # Sums that cancel have the rounding errors of their terms, which the largest result stands for.
    scale = max(1.0, float(finite.max())) if finite.size else 1.0
    with np.errstate(invalid="ignore"):
        same |= np.abs(a - b) <= absolute * scale + relative * np.abs(b)
    return "" if same.all() else _first(a, b, ~same)


def bits_equal(original: np.ndarray, fused: np.ndarray) -> bool:
    """Equal bit for bit, any NaN counting as equal to any NaN."""
    return difference(original, fused, "float32", exact=True) == ""


def _first(fused: np.ndarray, original: np.ndarray, wrong: np.ndarray) -> str:
    position = tuple(int(k) for k in np.argwhere(wrong)[0])
    count = int(wrong.sum())
    return (
        f"{count} of {wrong.size} values differ, first at {list(position)}: "
        f"{fused[position]:.9g} instead of {original[position]:.9g}"
    )
