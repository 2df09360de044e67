"""Rows that a table begins with: from static variables, hashed tables, NumPy arrays, lookup tables, Parquet files.

Keys get their rows whatever the admission option is; rows of keys that are there already are overwritten. A table may
be warm started several times. Input is checked before the first row is written, so after an InputError the table is as
it was; a table that reaches its `max_bytes` keeps the rows that were written before.

>>> tfctr.warm_start.from_variable(users, old_model.user_table)  # row i is key i
>>> tfctr.warm_start.from_hashed_table(
...     items, old_table, known_items, bucket_of=lambda ids: tf.strings.to_hash_bucket_fast(ids, 1000)
... )
>>> tfctr.warm_start.from_numpy(numbers, keys, values, slots={"accumulator": accumulator})
>>> tfctr.warm_start.from_parquet(numbers, "items.parquet", key="item_id", value="embedding")

Call these eagerly, or in a TF1 graph with `session=`. What a model of ours saved needs no warm start: restore it.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfctr.core import library
from tfctr.embedding import parquet_rows
from tfctr.embedding.variable import EmbeddingVariable
from tfctr.errors import InputError, UsageError

BLOCK_ROWS = 1 << 16


def from_numpy(
    variable: EmbeddingVariable,
    keys: Any,
    values: Any,
    *,
    slots: Mapping[str, Any] | None = None,
    frequency: Any = None,
    session: Any = None,
) -> int:
    """Writes rows given as arrays.

    Args:
      variable: where to.
      keys: ids [n] of the variable's key dtype; where one comes twice, its last row counts.
      values: numbers [n, dim], taken as float32.
      slots: optimizer slots by name (`variable.optimizer.slot_names`), [n, dim], or [n, 1] for those of one number per
        row. Others get their initial values.
      frequency: int64 [n], how often training has named each key, where the table keeps that; default max(1,
        min_count).
      session: the `tf.compat.v1.Session` to write in, where the variable is part of a TF1 graph.

    Returns:
      How many rows were written.

    Raises:
      InputError: shapes, dtypes or slot names that do not fit, or a number that is not finite; names what came.
    """
    ids = _ids_of(variable, keys)
    rows = _checked(variable, "values", values, len(ids), variable.dim)
    named = _checked_slots(variable, slots or {}, len(ids))
    counts = _checked_frequency(variable, frequency, len(ids))
    _write(variable, ids, rows, named, counts, session)
    return len(ids)


def from_variable(
    variable: EmbeddingVariable,
    table: Any,
    keys: Any = None,
    *,
    slots: Mapping[str, Any] | None = None,
    session: Any = None,
) -> int:
    """Writes the rows of a static table, a `tf.Variable` or array [n, dim], block by block.

    Args:
      variable: where to.
      table: the rows; a checkpoint's tensor is `tf.train.load_checkpoint(path).get_tensor(name)`.
      keys: the id of each row [n], as a vocabulary gives it; None: row i is key i.
      slots: tables [n, dim] of optimizer slots by name.
      session: as in `from_numpy`.

    Returns:
      How many rows were written.

    Raises:
      InputError: as in `from_numpy`.
    """
    rows = _array_of(variable, table, session)
    if keys is None:
        if variable.key_dtype == tf.string:
            raise InputError(
                f"{variable.owner}: keys is None, expected the string of each row (its key_dtype is string)"
            )
        keys = np.arange(rows.shape[0] if rows.ndim else 0, dtype=variable.key_dtype.as_numpy_dtype)
    held = {name: _array_of(variable, slot, session) for name, slot in (slots or {}).items()}
    return from_numpy(variable, keys, rows, slots=held, session=session)


def from_hashed_table(
    variable: EmbeddingVariable,
    table: Any,
    ids: Any,
    bucket_of: Callable[[Any], Any],
    *,
    slots: Mapping[str, Any] | None = None,
    session: Any = None,
) -> int:
    """Gives each known id the row of the bucket that it used to share: no id loses what it has learned.

    Args:
      variable: where to.
      table: the hashed table, a `tf.Variable` or array [buckets, dim].
      ids: ids [n] that are to have a row, for example those of the last weeks.
      bucket_of: the old model's hash: takes the ids (a tensor) and gives bucket numbers [n] of any integer dtype.
      slots: hashed tables [buckets, dim] of optimizer slots by name.
      session: as in `from_numpy`.

    Returns:
      How many rows were written.

    Raises:
      InputError: as in `from_numpy`, or a bucket number outside the table.
    """
    rows = _array_of(variable, table, session)
    known = _ids_of(variable, ids)
    buckets = np.asarray(_run(bucket_of(tf.constant(known)), session))
    if buckets.shape != known.shape or buckets.dtype.kind not in "iu":
        raise InputError(
            f"{variable.owner}: bucket_of gave {buckets.dtype} {list(buckets.shape)}, expected whole numbers "
            f"{list(known.shape)}"
        )
    if buckets.size and (buckets.min() < 0 or buckets.max() >= len(rows)):
        raise InputError(
            f"{variable.owner}: bucket_of gave {buckets.min()} to {buckets.max()}, expected buckets of the table, 0 to "
            f"{len(rows) - 1}"
        )
    rows = _checked(variable, "values", rows, len(rows), variable.dim)
    held = {name: _array_of(variable, slot, session) for name, slot in (slots or {}).items()}
    named = _checked_slots(variable, held, len(rows))
    _write(variable, known, rows, named, _checked_frequency(variable, None, 0), session, places=buckets)
    return len(known)


def from_lookup_table(variable: EmbeddingVariable, table: Any, *, session: Any = None) -> int:
    """Writes all rows of a stock `tf.lookup.experimental.MutableHashTable` or `DenseHashTable` of float vectors.

    Args:
      variable: where to.
      table: keys of the variable's key dtype, values [dim] of floats.
      session: as in `from_numpy`.

    Returns:
      How many rows were written.

    Raises:
      InputError: as in `from_numpy`.
    """
    keys, values = (np.asarray(_run(tensor, session)) for tensor in table.export())
    if isinstance(table, tf.lookup.experimental.DenseHashTable):  # exports all its buckets, keys as [buckets, 1]
        keys = keys.reshape(-1)
        unused = tf.convert_to_tensor([table._empty_key, table._deleted_key], table.key_dtype)
        used = ~np.isin(keys, _run(unused, session))
        keys, values = keys[used], values[used]
    return from_numpy(variable, keys, values, session=session)


def from_parquet(
    variable: EmbeddingVariable,
    path: Any,
    *,
    key: str = "key",
    value: parquet_rows.Columns = "value",
    slots: Mapping[str, parquet_rows.Columns] | None = None,
    frequency: str | None = None,
    batch_rows: int = BLOCK_ROWS,
    session: Any = None,
) -> int:
    """Writes the rows of Parquet files, read twice: once to check everything, once to write, batch by batch.

    Args:
      variable: where to.
      path: a file, a folder (its *.parquet), a pattern, or a list of those.
      key: the column of ids, of the key dtype (narrower integers fit too).
      value: the column of values, lists of dim numbers; or the names of dim columns of single numbers.
      slots: the same for optimizer slots, by slot name.
      frequency: the column of counts, where the table keeps them.
      batch_rows: rows read at a time.
      session: as in `from_numpy`.

    Returns:
      How many rows were written.

    Raises:
      UsageError: pyarrow is missing (`pip install 'tfctr[parquet]'`).
      InputError: no such file, a column is missing, or as in `from_numpy`; names the file.
    """
    files = parquet_rows.files_of(variable.owner, path)
    numbers = {"values": value} | {f"slots[{name!r}]": columns for name, columns in (slots or {}).items()}
    counts = {} if frequency is None else {"frequency": frequency}
    for name in slots or {}:
        _checked_slots(variable, {name: np.zeros([0, slot_widths(variable).get(name, 0)], np.float32)}, 0)
    order = [name for name in slot_widths(variable) if name in (slots or {})]

    def read() -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, np.ndarray], np.ndarray]]:
        for file in files:
            try:
                for keys, arrays, whole in parquet_rows.batches(variable.owner, file, key, numbers, counts, batch_rows):
                    ids = _ids_of(variable, keys)
                    rows = _checked(variable, "values", arrays["values"], len(ids), variable.dim)
                    named = _checked_slots(variable, {name: arrays[f"slots[{name!r}]"] for name in order}, len(ids))
                    yield ids, rows, named, _checked_frequency(variable, whole.get("frequency"), len(ids))
            except InputError as error:
                raise error if str(file) in str(error) else InputError(f"{file}: {error}") from None

    for _ in read():
        pass
    written = 0
    with _writer(variable, tuple(order), session) as write:
        for ids, rows, named, seen in read():
            write(ids, rows, [named[name] for name in order], seen)
            written += len(ids)
    return written


def _ids_of(variable: EmbeddingVariable, keys: Any) -> np.ndarray:
    """Ids as a vector, before strings become fingerprints, checked against the key dtype."""
    ids = np.asarray(keys.numpy() if hasattr(keys, "numpy") else keys)
    text = variable.key_dtype == tf.string
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in ("SUO" if text else "iu")):
        raise InputError(
            f"{variable.owner}: keys are {ids.dtype} {list(ids.shape)}, expected {variable.key_dtype.name} [n]"
        )
    if text:
        return ids.astype(object)
    limits = np.iinfo(variable.key_dtype.as_numpy_dtype)
    if ids.size and (int(ids.min()) < limits.min or int(ids.max()) > limits.max):
        raise InputError(
            f"{variable.owner}: keys are {ids.min()} to {ids.max()}, expected {variable.key_dtype.name} values"
        )
    return ids.astype(variable.key_dtype.as_numpy_dtype)


def _checked(variable: EmbeddingVariable, what: str, numbers: Any, n: int, width: int) -> np.ndarray:
    try:
        array = np.asarray(numbers.numpy() if hasattr(numbers, "numpy") else numbers)
        rows = array.astype(np.float32, copy=False)
    except (TypeError, ValueError):
        raise InputError(
            f"{variable.owner}: {what} are {type(numbers).__name__}, expected numbers [{n}, {width}]"
        ) from None
    if rows.shape != (n, width):
        raise InputError(
            f"{variable.owner}: {what} are {list(rows.shape)}, expected [{n}, {width}], a row for each key"
        )
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0]
        raise InputError(
            f"{variable.owner}: {what} hold {rows[row, column]} in row {row}, column {column}, expected finite numbers"
        )
    return rows


def _checked_slots(variable: EmbeddingVariable, slots: Mapping[str, Any], n: int) -> dict[str, np.ndarray]:
    widths = slot_widths(variable)
    for name in slots:
        if name not in widths:
            known = ", ".join(widths) or "none: it has no optimizer with slots"
            raise InputError(f"{variable.owner}: slots hold {name!r}, expected {known}")
    return {
        name: _checked(variable, f"slots[{name!r}]", slots[name], n, width)
        for name, width in widths.items()
        if name in slots
    }


def _checked_frequency(variable: EmbeddingVariable, frequency: Any, n: int) -> np.ndarray:
    if frequency is None:
        return np.zeros([0], np.int64)
    if not variable.options.keeps_frequency:
        raise UsageError(f"{variable.owner}: it keeps no frequency, expected record_frequency=True where one is given")
    counts = np.asarray(frequency)
    if counts.shape != (n,) or counts.dtype.kind not in "iu" or (n and counts.min() < 0):
        raise InputError(f"{variable.owner}: frequency is {counts.dtype} {list(counts.shape)}, expected counts [{n}]")
    return counts.astype(np.int64)


def slot_widths(variable: EmbeddingVariable) -> dict[str, int]:
    """Width of each of the variable's slots: dim, or 1 for those of one number per row."""
    optimizer = variable.optimizer
    if optimizer is None:
        return {}
    return {name: 1 if name in optimizer.narrow_slots else variable.dim for name in optimizer.slot_names}


