"""The ops of a split form that join rows of users and of items, in stock ops where the dense device is no CPU.

``TfctrAddUserRows`` and ``TfctrJoinUserRows`` save a pass over the rows on a CPU and have no other kernels. Elsewhere
the user rows are gathered first.
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from graph_opt.placement.words import Nodes
from graph_opt.view import GraphView, canonical, node_of

JOINS = frozenset({"TfctrAddUserRows", "TfctrJoinUserRows"})
_USER, _ITEM, _BOTH = 0, 1, 2


def lower_joins(view: GraphView, names: Iterable[str]) -> list[str]:
    """Replaces those of ``names`` that are joins; they keep their names. Returns the names."""
    found = [name for name in names if view.node(name).op in JOINS]
    for name in found:
        node = node_def_pb2.NodeDef()
        node.CopyFrom(view.node(name))
        _replace(view, node)
    return found


def _replace(view: GraphView, node: node_def_pb2.NodeDef) -> None:
    item, user, row_to_user = view.inputs(node)
    dtype = tf.as_dtype(node.attr["T"].type)
    made = Nodes(view, f"{node.name}/tfctr", "", rule=b"place_devices")
    mine = _gathered(made, item, user, row_to_user, dtype)
    if node.op == "TfctrJoinUserRows":
        parts = _segments(made, node, item, mine, dtype)
        _become(view, node, "ConcatV2", [*parts, made.const("axis", node.attr["axis"].i)])
        target = view.node(node.name)
        target.attr["N"].i = len(parts)
        target.attr["Tidx"].type = tf.int32.as_datatype_enum
    elif node.attr["relu"].b:
        _become(view, node, "Relu", [made.op("AddV2", "sum", [item, mine], T=dtype)])
    else:
        _become(view, node, "AddV2", [item, mine])


def _become(view: GraphView, node: node_def_pb2.NodeDef, op: str, inputs: list[str]) -> None:
    """Makes the node of the graph another op over ``inputs``. node: as it was."""
    target = view.node(node.name)
    target.op = op
    for key in node.attr:
        if key != "T" and not key.startswith("_"):
            del target.attr[key]
    view.set_inputs(node.name, [*inputs, *(i for i in node.input if i.startswith("^"))])


def _gathered(made: Nodes, item: str, user: str, row_to_user: str, dtype: tf.DType) -> str:
    """User rows, one per item row; K entries of axis 0 belong to one row of ``row_to_user``."""
    rows = made.size_of(row_to_user, tf.int64, 0, "rows")
    entries = made.size_of(item, dtype, 0, "entries")
    one = made.const("one", 1)
    some = made.op("Maximum", "some", [rows, one], T=tf.int32)
    each = made.op("FloorDiv", "each", [entries, some], T=tf.int32)
    each = made.op("Maximum", "at_least_one", [each, one], T=tf.int32)
    shape = made.op("Shape", "user/shape", [user], T=dtype, out_type=tf.int32)
    ends = [made.const(f"user/{k}", [v]) for k, v in (("begin", 1), ("end", 0), ("step", 1))]
    rest = made.op("StridedSlice", "user/rest", [shape, *ends], T=tf.int32, Index=tf.int32, end_mask=1)
    front = made.op("Pack", "front", [made.const("open", -1), each], T=tf.int32, N=2, axis=0)
    zero = made.const("zero", 0)
    by_user = made.op("ConcatV2", "by_user/shape", [front, rest, zero], T=tf.int32, N=2, Tidx=tf.int32)
    by_user = made.op("Reshape", "by_user", [user, by_user], T=dtype, Tshape=tf.int32)
    types = {"Tparams": dtype, "Tindices": tf.int64, "Taxis": tf.int32}
    taken = made.op("GatherV2", "taken", [by_user, row_to_user, zero], batch_dims=0, **types)
    ends = [made.const("flat/open", [-1]), rest, zero]
    flat = made.op("ConcatV2", "flat/shape", ends, T=tf.int32, N=2, Tidx=tf.int32)
    return made.op("Reshape", "flat", [taken, flat], T=dtype, Tshape=tf.int32)


def _segments(made: Nodes, node: node_def_pb2.NodeDef, item: str, mine: str, dtype: tf.DType) -> list[str]:
    """The segments in order: of the item rows, of the gathered user rows, or sums of both."""
    axis = made.const("split_axis", node.attr["axis"].i)
    pieces = {}
    for side, tensor in ((_ITEM, item), (_USER, mine)):
        every = zip(node.attr["widths"].list.i, node.attr["sides"].list.i, strict=True)
        widths = [width for width, whose in every if whose in (side, _BOTH)]
        if len(widths) > 1:
            sizes = made.const(f"widths_{side}", widths)
            first = made.op(
                "SplitV", f"split_{side}", [tensor, sizes, axis], T=dtype, Tlen=tf.int32, num_split=len(widths)
            )
            pieces[side] = [f"{node_of(first)}:{k}" for k in range(len(widths))]
        else:
            pieces[side] = [tensor]
    found = []
    for number, side in enumerate(node.attr["sides"].list.i):
        if side == _BOTH:
            both = [pieces[_ITEM].pop(0), pieces[_USER].pop(0)]
            found.append(made.op("AddV2", f"both_{number}", both, T=dtype))
        else:
            found.append(canonical(pieces[side].pop(0)))
    return found
