"""Ops on the three parts of a sparse feature: indices, values, dense_shape."""

from __future__ import annotations

import dataclasses

from graph_opt.recognise.engine import NodeDef, Walk, handles, with_token
from graph_opt.recognise.handlers.shapes import as_index_matrix
from graph_opt.recognise.values import Coords, DenseShape, Empty, Fill, PerValue, Value


def shape_source(walk: Walk, value: Value) -> str:
    """The dense_shape tensor that the model gives for ``value``."""
    return value.source if isinstance(value, DenseShape) else value.tensor


@handles("SparseReshape")
def sparse_reshape(walk: Walk, node: NodeDef, inputs: list[Value]) -> list[Value | None] | None:
    """Rank r becomes rank 2: the same values, in rows counted over the first r - 1 dimensions."""
    coords = as_index_matrix(walk, inputs[0])
    new_rank = walk.shape(walk.output(node))
    if coords is None or (new_rank is not None and new_rank[-1] not in (2, None)):
        return None
    source = shape_source(walk, inputs[1])
    return [dataclasses.replace(coords, shape=source), DenseShape(walk.output(node, 1), source)]


@handles("SparseFillEmptyRows")
def fill_empty_rows(walk: Walk, node: NodeDef, inputs: list[Value]) -> list[Value | None] | None:
    coords, values = as_index_matrix(walk, inputs[0]), walk.per_value(inputs[1])
    if coords is None or values is None or values.tokens != coords.tokens:
        return None
    coords = dataclasses.replace(coords, shape=coords.shape or shape_source(walk, inputs[2]))
    return filled(walk, node, coords, values, inputs[3])


def filled(walk: Walk, node: NodeDef, coords: Coords, values: PerValue, default: Value) -> list[Value | None]:
    """Outputs of both fill ops: coordinates, values, empty rows."""
    token = Fill(walk.scalar(default))
    return [
        with_token(coords, token),
        with_token(values, token),
        Empty(walk.output(node, 2), coords.rowing, coords.tokens),
    ]
