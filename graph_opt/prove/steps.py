"""NumPy reading of a spec's id steps: which table row (or none) each raw value leads to; in a hash file, which key.

The prover uses it to choose raw values that reach interesting rows and to know which rows of a surrogate table must
hold values. It judges nothing: verdicts come from running the original and the fused graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from graph_opt.lookup_spec import Step


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A static vocabulary: some of its keys (bytes or int), and the value of each of a list of keys (None: absent)."""

    sample: Sequence[object]
    find: Callable[[Sequence[object]], list[int | None]]

    @staticmethod
    def of(entries: Mapping[object, int]) -> Vocabulary:
        """A vocabulary held in a dict."""
        return Vocabulary(list(entries), lambda keys: [entries.get(k) for k in keys])


@dataclasses.dataclass
class StepResult:
    """``values``: after all steps. ``dropped``: bool of the same shape, True where a prune step removed the value."""

    values: np.ndarray
    dropped: np.ndarray


def run_steps(steps: Sequence[Step], raw: np.ndarray, vocabularies: Mapping[int, Vocabulary]) -> StepResult:
    """Applies ``steps`` to ``raw`` (any shape; numeric, or object array of bytes)."""
    values = raw
    dropped = np.zeros(raw.shape, bool)
    with np.errstate(all="ignore"):
        for step in steps:
            if step.kind == "prune_negative":
                dropped |= values < 0
            elif step.kind == "prune_equal":
                dropped |= values == parse_raw(step.args[0], values.dtype)
            elif step.kind == "select_equal":
                values = np.where(raw == parse_raw(step.args[1], raw.dtype), int(step.args[0]), values)
            else:
                values = _apply(step, values, vocabularies)
    return StepResult(values, dropped)


def parse_raw(text: str, dtype: np.dtype) -> object:
    """A raw value written as text (``prune_equal``, ``select_equal``, ``mask_value``) in the dtype of the id source."""
    if dtype == np.object_:
        return text.encode("utf-8", "surrogateescape")
    if np.issubdtype(dtype, np.floating):
        return dtype.type(float(text))
    return dtype.type(int(float(text)) if "." in text or "e" in text else int(text))


def _apply(step: Step, values: np.ndarray, vocabularies: Mapping[int, Vocabulary]) -> np.ndarray:
    kind, args = step.kind, step.args
    if kind == "cast":
        return values.astype(np.dtype(args[0]))
    if kind == "find":
        return values  # which row a key has is the table's own affair
    if kind in ("as_string", "hash_fast", "hash_strong", "fingerprint", "vocab", "vocab_oov"):
        return _text_step(kind, args, values, vocabularies)
    if kind == "bucketize":
        return _bucketize([float(a) for a in args], values)
    if kind == "addcol":
        return values + np.asarray([int(a) for a in args], dtype=np.int64).astype(values.dtype)
    if kind == "select_out_of_range":
        low, high, other = (int(a) for a in args)
        outside = np.asarray([not low <= int(v) < high for v in values.reshape(-1)], bool).reshape(values.shape)
        return np.where(outside, _wrap(other, values.dtype), values)
    number = int(args[0])
    if kind == "mod":
        return np.mod(values, _wrap(number, values.dtype))
    if kind == "mul":
        return values * _wrap(number, values.dtype)
    if kind == "add":
        return values + _wrap(number, values.dtype)
    if kind == "divide":
        return values // _wrap(number, values.dtype)
    if kind == "wrap_negative":
        return np.where(values < 0, values + _wrap(number, values.dtype), values)
    if kind == "select_negative":
        return np.where(values < 0, _wrap(number, values.dtype), values)
    raise ValueError(f"step {kind!r} has no NumPy reading")


def _wrap(number: int, dtype: np.dtype) -> np.generic:
    """``number`` in two's complement of ``dtype``."""
    bits = 8 * dtype.itemsize
    return np.uint64(number % (1 << bits)).astype(dtype)


def _text_step(
    kind: str, args: Sequence[str], values: np.ndarray, vocabularies: Mapping[int, Vocabulary]
) -> np.ndarray:
    flat = values.reshape(-1)
    if kind == "as_string":
        return np.asarray([str(v).encode() for v in flat.tolist()] or [], object).reshape(values.shape)
    if kind == "hash_fast":
        return _hash_fast(flat, int(args[0])).reshape(values.shape)
    if kind == "fingerprint":
        bits = tf.fingerprint(tf.reshape(tf.constant(flat, tf.string), [-1, 1]), method="farmhash64")
        return tf.bitcast(bits, tf.int64).numpy().reshape(values.shape)
    if kind == "hash_strong":
        key = [_signed(int(args[1])), _signed(int(args[2]))]
        hashed = tf.strings.to_hash_bucket_strong(tf.constant(flat, tf.string), int(args[0]), key)
        return hashed.numpy().reshape(values.shape)
    found = vocabularies[int(args[0])].find(flat.tolist())
    if kind == "vocab":
        default = int(args[1])
        return np.asarray([default if f is None else f for f in found], np.int64).reshape(values.shape)
    size, buckets = int(args[1]), int(args[2])
    text = np.asarray([v if isinstance(v, bytes) else str(v).encode() for v in flat.tolist()] or [], object)
    out_of_vocabulary = size + _hash_fast(text, buckets)
    return np.asarray([o if f is None else f for f, o in zip(found, out_of_vocabulary, strict=True)], np.int64).reshape(
        values.shape
    )


def _hash_fast(flat: np.ndarray, buckets: int) -> np.ndarray:
    return tf.strings.to_hash_bucket_fast(tf.constant(flat, tf.string), buckets).numpy()


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _bucketize(boundaries: Sequence[float], values: np.ndarray) -> np.ndarray:
    """Number of boundaries (kept as float32, as the op does) that are <= value; NaN is after all of them."""
    edges = np.asarray(boundaries, np.float32)
    return np.searchsorted(edges, values, side="right").astype(np.int32)
