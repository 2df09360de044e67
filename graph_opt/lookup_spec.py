"""The lookup specification: what one embedding lookup computes, in data.

A spec is the only language between the recogniser (which reads graphs), the prover (which runs original and fused
side by side) and the C++ op ``TfctrFusedLookup`` (which executes specs and knows no graph patterns). It is written into
the op's ``spec`` attr as text (``spec_text``), one line per output, lookup and copy, so that a saved graph can be read.

Shape letters: B rows of the batch, N values (ids) of a feature, T positions per row, D width and V rows of a table.
"""

from __future__ import annotations

import dataclasses
import math
import urllib.parse
from collections.abc import Sequence

# How the values of a feature are laid out.
#   dense     ids [d0, ..., dk]; every id is one value; a reducing combiner reduces the last axis (rows = prod of the
#             others)
#   sparse    ids [N], rows = indices int64 [N, r], shape = dense_shape int64 [r]; row = flattened first r-1 indices
#   ragged    ids [N], rows = row_splits int32|int64 [B+1]
#   segments  ids [N], rows = segment ids int32|int64 [N]; shape = optional scalar number of rows, else the last
#             segment id + 1
FORMS = ("dense", "sparse", "ragged", "segments")

# none = no reduction (dense form only). sum/mean/sqrtn divide by nothing / count / sqrt(count), or with weights by
# sum(w) / sqrt(sum(w^2)); see `denominator` for the variants that models write by hand.
COMBINERS = ("none", "sum", "mean", "sqrtn")

# Order of float additions. segment = SparseSegment*'s CPU order (first n%8 rows, then groups of 8; mean/sqrtn multiply
# by 1/n for n < 10); sequential = SegmentSum / reduce_sum order, one value after the other.
ACCUMULATIONS = ("segment", "sequential")

# Divisor of mean: count (of values that are left; 0/0 = NaN unless the row is empty and `empty` says otherwise), max1 =
# max(count, 1), eps = count + denominator_eps, positions = T (all positions, masked or not).
# For weighted features the weights take the place of ones; no_nan = 0 where the sum is 0 (DivNoNan).
DENOMINATORS = ("count", "max1", "eps", "positions", "no_nan")

# What a row without values gives. zeros; nan; natural = what the arithmetic gives; short = trailing empty rows are
# missing from the output, holes are zeros (plain SparseSegment*).
EMPTY_RULES = ("zeros", "nan", "natural", "short")

# What a float32 table may be stored as to save bytes, instead of float32. Rows become float32 while they are gathered,
# the arithmetic is that of a float32 table. int8 rows have a float32 scale in front (docs/bundle_format.md).
STORAGES = ("float16", "bfloat16", "int8")

