"""The abstract domain: what the recogniser knows about a tensor of the reference graph.

The walk (``engine.py``) gives every tensor one :class:`Value`. A value says what the tensor *means* for a lookup, never
which ops made it. Whatever a handler does not understand becomes :class:`Opaque`, which later steps may take as a
source of its own: so not understanding something makes a lookup start further down, it does not lose the lookup.

The values of a feature pass through a chain of *tokens* (values dropped, empty rows filled). Ids, weights and row
numbers that belong together carry equal tokens, which is how the recogniser knows that they are still aligned. Tensor
names and cut points do not take part in comparisons.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from graph_opt.lookup_spec import Step


@dataclasses.dataclass(frozen=True)
class Cut:
    """A graph tensor at which a chain can start instead of at its base: so many steps and tokens lie before it."""

    tensor: str
    steps: int
    tokens: int


@dataclasses.dataclass(frozen=True)
class Cond:
    """A test of every value of a chain.

    kind: ge | lt | gt | le | ne | eq against ``limit``, or given | not_given = ``base`` is a bool tensor of the graph.
    """

    kind: str
    base: str
    steps: tuple[Step, ...] = ()
    tokens: tuple[Token, ...] = ()
    limit: int | float | str | None = None

    def negated(self) -> Cond:
        return dataclasses.replace(self, kind=_NEGATED[self.kind])


_NEGATED = {"ge": "lt", "gt": "le", "ne": "eq", "given": "not_given"}
_NEGATED |= {b: a for a, b in _NEGATED.items()}


@dataclasses.dataclass(frozen=True)
class Keep:
    """Token: only the values that pass all conditions are left."""

    conds: frozenset[Cond]


@dataclasses.dataclass(frozen=True)
class Fill:
    """Token: rows without values got one value, ``default``, and rows were sorted (Sparse-, RaggedFillEmptyRows)."""

    default: Any = dataclasses.field(default=None, compare=False)


Token = Keep | Fill


@dataclasses.dataclass(frozen=True)
class Value:
    """What a tensor means; ``tensor`` is its name in the graph."""

    tensor: str = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Opaque(Value):
    """Nothing is known: an input, or the result of an op that no handler knows."""


@dataclasses.dataclass(frozen=True)
class Const(Value):
    """Known when the graph is built."""

    array: np.ndarray = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class TableRef(Value):
    """A whole table [V, D]; ``node`` is its TfctrTable."""

    node: str


@dataclasses.dataclass(frozen=True)
class PerValue(Value):
    """One element per value of a feature (ids, strings, weights), in the order of ``base``'s elements; any shape."""

    base: str
    steps: tuple[Step, ...] = ()
    tokens: tuple[Token, ...] = ()
    cuts: tuple[Cut, ...] = dataclasses.field(default=(), compare=False)
    power: int = 1  # weights only: 2 = squared


@dataclasses.dataclass(frozen=True)
class Fingerprints(Value):
    """Fingerprint64 of every text of ``of``, as 8 bytes each."""

    of: PerValue


@dataclasses.dataclass(frozen=True)
class Rowing:
    """How values are assigned to rows: sparse (indices [N, r]), dense (by position), ragged (row_splits), segments."""

    form: str
    tensor: str


@dataclasses.dataclass(frozen=True)
class Coords(Value):
    """Row numbers of values: the index matrix [N, r] (``column`` None), or its first column or segment ids [N] (0)."""

    rowing: Rowing
    tokens: tuple[Token, ...] = ()
    shape: str | None = dataclasses.field(default=None, compare=False)
    cuts: tuple[Cut, ...] = dataclasses.field(default=(), compare=False)
    column: int | None = dataclasses.field(default=None, compare=False)
    splits: str | None = dataclasses.field(default=None, compare=False)  # row splits that say the same
    ordered: bool = dataclasses.field(default=False, compare=False)  # checked to never fall


