"""Row numbers of values: from row_splits (about 30 ops that are never matched one by one), from indices, or given."""

from __future__ import annotations

import dataclasses

from graph_opt.recognise.engine import NodeDef, Walk, handles
from graph_opt.recognise.handlers.shapes import as_index_matrix, plain_base
from graph_opt.recognise.handlers.sparse import filled, shape_source
from graph_opt.recognise.values import Coords, Cut, Rowing, Value


def as_row_numbers(walk: Walk, value: Value) -> Coords | None:
    """``value`` read as the row number of every value (segment ids)."""
    if isinstance(value, Coords):
        return value if value.column is not None else None
    chain = walk.per_value(value)
    if chain is None or any(s.kind != "cast" for s in chain.steps) or walk.dtype(chain) not in ("int32", "int64"):
        return None
    if walk.rank(chain) not in (1, None):
        return None
    cuts = tuple(Cut(c.tensor, 1, c.tokens) for c in chain.cuts)
    return Coords(chain.tensor, _rowing(walk, chain.base), chain.tokens, cuts=cuts, column=0)


def _rowing(walk: Walk, tensor: str) -> Rowing:
    """What segment ids are computed from: one row_splits vector, the shape of one tensor, or only themselves."""
    splits = _subtracted_splits(walk, tensor)
    if splits is not None:
        return Rowing("ragged", splits)
    leaves = walk.facts.leaves(tensor)
    data = [leaf for leaf in leaves if not leaf.startswith("shape:")]
    if len(data) == 1 and data[0] != tensor and walk.rank(data[0]) == 1 and walk.dtype(data[0]) in ("int32", "int64"):
        return Rowing("ragged", data[0])
    return _by_position(walk, tensor) or Rowing("segments", tensor)


def _subtracted_splits(walk: Walk, tensor: str) -> str | None:
    """The vector x of ``x[1:] - x[:-1]``, the row lengths nearest above ``tensor``."""
    pending, seen = [tensor], set()
    while pending:
        current = walk.facts.root(pending.pop(0))
        if current in seen or not walk.facts.is_arithmetic(current):
            continue
        seen.add(current)
        inputs = [walk.facts.root(i) for i in walk.view.inputs(walk.view.producer(current))]
        if walk.view.producer(current).op == "Sub":
            slices = [walk.view.producer(i) for i in inputs]
            sources = {walk.facts.root(walk.view.inputs(s)[0]) for s in slices if s.op == "StridedSlice"}
            if len(sources) == 1 and all(s.op == "StridedSlice" for s in slices):
                source = sources.pop()
                if walk.rank(source) == 1 and walk.dtype(source) in ("int32", "int64"):
                    return source
        pending += inputs
    return None


@handles("TfctrRowIds")
def row_ids(walk: Walk, node: NodeDef, inputs: list[Value]) -> Coords:
    """Rows of row splits; where these were made of a matrix of indices, the rows of a sparse feature too."""
    tensor, splits = walk.output(node), walk.facts.root(inputs[0].tensor)
    made = walk.view.producer(splits)
    if made.op == "TfctrEvRowSplits" and not walk.facts.waits_for_effect(made):
        indices, shape = (walk.value(t) for t in walk.view.inputs(made))
        coords = as_index_matrix(walk, indices)
        # In more dimensions a row is the first index only, not the flattened ones.
        if coords is not None and (walk.shape(indices) or [None])[-1] == 2:
            shape_of = coords.shape or shape_source(walk, shape)
            return dataclasses.replace(coords, column=0, shape=shape_of, splits=splits, ordered=True)
    return Coords(tensor, _by_position(walk, splits) or Rowing("ragged", splits), column=0, splits=splits, ordered=True)


def _by_position(walk: Walk, tensor: str) -> Rowing | None:
    """The matrix whose shape alone ``tensor`` is computed from: each of its rows is a row of the batch."""
    leaves = walk.facts.leaves(tensor)
    if not leaves or not all(leaf.startswith("shape:") for leaf in leaves):
        return None
    sources = {plain_base(walk, leaf.removeprefix("shape:")) for leaf in leaves}
    return Rowing("dense", sources.pop()) if len(sources) == 1 and walk.rank(next(iter(sources))) == 2 else None


@handles("RaggedFillEmptyRows")
def ragged_fill_empty_rows(walk: Walk, node: NodeDef, inputs: list[Value]) -> list[Value | None] | None:
    coords, values = as_row_numbers(walk, inputs[0]), walk.per_value(inputs[1])
    if coords is None or values is None or values.tokens != coords.tokens:
        return None
    return filled(walk, node, dataclasses.replace(coords, shape=inputs[2].tensor), values, inputs[3])
