"""What a tensor's relation to the rows of the batch can be.

shared    does not depend on the batch at all (constants, tables, scalar inputs)
row       axis 0 is the row axis (each row ``fold`` times, one after the other) and row k depends on nothing but row k
          of what it is computed from: T(x[r]) = T(x)[r] for every choice r of rows
count     depends on the number of rows and on sizes, on no value (shapes and what is computed from them)
values    one entry per value of a sparse or ragged feature, each computed from that value alone
indices   the indices of a sparse feature's values; ``splits``: the row splits of a ragged one; ``dshape``: the dense
          shape of a sparse one (a ``count`` too)
opaque    anything else: ``op`` mixes rows, or nothing is known about it
"""

from __future__ import annotations

import dataclasses

from graph_opt.rows.dims import ROWS, Dim, Dims

STREAMS = frozenset({"values", "indices", "splits", "dshape"})


@dataclasses.dataclass(frozen=True)
class Kind:
    """name: see the module docstring. sources: features that a row, value or opaque tensor is computed from.

    dims: sizes per axis, None where the rank is unknown. value: elements of a ``count`` of rank 0 or 1 as far as they
    are known. by_rows: whether the elements of a ``count`` depend on the number of rows. feature: whose stream it is.
    op, node, reason: of an opaque tensor, where it became so and why.
    """

    name: str
    sources: frozenset[str] = frozenset()
    dims: Dims | None = None
    value: tuple[Dim | None, ...] | None = None
    by_rows: bool = True
    feature: str = ""
    op: str = ""
    node: str = ""
    reason: str = ""

    @property
    def has_rows(self) -> bool:
        """Whether axis 0 is the row axis, one entry per row."""
        return self.name == "row" and self.fold == Dim()

    @property
    def fold(self) -> Dim | None:
        """How many entries of axis 0 belong to one row (of a ``row`` tensor); None where that is not known."""
        return self.dims[0].over(ROWS) if self.dims else None

    @property
    def fixed(self) -> bool:
        """Whether the value is the same whatever the rows are and however many: it acts like a constant."""
        return self.name == "shared" or (self.name == "count" and not self.by_rows)

    @property
    def dual(self) -> bool:
        """Whether the tensor exists for any number of rows, because it depends on no feature's values."""
        return self.name in ("count", "dshape") or (self.name == "row" and not self.sources)

    @property
    def rank(self) -> int | None:
        return None if self.dims is None else len(self.dims)


SHARED = Kind("shared")


def shared(dims: Dims | None) -> Kind:
    return Kind("shared", dims=dims)


def row(dims: Dims, sources: frozenset[str]) -> Kind:
    return Kind("row", sources=sources, dims=dims)


def count(value: tuple[Dim | None, ...] | None, dims: Dims | None, by_rows: bool) -> Kind:
    if value is not None and all(element is not None and element.rows == 0 for element in value):
        by_rows = False
    return Kind("count", dims=dims, value=value, by_rows=by_rows)


def opaque(op: str, node: str, reason: str, sources: frozenset[str], dims: Dims | None = None) -> Kind:
    return Kind("opaque", op=op, node=node, reason=reason, sources=sources, dims=dims)