# Steps that turn a raw value into a row number, applied in order to each value. ``prune_negative`` drops the value.
#   cast:DTYPE            C++ integer conversion (int32, int64, uint32, uint64); a float source truncates toward zero
#   mod:M                 floor modulo (result in [0, M))
#   mul:C add:C           integer arithmetic in the current integer dtype
#   divide:C              floor division
#   addcol:C0;C1;...      adds C[j] where j = position on the last axis (dense form; stacked tables with offsets)
#   wrap_negative:V       v < 0 ? v + V : v
#   as_string             integer to decimal text (AsString without options)
#   hash_fast:M           StringToHashBucketFast (farmhash Fingerprint64 mod M)
#   hash_strong:M;K0;K1   StringToHashBucketStrong (SipHash with key K0, K1)
#   bucketize:b0;b1;...   number of boundaries <= value (Bucketize), float source
#   vocab:INDEX;DEFAULT   static vocabulary file INDEX of the store, DEFAULT where absent
#   vocab_oov:INDEX;SIZE;BUCKETS  as StaticVocabularyTable: absent keys give SIZE + hash_fast(text of key, BUCKETS)
#   select_negative:C     v < 0 ? C : v
#   select_out_of_range:LO;HI;C   (v < LO or v >= HI) ? C : v
#   prune_negative        drops values < 0
#   prune_equal:TEXT      drops values equal to TEXT (raw value, number or string): '' or -1 of feature columns
#   select_equal:C;TEXT   the raw value, before all steps, equals TEXT ? C : v (mask_token, padding)
#   fingerprint           64-bit farmhash fingerprint of a text, as int64: the keys of an embedding variable of strings
#   find                  int64 key -> row number of the lookup's own table, a hash file; the last step of every such
#                         lookup and of no other. Keys without a row get the default row: none is out of range
STEP_KINDS = (
    "cast", "mod", "mul", "add", "divide", "addcol", "wrap_negative", "as_string", "hash_fast", "hash_strong",
    "bucketize", "vocab", "vocab_oov", "select_negative", "select_out_of_range", "prune_negative", "prune_equal",
    "select_equal", "fingerprint", "find",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of the id transform pipeline: a kind of ``STEP_KINDS`` and its arguments as text."""

    kind: str
    args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in STEP_KINDS:
            raise ValueError(f"unknown step {self.kind!r}; known: {', '.join(STEP_KINDS)}")

    def text(self) -> str:
        return self.kind + (":" + ";".join(_quote(a, safe="") for a in self.args) if self.args else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LookupSpec:
    """One lookup: table, where its ids come from, and what happens to them.

    ``ids``, ``rows``, ``shape``, ``weights`` and ``mask`` are graph tensor names ("node:0"); the fusing pass binds them
    to op arguments. Fields that a form does not use are None.
    table_rows: 0 of a hash file (a frozen embedding variable), whose ids are keys: its lookups end with step ``find``.
    fill_id is a key there.
    sort_rows: unsorted row ids are legal (SparseFillEmptyRows reorders), else they are an error ("not increasing").
    ids_per_row: dense form, combiner none: T ids flattened into one output row of width T*D ([B,1] + Flatten: 1).
    """

    name: str  # feature name for people: the signature input the ids come from, or the gather node
    table: int  # file index in the store
    table_rows: int
    table_width: int
    table_dtype: str  # float32 | float16 | bfloat16 | float64: of the values and of the arithmetic
    form: str
    ids: str
    rows: str | None = None
    shape: str | None = None
    weights: str | None = None
    mask: str | None = None  # dense form: bool tensor of ids' shape, False = contributes zero (still bounds-checked)
    mask_value: str | None = None  # dense form: raw ids equal to this value are masked (text; number or string)
    steps: tuple[Step, ...] = ()
    prune_weights: bool = False  # drops values whose weight is not > 0 (safe mean and sqrtn)
    fill_id: int | None = None  # a row left without values gets this id with weight 1 (default_id)
    max_norm: float | None = None
    combiner: str = "none"
    accumulation: str = "segment"
    denominator: str = "count"
    denominator_eps: float = 0.0
    empty: str = "natural"
    sort_rows: bool = False
    ids_per_row: int | None = None
    storage: str | None = None  # of STORAGES, float32 tables only; None = table_dtype

    def __post_init__(self) -> None:
        for value, legal, what in (
            (self.form, FORMS, "form"),
            (self.combiner, COMBINERS, "combiner"),
            (self.accumulation, ACCUMULATIONS, "accumulation"),
            (self.denominator, DENOMINATORS, "denominator"),
            (self.empty, EMPTY_RULES, "empty"),
        ):
            if value not in legal:
                raise ValueError(f"lookup {self.name!r}: {what} {value!r} is not one of {', '.join(legal)}")
        if self.storage is not None and (self.storage not in STORAGES or self.table_dtype != "float32"):
            raise ValueError(f"lookup {self.name!r}: a {self.table_dtype} table can't be stored as {self.storage!r}")
        if any(s.kind == "find" for s in self.steps[:-1]):
            raise ValueError(f"lookup {self.name!r}: step find is not the last one")
        if self.combiner == "none" and self.form != "dense":
            raise ValueError(f"lookup {self.name!r}: form {self.form} needs a reducing combiner")

    def sources(self) -> tuple[str, ...]:
        """The graph tensors this lookup reads, without repeats, ids first."""
        found = (self.ids, self.rows, self.shape, self.weights, self.mask)
        return tuple(dict.fromkeys(t for t in found if t is not None))

    @property
    def hashed(self) -> bool:
        """Whether the table is a hash file: any int64 is a key of it."""
        return bool(self.steps) and self.steps[-1].kind == "find"

    @property
    def width(self) -> int:
        """Columns that this lookup adds to its output row."""
        return self.table_width * (self.ids_per_row or 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputSpec:
    """One output tensor of a fused op.

    ``rows``: shape [R, columns], R = the common number of rows of the features in this output (a different number is an
    error that names both features); the outputs of one op may differ in R. ``like``: ids.shape + [columns] of the first
    feature in this output (combiner none), as a plain gather gives; the other features' ids have the same shape.
    """

    form: str
    columns: int
    dtype: str


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where a lookup's result goes: output number and first column."""

    output: int
    column: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class CopySpec:
    """A numeric input of a folded concat: float rows [R, width] copied beside the lookups."""

    name: str
    source: str  # graph tensor
    width: int


def spec_text(
    lookups: Sequence[tuple[LookupSpec, Placement]],
    outputs: Sequence[OutputSpec],
    bind: dict[str, str],
    copies: Sequence[tuple[CopySpec, Placement]] = (),
) -> str:
    """Serialises a group for the op's ``spec`` attr.

    ``bind`` maps each graph tensor name to ``arg:J`` (J-th tensor of the op's ``args``) or ``in:K`` (K-th entry of the
    packed layout). Every value is percent-encoded, so names may hold any character.
    """
    lines = ["tfctr-lookup 1"]
    lines += [f"output {k} form={o.form} columns={o.columns} dtype={o.dtype}" for k, o in enumerate(outputs)]
    for spec, place in lookups:
        words = {
            "name": spec.name,
            "table": spec.table,
            "table_rows": spec.table_rows,
            "table_width": spec.table_width,
            "table_dtype": spec.table_dtype,
            "storage": spec.storage,
            "hashed": int(spec.hashed) or None,
            "form": spec.form,
            "steps": "|".join(s.text() for s in spec.steps) or None,
            "mask_value": spec.mask_value,
            "prune_weights": int(spec.prune_weights) or None,
            "fill_id": spec.fill_id,
            "max_norm": _float_text(spec.max_norm),
            "combiner": spec.combiner,
            "accumulation": spec.accumulation,
            "denominator": spec.denominator,
            "denominator_eps": _float_text(spec.denominator_eps) if spec.denominator == "eps" else None,
            "empty": spec.empty,
            "sort_rows": int(spec.sort_rows) or None,
            "ids_per_row": spec.ids_per_row,
            "output": place.output,
            "column": place.column,
        }
        words |= {
            part: bind[tensor]
            for part in ("ids", "rows", "shape", "weights", "mask")
            if (tensor := getattr(spec, part)) is not None
        }
        lines.append("lookup " + _words(words))
    for copy, place in copies:
        lines.append(
            "copy "
            + _words(
                {
                    "name": copy.name,
                    "source": bind[copy.source],
                    "width": copy.width,
                    "output": place.output,
                    "column": place.column,
                }
            )
        )
    return "\n".join(lines) + "\n"


def _words(words: dict[str, object]) -> str:
    # The arguments inside `steps` are quoted one by one (Step.text), so that `|`, `:` and `;` stay separators.
    return " ".join(f"{k}={v if k == 'steps' else _quote(str(v))}" for k, v in words.items() if v is not None)


def _quote(text: str, safe: str = ":") -> str:
    # Strings of a graph are bytes; those that are no UTF-8 are held as surrogates and come out as the bytes they were.
    return urllib.parse.quote(text, safe=safe, errors="surrogateescape")


def _float_text(value: float | None) -> str | None:
    """Shortest text that reads back to the same double."""
    if value is None:
        return None
    if not math.isfinite(value):
        raise ValueError(f"not a finite number: {value}")
    return repr(float(value))
