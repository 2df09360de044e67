"""Whose rows a tensor of one form has: what may cross a tower's boundary."""

from __future__ import annotations

from graph_opt.item import GraphItem
from graph_opt.placement.rows import BATCH, USERS, RowsOfForms
from graph_opt.recognise.facts import Facts
from graph_opt.rows.kinds import Kind
from graph_opt.view import canonical

__all__ = ["BATCH", "USERS", "FormRows"]


class FormRows(RowsOfForms):
    """Rows in one form (a signature, or the split form of one)."""

    def __init__(self, item: GraphItem, facts: Facts, signature: str) -> None:
        super().__init__(item, facts)
        self._signature = signature

    def kind(self, tensor: str) -> Kind:
        """See ``graph_opt.rows.kinds``."""
        return self._rows(self._signature).kind(canonical(tensor))

    def whose(self, tensor: str) -> str:
        """BATCH or USERS; BATCH for what reads inputs of both (only a join may)."""
        return self._whose(canonical(tensor), self._signature)[0]

    def reason_against(self, tensor: str) -> str:
        """Why ``tensor`` can't be an input of a tower; "" where it can: one entry of axis 0 per row, or one value for
        the whole request.
        """
        kind = self.kind(tensor)
        if kind.has_rows:
            return ""
        if kind.name == "shared":
            sizes = kind.dims
            return "" if sizes is not None and all(size.known for size in sizes) else "its size is not known"
        where = f" ({kind.op} {kind.node}: {kind.reason})" if kind.reason else ""
        return f"it has not one entry per row of the batch{where}"

    def sizes(self, tensor: str) -> tuple[tuple[int, bool], ...] | None:
        """Elements of a scalar or vector of sizes, each (factor, whether it is multiplied by the rows); None where they
        do not follow from the number of rows.
        """
        kind = self.kind(tensor)
        if kind.name not in ("count", "dshape") or kind.value is None or (kind.rank or 0) > 1:
            return None
        if any(dim is None or dim.symbols or dim.rows > 1 for dim in kind.value):
            return None
        return tuple((dim.coef, dim.rows == 1) for dim in kind.value if dim is not None)
