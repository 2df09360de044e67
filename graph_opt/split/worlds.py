"""Tensors of the original graph as tensors with U rows (of users) or B rows (of the batch), made when asked for.

Everything that repeats user rows, joins both sides or makes a shape for one of them is here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from graph_opt.rows.analysis import RowFacts
from graph_opt.rows.dims import ONE
from graph_opt.split.builder import Builder
from graph_opt.split.views import View, user_view
from graph_opt.verify import output_dtypes
from graph_opt.view import canonical, port_of

USER, ITEM = "user", "item"
_INT64 = tf.int64.as_datatype_enum
_FLOATS = frozenset(t.as_datatype_enum for t in (tf.float32, tf.float64, tf.float16, tf.bfloat16))


class CannotTell(Exception):
    """A shape that one side needs can't be made without the other side's tensor."""


@dataclasses.dataclass(frozen=True)
class Broadcast:
    """A place where user rows were repeated. tensor: of the original graph; past: ops that the rows went through on U
    rows before; at: the node that needed them ("" : the output of the signature), op its op."""

    tensor: str
    past: tuple[str, ...]
    at: str
    op: str


class Worlds:
    """views: how each original tensor is held. row_to_user: tensor int64 [B]. user_rows: scalar int64, number of users.

    A tensor of either side is made once and shared by all that ask for it.
    """

    def __init__(self, build: Builder, rows: RowFacts, row_to_user: str) -> None:
        self.build = build
        self.rows = rows
        self.row_to_user = row_to_user
        self.views: dict[str, View] = {}
        self.broadcasts: list[Broadcast] = []
        self.user_inputs: list[tuple[str, str]] = []  # (tensor with a known relation to U, kind of the relation)
        self._made: dict[tuple[str, str], str] = {}
        self._joined: dict[tuple[object, ...], str] = {}
        self._counts: dict[tuple[str, int], str] = {}

    def view(self, tensor: str) -> View:
        return self.views[canonical(tensor)]

    # Tensors of one side

    def user(self, tensor: str) -> str:
        """``tensor`` with U rows; it must not need any item row."""
        view = self.view(tensor)
        if view.form == "shared":
            return canonical(tensor)
        if view.form == "dual":
            return self.dual(tensor, USER)
        if view.form != "user":
            raise CannotTell(f"{tensor} has item rows")
        return view.user

    def full(self, tensor: str, consumer: node_def_pb2.NodeDef | None = None) -> str:
        """``tensor`` with B rows. consumer: the node that needs it, for the report; None: the signature's output."""
        view = self.view(tensor)
        if view.form == "shared":
            return canonical(tensor)
        if view.form == "dual":
            return self.dual(tensor, ITEM)
        if view.form == "full":
            return view.full
        return self.join(view, tensor, consumer)

    def join(self, view: View, tensor: str, consumer: node_def_pb2.NodeDef | None = None, *, relu: bool = False) -> str:
        """A user or mixed view of ``tensor`` with B rows. relu: with max(0, x) on top, in the same pass where that can
        be.
        """
        key = (view.user, view.full, view.segments, relu)
        if key not in self._joined:
            kind = self.rows.kind(tensor)
            if kind.dims is None:
                raise CannotTell(f"the rank of {tensor} is not known")
            single = kind.fold == ONE
            if view.form == "user":
                made = self._repeat(view.user, single)
                made = self.build.unary("Relu", made) if relu else made
            else:
                made = self._join(view, len(kind.dims), single, relu)
            self._joined[key] = made
            at, op = (consumer.name, consumer.op) if consumer is not None else ("", "")
            self.broadcasts.append(Broadcast(canonical(tensor), view.past, at, op))
        return self._joined[key]

    def _join(self, view: View, rank: int, single: bool, relu: bool) -> str:
        dtype = self.build.dtype(view.full)
        custom = self.build.custom and dtype in _FLOATS
        if view.all_sum:
            if custom:
                return self.build.op(
                    "TfctrAddUserRows",
                    [view.full, view.user, self.row_to_user],
                    "add_user_rows",
                    T=("type", dtype),
                    relu=relu,
                )
            made = self.build.binary("AddV2", view.full, self._repeat(view.user, single), "add_user_rows")
            return self.build.unary("Relu", made) if relu else made
        if custom:
            made = self.build.op(
                "TfctrJoinUserRows",
                [view.full, view.user, self.row_to_user],
                "join_user_rows",
                T=("type", dtype),
                axis=view.axis,
                widths=[s.width for s in view.segments],
                sides=[["user", "item", "both"].index(s.side) for s in view.segments],
            )
        else:
            made = self._stock_join(view, rank, single)
        return self.build.unary("Relu", made) if relu else made

    def _stock_join(self, view: View, rank: int, single: bool) -> str:
        """The same with stock ops, which cost a pass more."""
        users = self._repeat(view.user, single)
        whole = {side: len(view.columns(side)) for side in (USER, ITEM)}
        parts = []
        start = {USER: 0, ITEM: 0}
        for segment in view.segments:
            pieces = []
            for side, tensor in ((USER, users), (ITEM, view.full)):
                if segment.side in (side, "both"):
                    one = segment.width == whole[side]
                    pieces.append(
                        tensor if one else self.build.slice(tensor, rank, view.axis, start[side], segment.width)
                    )
                    start[side] += segment.width
            parts.append(pieces[0] if len(pieces) == 1 else self.build.binary("AddV2", pieces[1], pieces[0]))
        return self.build.concat(parts, view.axis, "join")

    def _repeat(self, tensor: str, single: bool) -> str:
        """User rows as item rows. single: one entry of axis 0 per user; else [U * K, ...] becomes [B * K, ...]."""
        key = (tensor, "repeat")
        if key not in self._made:
            self._made[key] = self.build.gather(tensor, self.row_to_user) if single else self._repeat_blocks(tensor)
        return self._made[key]

    def _repeat_blocks(self, tensor: str) -> str:
        users = self.build.op("ExpandDims", [self.row_count(USER, _INT64), self.build.constant(0)],
                              "users", T=("type", _INT64), Tdim=("type", tf.int32.as_datatype_enum))  # fmt: skip
        shape = self.build.shape(tensor, _INT64)
        rest = self.build.slice(shape, 1, 0, 1, -1)
        blocks = self.build.concat([users, self.build.constant([-1], np.int64), rest], 0, "blocks")
        gathered = self.build.gather(self.build.reshape(tensor, blocks), self.row_to_user)
        return self.build.reshape(gathered, self.build.concat([self.build.constant([-1], np.int64), rest], 0))

    # Shapes, and what depends on them only

    def row_count(self, world: str, dtype: int) -> str:
        """The number of rows of one side, a scalar."""
        key = (world, dtype)
        if key not in self._counts:
            if dtype != _INT64:
                made = self.build.cast(self.row_count(world, _INT64), dtype)
            elif world == ITEM:
                made = self.build.element(self.build.shape(self.row_to_user, _INT64), 0)
            else:
                made = self._users()
            self._counts[key] = made
        return self._counts[key]

    def _users(self) -> str:
        tensor, relation = min(self.user_inputs, key=lambda entry: ("row", "dshape", "splits").index(entry[1]))
        if relation == "row":
            return self.build.element(self.build.shape(tensor, _INT64), 0)
        if relation == "dshape":
            return self.build.cast(self.build.element(tensor, 0), _INT64)
        splits = self.build.element(self.build.shape(tensor, _INT64), 0)
        return self.build.binary("Sub", splits, self.build.constant(1, np.int64))

    def dual(self, tensor: str, world: str) -> str:
        """A tensor that depends on the number of rows only, for the rows of ``world``."""
        tensor = canonical(tensor)
        key = (tensor, world)
        if key not in self._made:
            node = self.build.view.producer(tensor)
            kind = self.rows.kind(tensor)
            if kind.name == "dshape" and node.op in ("Placeholder", "PlaceholderWithDefault"):
                self._made[key] = self._dense_shape(tensor, world)
            elif node.op in ("Shape", "ShapeN", "Size"):
                self._made[key] = self._shape_of(node, port_of(tensor), world)
            elif node.op == "Rank":
                dims = self.rows.kind(self.build.view.inputs(node)[0]).dims
                if dims is None:
                    raise CannotTell(f"the rank of {self.build.view.inputs(node)[0]} is not known")
                self._made[key] = self.build.constant(len(dims), np.int32)
            else:
                side = self.user if world == USER else self.full
                name = self.build.copy(node, world, [side(t) for t in self.build.view.inputs(node)])
                for port in range(len(output_dtypes(node))):
                    self._made[(f"{node.name}:{port}", world)] = f"{name}:{port}"
        return self._made[key]

    def _dense_shape(self, tensor: str, world: str) -> str:
        """A sparse feature's dense shape with the number of rows of ``world``."""
        if self.views[tensor].past == (world,):  # the input itself is of this side
            return tensor
        rest = self.build.slice(tensor, 1, 0, 1, -1)
        rows = self.build.op("ExpandDims", [self.row_count(world, _INT64), self.build.constant(0)],
                             "rows", T=("type", _INT64), Tdim=("type", tf.int32.as_datatype_enum))  # fmt: skip
        return self.build.concat([rows, rest], 0, "dense_shape")

    def _shape_of(self, node: node_def_pb2.NodeDef, port: int, world: str) -> str:
        source = self.build.view.inputs(node)[port if node.op == "ShapeN" else 0]
        dtype = node.attr["out_type"].type or tf.int32.as_datatype_enum
        view = self.view(source)
        own = view.user if world == USER and view.form == "user" else ""
        own = view.full if world == ITEM and view.form == "full" else own
        if view.form in ("shared", "dual"):
            own = self.user(source) if world == USER else self.full(source)
        if own:
            made = self.build.op(
                "Size" if node.op == "Size" else "Shape",
                [own],
                T=("type", self.build.dtype(own)),
                out_type=("type", dtype),
            )
            return made
        shape = self._shape_elements(source, view, world, dtype)
        if node.op != "Size":
            return self.build.pack(shape, 0, "shape")
        packed = self.build.pack(shape, 0, "shape")
        return self.build.op(
            "Prod", [packed, self.build.constant(0)], T=("type", dtype), Tidx=("type", tf.int32.as_datatype_enum),
            keep_dims=False,
        )  # fmt: skip

    def _shape_elements(self, source: str, view: View, world: str, dtype: int) -> list[str]:
        """The sizes of ``source`` for ``world``, which holds it on the other side or in two parts."""
        dims = self.rows.kind(source).dims
        fold = self.rows.kind(source).fold
        if dims is None or fold is None or not fold.known:
            raise CannotTell(f"the shape of {source} is not known")
        number = tf.as_dtype(dtype).as_numpy_dtype
        rows = self.row_count(world, dtype)
        if fold != ONE:
            rows = self.build.binary("Mul", rows, self.build.constant(fold.coef, number))
        found = [rows]
        inside = view.user or view.full
        shape = ""
        for axis, dim in enumerate(dims[1:], start=1):
            if dim.known:
                found.append(self.build.constant(dim.coef, number))
                continue
            if view.form == "mixed" and axis == view.axis:
                found.append(self.build.constant(view.width, number))
                continue
            shape = shape or self.build.shape(inside, dtype)
            found.append(self.build.element(shape, axis))
        return found

    # Views

    def set(self, node: node_def_pb2.NodeDef, views: Sequence[View]) -> None:
        for port, view in enumerate(views):
            self.views[f"{node.name}:{port}"] = view


def plain_user(node: str, ports: int, past: tuple[str, ...]) -> list[View]:
    return [user_view(f"{node}:{port}", past) for port in range(ports)]
