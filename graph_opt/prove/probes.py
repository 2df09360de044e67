"""Adversarial input streams for a spec: feeds for its source tensors, each with a label for the report.

Probes are made from the spec alone and deterministic in the seed. What is compared on each: an error on both sides or
on
none, and then the values. Streams hold good ids only, or one bad id, unsorted rows or a row beyond the shape.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from graph_opt.lookup_spec import LookupSpec
from graph_opt.prove.pools import CannotProbe, Pool, make_pool
from graph_opt.prove.steps import Vocabulary, run_steps

Feeds = dict[str, np.ndarray]
Labelled = tuple[str, Feeds, bool]  # label, feeds, core

# Values per row. The counts 1, 7, 8, 9, 10, 17 are where SparseSegment's order of additions changes.
_COUNTS = (1, 7, 8, 9, 10, 17, 33)
_GAPS = (0, 3, 1, 0, 2, 17, 0)
_LENGTHS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("short rows", (3, 1, 2, 1, 4, 2, 1)),
    ("empty first, middle and last rows", _GAPS),
    ("1 to 33 values per row", _COUNTS),
    ("all rows empty", (0,) * 7),
    ("batch 0", ()),
    ("batch 1, one value", (1,)),
    ("batch 1, no value", (0,)),
    ("trailing empty rows", (2, 9, 0, 0)),
    ("leading empty rows", (0, 0, 8, 2)),
)
_CORE_LENGTHS = ("empty first, middle and last rows", "1 to 33 values per row", "batch 0")
_BAD_LENGTHS = (2, 0, 3, 1)
_SPECIAL_WEIGHTS = (0.0, -0.5, float("nan"), 1.0, 0.25, -0.0, 3.0, -2.0)


@dataclasses.dataclass(frozen=True)
class Source:
    """A source tensor of a spec: NumPy dtype (object for strings) and static shape (None: unknown rank)."""

    dtype: np.dtype
    shape: tuple[int | None, ...] | None


@dataclasses.dataclass(frozen=True)
class Probe:
    """Feeds by source tensor name.

    ``rows``: table rows that the ids reach as the spec sees it, of a hash file the keys (for the surrogate).
    ``core``: belongs to the short set that is run for a spec whose class (same computation, same shapes) has passed the
    full set already.
    """

    label: str
    feeds: Feeds
    rows: np.ndarray
    core: bool
    no_rows: bool = False


def make_probes(
    spec: LookupSpec,
    sources: Mapping[str, Source],
    vocabularies: Mapping[int, Vocabulary],
    seed: int,
) -> list[Probe]:
    """All probes of ``spec``. CannotProbe says why none can be made (no id reaches a row, a source of unknown rank)."""
    rng = np.random.default_rng(seed)
    pool = make_pool(spec, sources[spec.ids].dtype, vocabularies, rng)
    maker = {"dense": _dense, "sparse": _rows, "ragged": _rows, "segments": _rows}[spec.form]
    return [
        Probe(label, feeds, _reached_rows(spec, feeds[spec.ids], vocabularies), core, _has_no_rows(spec, feeds))
        for label, feeds, core in maker(spec, sources, pool, rng)
    ]


def _has_no_rows(spec: LookupSpec, feeds: Feeds) -> bool:
    """True for an empty batch."""
    if spec.form == "dense":
        return 0 in feeds[spec.ids].shape
    if spec.form == "ragged" and spec.rows is not None:
        return len(feeds[spec.rows]) == 1
    if spec.shape is not None:
        return int(np.prod(feeds[spec.shape].reshape(-1)[: max(1, feeds[spec.shape].size - 1)])) == 0
    return feeds[spec.ids].size == 0


def _reached_rows(spec: LookupSpec, ids: np.ndarray, vocabularies: Mapping[int, Vocabulary]) -> np.ndarray:
    values = run_steps(spec.steps, ids, vocabularies).values.reshape(-1)
    reached = values if spec.hashed else values[(values >= 0) & (values < spec.table_rows)]
    filled = np.array([] if spec.fill_id is None else [spec.fill_id], np.int64)  # floats would round large keys
    return np.unique(np.append(reached.astype(np.int64), filled))


# Sparse, ragged, segments


def _rows(spec: LookupSpec, sources: Mapping[str, Source], pool: Pool, rng: np.random.Generator) -> Iterator[Labelled]:
    def feeds(lengths: Sequence[int], ids: np.ndarray | None = None, weights: str = "positive") -> Feeds:
        lengths = _fit_lengths(spec, sources, lengths)
        count = int(sum(lengths))
        if ids is None:
            ids = pool.draw([count])
        made = {spec.ids: ids[:count], **_row_parts(spec, sources, lengths)}
        if spec.weights is not None:
            made[spec.weights] = _weights(rng, (count,), weights, sources[spec.weights].dtype)
        return made

    for label, lengths in _LENGTHS:
        yield label, feeds(lengths), label in _CORE_LENGTHS
    yield from _dropped_ids(spec, pool, feeds)
    same = pool.draw([1])
    yield "one id repeated", feeds(_COUNTS, np.repeat(same, sum(_COUNTS))), False
    if spec.weights is not None:
        yield "weights 0, negative and NaN", feeds((1,) * 8 + (3, 0, 8, 9, 10), weights="special"), True
        yield "weights all 0", feeds(_GAPS, weights="zero"), False
    yield from _disordered(spec, feeds, rng)
    bad = pool.bad[0]
    for k, value in enumerate(bad):
        ids = pool.draw([sum(_BAD_LENGTHS)])
        ids[3] = value
        yield f"bad id {_show(value)}", feeds(_BAD_LENGTHS, ids), _is_core_bad(k, bad)
        if spec.weights is not None:
            made = feeds(_BAD_LENGTHS, ids)
            made[spec.weights][3] = 0
            yield f"bad id {_show(value)} with weight 0", made, _is_core_bad(k, bad)


def _dropped_ids(spec: LookupSpec, pool: Pool, feeds: Callable[..., Feeds]) -> Iterator[Labelled]:
    if not len(pool.dropped[0]):
        return
    yield "every id pruned", feeds(_GAPS, pool.draw([sum(_GAPS)], "dropped")), True
    mixed = pool.draw([sum(_COUNTS)])
    mixed[: _COUNTS[0] + _COUNTS[1]] = pool.draw([_COUNTS[0] + _COUNTS[1]], "dropped")  # the first rows lose all
    mixed[-_COUNTS[-1] :: 2] = pool.draw([len(mixed[-_COUNTS[-1] :: 2])], "dropped")
    yield "some ids pruned", feeds(_COUNTS, mixed), False


def _disordered(spec: LookupSpec, feeds: Callable[..., Feeds], rng: np.random.Generator) -> Iterator[Labelled]:
    if spec.form == "ragged" or spec.rows is None:
        return
    made = feeds((2, 3, 1, 9))
    order = rng.permutation(len(made[spec.ids]))
    per_value = (spec.ids, spec.rows, spec.weights)
    yield "unsorted rows", {k: v[order] if k in per_value else v for k, v in made.items()}, True
    made = feeds((2, 3, 1))
    column = made[spec.rows][:, 0] if made[spec.rows].ndim == 2 else made[spec.rows]
    column[0] = -1
    yield "a negative row number", made, False
    if spec.shape is not None:
        made = feeds((2, 3, 1))
        column = made[spec.rows][:, 0] if made[spec.rows].ndim == 2 else made[spec.rows]
        column[-1] = 1000
        yield "a row beyond the shape", made, False


def _fit_lengths(spec: LookupSpec, sources: Mapping[str, Source], lengths: Sequence[int]) -> tuple[int, ...]:
    """Row lengths padded (or cut) to what the sources' static shapes and ranks allow."""
    lengths = tuple(lengths)
    if spec.rows is None:
        return lengths
    shape = sources[spec.rows].shape
    if spec.form == "ragged" and shape and shape[0] is not None:
        wanted = shape[0] - 1
        return (*lengths, *(0,) * wanted)[:wanted]
    if spec.form == "sparse" and _sparse_rank(spec, sources) > 2 and len(lengths) % 2:
        return (*lengths, 0)
    return lengths


