"""What is known of the rows of a crossing tensor: whether it lies along the rows of the batch, or of the users."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from tensorflow.core.framework import node_def_pb2

from graph_opt.item import GraphItem
from graph_opt.placement.reasons import REASONS
from graph_opt.placement.sides import JOINS, forms
from graph_opt.placement.words import PACKABLE
from graph_opt.recognise.facts import Facts
from graph_opt.rows import Kind, RowFacts, rows_of_signature
from graph_opt.rows.dims import Dim, number
from graph_opt.rows.feeds import feed_kinds
from graph_opt.rows.kinds import opaque, row
from graph_opt.signature_info import composite_parts
from graph_opt.view import GraphView, canonical, node_of

BATCH, USERS = "batch", "users"


@dataclasses.dataclass(frozen=True)
class Rows:
    """along: BATCH or USERS: what axis 0 counts; "": the tensor has no such rows, ``reason`` says why. columns: sizes
    of the other axes. sizes: elements of a vector (or the value of a scalar) of sizes that follow from the rows, else
    None; it has no ``along`` then. of: USERS where it depends on inputs of users and on no row of items, else BATCH.
    open: the unknown size of axis 1, "" where it is known; ``columns`` are those behind it.
    """

    along: str = ""
    columns: tuple[int, ...] = ()
    sizes: tuple[Dim, ...] | None = None
    scalar: bool = False
    of: str = ""
    open: str = ""
    reason: str = ""


class RowsOfForms:
    """Answers for every form of a model; analyses a form once. ``facts`` is of ``item.graph_def`` before edits."""

    def __init__(self, item: GraphItem, facts: Facts) -> None:
        self._item, self._facts = item, facts
        self.forms = set(forms(item))
        self._split = {form.signature: (name, form) for name, form in item.split.items()}

    def of(self, tensor: str, signatures: frozenset[str]) -> Rows:
        """What all ``signatures`` agree on; one at least is a form (only what a form needs crosses)."""
        asked = sorted(signatures & self.forms)
        found = [self._in_form(canonical(tensor), name) for name in asked]
        if any(other != found[0] for other in found):
            return Rows(reason=REASONS["forms"].format(forms=" and ".join(asked)))
        return found[0]

    def of_output(self, output: str, signature: str) -> Rows:
        """Of an output: those of a split form have the rows of the output that they stand for. None for sparse ones."""
        plain = self._split[signature][0] if signature in self._split else signature
        infos = self._item.signatures[plain].outputs
        if output not in infos or composite_parts(infos[output])[0] != "dense":
            return Rows()
        return self._in_form(canonical(infos[output].name), plain)

    @functools.cache  # noqa: B019 - lives as long as one run of a pass
    def _rows(self, name: str) -> RowFacts:
        if name not in self._split:
            return rows_of_signature(self._item, name, self._facts)
        feeds = feed_kinds(self._item, name, self._facts)
        row_to_user = feeds.tensors[self._split[name][1].row_to_user]
        fetches = self._item.fetches(name)
        return _JoinedRows(row_to_user, self._facts.view, self._facts, feeds.kinds, fetches, self._item.groups)

    def _in_form(self, tensor: str, name: str) -> Rows:
        whose, reason = self._whose(tensor, name)
        found = Rows(reason=reason) if reason else self._judged(tensor, name, whose)
        return dataclasses.replace(found, of=whose)

    def _judged(self, tensor: str, name: str, whose: str) -> Rows:
        if self._facts.dtype(tensor) not in PACKABLE:
            return Rows(reason=REASONS["dtype"].format(dtype=self._facts.dtype(tensor).name))
        kind = self._rows(name).kind(tensor)
        if kind.name == "count":
            return _sizes(kind)
        if not kind.has_rows:
            return Rows(reason=_why(kind))
        shape = self._facts.shape(tensor)
        columns = [d.coef if d.known else None for d in (kind.dims or ())[1:]]
        if shape is not None and len(shape) == len(columns) + 1:
            columns = [c if c is not None else s for c, s in zip(columns, shape[1:], strict=True)]
        symbol = ""
        if columns and columns[0] is None and whose == BATCH:
            symbol = _symbol((kind.dims or ())[1])
            columns = columns[1:] if symbol else columns
        if None in columns or 0 in columns:
            return Rows(reason=REASONS["inner" if None in columns else "empty"])
        return Rows(along=whose, columns=tuple(c for c in columns if c is not None), open=symbol)

    def _whose(self, tensor: str, name: str) -> tuple[str, str]:
        """Whose rows a tensor of this form has, by the inputs that it is computed from."""
        if name not in self._split:
            return BATCH, ""
        form = self._split[name][1]
        inputs = self._item.signatures[name].inputs
        above = self._facts.view.ancestors([tensor])
        reached = {key for key, info in inputs.items() if composite_nodes(info) & above}
        if form.row_to_user in reached or not reached & set(form.user_inputs):
            return BATCH, ""
        if reached - set(form.user_inputs):
            return USERS, REASONS["mixed"]
        return USERS, ""


class _JoinedRows(RowFacts):
    """Kinds of a split form, where rows of users become rows of items by ``row_to_user``. Both are called rows."""

    def __init__(self, row_to_user: str, view: GraphView, facts: Facts, *rest: Any) -> None:
        self._row_to_user = row_to_user
        super().__init__(view, facts, *rest)

    def _visit(self, node: node_def_pb2.NodeDef) -> None:
        names = self.view.inputs(node)
        if node.op in JOINS and names[2] == self._row_to_user:
            self._kinds[f"{node.name}:0"] = self._joined(node, self.kind(names[0]), self.kind(names[1]))
        elif node.op == "GatherV2" and names[1] == self._row_to_user and self.kind(names[0]).has_rows:
            source = self.kind(names[0])
            axis = self.facts.const(names[2])
            if axis is not None and int(axis) == 0 and source.dims is not None:
                self._kinds[f"{node.name}:0"] = row(source.dims, source.sources)
                return
            super()._visit(node)
        else:
            super()._visit(node)

    def _joined(self, node: node_def_pb2.NodeDef, items: Kind, users: Kind) -> Kind:
        if items.name != "row" or users.name != "row" or items.dims is None:
            return opaque(node.op, node.name, "it joins what has no rows", items.sources | users.sources)
        dims = list(items.dims)
        if node.op == "TfctrJoinUserRows":
            dims[node.attr["axis"].i] = number(sum(node.attr["widths"].list.i))
        return row(tuple(dims), items.sources | users.sources)


def composite_nodes(info) -> set[str]:  # type: ignore[no-untyped-def]
    """Nodes behind a signature's input."""
    _, parts = composite_parts(info)
    return {node_of(p["tensor"]) for p in parts.values()} or {node_of(info.name)}


def _symbol(dim: Dim) -> str:
    """The name of an unknown size, "" where it is a product of several, or has to do with the rows."""
    return dim.symbols[0] if dim.coef == 1 and dim.rows == 0 and len(dim.symbols) == 1 else ""


def _sizes(kind: Kind) -> Rows:
    value, rank = kind.value, kind.rank
    if value is None or rank is None or rank > 1 or any(d is None or len(d.symbols) > 1 or d.rows > 1 for d in value):
        return Rows(reason=REASONS["size"])
    return Rows(sizes=tuple(d for d in value if d is not None), scalar=rank == 0)


def _why(kind: Kind) -> str:
    if kind.reason:
        where = f"{kind.op} {kind.node}: " if kind.op else ""
        return REASONS["rows"].format(where=f"{where}{kind.reason}")
    if kind.name == "shared":
        return REASONS["same"]
    return REASONS["no_rows"]