@dataclasses.dataclass(frozen=True)
class DenseShape(Value):
    """dense_shape of a sparse feature, perhaps flattened to rank 2; ``source`` is the tensor given by the model."""

    source: str


@dataclasses.dataclass(frozen=True)
class Test(Value):
    """bool, one per value: all conditions hold (``any``: at least one). ``number``: cast to 0 and 1.

    ``source`` is the bool tensor as it was made, before reshapes, casts and broadcasts over the width.
    """

    conds: frozenset[Cond]
    any: bool = False
    number: bool = dataclasses.field(default=False, compare=False)
    source: str = dataclasses.field(default="", compare=False)

    def negated(self) -> Test:
        conds = frozenset(c.negated() for c in self.conds)
        return dataclasses.replace(self, conds=conds, any=not self.any and len(conds) > 1)


@dataclasses.dataclass(frozen=True)
class Passing(Value):
    """Positions at which a test holds (Where): [N, 1] or [N] for a flat tensor, [N, r] otherwise."""

    conds: frozenset[Cond]


@dataclasses.dataclass(frozen=True)
class Empty(Value):
    """bool per row: no value left before the fill. ``negated``: True where there are values."""

    rowing: Rowing
    tokens: tuple[Token, ...] = ()
    negated: bool = False


@dataclasses.dataclass(frozen=True)
class UniqueIndex(Value):
    """For every element of ``of`` its position among the distinct elements, which are the tensor ``values``."""

    of: PerValue
    values: str = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Split(Value):
    """Output ``index`` of a DynamicPartition into ``parts``: row numbers inside a part, or positions (``of`` None)."""

    index: int
    parts: int
    strategy: str  # mod | div
    assigned: str  # tensor of part numbers
    of: PerValue | None = None


@dataclasses.dataclass(frozen=True)
class Denominator(Value):
    """What a pooled sum is divided by.

    kind: count | sqrt_count (number of values), weights (their sum), squares (of their squares), norm (root of that).
    Over the values of ``coords``, or over the last axis of a dense tensor (``coords`` None), under ``mask``.
    """

    kind: str
    coords: Coords | None = None
    weights: PerValue | None = None
    mask: Test | None = None
    rule: str = "count"  # count | max1 | eps
    eps: float = 0.0


@dataclasses.dataclass(frozen=True)
class Found(Value):
    """Rows of a table, and what was done to them so far. ``pooled``: reduced to one row per example.

    tables: TfctrTable nodes; of a hash file, which no node holds as a whole, the TfctrHashLookup that reads it.
    """

    gather: str
    tables: tuple[str, ...]
    ids: PerValue | Split
    strategy: str | None = None  # of a partitioned table: mod | div
    gathers: tuple[str, ...] = ()  # of a partitioned table: one per part
    max_norm: float | None = None
    weights: PerValue | None = None
    mask: Test | None = None
    coords: Coords | None = None
    rows: str | None = None  # tensor that says how many rows there are (segments)
    pooled: bool = False
    unordered: bool = False  # row numbers in any order are legal
    combiner: str = "none"
    accumulation: str = "segment"
    denominator: str = "count"
    eps: float = 0.0
    empty: str = "natural"
    dtype: str = ""  # of this tensor
    trace: tuple[str, ...] = dataclasses.field(default=(), compare=False)  # tensors from the gather to here


@dataclasses.dataclass(frozen=True)
class Scaled(Value):
    """Rows times a constant: the numerator of clip_by_norm."""

    found: Found
    factor: float


@dataclasses.dataclass(frozen=True)
class Repeated(Value):
    """One element per value, repeated over the width of a row."""

    of: PerValue


@dataclasses.dataclass(frozen=True)
class IsNan(Value):
    """True where a pooled row is not a number."""

    found: Found


@dataclasses.dataclass(frozen=True)
class Zeros(Value):
    """All zeros, whatever the shape."""


@dataclasses.dataclass(frozen=True)
class Ones(Value):
    """All ones, one per value of ``like`` where that is known."""

    like: Value | None = None
