"""Rows out of Parquet files, batch by batch, for `tfctr.warm_start.from_parquet`. Needs pyarrow (`tfctr[parquet]`)."""

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfctr.errors import InputError, UsageError

# A column that holds lists of numbers, or as many columns of single numbers.
Columns = str | Sequence[str]


def files_of(owner: str, path: Any) -> list[Path]:
    """The files that `path` means: a file, a folder (its *.parquet, sorted), a pattern, or a list of those.

    Raises:
      InputError: there is none.
    """
    if isinstance(path, list | tuple):
        return [file for one in path for file in files_of(owner, one)]
    text = os.fspath(path)
    found = (
        sorted(Path(text).glob("*.parquet"))
        if os.path.isdir(text)
        else [Path(name) for name in sorted(glob.glob(text))]
    )
    if not found:
        raise InputError(
            f"{owner}: {text!r} is no Parquet file, no folder with *.parquet and no pattern that meets one"
        )
    return found


def batches(
    owner: str, file: Path, key: str, numbers: Mapping[str, Columns], counts: Mapping[str, str], rows: int
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Yields (keys [n], arrays [n, width] of `numbers`, whole numbers [n] of `counts`) of at most `rows` rows each.

    Raises:
      UsageError: pyarrow is not installed.
      InputError: not a Parquet file, a column is missing, has another type, holds nulls or lists of unequal length.
    """
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UsageError(f"{owner}: {file} needs pyarrow, expected `pip install 'tfctr[parquet]'` ({error})") from None
    named = [key, *counts.values(), *(name for given in numbers.values() for name in _names(given))]
    try:
        with parquet.ParquetFile(file) as opened:
            there = opened.schema_arrow.names
            for name in named:
                if name not in there:
                    raise InputError(f"{owner}: {file} has no column {name!r}, expected one of {', '.join(there)}")
            where = f"{owner}: {file}"
            for batch in _in_order(opened, rows, list(dict.fromkeys(named))):
                yield (
                    _flat(where, key, batch.column(key)),
                    {name: _matrix(where, given, batch) for name, given in numbers.items()},
                    {name: _flat(where, column, batch.column(column)) for name, column in counts.items()},
                )
    except (arrow.ArrowInvalid, OSError) as error:
        raise InputError(f"{owner}: {file} can't be read as Parquet: {error}") from None


def _in_order(opened: Any, rows: int, columns: list[str]) -> Iterator[Any]:
    """All batches, one row group after the other: an iteration over all of them keeps what it has read of each."""
    for group in range(opened.metadata.num_row_groups):
        yield from opened.iter_batches(batch_size=rows, columns=columns, row_groups=[group])


def _names(given: Columns) -> Sequence[str]:
    return [given] if isinstance(given, str) else given


def _flat(where: str, name: str, column: Any) -> np.ndarray:
    if column.null_count:
        raise InputError(f"{where}: column {name!r} holds {column.null_count} nulls, expected none")
    if hasattr(column, "dictionary_decode"):
        column = column.dictionary_decode()
    return column.to_numpy(zero_copy_only=False)


def _matrix(where: str, given: Columns, batch: Any) -> np.ndarray:
    """[n, width] float32 of a column of lists, or of `width` columns of numbers."""
    import pyarrow.compute as compute
    import pyarrow.types as types

    if not isinstance(given, str):
        columns = [_numbers(where, name, _flat(where, name, batch.column(name))) for name in given]
        return np.stack(columns, 1) if columns else np.zeros([batch.num_rows, 0], np.float32)
    column = batch.column(given)
    if types.is_floating(column.type) or types.is_integer(column.type):
        return _numbers(where, given, _flat(where, given, column))[:, None]
    if not (types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type)):
        raise InputError(f"{where}: column {given!r} is {column.type}, expected numbers or lists of numbers")
    if column.null_count:
        raise InputError(f"{where}: column {given!r} holds {column.null_count} nulls, expected none")
    lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
    flat = _numbers(where, given, _flat(where, given, column.flatten()))
    if lengths.size and lengths.min() != lengths.max():
        raise InputError(
            f"{where}: column {given!r} holds lists of {lengths.min()} to {lengths.max()} numbers, expected one length"
        )
    return flat.reshape(len(column), int(lengths[0]) if lengths.size else 0)


def _numbers(where: str, name: str, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "fiu":
        raise InputError(f"{where}: column {name!r} holds {values.dtype}, expected numbers")
    return values.astype(np.float32, copy=False)
