"""What TfctrFusedLookup must compute, in NumPy: an independent reading of graph_opt/lookup_spec.py, slow and plain.

Arithmetic is float64 throughout, so results are compared within a tolerance; tests against stock compare bits.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graph_opt.lookup_spec import LookupSpec, Step


class LookupError_(Exception):
    """The lookup must fail with InvalidArgument."""


def apply_steps(values: np.ndarray, steps: tuple[Step, ...], columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers and a mask of values that are kept; integer steps only. ``columns``: place on the last axis."""
    ids = values.astype(np.int64)
    kept = np.ones(len(ids), bool)
    for step in steps:
        numbers = [int(a) for a in step.args if step.kind not in ("cast", "prune_equal")]
        if step.kind == "mod":
            ids = np.mod(ids, numbers[0])
        elif step.kind == "add":
            ids = ids + numbers[0]
        elif step.kind == "mul":
            ids = ids * numbers[0]
        elif step.kind == "divide":
            ids = ids // numbers[0]
        elif step.kind == "addcol":
            ids = ids + np.array(numbers)[columns]
        elif step.kind == "wrap_negative":
            ids = np.where(ids < 0, ids + numbers[0], ids)
        elif step.kind == "select_negative":
            ids = np.where(ids < 0, numbers[0], ids)
        elif step.kind == "select_out_of_range":
            ids = np.where((ids < numbers[0]) | (ids >= numbers[1]), numbers[2], ids)
        elif step.kind == "select_equal":
            ids = np.where(values == numbers[1], numbers[0], ids)
        elif step.kind == "prune_negative":
            kept &= ids >= 0
        elif step.kind == "prune_equal":
            kept &= ids != int(step.args[0])
        else:
            raise AssertionError(f"the reference has no step {step.kind}")
    return ids, kept


def row_numbers(spec: LookupSpec, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, int | None]:
    """Output row per value, and the number of rows (None: up to the last value's)."""
    ids = inputs[spec.ids]
    if spec.form == "dense":
        per_row = ids.shape[-1] if spec.combiner != "none" else (spec.ids_per_row or 1)
        rows = int(np.prod(ids.shape[:-1])) if spec.combiner != "none" else ids.size // per_row
        return np.repeat(np.arange(rows), per_row), rows
    if spec.form == "ragged":
        splits = inputs[spec.rows or ""]
        if len(splits) == 0 or splits[0] != 0 or splits[-1] != len(ids) or np.any(np.diff(splits) < 0):
            raise LookupError_("row_splits")
        return np.repeat(np.arange(len(splits) - 1), np.diff(splits)), len(splits) - 1
    if spec.form == "segments":
        count = int(inputs[spec.shape]) if spec.shape else None
        return np.asarray(inputs[spec.rows or ""], np.int64), count
    indices = inputs[spec.rows or ""]
    if spec.empty == "short":
        return indices[:, 0], None
    shape = inputs[spec.shape or ""]
    rows = np.zeros(len(ids), np.int64)
    for d in range(len(shape) - 1):
        rows = rows * shape[d] + indices[:, d]
    return rows, int(np.prod(shape[:-1]))


def lookup(spec: LookupSpec, table: np.ndarray, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The output [R, width] in float64. Raises LookupError_ where the op must fail."""
    raw = np.asarray(inputs[spec.ids])
    flat = raw.reshape(-1)
    columns = np.arange(flat.size) % (raw.shape[-1] if raw.ndim else 1) if flat.size else np.zeros(0, np.int64)
    rows, count = row_numbers(spec, inputs)
    ids, kept = apply_steps(flat, spec.steps, columns)
    weights = np.asarray(inputs[spec.weights], np.float64).reshape(-1) if spec.weights else np.ones(flat.size)
    if len(weights) != flat.size:
        raise LookupError_("weights")
    if spec.prune_weights:
        kept &= weights > 0
    masked = np.zeros(flat.size, bool)
    if spec.mask:
        masked |= ~np.asarray(inputs[spec.mask], bool).reshape(-1)
    if spec.mask_value is not None:
        masked |= flat == int(spec.mask_value)
    ids, rows, weights, masked = ids[kept], rows[kept], weights[kept], masked[kept]
    if np.any((ids < 0) | (ids >= len(table))):
        raise LookupError_("id")
    if not spec.sort_rows and np.any(np.diff(rows) < 0):
        raise LookupError_("order")
    if count is None:
        count = int(rows[-1]) + 1 if len(rows) else 0
    if np.any((rows < 0) | (rows >= count)):
        raise LookupError_("row")
    vectors = _clip(spec, table[ids])
    vectors[masked] = 0
    if spec.combiner == "none":
        return vectors.reshape(count, spec.width)
    positions = raw.shape[-1] if spec.form == "dense" else 0
    out = np.zeros((count, table.shape[1]))
    for r in range(count):
        out[r] = _combine(spec, table, vectors, weights, ~masked, rows == r, positions)
    return out


def _clip(spec: LookupSpec, vectors: np.ndarray) -> np.ndarray:
    vectors = vectors.astype(np.float64)
    if spec.max_norm is None:
        return vectors
    norms = np.sqrt((vectors**2).sum(1, keepdims=True))
    return vectors * spec.max_norm / np.maximum(norms, spec.max_norm)


def _combine(
    spec: LookupSpec,
    table: np.ndarray,
    vectors: np.ndarray,
    weights: np.ndarray,
    counted: np.ndarray,
    here: np.ndarray,
    positions: int,
) -> np.ndarray:
    here = here & counted
    vectors, weights = vectors[here], weights[here]
    if len(vectors) == 0 and spec.fill_id is not None:
        if not 0 <= spec.fill_id < len(table):
            raise LookupError_("fill")
        vectors, weights = _clip(spec, table[[spec.fill_id]]), np.ones(1)  # one value of weight 1; denominators stay
    if len(vectors) == 0:
        natural_nan = (
            spec.combiner != "sum"
            and (spec.weights or spec.mask or spec.mask_value is not None or spec.accumulation == "sequential")
            and spec.denominator == "count"
        )
        nan = spec.empty == "nan" or (spec.empty == "natural" and natural_nan)
        return np.full(table.shape[1], np.nan if nan else 0.0)
    total = (vectors * weights[:, None]).sum(0)
    if spec.combiner == "sum":
        return total
    base = weights.sum() if spec.combiner == "mean" else np.sqrt((weights**2).sum())
    if spec.denominator == "max1":
        base = max(base, 1.0)
    elif spec.denominator == "eps":
        base = base + spec.denominator_eps
    elif spec.denominator == "positions":
        base = float(positions)
    elif spec.denominator == "no_nan" and base == 0:
        return np.zeros(table.shape[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        return total / base
