"""Generates inputs that a signature accepts, from nothing but its description in a manifest.

Ids lie inside their tables, dictionary keys exist, rows of sparse features are sorted and hold one to three values,
every feature has the same number of rows, save user features where the caller asks for others. Equal seeds give equal
inputs.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_VALUES_PER_ROW = 3
_UNKNOWN_DIM = 4  # size of an unknown dimension that is not the batch
_ID_LIMIT = 1000  # ids of inputs nothing is known about stay small

Array = npt.NDArray[Any]


def generate(
    info: Mapping[str, Any],
    rows: int,
    seed: int = 0,
    user_rows: int | None = None,
    user_inputs: Collection[str] | None = None,
    between: Callable[[], None] = lambda: None,
    values_per_row: tuple[int, int] = (1, MAX_VALUES_PER_ROW),
) -> dict[str, Array]:
    """Arrays by input name for one signature. info: its entry under ``signatures``. rows: batch size (0 is legal).

    user_rows: rows of ``user_inputs`` (default: those that ``info["user"]`` declares), where they differ from ``rows``.
    values_per_row: fewest and most values in a row of a sparse or ragged feature.
    between: called after each feature and input, for callers whose other threads want to run.
    """
    random = np.random.default_rng(seed)
    entries = {entry["name"]: entry for entry in info["inputs"]}
    declared = (info.get("user") or {}).get("inputs", ()) if user_inputs is None else user_inputs

    def rows_of(name: str) -> int:
        return rows if user_rows is None or name not in declared else user_rows

    made: dict[str, Array] = {}
    for feature in info["features"]:
        parts = feature["parts"]
        if feature["kind"] == "dense":
            continue
        counts = random.integers(values_per_row[0], values_per_row[1] + 1, rows_of(parts["values"]))
        values = entries[parts["values"]]
        made[parts["values"]] = _values(values, (int(counts.sum()), *_inner(values)), random)
        made |= _sparse(entries, parts, counts) if feature["kind"] == "sparse" else _ragged(entries, parts, counts)
        between()
    for name, entry in entries.items():
        if name in made:
            continue
        like = (entry.get("domain") or {}).get("like")
        if like is not None and like in made:
            made[name] = _weights(entry, len(made[like]), random)
        else:
            made[name] = _dense(entry, rows_of(name), random, values_per_row)
        between()
    return {name: made[name] for name in entries}


def _sparse(entries: Mapping[str, Any], parts: Mapping[str, str], counts: Array) -> dict[str, Array]:
    rows = np.repeat(np.arange(len(counts)), counts)
    columns = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    shape = entries[parts["indices"]]["shape"]
    rank = shape[1] if shape and len(shape) == 2 and shape[1] > 0 else 2
    # Axes between row and value hold one entry each.
    middle = [np.zeros(len(rows), np.int64)] * (rank - 2)
    index = np.stack([rows, *middle, columns][:rank], axis=1).astype(np.int64)
    size = [len(counts), *([1] * (rank - 2)), max(1, int(counts.max(initial=0)))][:rank]
    return {parts["indices"]: index, parts["dense_shape"]: np.array(size, np.int64)}


def _ragged(entries: Mapping[str, Any], parts: Mapping[str, str], counts: Array) -> dict[str, Array]:
    made = {}
    levels = [parts[role] for role in parts if role.startswith("row_splits")]
    for level, name in enumerate(levels):
        inner = level == len(levels) - 1
        splits = np.concatenate([[0], np.cumsum(counts)]) if inner else np.arange(len(counts) + 1)
        made[name] = splits.astype(entries[name]["dtype"])
    return made


def _dense(entry: Mapping[str, Any], rows: int, random: np.random.Generator, lengths: tuple[int, int]) -> Array:
    domain = entry.get("domain") or {}
    if domain.get("kind") == "examples":
        examples = [_example(domain["features"], random, lengths) for _ in range(rows)]
        shape = entry["shape"]
        return _objects(examples) if shape is None or len(shape) != 0 else _objects(examples[:1]).reshape(())
    shape = entry["shape"] if entry["shape"] is not None else [-1]
    size = tuple((rows if axis == 0 else _UNKNOWN_DIM) if n < 0 else n for axis, n in enumerate(shape))
    return _values(entry, size, random)


def _inner(entry: Mapping[str, Any]) -> tuple[int, ...]:
    shape = entry["shape"] or [-1]
    return tuple(n if n > 0 else _UNKNOWN_DIM for n in shape[1:])


def _weights(entry: Mapping[str, Any], count: int, random: np.random.Generator) -> Array:
    return random.uniform(0.1, 2.0, (count, *_inner(entry))).astype(_numpy_dtype(entry["dtype"]))


def _values(entry: Mapping[str, Any], size: tuple[int, ...], random: np.random.Generator) -> Array:
    return _draw(entry["dtype"], entry.get("domain") or {}, size, random)


def _draw(dtype: str, domain: Mapping[str, Any], size: tuple[int, ...], random: np.random.Generator) -> Array:
    kind = domain.get("kind")
    if kind == "keys" and domain["keys"]:
        keys = [_key(k) for k in domain["keys"]]
        picked = [keys[k] for k in random.integers(0, len(keys), int(np.prod(size)))]
        if dtype == "string":
            return _objects([k if isinstance(k, bytes) else str(k).encode() for k in picked]).reshape(size)
        return np.array(picked, _numpy_dtype(dtype)).reshape(size)
    if dtype == "string":
        texts = [b"%d" % k for k in random.integers(0, _ID_LIMIT, int(np.prod(size)))]
        return _objects(texts if kind == "ids" else [b"v" + t for t in texts]).reshape(size)
    if dtype == "bool":
        return random.integers(0, 2, size).astype(bool)
    target = _numpy_dtype(dtype)
    if kind == "ids":
        return _integers(domain["low"], domain["high"], size, target, random)
    if np.dtype(target).kind in "iu":
        return random.integers(0, 10, size).astype(target)
    low, high = (domain["low"], domain["high"]) if kind == "float" else (-1.0, 1.0)
    return random.uniform(low, high, size).astype(target)


def _integers(low: int, high: int, size: tuple[int, ...], target: Any, random: np.random.Generator) -> Array:
    if np.dtype(target).kind in "iu":
        info = np.iinfo(target)
        low, high = max(low, int(info.min)), min(high, int(info.max) + 1)
    # A walk through the domain: small and large ids alike, duplicates where the domain is small.
    return random.integers(low, max(high, low + 1), size).astype(target)


def _example(features: Sequence[Mapping[str, Any]], random: np.random.Generator, lengths: tuple[int, int]) -> bytes:
    from tensorflow.core.example import example_pb2

    example = example_pb2.Example()
    # Floats of any number may be the weights of some ids, of which there must be as many; which ids is not known here.
    weighted = any(f["kind"] != "dense" and f["dtype"] == "float32" for f in features)
    shared = int(random.integers(lengths[0], lengths[1] + 1))
    for feature in features:
        count = int(np.prod([max(n, 1) for n in feature["shape"]])) if feature["kind"] == "dense" else None
        drawn = shared if weighted else int(random.integers(lengths[0], lengths[1] + 1))
        length = count if count is not None else drawn
        values = _draw(feature["dtype"], feature.get("domain") or {}, (length,), random).tolist()
        target = example.features.feature[feature["key"]]
        if feature["dtype"] == "string":
            target.bytes_list.value.extend(values)
        elif feature["dtype"] == "float32":
            target.float_list.value.extend(values)
        else:
            target.int64_list.value.extend(values)
    return bytes(example.SerializeToString())


def _key(key: Any) -> Any:
    if isinstance(key, dict):
        return base64.b64decode(key["b64"])
    return key.encode() if isinstance(key, str) else key


def _objects(values: list[Any]) -> Array:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _numpy_dtype(name: str) -> Any:
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(name)
