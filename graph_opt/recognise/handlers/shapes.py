"""Ops that move elements without changing them: reshapes, new axes, broadcasts, casts between float widths, fills."""

from __future__ import annotations

import dataclasses

from graph_opt.recognise.engine import NodeDef, Walk, handles
from graph_opt.recognise.values import (
    Coords,
    Cut,
    Denominator,
    DenseShape,
    Empty,
    Found,
    IsNan,
    Ones,
    Opaque,
    Passing,
    PerValue,
    Repeated,
    Rowing,
    Scaled,
    Split,
    Test,
    UniqueIndex,
    Value,
    Zeros,
)

_MOVABLE = (Denominator, Empty, Found, IsNan, Ones, Passing, Scaled, Split, Test, UniqueIndex, Zeros)


@handles("Reshape", "ExpandDims", "Squeeze")
def same_elements(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """The same elements in the same order under another shape."""
    return _moved(walk, inputs[0])


def _moved(walk: Walk, value: Value) -> Value | None:
    if isinstance(value, _MOVABLE):
        return value
    if isinstance(value, Coords):
        return value if value.column is not None else None
    if isinstance(value, Opaque) and walk.const(value) is not None:
        return None
    return walk.per_value(value)


@handles("StridedSlice")
def slices(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """``x[:, newaxis]`` moves elements; ``indices[:, 0]`` takes the row number of every value."""
    begins = walk.const(inputs[1])
    count = 0 if begins is None else len(begins)
    new_axis, shrink = node.attr["new_axis_mask"].i, node.attr["shrink_axis_mask"].i
    full = node.attr["begin_mask"].i & node.attr["end_mask"].i | node.attr["ellipsis_mask"].i | new_axis
    strides = walk.scalar(inputs[3])
    if new_axis and not shrink and strides == 1 and full == (1 << count) - 1:
        return _moved(walk, inputs[0])
    if shrink and not new_axis and strides == 1 and _drops_single_axes(walk, inputs[0], shrink, full, count):
        return _moved(walk, inputs[0])
    column = count == 2 and not new_axis and shrink == 2 and full & 1 and strides == 1
    if column and begins is not None and begins[1] == 0:
        return row_column(walk, inputs[0])
    return None


def _drops_single_axes(walk: Walk, value: Value, shrink: int, full: int, count: int) -> bool:
    """True for ``x[:, 0, :]`` where that axis has one element and everything else is kept."""
    shape = walk.shape(value)
    if shape is None or len(shape) < count or full & shrink:
        return False
    bits = [(shrink >> k & 1, full >> k & 1, shape[k]) for k in range(count)]
    return all(size == 1 if dropped else kept for dropped, kept, size in bits)


def row_column(walk: Walk, value: Value) -> Coords | None:
    """The first column of an index matrix."""
    coords = as_index_matrix(walk, value)
    return None if coords is None else dataclasses.replace(coords, column=0)


def as_index_matrix(walk: Walk, value: Value) -> Coords | None:
    """``value`` read as the indices [N, r] of a sparse feature."""
    if isinstance(value, Coords):
        return value if value.column is None else None
    if isinstance(value, Passing):
        bases = {c.base for c in value.conds}
        if len(bases) != 1 or (walk.shape(value) or [None, None])[-1] == 1:
            return None
        tokens = passing_tokens(value)
        return Coords(value.tensor, Rowing("dense", bases.pop()), tokens, cuts=(Cut(value.tensor, 0, len(tokens)),))
    chain = walk.per_value(value)
    if chain is None or walk.rank(chain) not in (2, None) or walk.dtype(chain) != "int64":
        return None
    if any(s.kind != "cast" for s in chain.steps):
        return None
    if chain.steps:
        whole = [c for c in chain.cuts if c.steps == len(chain.steps) and not c.tokens]
        if not whole:
            return None
        chain = dataclasses.replace(chain, base=whole[0].tensor, steps=(), cuts=tuple(whole))
    rowing = Rowing("sparse", chain.base)
    leaves = walk.facts.leaves(chain.base)
    if leaves and all(leaf.startswith("shape:") for leaf in leaves):
        sources = {plain_base(walk, leaf.removeprefix("shape:")) for leaf in leaves}
        if len(sources) == 1:
            rowing = Rowing("dense", sources.pop())
    return Coords(chain.tensor, rowing, chain.tokens, cuts=tuple(Cut(c.tensor, 0, c.tokens) for c in chain.cuts))


def passing_tokens(value: Passing) -> tuple:
    """The tokens of values taken at these positions."""
    from graph_opt.recognise.values import Keep

    before = max((c.tokens for c in value.conds), key=len)
    return (*before, Keep(value.conds))


def plain_base(walk: Walk, tensor: str) -> str:
    """The tensor that ``tensor`` has its elements from, one by one, or itself."""
    value = walk.value(tensor)
    return value.base if isinstance(value, PerValue) and not value.tokens else walk.facts.root(tensor)


@handles("Tile", "BroadcastTo")
def broadcasts(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """A last axis of one element repeated over the width of a row."""
    value = inputs[0]
    if isinstance(value, Empty | Zeros | Ones):
        return value
    before, after = walk.shape(value), walk.shape(walk.output(node))
    if not before or not after or len(before) != len(after) or before[-1] != 1:
        return None
    multiples = walk.const(inputs[1]) if node.op == "Tile" else None
    if multiples is not None and not (multiples[:-1] == 1).all():
        return None
    if isinstance(value, Test | Denominator):
        return value
    chain = walk.per_value(value)
    return None if chain is None else Repeated(walk.output(node), chain)


@handles("Fill")
def fills(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """Constant tensors of a computed shape."""
    number = walk.scalar(inputs[1])
    tensor = walk.output(node)
    if isinstance(number, str) or number is None:
        return None
    if number == 0:
        return Zeros(tensor)
    if number == 1:
        like = [leaf for leaf in walk.facts.leaves(inputs[0].tensor) if leaf.startswith("shape:")]
        return Ones(tensor, walk.value(like[0].removeprefix("shape:")) if len(like) == 1 else None)
    return None


@handles("ZerosLike")
def zeros_like(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value:
    return Zeros(walk.output(node))


@handles("OnesLike")
def ones_like(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value:
    return Ones(walk.output(node), inputs[0])


def is_zero(walk: Walk, value: Value) -> bool:
    """True for a tensor known to hold nothing but zeros."""
    number = None if isinstance(value, Zeros) else walk.scalar(value)
    return isinstance(value, Zeros) or (number is not None and not isinstance(number, str) and number == 0)


def is_true(walk: Walk, value: Value) -> bool:
    """True for a tensor known to hold nothing but ones or True."""
    return isinstance(value, Ones) or walk.scalar(value) is True


@handles("Cast")
def number_casts(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """Casts that change no value: bool to number, between float widths of rows, of row numbers and shapes."""
    value = inputs[0]
    source, target = walk.dtype(value), walk.dtype(walk.output(node))
    if isinstance(value, Test):
        return dataclasses.replace(value, number=target != "bool")
    if isinstance(value, Coords | Ones | Zeros | Denominator | UniqueIndex | DenseShape):
        return value
    if isinstance(value, Found):
        table = walk.dtype(f"{value.tables[0]}:0")
        wider = walk.facts.dtype(walk.output(node)).size > walk.facts.dtype(f"{value.tables[0]}:0").size
        exact = target == table or (wider and walk.facts.dtype(walk.output(node)).is_floating)
        return dataclasses.replace(value, dtype=target) if exact else None
    if isinstance(value, Opaque | PerValue) and source == "bool":
        from graph_opt.recognise.handlers.masks import given

        test = given(walk, value)
        return dataclasses.replace(test, number=True) if test else None
    return None