def _sparse_rank(spec: LookupSpec, sources: Mapping[str, Source]) -> int:
    for name, axis in ((spec.rows, 1), (spec.shape, 0)):
        shape = sources[name].shape if name is not None else None
        if shape is not None and len(shape) > axis and shape[axis] is not None:
            return int(shape[axis] or 0)
    return 2


def _row_parts(spec: LookupSpec, sources: Mapping[str, Source], lengths: Sequence[int]) -> Feeds:
    made: Feeds = {}
    count, batch = int(sum(lengths)), len(lengths)
    of_row = np.repeat(np.arange(batch), np.asarray(lengths, np.int64))
    starts = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))])
    if spec.form == "ragged":
        assert spec.rows is not None
        made[spec.rows] = starts.astype(sources[spec.rows].dtype)
    elif spec.form == "segments":
        assert spec.rows is not None
        made[spec.rows] = of_row.astype(sources[spec.rows].dtype)
        if spec.shape is not None:
            made[spec.shape] = np.asarray(batch, sources[spec.shape].dtype)
    else:
        rank = _sparse_rank(spec, sources)
        position = np.arange(count) - starts[of_row]
        outer = [batch] + [1] * (rank - 2)
        if rank > 2:
            outer = [batch // 2, 2, *[1] * (rank - 3)]
        columns = [*np.unravel_index(of_row, outer)] if batch else [np.zeros(0, np.int64)] * (rank - 1)
        if spec.rows is not None:
            made[spec.rows] = np.stack([*columns, position], 1).astype(sources[spec.rows].dtype)
        if spec.shape is not None:
            made[spec.shape] = np.asarray([*outer, max([*lengths, 1])], sources[spec.shape].dtype)
    return made


# Dense


def _dense(spec: LookupSpec, sources: Mapping[str, Source], pool: Pool, rng: np.random.Generator) -> Iterator[Labelled]:
    if spec.rows is not None or spec.shape is not None:
        raise CannotProbe("a dense lookup reads no rows and no shape")
    shapes = _dense_shapes(spec, sources[spec.ids].shape, len(pool.good))

    def feeds(shape: Sequence[int], ids: np.ndarray | None = None, mask: str = "mixed", weights: str = "") -> Feeds:
        made = {spec.ids: pool.draw(shape) if ids is None else ids}
        if spec.mask is not None:
            keep = {"mixed": rng.random(shape) < 0.6, "none": np.zeros(shape, bool), "all": np.ones(shape, bool)}[mask]
            made[spec.mask] = keep.astype(sources[spec.mask].dtype)
        if spec.weights is not None:
            made[spec.weights] = _weights(rng, shape, weights, sources[spec.weights].dtype)
        return made

    for k, shape in enumerate(shapes):
        yield f"ids of shape {list(shape)}", feeds(shape), k == 0 or 0 in shape
    full = max(shapes, key=lambda shape: int(np.prod(shape)))
    yield "one id repeated", feeds(full, np.broadcast_to(pool.draw(full).reshape(-1)[:1], full).copy()), False
    if spec.mask is not None:
        yield "all masked", feeds(full, mask="none"), True
        yield "nothing masked", feeds(full, mask="all"), False
    if spec.weights is not None:
        yield "weights 0, negative and NaN", feeds(full, weights="special"), True
        yield "weights all 0", feeds(full, weights="zero"), False
    if any(len(p) for p in pool.dropped):
        yield "every id masked or pruned", feeds(full, pool.draw(full, "dropped"), "all"), True
        mixed = pool.draw(full)
        dropped = pool.draw(full, "dropped")
        chosen = rng.random(full) < 0.5
        chosen[: max(1, full[0] // 3)] = True
        yield "some ids masked or pruned", feeds(full, np.where(chosen, dropped, mixed), "all"), True
    yield from _dense_bad(spec, pool, full, feeds)


def _dense_bad(spec: LookupSpec, pool: Pool, shape: Sequence[int], feeds: Callable[..., Feeds]) -> Iterator[Labelled]:
    bad = pool.bad[((shape[-1] if shape else 1) - 1) % len(pool.bad)]
    for k, value in enumerate(bad):
        ids = pool.draw(shape)
        ids[(-1,) * len(shape)] = value
        core = _is_core_bad(k, bad)
        yield f"bad id {_show(value)}", feeds(shape, ids, "all"), core
        if spec.mask is not None:
            yield f"bad id {_show(value)}, masked", feeds(shape, ids, "none"), core


def _dense_shapes(spec: LookupSpec, known: tuple[int | None, ...] | None, columns: int) -> list[tuple[int, ...]]:
    """Shapes for the ids: batches 7, 1, 0 (20 for vectors) times the lengths of interest, within the static shape."""
    pooled = spec.combiner != "none"
    if known is None:
        ranks = (2,) if pooled or spec.ids_per_row else (1, 2, 3)
        return [shape for rank in ranks for shape in _dense_shapes(spec, (None,) * rank, columns)]
    if not known:
        return [()]
    batches = (7, 1, 0) if known[0] is None else (known[0],)
    if len(known) == 1:
        return [(b,) for b in ((7, 1, 0, 20) if known[0] is None else batches)]
    last: tuple[int, ...] = (9, 1, 7, 8, 10, 17, 0) if pooled else (3, 1, 0)
    if known[-1] is not None:
        last = (known[-1],)
    elif spec.ids_per_row or columns > 1:
        last = (spec.ids_per_row or columns,)
    middle = tuple(2 if d is None else d for d in known[1:-1])
    return [(b, *middle, t) for b in batches for t in (last if b == batches[0] else last[:1])]


# Shared


def _weights(rng: np.random.Generator, shape: Sequence[int], kind: str, dtype: np.dtype) -> np.ndarray:
    count = int(np.prod(shape))
    if kind == "special":
        weights = np.resize(np.asarray(_SPECIAL_WEIGHTS), count)
    elif kind == "zero":
        weights = np.zeros(count)
    else:
        weights = rng.uniform(0.1, 2.0, count)
    return weights.reshape(tuple(shape)).astype(dtype)


def _is_core_bad(position: int, bad: np.ndarray) -> bool:
    """Three bad values of a list: smallest, one in the middle, largest."""
    return position in (0, len(bad) // 2, len(bad) - 1)


def _show(value: object) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 40 else text[:37] + "..."