def _array_of(variable: EmbeddingVariable, table: Any, session: Any) -> np.ndarray:
    if isinstance(table, EmbeddingVariable):
        raise InputError(
            f"{variable.owner}: {table!r} came, expected a static table; take from_numpy with its export()"
        )
    if session is not None and (tf.is_tensor(table) or isinstance(table, tf.Variable)):
        return np.asarray(session.run(table))
    return np.asarray(table.numpy() if hasattr(table, "numpy") else table)


def _run(tensor: Any, session: Any) -> Any:
    if session is not None and tf.is_tensor(tensor):
        return session.run(tensor)
    return tensor.numpy() if hasattr(tensor, "numpy") else tensor


def _write(
    variable: EmbeddingVariable,
    ids: np.ndarray,
    rows: np.ndarray,
    slots: Mapping[str, np.ndarray],
    frequency: np.ndarray,
    session: Any,
    places: np.ndarray | None = None,
) -> None:
    """Writes checked arrays block by block; id i gets row i, or row places[i]."""
    with _writer(variable, tuple(slots), session) as write:
        for first in range(0, len(ids), BLOCK_ROWS):
            block = slice(first, first + BLOCK_ROWS)
            at = block if places is None else places[block]
            write(ids[block], rows[at], [slot[at] for slot in slots.values()], frequency[block])


