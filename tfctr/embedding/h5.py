"""Embedding variables in Keras files (`.weights.h5`, `.keras`): chunks of rows, one array per chunk and column.

A layer that owns a table hands its `save_own_variables` and `load_own_variables` to the two functions here. `store` is
what Keras gives them: a mapping from names to arrays. The arrays of chunk 00000 are `keys_00000`, `values_00000`,
`slot_NAME_00000`, `frequency_00000`, `last_step_00000` and `last_time_00000`; counters and filter cells follow, and
`table` holds the description as JSON (bytes), with a CRC-32 of every array: HDF5 files of Keras have no checksums. So
the copy in memory is one chunk, and files may be split by size.
"""

import json
import uuid
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfctr.core import library
from tfctr.embedding import ops
from tfctr.embedding.checkpoint import current_options, key_kind
from tfctr.errors import CorruptFileError, InputError, VersionError

FORMAT = 1
CHUNK_ROWS = 1 << 18
_METADATA = ("frequency", "last_step", "last_time")
_COUNTERS = ("counter_keys", "counter_counts", "counter_last_step", "counter_last_time", "bloom")


class _Arrays:
    """The arrays of a store and their checksums, by name."""

    def __init__(self, owner: str, store: Any, checksums: dict[str, int]) -> None:
        self.checksums = checksums
        self._owner = owner
        self._store = store

    def __setitem__(self, name: str, array: np.ndarray) -> None:
        self._store[name] = array
        self.checksums[name] = zlib.crc32(np.ascontiguousarray(array).data)

    def __contains__(self, name: str) -> bool:
        return name in self._store or name in self.checksums

    def read(self, name: str) -> np.ndarray:
        """Raises CorruptFileError if the array is missing, or is not what was written."""
        if name not in self._store:
            raise CorruptFileError(f"{self._owner}: the file lacks the array {name!r}")
        array = np.asarray(self._store[name])
        # Files of an earlier build have none.
        if name in self.checksums and zlib.crc32(np.ascontiguousarray(array).data) != self.checksums[name]:
            raise CorruptFileError(f"{self._owner}: the file's array {name!r} is damaged: its checksum is another")
        return array


def save_own_variables(table: Any, store: Any) -> None:
    """Writes the rows and counters of an `EmbeddingVariable` into `store`, following `checkpoint_options`.

    Each shard of the table is of one moment.
    """
    options = current_options()
    slots = _slot_names(table) if options.slots else ()
    kept = [name for name in _METADATA if (options.counters if name == "frequency" else options.steps)]
    arrays = _Arrays(table.owner, store, {})
    rows, chunks = 0, 0
    for chunk in _chunks(table, slots):
        _write_chunk(arrays, f"{chunks:05d}", chunk, slots, kept)
        rows += len(chunk[0])
        chunks += 1
    if options.counters:
        _write_counters(arrays, table, options.steps)
    told = {
        "format": FORMAT,
        "rows": rows,
        "chunks": chunks,
        "key_dtype": key_kind(table),
        "slots": list(slots),
        "slots_left_out": not options.slots,
        "checksums": arrays.checksums,
        "table": json.loads(table.config),
    }
    store["table"] = np.frombuffer(json.dumps(told).encode(), np.uint8)


def load_own_variables(table: Any, store: Any) -> None:
    """Replaces an `EmbeddingVariable`'s contents by what `save_own_variables` wrote; after an error it is as before.

    Raises:
      InputError: the file has no table here, or one of another dim or slot set; names both sides.
      VersionError: a newer tfctr wrote it.
      CorruptFileError: arrays are missing, damaged or do not fit together.
    """
    told = _description(table, store)
    arrays = _Arrays(table.owner, store, told.get("checksums", {}))
    options = current_options()
    wanted = _slot_names(table) if options.slots and not told["slots_left_out"] else ()
    if set(wanted) != set(told["slots"]) and wanted:
        raise InputError(
            f"{table.owner}: the file has the optimizer slots {_listed(told['slots'])}, the table has "
            f"{_listed(wanted)}; load under checkpoint_options(slots=False) to start with initial slots"
        )
    if not told["slots_left_out"] and options.slots and not wanted and told["slots"]:
        raise InputError(
            f"{table.owner}: the file has the optimizer slots {_listed(told['slots'])}, the table has none; load under "
            f"checkpoint_options(slots=False)"
        )
    staged = ops.handle(table.config, shared_name=f"{table.name}_staged_{uuid.uuid4().hex}")
    try:
        for i in range(told["chunks"]):
            _import_chunk(table, staged, arrays, f"{i:05d}", wanted)
        if options.counters:
            _import_counters(table, staged, arrays)
        found = int(ops.size(staged).rows)
        if found != told["rows"]:
            raise CorruptFileError(f"{table.owner}: the file says {told['rows']} rows, but has {found} different keys")
        library.load().tfctr_ev_replace(table.handle, staged)
    finally:
        tf.raw_ops.DestroyResourceOp(resource=staged, ignore_lookup_error=True)


def _slot_names(table: Any) -> tuple[str, ...]:
    return tuple(table.optimizer.slot_names) if table.optimizer is not None else ()


