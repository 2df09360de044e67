"""Plans and makes the packed tensors of groups of crossing tensors (``crossings``)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from graph_opt.placement.crossings import Crossings, Group
from graph_opt.placement.reasons import REASONS
from graph_opt.placement.rows import BATCH, USERS, Rows, RowsOfForms
from graph_opt.placement.words import Nodes, words_of
from graph_opt.recognise.facts import Facts
from graph_opt.rows.dims import Dim
from graph_opt.view import GraphView, node_of

PACK_OP = "TfctrPackRows"


@dataclasses.dataclass
class Part:
    """A tensor that crosses, what its rows are, and its dtype."""

    tensor: str
    rows: Rows
    dtype: tf.DType

    @property
    def words(self) -> int:
        return words_of(self.rows.columns, self.dtype)

    def describe(self) -> dict[str, Any]:
        columns = [*([-1] if self.rows.open else []), *self.rows.columns]
        return {"tensor": self.tensor, "dtype": self.dtype.name, "columns": columns, "along": self.rows.along}


@dataclasses.dataclass
class Plan:
    """How one group crosses. batch, open, users: packed together, in this order, where ``packs`` (open: those of one
    unknown size of axis 1; never beside users). sizes: worked out on the other side. apart: tensors that cross by
    themselves, with reasons. node: what was made of it. of_users: something in it depends on the users alone;
    exact_users: something in it has exactly as many rows as there are users.
    """

    group: Group
    to_dense: bool
    batch: list[Part] = dataclasses.field(default_factory=list)
    open: list[Part] = dataclasses.field(default_factory=list)
    users: list[Part] = dataclasses.field(default_factory=list)
    sizes: list[Part] = dataclasses.field(default_factory=list)
    apart: dict[str, str] = dataclasses.field(default_factory=dict)
    node: str = ""
    of_users: bool = False
    exact_users: bool = False

    @property
    def parts(self) -> list[Part]:
        return [*self.batch, *self.open, *self.users]

    @property
    def packs(self) -> bool:
        return len(self.parts) > 1

    def describe(self) -> dict[str, Any]:
        return {
            "direction": "to the dense device" if self.to_dense else "to the sparse device",
            "signatures": sorted(self.group.signatures),
            "stage": self.group.stage,
            "node": self.node,
            "packed": [p.describe() for p in self.parts] if self.packs else [],
            "alone": [] if self.packs else [p.tensor for p in self.parts],
            "worked_out": [p.tensor for p in self.sizes],
            "apart": self.apart,
        }


def plan_to_dense(group: Group, rows: RowsOfForms, facts: Facts) -> Plan:
    """One packed tensor: those along the batch's rows first, those along the users' behind them."""
    plan = Plan(group, True)
    for tensor in group.tensors:
        part = Part(tensor, rows.of(tensor, group.signatures), facts.dtype(tensor))
        plan.of_users |= part.rows.of == USERS
        if part.rows.along == BATCH:
            (plan.open if part.rows.open else plan.batch).append(part)
        elif part.rows.along == USERS:
            plan.users.append(part)
        elif part.rows.sizes is not None:
            plan.sizes.append(part)
        else:
            plan.apart[tensor] = part.rows.reason
            plan.exact_users |= part.rows.of == USERS
    return plan


def plan_to_sparse(group: Group, rows: RowsOfForms, facts: Facts, crossings: Crossings) -> Plan:
    """One packed tensor of all outputs, and of what a later lookup needs, with one entry per row of the batch."""
    plan = Plan(group, False)
    for tensor in group.tensors:
        found = rows.of(tensor, group.signatures)
        if not found.along:  # what joins users and items may be known by the output that it ends in
            ends = [(o, s) for s in sorted(group.signatures & rows.forms) for o in crossings.outputs_behind(tensor, s)]
            found = next((r for o, s in ends if (r := rows.of_output(o, s)).along), found)
        plan.exact_users |= found.of == USERS
        if found.along == BATCH and not found.open:
            plan.batch.append(Part(tensor, found, facts.dtype(tensor)))
        else:
            plan.apart[tensor] = found.reason or REASONS["open" if found.open else "user"]
    return plan


def settle(plans: Sequence[Plan]) -> None:
    """Decides what is known only when all groups are: whether tensors of users may be packed, and which sizes follow.

    Behind the batch's rows there is room for whole rows of users, a few more than there are. So all that the dense
    side has of the users must come from one packed tensor, or they would not have equally many rows.
    """
    for plan in plans:
        beside = [p for p in plans if p is not plan and p.group.signatures & plan.group.signatures]
        if plan.users and plan.batch and (plan.exact_users or any(p.of_users or p.exact_users for p in beside)):
            reason = REASONS["users_apart"]
            plan.apart |= {part.tensor: reason for part in plan.users}
            plan.users = []
        _settle_open(plan)
        if not plan.batch and not plan.open:
            plan.batch, plan.users = plan.users, []
        _settle_sizes(plan)


def _settle_open(plan: Plan) -> None:
    """One unknown size follows from the packed tensor's shape, unless the users' rows do."""
    size = plan.open[0].rows.open if plan.open else ""
    for part in list(plan.open):
        if plan.users or part.rows.open != size or not plan.packs:
            alone = not plan.packs
            plan.open.remove(part)
            plan.apart[part.tensor] = REASONS["open" if alone else "open_apart"]


def _settle_sizes(plan: Plan) -> None:
    there = {part.rows.along for part in plan.parts}
    size = plan.open[0].rows.open if plan.open else ""
    for part in list(plan.sizes):
        dims = part.rows.sizes or ()
        rows_known = part.rows.of in there or not any(d.rows for d in dims)
        if not rows_known or any(d.symbols and d.symbols[0] != size for d in dims):
            plan.sizes.remove(part)
            plan.apart[part.tensor] = REASONS["size_apart"]


class Merger:
    """Carries plans out on ``view``. Tensors are renamed as plans are carried out: make the plans first."""

    def __init__(self, view: GraphView, crossings: Crossings) -> None:
        self.view, self.crossings = view, crossings
        self._number = 0

    def apply(self, plan: Plan) -> int:
        """Returns the number of tensors that no longer cross by themselves."""
        if not plan.packs and not plan.sizes:
            return 0
        scope = f"tfctr/transfer_{self._number}"
        while f"{scope}/pack" in self.view:
            self._number += 1
            scope = f"tfctr/transfer_{self._number}"
        self._number += 1
        return self._to_dense(plan, scope) if plan.to_dense else self._to_sparse(plan, scope)

    def _to_dense(self, plan: Plan, scope: str) -> int:
        nodes = Nodes(self.view, scope, self.crossings.dense)
        counts = _Counts(
            nodes, plan.batch[0].tensor if plan.batch else "", 0, plan.batch[0].dtype if plan.batch else None
        )
        if plan.packs:
            whole = self._pack(plan, scope)
            counts, plan.node = _Counts(nodes, whole, 1, tf.float32), node_of(whole)
            begin = 0
            for number, part in enumerate(plan.batch):
                near = Nodes(self.view, f"{scope}/{number}", self.crossings.dense)
                words = near.slice(whole, tf.float32, [begin, 0], [part.words, -1], "slice")
                self._read(plan, part, near.from_words(words, part.rows.columns, part.dtype))
                begin += part.words
            counts.positions = self._open(plan, scope, counts, begin)
            counts.users = self._users(plan, scope, whole, begin)
        for number, part in enumerate(plan.sizes):
            near = Nodes(self.view, f"{scope}/size_{number}", self.crossings.dense)
            self._read(plan, part, _sizes(counts, near, part))
        return (len(plan.parts) if plan.packs else 0) + len(plan.sizes)

    def _pack(self, plan: Plan, scope: str) -> str:
        parts = plan.parts
        return Nodes(self.view, scope, self.crossings.sparse).op(
            PACK_OP,
            "pack",
            [p.tensor for p in parts],
            T=[p.dtype for p in parts],
            columns=[math.prod(p.rows.columns) for p in parts],
            by_rows=len(plan.batch) + len(plan.open),
            open=len(plan.open),
            names=[p.tensor.encode() for p in parts],
        )

    def _open(self, plan: Plan, scope: str, counts: _Counts, begin: int) -> str:
        """Tensors of one unknown size, which follows from how many rows of words there are. Returns it."""
        if not plan.open:
            return ""
        near = Nodes(self.view, f"{scope}/open", self.crossings.dense)
        rows = near.size_of(counts.whole, tf.float32, 0, "words")
        left = near.arithmetic("Sub", rows, begin, "left")
        positions = near.arithmetic("FloorDiv", left, sum(p.words for p in plan.open), "positions")
        before = 0
        for number, part in enumerate(plan.open):
            one = Nodes(self.view, f"{scope}/open_{number}", self.crossings.dense)
            start = one.arithmetic("AddV2", one.arithmetic("Mul", positions, before, "before"), begin, "start")
            size = one.arithmetic("Mul", positions, part.words, "size")
            words = one.slice(counts.whole, tf.float32, [start, 0], [size, -1], "slice")
            lead = [counts.of(BATCH), positions]
            self._read(plan, part, one.from_words(words, part.rows.columns, part.dtype, lead))
            before += part.words
        return positions

    def _users(self, plan: Plan, scope: str, whole: str, begin: int) -> str:
        """What lies behind the batch's rows: as many whole rows of the users' tensors as there are words for. Returns
        how many, an int32 scalar."""
        if not plan.users:
            return ""
        near = Nodes(self.view, f"{scope}/users", self.crossings.dense)
        width = sum(p.words for p in plan.users)
        flat = near.reshape(
            near.slice(whole, tf.float32, [begin, 0], [-1, -1], "slice"), tf.float32, [-1], "flat"
        )  # fmt: skip
        words = near.size_of(flat, tf.float32, 0, "words")
        rows = near.arithmetic("FloorDiv", words, width, "count")
        used = near.arithmetic("Mul", rows, width, "used")
        table = near.slice(flat, tf.float32, [0], [used], "whole")
        table = near.reshape(table, tf.float32, [-1, width], "rows")
        column = 0
        for number, part in enumerate(plan.users):
            one = Nodes(self.view, f"{scope}/user_{number}", self.crossings.dense)
            words = table
            if part.words != width:
                words = one.slice(table, tf.float32, [0, column], [-1, part.words], "slice")
            self._read(plan, part, one.from_words(words, part.rows.columns, part.dtype))
            column += part.words
        return rows

    def _to_sparse(self, plan: Plan, scope: str) -> int:
        words = [
            Nodes(self.view, f"{scope}/{k}", self.crossings.dense).to_words(p.tensor, p.rows.columns, p.dtype)
            for k, p in enumerate(plan.batch)
        ]
        dense = Nodes(self.view, scope, self.crossings.dense)
        axis = dense.const("axis", 1)
        packed = dense.op("ConcatV2", "pack", [*words, axis], N=len(words), T=tf.float32, Tidx=tf.int32)
        plan.node = node_of(packed)
        column = 0
        for number, part in enumerate(plan.batch):
            near = Nodes(self.view, f"{scope}/{number}/out", self.crossings.sparse)
            taken = near.slice(packed, tf.float32, [0, column], [-1, part.words], "slice")
            value = near.from_words(taken, part.rows.columns, part.dtype)
            self._read(plan, part, value)
            for signature, outputs in plan.group.outputs.items():
                for key, tensor in outputs.items():
                    if tensor == part.tensor:
                        self.crossings.item.signatures[signature].outputs[key].name = value
            column += part.words
        return len(plan.batch)

    def _read(self, plan: Plan, part: Part, value: str) -> None:
        for reader in dict.fromkeys(plan.group.tensors[part.tensor]):
            inputs = [value if i == part.tensor else i for i in self.view.inputs(reader)]
            self.view.set_inputs(reader, [*inputs, *("^" + c for c in self.view.control_inputs(reader))])


@dataclasses.dataclass
class _Counts:
    """Numbers on the dense side, as int32 scalars: of rows of the batch (axis ``axis`` of ``whole``), of users, of
    positions of open tensors.
    """

    nodes: Nodes
    whole: str
    axis: int
    dtype: tf.DType
    users: str = ""
    positions: str = ""
    batch: str = ""

    def of(self, along: str) -> str:
        if along == USERS and self.users:
            return self.users
        if not self.batch:
            self.batch = self.nodes.size_of(self.whole, self.dtype, self.axis, "rows")
        return self.batch


def _sizes(counts: _Counts, near: Nodes, part: Part) -> str:
    """Sizes from the number of rows, which the shape of what crosses says."""
    elements = [_size(counts, near, k, d, part.rows.of) for k, d in enumerate(part.rows.sizes or ())]
    if part.rows.scalar:
        value = elements[0] if isinstance(elements[0], str) else near.const("known", elements[0])
    else:
        value = near.vector(elements, "sizes")
    return value if part.dtype == tf.int32 else near.cast(value, tf.int32, part.dtype, "value")


def _size(counts: _Counts, near: Nodes, number: int, dim: Dim, along: str) -> int | str:
    found: int | str = dim.coef
    for factor in [counts.of(along)] * dim.rows + [counts.positions] * len(dim.symbols):
        found = factor if found == 1 else near.arithmetic("Mul", factor, found, f"times_{number}")
    return found
