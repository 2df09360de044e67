"""From what was done to a table's rows (:class:`values.Found`) to specs: one reading per place where the lookup can
start.

The bolder reading comes first: it starts at the raw inputs and takes the id transforms in. Later ones start further
down the chains of ids and row numbers, where graph tensors hold the values already transformed, filtered or filled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from graph_opt.lookup_spec import LookupSpec, Step
from graph_opt.recognise.engine import Walk
from graph_opt.recognise.values import Cond, Coords, Cut, Fill, Found, PerValue, Rowing

TABLE_DTYPES = ("float32", "float16", "bfloat16", "float64")
_KEYS = ("string", "int32", "int64")
_RAW_DTYPES = {
    "hash_fast": ("string",), "hash_strong": ("string",), "fingerprint": ("string",), "find": ("int64",),
    "bucketize": ("float32",), "vocab": _KEYS, "vocab_oov": _KEYS,
    "cast": ("int8", "int16", "uint8", "uint16", "int32", "int64", "uint32", "uint64", "float32", "float64"),
}  # fmt: skip
_INTEGERS = ("int32", "int64", "uint32", "uint64")


@dataclasses.dataclass(frozen=True)
class TableFacts:
    """What a spec says about its table: file index (-1: partitioned), rows, width, dtype."""

    index: int
    rows: int
    width: int
    dtype: str


def readings(walk: Walk, found: Found, table: TableFacts, name: str) -> Iterator[LookupSpec]:
    """All specs that ``found`` may stand for, best first."""
    ids = found.ids
    if not isinstance(ids, PerValue):
        return
    for tokens in range(len(ids.tokens) + 1):
        for cut in sorted((c for c in ids.cuts if c.tokens == tokens), key=lambda c: c.steps):
            yield from _readings_from(walk, found, table, name, cut)


def _readings_from(walk: Walk, found: Found, table: TableFacts, name: str, cut: Cut) -> Iterator[LookupSpec]:
    assert isinstance(found.ids, PerValue)
    steps, prune_weights = _steps(found, cut)
    weights = _weights_source(walk, found.weights, cut)
    if steps is None or not _raw_fits(walk, cut.tensor, steps) or (found.weights is not None and weights is None):
        return
    fill = next((t for t in found.ids.tokens[cut.tokens :] if isinstance(t, Fill)), None)
    mask = _mask(walk, found, cut)
    if mask is None:
        return
    plain = {
        "name": name, "table": table.index, "table_rows": table.rows, "table_width": table.width,
        "table_dtype": table.dtype, "ids": cut.tensor, "weights": weights, "steps": steps,
        "prune_weights": prune_weights, "max_norm": found.max_norm,
        "combiner": found.combiner, "accumulation": found.accumulation, "denominator": found.denominator,
        "denominator_eps": found.eps, "empty": found.empty, **mask,
    }  # fmt: skip
    if fill is not None and found.empty != "zeros":
        if isinstance(fill.default, bool) or not isinstance(fill.default, int):
            return
        plain |= {"fill_id": fill.default}
    for layout in _layouts(walk, found, cut):
        if layout["form"] == "ragged" and found.empty == "short" and any(s.kind.startswith("prune_") for s in steps):
            continue
        sort = (fill is not None or found.unordered) and layout["form"] in ("sparse", "segments")
        yield LookupSpec(**(plain | layout), sort_rows=sort)  # type: ignore[arg-type]


def _steps(found: Found, cut: Cut) -> tuple[tuple[Step, ...] | None, bool]:
    """The steps after ``cut``, prunes in their places; whether values without a positive weight are dropped."""
    ids = found.ids
    assert isinstance(ids, PerValue)
    prunes: list[tuple[int, Step]] = []
    prune_weights = False
    tokens = ids.tokens[cut.tokens :]
    for k, token in enumerate(tokens):
        if isinstance(token, Fill):
            if k != len(tokens) - 1:
                return None, False
            continue
        for cond in token.conds:
            if found.weights is not None and cond.base == found.weights.base and _positive(cond):
                prune_weights = True
                continue
            step = _prune(cond, ids, cut)
            if step is None:
                return None, False
            prunes.append((len(cond.steps) - cut.steps, step))
    steps = list(ids.steps[cut.steps :])
    if cut.steps and any(s.kind == "select_equal" for s in steps):
        return None, False  # it compares what lies before the cut
    for position, _, step in sorted(((p, k, s) for k, (p, s) in enumerate(prunes)), key=lambda e: e[:2], reverse=True):
        steps.insert(position, step)
    return tuple(steps), prune_weights


def _positive(cond: Cond) -> bool:
    return cond.kind == "gt" and cond.limit == 0 and not cond.steps


def _prune(cond: Cond, ids: PerValue, cut: Cut) -> Step | None:
    length = len(cond.steps)
    if cond.base != ids.base or length < cut.steps or ids.steps[:length] != cond.steps:
        return None
    if cond.kind == "ge" and cond.limit == 0:
        return Step("prune_negative")
    if cond.kind == "ne" and cond.limit is not None and length == cut.steps:
        return Step("prune_equal", (str(cond.limit),))
    return None


def _raw_fits(walk: Walk, tensor: str, steps: tuple[Step, ...]) -> bool:
    """True when the source's dtype is one the first transforming step takes."""
    first = next((s.kind for s in steps if not s.kind.startswith("prune_")), "")
    return walk.dtype(tensor) in _RAW_DTYPES.get(first, _INTEGERS)


