"""Row gathers, and what may follow them row by row: taking rows by Unique's index, clipping to a norm."""

from __future__ import annotations

import dataclasses

from graph_opt.lookup_spec import Step
from graph_opt.recognise.engine import HASH_LOOKUP, NodeDef, Walk, handles, with_step
from graph_opt.recognise.values import Cut, Found, PerValue, Scaled, Split, TableRef, UniqueIndex, Value

_ID_DTYPES = ("int32", "int64")


@handles("GatherV2", "Gather", "ResourceGather")
def row_gather(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    table, ids = inputs[:2]
    if not isinstance(table, TableRef) or not selects_rows(walk, node, inputs):
        return None
    chain = ids if isinstance(ids, Split) and ids.of is not None else id_chain(walk, ids)
    if chain is None:
        return None
    tensor = walk.output(node)
    return Found(tensor, node.name, (table.node,), chain, gathers=(node.name,), dtype=walk.dtype(tensor))


@handles(HASH_LOOKUP)
def hashed_gather(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """Rows of a hash file: ids are keys, which one more step makes row numbers."""
    chain = id_chain(walk, inputs[1])
    if chain is None or node.attr["storage"].s not in (b"", b"float32"):
        return None
    tensor = walk.output(node)
    return Found(
        tensor, node.name, (node.name,), with_step(chain, Step("find")), gathers=(node.name,), dtype=walk.dtype(tensor)
    )


def id_chain(walk: Walk, ids: Value) -> PerValue | None:
    """``ids`` as a chain; what is known to be something else (rows of another lookup) is taken as it is."""
    if walk.dtype(ids) not in _ID_DTYPES or walk.const(ids) is not None:
        return None
    return walk.per_value(ids) or PerValue(ids.tensor, ids.tensor, cuts=(Cut(ids.tensor, 0, 0),))


def selects_rows(walk: Walk, node: NodeDef, inputs: list[Value]) -> bool:
    """True for a gather along axis 0 without batch dimensions."""
    if node.attr["batch_dims"].i:
        return False
    return node.op != "GatherV2" or walk.scalar(inputs[2]) == 0


@handles("GatherV2", "Gather")
def take_by_unique_index(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """Rows of the distinct ids, taken by Unique's index: the rows of all ids."""
    found, index = inputs[:2]
    if isinstance(found, Found) and isinstance(index, UniqueIndex) and not found.pooled:
        return of_all_values(walk, found, index)
    return None


def of_all_values(walk: Walk, found: Found, index: UniqueIndex) -> Found | None:
    """``found``, the rows of distinct ids, as the rows of the ids that Unique saw."""
    ids = found.ids
    if not isinstance(ids, PerValue) or ids.base != index.values or ids.tokens:
        return None
    joined = dataclasses.replace(index.of, steps=(*index.of.steps, *ids.steps))
    return dataclasses.replace(found, ids=joined)


@handles("Mul")
def scaled_rows(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """Rows times a constant: the numerator of clip_by_norm."""
    for rows, factor in (inputs, inputs[::-1]):
        number = walk.scalar(factor)
        if isinstance(rows, Found) and not rows.pooled and isinstance(number, float) and number > 0:
            return Scaled(walk.output(node), rows, number)
    return None


@handles("RealDiv")
def clipped_rows(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """``rows * c / max(norm(rows), c)``; the norm is known by reading nothing but the rows."""
    numerator, norm = inputs
    if isinstance(numerator, Scaled):
        rows, factor = numerator.found, numerator.factor
    elif isinstance(numerator, Found) and _is_at_least_one(walk, norm):
        rows, factor = numerator, 1.0  # optimisers remove `* 1.0`
    else:
        return None
    if rows.max_norm is None and not rows.pooled and walk.facts.depends_only_on(norm.tensor, [rows.tensor]):
        return dataclasses.replace(rows, max_norm=factor)
    return None


def _is_at_least_one(walk: Walk, value: Value) -> bool:
    node = walk.view.producer(value.tensor)
    return node.op == "Maximum" and 1.0 in [walk.scalar(t) for t in walk.view.inputs(node)]
