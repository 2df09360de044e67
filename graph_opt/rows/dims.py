"""Sizes in terms of the number of rows: one dimension is ``coef * rows^p * (product of other unknown sizes)``.

Enough to tell that ``reshape(x, [shape(x)[0], 12])`` keeps rows, and that ``reshape(x, [-1, 4])`` of [B, 3, 4] makes
three rows of each.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True)
class Dim:
    """coef: a known factor; rows: power of the number of rows B; symbols: other unknown sizes, sorted."""

    coef: int = 1
    rows: int = 0
    symbols: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether this is a plain number."""
        return self.rows == 0 and not self.symbols

    def __mul__(self, other: Dim) -> Dim:
        return Dim(self.coef * other.coef, self.rows + other.rows, tuple(sorted(self.symbols + other.symbols)))

    def over(self, other: Dim) -> Dim | None:
        """self / other where it comes out even, None otherwise."""
        if other.coef == 0 or self.coef % other.coef or self.rows < other.rows:
            return None
        left = Counter(self.symbols)
        left.subtract(other.symbols)
        if any(count < 0 for count in left.values()):
            return None
        return Dim(self.coef // other.coef, self.rows - other.rows, tuple(sorted(left.elements())))


ROWS = Dim(rows=1)
ONE = Dim()
Dims = tuple[Dim, ...]


def number(value: int) -> Dim:
    return Dim(int(value))


def symbol(name: str) -> Dim:
    return Dim(symbols=(name,))


def product(dims: Iterable[Dim]) -> Dim:
    result = ONE
    for dim in dims:
        result *= dim
    return result


def of_tensor(name: str, static: Sequence[int | None], first: Dim | None = None) -> Dims:
    """Dims of a tensor of known rank; unknown sizes are symbols of this tensor. first: what axis 0 is."""
    dims = [symbol(f"{name}#{axis}") if size is None else number(size) for axis, size in enumerate(static)]
    if first is not None and dims:
        dims[0] = first
    return tuple(dims)


def reshaped(source: Dims, target: Sequence[Dim | None]) -> Dims | None:
    """Dims of ``reshape(x, target)``: one -1 is worked out. None where they can't be told."""
    if any(dim is None for dim in target):
        return None
    found = [dim for dim in target if dim is not None]
    open_axes = [axis for axis, dim in enumerate(found) if dim == Dim(-1)]
    if not open_axes:
        return tuple(found)
    if len(open_axes) > 1:
        return None
    rest = product(dim for axis, dim in enumerate(found) if axis != open_axes[0])
    missing = product(source).over(rest)
    if missing is None:
        return None
    found[open_axes[0]] = missing
    return tuple(found)
