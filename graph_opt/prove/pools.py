"""Raw id values worth probing a spec with.

The values are chosen backwards: interesting table rows (first, last, one past the end, negative ones, extremes) are
taken back through the id steps to raw values; where a step can't be inverted (hashes, vocabularies), random texts,
vocabulary keys and unknown keys are taken. Running the steps forward then sorts them into ``good`` (reach a row, or are
dropped) and ``bad`` (reach a row outside the table: the original must fail, and so must the fused op).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from graph_opt.lookup_spec import LookupSpec, Step
from graph_opt.prove.steps import Vocabulary, parse_raw, run_steps

_TEXTS = (b"", b" ", b"0", b"-1", b"7", b"a", b"\x00\xff", "\u00e9\u4e2d".encode(), b"x" * 300)
_MAX_KEYS = 24


class CannotProbe(Exception):
    """No meaningful inputs can be made for a spec; the message is the refusal's reason."""


@dataclasses.dataclass
class Pool:
    """``good``/``bad``/``dropped``: raw values by column (one entry unless an ``addcol`` step makes columns differ).

    ``dropped`` values are those of ``good`` that a prune step or the mask value removes.
    """

    good: list[np.ndarray]
    bad: list[np.ndarray]
    dropped: list[np.ndarray]
    rng: np.random.Generator

    def draw(self, shape: Sequence[int], kind: str = "good") -> np.ndarray:
        """Values of one kind (``good`` where there is none), each used before one repeats. Last axis = columns."""
        pools = [p if len(p) else g for p, g in zip(getattr(self, kind), self.good, strict=True)]
        shape = tuple(shape)
        if len(pools) == 1:
            return self._cycle(pools[0], int(np.prod(shape))).reshape(shape)
        rows = int(np.prod(shape[:-1]))
        columns = [self._cycle(pools[j % len(pools)], rows) for j in range(shape[-1])]
        return np.stack(columns, -1).reshape(shape) if columns else np.zeros(shape, pools[0].dtype)

    def _cycle(self, values: np.ndarray, count: int) -> np.ndarray:
        order = np.concatenate(
            [self.rng.permutation(len(values)) for _ in range(-(-count // len(values)))] or [np.zeros(0, int)]
        )
        return values[order[:count].astype(np.int64)]


def make_pool(
    spec: LookupSpec, dtype: np.dtype, vocabularies: Mapping[int, Vocabulary], rng: np.random.Generator
) -> Pool:
    """Pools of raw values for ``spec.ids`` of NumPy dtype ``dtype`` (object for strings).

    Raises CannotProbe where no raw value reaches a row of the table: then nothing can be proven.
    """
    columns = next((s.args for s in spec.steps if s.kind == "addcol"), ("0",))
    pool = Pool([], [], [], rng)
    for column in range(len(columns)):
        steps = [Step("add", (s.args[column],)) if s.kind == "addcol" else s for s in spec.steps]
        raw = _candidates(spec, steps, dtype, vocabularies, rng)
        result = run_steps(steps, raw, vocabularies)
        dropped = result.dropped | _masked(spec, raw)
        in_table = np.asarray([spec.hashed or 0 <= int(v) < spec.table_rows for v in result.values], bool)
        # A masked value is still bounds-checked, a pruned one is not.
        good = result.dropped | in_table
        if not (in_table & ~dropped).any():
            raise CannotProbe("no id was found that reaches a row of the table")
        pool.good.append(raw[good])
        pool.bad.append(raw[~good])
        pool.dropped.append(raw[good & dropped])
    return pool


def _masked(spec: LookupSpec, raw: np.ndarray) -> np.ndarray:
    if spec.mask_value is None:
        return np.zeros(len(raw), bool)
    return np.asarray(raw == parse_raw(spec.mask_value, raw.dtype), bool)


def _candidates(
    spec: LookupSpec,
    steps: Sequence[Step],
    dtype: np.dtype,
    vocabularies: Mapping[int, Vocabulary],
    rng: np.random.Generator,
) -> np.ndarray:
    # Any number is a key of a hash file: those around 0, around 32 bits, and some that need all 64.
    count = (1 << 32) - 1 if spec.hashed else spec.table_rows
    rows = {0, 1, 2, count - 1, count, count + 3, -1, -2, count // 2}
    rows |= {int(r) for r in rng.integers(0, count, 24)}
    rows |= {int(r) << 24 for r in rng.integers(-(1 << 39), 1 << 39, 16)} if spec.hashed else set()
    extra: list[object] = [parse_raw(s.args[0], dtype) for s in steps if s.kind == "prune_equal"]
    extra += [parse_raw(s.args[1], dtype) for s in steps if s.kind == "select_equal"]
    if spec.mask_value is not None:
        extra.append(parse_raw(spec.mask_value, dtype))
    values: list[object] = [*_invert(steps, [*rows], dtype, vocabularies, rng), *extra]
    if dtype == np.object_:
        values += [*_TEXTS, *(b"key_%d" % k for k in rng.integers(0, 1 << 30, 16))]
        unique = list(dict.fromkeys(v for v in values if isinstance(v, bytes)))
        return np.array([*unique, None], object)[:-1]  # the None keeps NumPy from making fixed-width bytes
    if np.issubdtype(dtype, np.floating):
        return np.unique(np.asarray([v for v in values if not isinstance(v, bytes)], dtype))
    info = np.iinfo(dtype)
    values += [info.min, info.max, info.min + 1, info.max - 1]
    if info.bits == 64:
        values += [1 << 31, (1 << 31) - 1, 1 << 32, -(1 << 31)]
    whole = sorted({int(v) for v in values if not isinstance(v, bytes) and info.min <= int(v) <= info.max})  # type: ignore[call-overload]
    return np.asarray(whole, dtype)


def _invert(
    steps: Sequence[Step],
    wanted: list[object],
    dtype: np.dtype,
    vocabularies: Mapping[int, Vocabulary],
    rng: np.random.Generator,
) -> list[object]:
    """Raw values likely to become ``wanted`` (integers) after ``steps``; extra values are harmless."""
    values = wanted
    for step in reversed(steps):
        numbers = [v for v in values if isinstance(v, int)]
        raw = [v for v in values if not isinstance(v, int)]  # texts and floats: no earlier step changes these
        kept = numbers if step.kind.startswith("select") else []
        values = [*raw, *kept, *_before(step, numbers, vocabularies, rng)]
    if np.issubdtype(dtype, np.floating) and not any(s.kind == "bucketize" for s in steps):
        values = values + [v + 0.5 for v in values if isinstance(v, int)] + [-0.5, -0.0]
    return values


def _before(
    step: Step, numbers: list[int], vocabularies: Mapping[int, Vocabulary], rng: np.random.Generator
) -> list[object]:
    kind, args = step.kind, step.args
    if kind in ("hash_fast", "hash_strong", "fingerprint", "as_string"):
        return [*numbers, *(int(v) for v in rng.integers(-(1 << 40), 1 << 40, 24))]
    if kind in ("vocab", "vocab_oov"):
        keys = vocabularies[int(args[0])].sample
        chosen = [keys[k] for k in np.unique(rng.integers(0, len(keys), _MAX_KEYS))] if keys else []
        return [*chosen, *([keys[0], keys[-1]] if keys else []), *numbers, -1, 0, 1 << 40]
    if kind == "bucketize":
        return _around([float(a) for a in args])
    if kind == "mod":
        modulus = int(args[0])
        return [
            *numbers,
            *(v + modulus for v in numbers),
            *(v - modulus for v in numbers),
            *(v + 7 * modulus for v in numbers),
        ]
    if kind == "mul":
        return [w for v in numbers for w in (v // int(args[0]), v)]
    if kind == "add":
        return [w for v in numbers for w in (v - int(args[0]), v)]
    if kind == "divide":
        size = int(args[0])
        return [w for v in numbers for w in (v * size, v * size + size - 1)]
    if kind == "wrap_negative":
        return [w for v in numbers for w in (v, v - int(args[0]))]
    if kind == "select_out_of_range":
        low, high = int(args[0]), int(args[1])
        return [*numbers, low - 1, low, high - 1, high]
    if kind == "prune_negative":
        return [*numbers, -1, -2, -1000]
    return [*numbers]  # cast, select_negative, prune_equal, select_equal


def _around(boundaries: Sequence[float]) -> list[object]:
    """Values on, just below and just above up to 16 boundaries, between them, and the specials."""
    edges = np.unique(np.asarray(boundaries, np.float32))
    if len(edges) > 16:
        edges = edges[np.unique(np.linspace(0, len(edges) - 1, 16).astype(int))]
    with np.errstate(over="ignore"):
        near = [
            edges,
            np.nextafter(edges, np.float32(-np.inf)),
            np.nextafter(edges, np.float32(np.inf)),
            edges + np.float32(0.5),
        ]
    return [*(float(v) for part in near for v in part), 0.0, -0.0, np.inf, -np.inf, np.nan]