@contextlib.contextmanager
def _writer(variable: EmbeddingVariable, slot_names: tuple[str, ...], session: Any) -> Iterator[Callable[..., None]]:
    """A function that writes checked arrays: ids, values, slots, frequency."""

    def imported(ids: Any, values: Any, slots: list[Any], frequency: Any) -> Any:
        nothing = tf.zeros([0], tf.int64)
        return library.load().tfctr_ev_import(
            handle=variable.handle,
            step=tf.cast(tf.convert_to_tensor(variable.step), tf.int64),
            keys=variable.as_keys(ids),
            values=values,
            slots=slots,
            frequency=frequency,
            last_step=nothing,
            last_time=nothing,
            slot_names=list(slot_names),
            replace=False,
        )

    if session is None:
        if not tf.executing_eagerly():
            raise UsageError(
                f"{variable.owner}: a graph is being built, expected session= (TF1) or a call outside tf.function"
            )
        yield lambda ids, values, slots, frequency: imported(
            tf.constant(ids, variable.key_dtype), tf.constant(values), [tf.constant(slot) for slot in slots], frequency
        )
        return
    with variable.handle.graph.as_default():
        place = tf.compat.v1.placeholder
        fed = [place(variable.key_dtype, [None]), place(tf.float32, [None, variable.dim])]
        slots = [place(tf.float32, [None, None]) for _ in slot_names]
        counts = place(tf.int64, [None])
        op = imported(fed[0], fed[1], slots, counts)
    yield lambda ids, values, given, frequency: session.run(
        op, {fed[0]: ids, fed[1]: values, counts: frequency} | dict(zip(slots, given, strict=True))
    )