def _weights_source(walk: Walk, weights: PerValue | None, ids: Cut) -> str | None:
    """The tensor that holds the weights of the values of ``ids``, in the same shape."""
    if weights is None or weights.power != 1:
        return None
    for cut in weights.cuts:
        same = walk.rank(cut.tensor) == walk.rank(ids.tensor)
        if same and cut.tokens == ids.tokens and cut.steps == len(weights.steps):
            return cut.tensor
    return None


def _mask(walk: Walk, found: Found, cut: Cut) -> dict[str, str] | None:
    """The spec's mask fields; None where the mask can't be expressed."""
    test, ids = found.mask, found.ids
    if test is None:
        return {}
    assert isinstance(ids, PerValue)
    if len(test.conds) == 1:
        cond = next(iter(test.conds))
        same = cond.base == ids.base and not cond.tokens and cond.steps == ids.steps[: cut.steps]
        if same and cond.kind == "ne" and cond.limit is not None:
            return {"mask_value": str(cond.limit)}
    if not test.source or walk.dtype(test.source) != "bool" or walk.rank(test.source) != walk.rank(cut.tensor):
        return None
    return {"mask": test.source}


def _layouts(walk: Walk, found: Found, cut: Cut) -> Iterator[dict[str, object]]:
    """The spec's form, rows and shape: as bold as possible, then as given."""
    coords = found.coords
    if coords is None:
        yield from _dense_layouts(walk, found, cut)
        return
    if not _one_row_each(walk, found, coords):
        return
    rowing, rank = coords.rowing, walk.rank(cut.tensor)
    by_position = rowing.form == "dense" and cut.tokens == 0 and found.empty != "short"
    if by_position and rank is not None and rank >= 2 and rank == walk.rank(rowing.tensor):
        yield {"form": "dense"}
    if rank not in (1, None):
        return  # the other forms take values one after the other
    if cut.tokens == 0:
        if rowing.form == "sparse":
            # Without a dense_shape nothing flattens the indices: the first column is the row, as in rank 2 only.
            matrix = (walk.shape(rowing.tensor) or [None, None])[-1] in (None, 2)
            if _is_shape(walk, coords.shape) or (coords.shape is None and found.empty == "short" and matrix):
                yield {"form": "sparse", "rows": rowing.tensor, "shape": coords.shape}
        elif rowing.form == "ragged":
            yield {"form": "ragged", "rows": rowing.tensor}
    if coords.splits not in (None, rowing.tensor) and cut.tokens == len(coords.tokens):
        yield {"form": "ragged", "rows": coords.splits}
    yield from _given_rows(walk, found, coords, cut)


def _one_row_each(walk: Walk, found: Found, coords: Coords) -> bool:
    """True when the result is a matrix of rows; where TensorFlow can't tell, the rank of the sparse feature decides."""
    out = walk.shape(found.tensor)
    if out is not None:
        return len(out) == 2 and out[1] in (None, walk.table_width(found))
    ranks = set()
    if coords.rowing.form == "sparse":
        ranks |= set((walk.shape(coords.rowing.tensor) or [])[1:])
    if coords.shape is not None:
        ranks |= set(walk.shape(coords.shape) or [])
    return ranks <= {2, None}


def _given_rows(walk: Walk, found: Found, coords: Coords, cut: Cut) -> Iterator[dict[str, object]]:
    """Row numbers taken from a tensor of the graph: an index matrix or segment ids."""
    for given in coords.cuts:
        if given.tokens != cut.tokens:
            continue
        is_column = given.steps == 1
        raw = coords.rowing == Rowing("sparse", given.tensor) and cut.tokens == 0
        shaped = _is_shape(walk, coords.shape) or (coords.shape is None and found.empty == "short")
        if not is_column and not raw and shaped:
            yield {"form": "sparse", "rows": given.tensor, "shape": coords.shape}
        # UnsortedSegment* leaves values with negative row numbers out, which the language has no word for.
        if is_column and not found.unordered and walk.rank(given.tensor) in (1, None):
            yield {"form": "segments", "rows": given.tensor, "shape": _row_count(walk, found, coords)}


def _is_shape(walk: Walk, tensor: str | None) -> bool:
    """True for a dense_shape; RaggedFillEmptyRows takes a number of rows instead."""
    return tensor is not None and walk.rank(tensor) != 0


def _row_count(walk: Walk, found: Found, coords: Coords) -> str | None:
    """The scalar tensor that says how many rows there are, where one is given."""
    if found.rows is not None:
        return found.rows  # UnsortedSegment* and *WithNumSegments take nothing but a scalar
    return coords.shape if coords.shape is not None and walk.rank(coords.shape) == 0 else None


def _dense_layouts(walk: Walk, found: Found, cut: Cut) -> Iterator[dict[str, object]]:
    rank = walk.rank(cut.tensor)
    out = walk.shape(found.tensor)
    assert isinstance(found.ids, PerValue)
    if rank is None or out is None or found.ids.tokens[cut.tokens :]:
        return
    if found.pooled:
        if rank == 2 and len(out) == 2 and out[1] in (None, walk.table_width(found)):
            yield {"form": "dense"}
        return
    source = walk.shape(cut.tensor) or []
    width = out[-1]
    if len(out) == rank + 1 and all(a == b or a is None or b is None for a, b in zip(source, out, strict=False)):
        yield {"form": "dense"}
    if len(out) == 2 and rank >= 1 and width is not None:
        per_row = source[-1] if rank >= 2 else 1
        row = (walk.table_width(found) or 0) * (per_row or 0)
        if row and row == width and rank <= 2:
            yield {"form": "dense", "ids_per_row": per_row}
        elif rank != 2 and walk.table_width(found) == width and rank != 1:
            yield {"form": "dense", "ids_per_row": 1}