def _listed(names: Sequence[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _chunks(table: Any, slots: Sequence[str]) -> Iterator[list[np.ndarray]]:
    """Columns (keys, values, slots, frequency, last step, last time) of at least CHUNK_ROWS rows, but for the last."""
    first, shards, gathered, rows = 0, 1, [], 0
    while first < shards:
        keys, values, slot_rows, *rest = library.load().tfctr_ev_export(
            handle=table.handle,
            first_shard=tf.constant(first, tf.int64),
            num_shards=tf.constant(1, tf.int64),
            K=len(slots),
            slot_names=list(slots),
        )
        shards = int(rest[-1])
        first += 1
        gathered.append([column.numpy() for column in (keys, values, *slot_rows, *rest[:-1])])
        rows += len(gathered[-1][0])
        if rows >= CHUNK_ROWS or first == shards:
            yield [np.concatenate(columns) for columns in zip(*gathered, strict=True)]
            gathered, rows = [], 0


def _write_chunk(
    arrays: _Arrays, chunk: str, columns: list[np.ndarray], slots: Sequence[str], kept: Sequence[str]
) -> None:
    keys, values, *others = columns
    arrays[f"keys_{chunk}"] = keys
    arrays[f"values_{chunk}"] = values
    for name, column in zip(slots, others, strict=False):
        arrays[f"slot_{name}_{chunk}"] = column
    for name, column in zip(_METADATA, others[len(slots) :], strict=True):
        if name in kept and len(column) == len(keys):
            arrays[f"{name}_{chunk}"] = column


def _write_counters(arrays: _Arrays, table: Any, steps: bool) -> None:
    exported = library.load().tfctr_ev_export_counters(table.handle)
    for name, column in zip(_COUNTERS, exported, strict=True):
        if len(column) and (steps or "_last_" not in name):
            arrays[name] = column.numpy()


def _description(table: Any, store: Any) -> dict[str, Any]:
    if "table" not in store:
        raise InputError(f"{table.owner}: the file has no rows of it, but {sorted(store.keys()) or 'nothing'}")
    try:
        told: dict[str, Any] = json.loads(np.asarray(store["table"], np.uint8).tobytes())
        newer = told["format"] > FORMAT
        dim = told["table"]["dim"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(f"{table.owner}: the file's description of the table is damaged: {error!r}") from None
    if newer:
        raise VersionError(
            f"{table.owner}: the file is of format {told['format']}, written by a newer tfctr; this one reads formats "
            f"up to {FORMAT}"
        )
    if told.get("key_dtype", key_kind(table)) != key_kind(table):
        raise InputError(
            f"{table.owner}: the file's keys are {told['key_dtype']}, expected {key_kind(table)}: none would be found"
        )
    if dim != table.dim:
        raise InputError(f"{table.owner}: the file's table has dim {dim}, expected {table.dim}")
    return told


def _column(table: Any, arrays: _Arrays, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    array = arrays.read(name)
    if array.dtype != dtype or (shape and array.shape != shape):
        raise CorruptFileError(
            f"{table.owner}: the file's array {name!r} is {array.dtype} {list(array.shape)}, expected "
            f"{np.dtype(dtype)} {list(shape)}"
        )
    return array


def _import_chunk(table: Any, staged: tf.Tensor, arrays: _Arrays, chunk: str, slots: Sequence[str]) -> None:
    keys = _column(table, arrays, f"keys_{chunk}", (), np.int64)
    values = _column(table, arrays, f"values_{chunk}", (len(keys), table.dim), np.float32)
    widths = {name: 1 if name in table.optimizer.narrow_slots else table.dim for name in slots}
    slot_rows = [
        _column(table, arrays, f"slot_{name}_{chunk}", (len(keys), widths[name]), np.float32) for name in slots
    ]
    options = current_options()
    metadata = {}
    for name in _METADATA:
        wanted = options.counters if name == "frequency" else options.steps
        stored = f"{name}_{chunk}"
        metadata[name] = (
            _column(table, arrays, stored, (len(keys),), np.int64)
            if wanted and stored in arrays
            else np.zeros([0], np.int64)
        )
    library.load().tfctr_ev_import(
        handle=staged,
        step=_step_of(table),
        keys=keys,
        values=values,
        slots=slot_rows,
        slot_names=list(slots),
        replace=False,
        **metadata,
    )


def _import_counters(table: Any, staged: tf.Tensor, arrays: _Arrays) -> None:
    if table.options.admission is None:  # counts mean nothing to it
        return
    given = [arrays.read(name) if name in arrays else None for name in _COUNTERS]
    if given[0] is None and given[-1] is None:
        return
    columns = [
        np.zeros([0], np.uint8 if name == "bloom" else np.int64) if column is None else column
        for name, column in zip(_COUNTERS, given, strict=True)
    ]
    try:
        library.load().tfctr_ev_import_counters(staged, _step_of(table), *columns)
    except tf.errors.InvalidArgumentError as error:
        raise InputError(
            f"{table.owner}: {error.message}; load under checkpoint_options(counters=False) to count from 0"
        ) from None


def _step_of(table: Any) -> tf.Tensor:
    step = getattr(table, "step", None)
    return tf.cast(tf.convert_to_tensor(0 if step is None else step), tf.int64)
