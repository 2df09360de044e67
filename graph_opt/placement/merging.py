"""Plans and makes the packed tensors of groups of crossing tensors (``crossings``)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import tensorflow as tf

from graph_opt.placement.crossings import Crossings, Group
from graph_opt.placement.rows import BATCH, USERS, Rows, RowsOfForms
from graph_opt.placement.words import PACKABLE, Nodes, words_of
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
        columns = list(self.rows.columns)
        return {"tensor": self.tensor, "dtype": self.dtype.name, "columns": columns, "along": self.rows.along}


@dataclasses.dataclass
class Plan:
    """How one group crosses. batch, users: packed together, in this order, where ``packs``; sizes: worked out on the
    other side; apart: tensors that cross by themselves, with reasons. node: what was made of it.
    """

    group: Group
    to_dense: bool
    batch: list[Part]
    users: list[Part]
    sizes: list[Part]
    apart: dict[str, str]
    node: str = ""

    @property
    def packs(self) -> bool:
        return len(self.batch) + len(self.users) > 1

    def describe(self) -> dict[str, Any]:
        return {
            "direction": "to the dense device" if self.to_dense else "to the sparse device",
            "signatures": sorted(self.group.signatures),
            "stage": self.group.stage,
            "node": self.node,
            "packed": [p.describe() for p in (*self.batch, *self.users)] if self.packs else [],
            "alone": [] if self.packs else [p.tensor for p in (*self.batch, *self.users)],
            "worked_out": [p.tensor for p in self.sizes],
            "apart": self.apart,
        }


def plan_to_dense(group: Group, rows: RowsOfForms, facts: Facts) -> Plan:
    """One packed tensor: those along the batch's rows first, those along the users' behind them."""
    plan = Plan(group, True, [], [], [], {})
    for tensor in group.tensors:
        part = Part(tensor, rows.of(tensor, group.signatures), facts.dtype(tensor))
        _sort_in(plan, part)
    if not plan.batch:
        plan.batch, plan.users = plan.users, []
    along = plan.batch[0].rows.along if plan.batch else ""
    for part in list(plan.sizes):
        if any(d.rows for d in part.rows.sizes or ()) and part.rows.of != along:
            plan.sizes.remove(part)
            plan.apart[part.tensor] = "it is a size, and nothing that crosses has those rows"
    return plan


def plan_to_sparse(group: Group, rows: RowsOfForms, facts: Facts, crossings: Crossings) -> Plan:
    """One packed tensor of all outputs, and of what a later lookup needs, with one entry per row of the batch."""
    plan = Plan(group, False, [], [], [], {})
    for tensor in group.tensors:
        found = rows.of(tensor, group.signatures)
        if not found.along:  # what joins users and items is known by the output that it ends in
            ends = [(o, s) for s in sorted(group.signatures & rows.forms) for o in crossings.outputs_behind(tensor, s)]
            found = next((r for o, s in ends if (r := rows.of_output(o, s)).along), found)
        part = Part(tensor, found, facts.dtype(tensor))
        if found.along == BATCH and part.dtype in PACKABLE:
            plan.batch.append(part)
        else:
            plan.apart[tensor] = found.reason or "it has not one entry per row of the batch"
    return plan


def _sort_in(plan: Plan, part: Part) -> None:
    if part.dtype not in PACKABLE:
        plan.apart[part.tensor] = f"{part.dtype.name} can't be packed"
    elif part.rows.along == BATCH:
        plan.batch.append(part)
    elif part.rows.along == USERS:
        plan.users.append(part)
    elif part.rows.sizes is not None:
        plan.sizes.append(part)
    else:
        plan.apart[part.tensor] = part.rows.reason


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
        dense = Nodes(self.view, scope, self.crossings.dense)
        whole, axis = "", 1
        if plan.packs:
            whole = self._pack(plan, scope)
            plan.node = node_of(whole)
            begin = 0
            for number, part in enumerate(plan.batch):
                near = Nodes(self.view, f"{scope}/{number}", self.crossings.dense)
                words = near.slice(whole, tf.float32, [begin, 0], [part.words, -1], "slice")
                self._read(plan, part, near.from_words(words, part.rows.columns, part.dtype))
                begin += part.words
            self._users(plan, scope, whole, begin)
        elif plan.batch:
            whole, axis = plan.batch[0].tensor, 0
        for number, part in enumerate(plan.sizes):
            near = Nodes(self.view, f"{scope}/size_{number}", self.crossings.dense)
            dtype = tf.float32 if plan.packs else (plan.batch[0].dtype if plan.batch else tf.float32)
            self._read(plan, part, _sizes(dense, near, part, whole, dtype, axis))
        return (len(plan.batch) + len(plan.users) if plan.packs else 0) + len(plan.sizes)

    def _pack(self, plan: Plan, scope: str) -> str:
        parts = [*plan.batch, *plan.users]
        return Nodes(self.view, scope, self.crossings.sparse).op(
            PACK_OP,
            "pack",
            [p.tensor for p in parts],
            T=[p.dtype for p in parts],
            columns=[math.prod(p.rows.columns) for p in parts],
            by_rows=len(plan.batch),
            names=[p.tensor.encode() for p in parts],
        )

    def _users(self, plan: Plan, scope: str, whole: str, begin: int) -> None:
        """What lies behind the batch's rows: as many whole rows of the users' tensors as there are words for."""
        if not plan.users:
            return
        near = Nodes(self.view, f"{scope}/users", self.crossings.dense)
        width = sum(p.words for p in plan.users)
        flat = near.reshape(
            near.slice(whole, tf.float32, [begin, 0], [-1, -1], "slice"), tf.float32, [-1], "flat"
        )  # fmt: skip
        words = near.size_of(flat, tf.float32, 0, "words")
        rows = near.op("FloorDiv", "count", [words, near.const("width", width)], T=tf.int32)
        used = near.op("Mul", "used", [rows, near.const("width", width)], T=tf.int32)
        size = near.op("Pack", "size", [used], T=tf.int32, N=1, axis=0)
        ends = [near.const("begin", [0]), size]
        table = near.op("Slice", "whole", [flat, *ends], T=tf.float32, Index=tf.int32)
        table = near.reshape(table, tf.float32, [-1, width], "rows")
        column = 0
        for number, part in enumerate(plan.users):
            one = Nodes(self.view, f"{scope}/user_{number}", self.crossings.dense)
            words = table
            if part.words != width:
                words = one.slice(table, tf.float32, [0, column], [-1, part.words], "slice")
            self._read(plan, part, one.from_words(words, part.rows.columns, part.dtype))
            column += part.words

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


def _sizes(shared: Nodes, near: Nodes, part: Part, whole: str, whole_dtype: tf.DType, axis: int) -> str:
    """Sizes from the number of rows, which the shape of what crosses says."""
    sizes = part.rows.sizes or ()
    rows = ""
    if any(d.rows for d in sizes):
        name = f"{shared.scope}/rows"
        rows = name if name in shared.view else shared.size_of(whole, whole_dtype, axis, "rows")
    elements = [_size(near, k, d, rows) for k, d in enumerate(sizes)]
    value = elements[0] if part.rows.scalar else ""
    if not value:
        value = near.op("Pack", "sizes", elements, T=tf.int32, N=len(elements), axis=0)
    return value if part.dtype == tf.int32 else near.cast(value, tf.int32, part.dtype, "value")


def _size(near: Nodes, number: int, dim: Dim, rows: str) -> str:
    if not dim.rows:
        return near.const(f"known_{number}", dim.coef)
    if dim.coef == 1:
        return rows
    return near.op("Mul", f"times_{number}", [rows, near.const(f"factor_{number}", dim.coef)], T=tf.int32)
