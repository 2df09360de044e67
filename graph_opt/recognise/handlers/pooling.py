"""Reductions of rows to one row per example, their weights and their divisors."""

from __future__ import annotations

import dataclasses

from graph_opt.recognise.engine import NodeDef, Walk, handles
from graph_opt.recognise.handlers.gather import id_chain, of_all_values
from graph_opt.recognise.handlers.ragged import as_row_numbers
from graph_opt.recognise.values import (
    Coords,
    Denominator,
    Fill,
    Found,
    Ones,
    Opaque,
    PerValue,
    Repeated,
    TableRef,
    Test,
    UniqueIndex,
    Value,
)

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_SEGMENT_COMBINERS = {"SparseSegmentSum": "sum", "SparseSegmentMean": "mean", "SparseSegmentSqrtN": "sqrtn"}


@handles(*_SEGMENT_COMBINERS, *(f"{op}WithNumSegments" for op in _SEGMENT_COMBINERS))
def sparse_segments(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """SparseSegment* over a table (grappler's form) or over gathered rows (the form that is saved)."""
    data, index, numbers = inputs[:3]
    found: Found | None = None
    tensor = walk.output(node)
    if isinstance(data, TableRef):
        chain = id_chain(walk, index)
        if chain is not None:
            found = Found(tensor, node.name, (data.node,), chain, gathers=(node.name,), dtype=walk.dtype(tensor))
    elif isinstance(data, Found) and isinstance(index, UniqueIndex) and not data.pooled:
        found = of_all_values(walk, data, index)
    coords = as_row_numbers(walk, numbers)
    if found is None or coords is None or found.weights or found.mask:
        return None
    counted = node.op.endswith("WithNumSegments")
    combiner = _SEGMENT_COMBINERS[node.op.removesuffix("WithNumSegments")]
    found = _pooled(found, coords, combiner, "segment", inputs[3].tensor if counted else None)
    return dataclasses.replace(found, empty="zeros" if counted else found.empty) if found else None


def _pooled(found: Found, coords: Coords, combiner: str, accumulation: str, rows: str | None) -> Found | None:
    ids = found.ids
    if not isinstance(ids, PerValue) or ids.tokens != coords.tokens:
        return None
    full = bool(coords.tokens) and isinstance(coords.tokens[-1], Fill)
    return dataclasses.replace(
        found, coords=coords, combiner=combiner, accumulation=accumulation, pooled=True, rows=rows,
        empty="natural" if full or rows else "short",
    )  # fmt: skip


@handles("SegmentSum", "SegmentMean", "UnsortedSegmentSum", "SegmentSumV2")
def segments(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    data, numbers = inputs[:2]
    coords = as_row_numbers(walk, numbers)
    if coords is None:
        return None
    if isinstance(data, Found) and not data.pooled and data.mask is None:
        combiner = "mean" if node.op == "SegmentMean" else "sum"
        rows = inputs[2].tensor if len(inputs) > 2 else None
        if data.weights is not None and combiner == "mean":
            return None
        found = _pooled(data, coords, combiner, "sequential", rows)
        unordered = node.op.startswith("Unsorted") and not coords.ordered
        return dataclasses.replace(found, unordered=unordered) if found else None
    if node.op == "SegmentMean":
        return None
    if isinstance(data, Ones):
        return Denominator(walk.output(node), "count", coords)
    if isinstance(data, PerValue | Opaque) and walk.dtype(data) in _FLOATS and walk.const(data) is None:
        weights = walk.per_value(data)
        if weights is not None and weights.tokens == coords.tokens:
            kind = "squares" if weights.power == 2 else "weights"
            return Denominator(walk.output(node), kind, coords, dataclasses.replace(weights, power=1))
    return None


@handles("Pow", "Square", "Mul")
def squared_weights(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    data = inputs[0]
    same = node.op == "Square" or (
        walk.scalar(inputs[1]) == 2 if node.op == "Pow" else inputs[0].tensor == inputs[1].tensor
    )
    if not same or not isinstance(data, PerValue | Opaque) or walk.dtype(data) not in _FLOATS:
        return None
    weights = walk.per_value(data)
    return (
        dataclasses.replace(weights, power=2) if weights and weights.power == 1 and walk.const(data) is None else None
    )


@handles("Sqrt")
def root(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    data = inputs[0]
    if isinstance(data, Denominator) and data.kind in ("squares", "count"):
        return dataclasses.replace(data, kind="norm" if data.kind == "squares" else "sqrt_count")
    return None


@handles("Mul")
def weighted_rows(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """Rows times one weight per value, or times a mask of zeros and ones."""
    for rows, factor in (inputs, inputs[::-1]):
        if not isinstance(rows, Found) or rows.pooled:
            continue
        if isinstance(factor, Test) and factor.number and rows.mask is None:
            return dataclasses.replace(rows, mask=factor)
        if isinstance(factor, Repeated):
            factor = factor.of
        elif not _one_per_value(walk, rows, factor):
            return None
        if rows.weights is not None or walk.const(factor) is not None:
            return None
        weights = walk.per_value(factor)
        if (
            weights is not None
            and isinstance(rows.ids, PerValue)
            and weights.tokens == rows.ids.tokens
            and weights.power == 1
        ):
            return dataclasses.replace(rows, weights=weights)
    return None


@handles("Einsum")
def contracted_rows(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """``einsum("bt,btd->bd", weights, rows)``: a weighted or masked sum over the positions."""
    operands, _, result = node.attr["equation"].s.decode().replace(" ", "").partition("->")
    labels = operands.split(",")
    if len(inputs) != 2 or len(labels) != 2:
        return None
    for (rows, of_rows), (factor, of_factor) in (pairs := list(zip(inputs, labels, strict=True)), pairs[::-1]):
        if not isinstance(rows, Found) or rows.pooled or rows.weights is not None or rows.mask is not None:
            continue
        if len(of_rows) != 3 or of_factor != of_rows[:-1] or result != of_rows[0] + of_rows[2]:
            return None
        if isinstance(factor, Test) and factor.number:
            return _reduced_rows(node, dataclasses.replace(rows, mask=factor))
        weights = walk.per_value(factor) if isinstance(factor, PerValue | Opaque) else None
        if weights is not None and weights.power == 1 and not weights.tokens and walk.const(factor) is None:
            return _reduced_rows(node, dataclasses.replace(rows, weights=weights))
    return None


def _one_per_value(walk: Walk, rows: Found, factor: Value) -> bool:
    """True when ``factor`` may have one element per row: a last axis of 1, or a shape that is not known."""
    if not isinstance(factor, PerValue | Opaque) or walk.dtype(factor) not in _FLOATS:
        return False
    shape, rank = walk.shape(factor), walk.rank(rows)
    return shape is None or rank is None or (len(shape) == rank and shape[-1] in (1, None))


@handles("Sum", "Mean")
def reduced(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """Rows [..., T, D] reduced over T, and masks or weights [..., T] with them."""
    data, axis = inputs[0], walk.scalar(inputs[1])
    rank, axes = walk.rank(data), walk.const(inputs[1])
    if rank is None or axes is None or axes.size != 1 or not isinstance(axis, int):
        return None
    axis %= rank
    if isinstance(data, Found) and not data.pooled and axis == rank - 2 and rank >= 3:
        return _reduced_rows(node, data)
    if node.op == "Mean":
        return None
    shape = walk.shape(data) or []
    last = axis == rank - 1 or (axis == rank - 2 and (shape[-1] == 1 or isinstance(data, Test)))
    if not last:
        return None
    if isinstance(data, Test) and data.number:
        return Denominator(walk.output(node), "count", mask=data)
    if isinstance(data, PerValue | Opaque) and walk.dtype(data) in _FLOATS and walk.const(data) is None and rank >= 2:
        weights = walk.per_value(data)
        if weights is not None and not weights.tokens and not weights.steps:
            kind = "squares" if weights.power == 2 else "weights"
            return Denominator(walk.output(node), kind, weights=dataclasses.replace(weights, power=1))
    return None


def _reduced_rows(node: NodeDef, found: Found) -> Found | None:
    if not isinstance(found.ids, PerValue) or found.ids.tokens:
        return None
    pooled = dataclasses.replace(found, pooled=True, combiner="sum", accumulation="sequential", empty="natural")
    return dataclasses.replace(pooled, combiner="mean", denominator="positions") if node.op == "Mean" else pooled


@handles("Maximum", "AddV2", "Add")
def guarded_denominator(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    for data, other in (inputs, inputs[::-1]):
        number = walk.scalar(other)
        if not isinstance(data, Denominator) or data.rule != "count" or not isinstance(number, int | float):
            continue
        if node.op == "Maximum":
            return dataclasses.replace(data, rule="max1") if number == 1 else None
        return dataclasses.replace(data, rule="eps", eps=float(number)) if number > 0 else None
    return None


@handles("RealDiv", "DivNoNan", "Div")
def divided(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """A pooled sum divided: mean or sqrtn."""
    found, divisor = inputs
    if (
        not isinstance(found, Found)
        or not found.pooled
        or found.combiner != "sum"
        or not isinstance(divisor, Denominator)
    ):
        return None
    if divisor.coords != found.coords or divisor.weights != found.weights or divisor.mask != found.mask:
        return None
    combiner = {"count": "mean", "weights": "mean", "norm": "sqrtn", "sqrt_count": "sqrtn"}.get(divisor.kind)
    if combiner is None:
        return None
    return _with_divisor(found, divisor, combiner, node)


def _with_divisor(found: Found, divisor: Denominator, combiner: str, node: NodeDef) -> Found:
    rule = divisor.rule
    if node.op == "DivNoNan":
        rule = "no_nan" if rule == "count" else rule
    return dataclasses.replace(found, combiner=combiner, denominator=rule, eps=divisor.eps)
