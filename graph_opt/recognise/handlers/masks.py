"""Tests of values (padding, sign, weights) and what is selected by them."""

from __future__ import annotations

import dataclasses

from graph_opt.recognise.engine import NodeDef, Walk, handles, with_token
from graph_opt.recognise.handlers.shapes import as_index_matrix, is_true, is_zero, passing_tokens
from graph_opt.recognise.values import (
    Cond,
    Coords,
    Empty,
    Found,
    IsNan,
    Keep,
    Opaque,
    Passing,
    PerValue,
    Test,
    Value,
)

_KINDS = {"GreaterEqual": "ge", "Greater": "gt", "Less": "lt", "LessEqual": "le", "NotEqual": "ne", "Equal": "eq"}
_MIRRORED = {"ge": "le", "gt": "lt", "lt": "gt", "le": "ge", "ne": "ne", "eq": "eq"}


@handles(*_KINDS)
def comparisons(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """A chain compared with a constant."""
    (left, right), kind = inputs, _KINDS[node.op]
    if walk.const(left) is not None:
        left, right, kind = right, left, _MIRRORED[kind]
    limit = 0 if is_zero(walk, right) and walk.dtype(right) != "string" else walk.scalar(right)
    chain = walk.per_value(left) if walk.const(left) is None else None
    if chain is None or limit is None or isinstance(limit, bool):
        return None
    if walk.facts.dtype(left.tensor).is_integer and isinstance(limit, int) and kind in ("gt", "le"):
        kind, limit = {"gt": "ge", "le": "lt"}[kind], limit + 1
    cond = Cond(kind, chain.base, chain.steps, chain.tokens, limit)
    return Test(walk.output(node), frozenset({cond}), source=walk.output(node))


def given(walk: Walk, value: Value) -> Test | None:
    """A bool tensor, whatever made it."""
    if isinstance(value, Test):
        return value
    chain = walk.per_value(value)
    if chain is None or chain.steps or walk.dtype(value) != "bool":
        return None
    return Test(value.tensor, frozenset({Cond("given", chain.base, tokens=chain.tokens)}), source=chain.base)


@handles("LogicalAnd", "LogicalOr")
def combined(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    if node.op == "LogicalAnd":
        for one, other in (inputs, inputs[::-1]):
            if is_true(walk, one):
                return (
                    dataclasses.replace(other, source=walk.output(node))
                    if isinstance(other, Test)
                    else given(walk, other)
                )
    left, right = given(walk, inputs[0]), given(walk, inputs[1])
    if left is None or right is None:
        return None
    alternative = node.op == "LogicalOr"
    if any(len(t.conds) > 1 and t.any != alternative for t in (left, right)):
        return None
    conds = left.conds | right.conds
    return Test(walk.output(node), conds, any=alternative and len(conds) > 1, source=walk.output(node))


@handles("LogicalNot")
def negation(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    if isinstance(inputs[0], Test):
        return dataclasses.replace(inputs[0].negated(), source=walk.output(node))
    if isinstance(inputs[0], Empty):
        return dataclasses.replace(inputs[0], negated=not inputs[0].negated)
    return None


@handles("Where")
def where(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """Positions of the values that pass; what passes a test that the language does not know is a source of its own."""
    test = inputs[0]
    if not isinstance(test, Test) or test.any or test.number or any("given" in c.kind for c in test.conds):
        return None
    return Passing(walk.output(node), test.conds)


@handles("GatherV2", "GatherNd")
def keep(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """Values, weights or row numbers taken at the positions that pass a test."""
    data, positions = inputs[:2]
    if not isinstance(positions, Passing) or (node.op == "GatherV2" and walk.scalar(inputs[2]) != 0):
        return None
    token, before = Keep(positions.conds), passing_tokens(positions)[:-1]
    if isinstance(data, Opaque) and walk.dtype(data) == "int64" and walk.rank(data) == 2 and node.op == "GatherV2":
        data = as_index_matrix(walk, data) or data
    if isinstance(data, Opaque):
        data = walk.per_value(data) or data
    if isinstance(data, PerValue | Coords) and data.tokens == before:
        return with_token(data, token)
    return None


@handles("IsNan")
def is_nan(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    return IsNan(walk.output(node), inputs[0]) if isinstance(inputs[0], Found) and inputs[0].pooled else None


@handles("Select", "SelectV2")
def selected_rows(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """Rows replaced by zeros: empty rows, rows that are not a number, masked values."""
    test, yes, no = inputs
    if isinstance(test, Opaque | PerValue) and walk.dtype(test) == "bool":
        test = given(walk, test) or test
    keeps_yes = isinstance(yes, Found)
    found, other = (yes, no) if keeps_yes else (no, yes)
    if not isinstance(found, Found) or not is_zero(walk, other):
        return None
    if isinstance(test, Empty) and test.negated == keeps_yes and found.pooled and found.coords is not None:
        before = (found.coords.rowing, found.coords.tokens[:-1])
        return dataclasses.replace(found, empty="zeros") if before == (test.rowing, test.tokens) else None
    if isinstance(test, IsNan) and not keeps_yes and test.found == found and found.denominator == "count":
        return dataclasses.replace(found, empty="zeros")
    if isinstance(test, Test) and not found.pooled and found.mask is None and not test.number:
        return dataclasses.replace(found, mask=test if keeps_yes else test.negated())
    return None
