"""Tables as Parquet files, streamed in and out. Needs pyarrow (`tfctr[parquet]`).

Columns: `key` int64, `value` a list of dim floats, `slots/NAME` lists of width floats, and `frequency`, `last_step`,
`last_time` int64; the table's name, description (JSON) and step are the file's metadata. Counts of keys without a row
lie in a file beside it, X.counters.parquet (`key`, `count`, `last_step`, `last_time`), a Bloom filter's cells in
X.bloom.parquet. So `tfctr.warm_start.from_parquet` takes X.parquet as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tfctr.embedding import parquet_rows
from tfctr.embedding.inspection.columns import BLOCK_ROWS, Column, Progress, side_by_side
from tfctr.errors import CorruptFileError, InputError, UsageError

METADATA = "tfctr."  # before the names of texts in a file's metadata
COUNTERS, BLOOM = ".counters.parquet", ".bloom.parquet"
NAMES = {"keys": "key", "values": "value", "counters/keys": "key", "counters/counts": "count", "bloom": "cells"}
_OTHERS = {"keys": ("keys", "id"), "values": ("values", "embedding"), "last_time": ("last_time_ms",)}


def column_name(part: str) -> str:
    """How a file calls a tensor: keys -> key, counters/last_step -> last_step."""
    return NAMES.get(part, part.removeprefix("counters/"))


def arrow() -> Any:
    """pyarrow with its module `parquet`. UsageError where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(f"Parquet files need pyarrow, expected `pip install 'tfctr[parquet]'` ({error})") from None
    return pyarrow


def write(file: BinaryIO, columns: Mapping[str, Column], texts: Mapping[str, str], progress: Progress) -> None:
    """Writes columns of as many rows; a block in memory."""
    pyarrow = arrow()
    fields = [pyarrow.field(column_name(part), _type(pyarrow, column), False) for part, column in columns.items()]
    schema = pyarrow.schema(fields, {METADATA + name: text for name, text in texts.items()})
    with pyarrow.parquet.ParquetWriter(file, schema, use_dictionary=False, compression="zstd") as writer:
        for blocks in side_by_side(columns, progress):
            arrays = [_array(pyarrow, schema.field(k).type, block) for k, block in enumerate(blocks.values())]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))


def _type(pyarrow: Any, column: Column) -> Any:
    number = pyarrow.from_numpy_dtype(column.dtype)
    return pyarrow.list_(number, column.shape[1]) if len(column.shape) == 2 else number


def _array(pyarrow: Any, kind: Any, block: np.ndarray) -> Any:
    flat = pyarrow.array(np.ascontiguousarray(block).reshape(-1))
    return pyarrow.FixedSizeListArray.from_arrays(flat, type=kind) if block.ndim == 2 else flat


class ParquetRows:
    """The rows of Parquet files, of which each holds the same columns.

    Attributes:
      path: of the first file, for messages.
      parts: tensor -> column, or columns of single numbers.
      texts: what the first file's metadata says of the table.
      rows: of all files together.
      ignored: columns that are no tensor.
    """

    def __init__(self, files: Sequence[Path], columns: Mapping[str, parquet_rows.Columns]) -> None:
        self.files, self.path = files, str(files[0])
        self.texts: dict[str, str] = {}
        self.rows = 0
        self.widths: dict[str, int] = {}
        for number, file in enumerate(files):
            schema, rows = _schema(file)
            self.rows += rows
            if number == 0:
                self._look(schema, columns)

    def _look(self, schema: Any, columns: Mapping[str, parquet_rows.Columns]) -> None:
        there = schema.names
        for name, text in (schema.metadata or {}).items():
            if name.startswith(METADATA.encode()):
                self.texts[name.decode().removeprefix(METADATA)] = text.decode(errors="replace")
        self.parts: dict[str, parquet_rows.Columns] = {}
        for part in ("keys", "values", "frequency", "last_step", "last_time"):
            named = next((name for name in (column_name(part), *_OTHERS.get(part, ())) if name in there), None)
            if named is not None or part in ("keys", "values"):
                self.parts[part] = named or column_name(part)
        self.parts |= {name: name for name in there if name.startswith("slots/")}
        self.parts |= columns
        used = {name for given in self.parts.values() for name in ([given] if isinstance(given, str) else given)}
        self.ignored = [name for name in there if name not in used]
        for part, given in self.parts.items():
            kind: Any = schema.field(given).type if isinstance(given, str) and given in there else None
            if not isinstance(given, str):
                self.widths[part] = len(given)
            elif getattr(kind, "list_size", -1) > 0:
                self.widths[part] = kind.list_size

    def blocks(self) -> Iterator[dict[str, np.ndarray]]:
        """Blocks of all parts: keys as they are, values and slots float32 [n, width], the others whole numbers.

        Raises:
          InputError: a column is missing, has another type, holds nulls or lists of unequal length; names the file.
        """
        numbers = {part: given for part, given in self.parts.items() if part == "values" or part.startswith("slots/")}
        counts = {part: str(given) for part, given in self.parts.items() if part not in numbers and part != "keys"}
        for file in self.files:
            owner = "tfctr ckpt import"
            rows = parquet_rows.batches(owner, file, str(self.parts["keys"]), numbers, counts, BLOCK_ROWS)
            try:
                for keys, arrays, whole in rows:
                    yield {"keys": keys, **arrays, **whole}
            except InputError as error:
                raise InputError(str(error).removeprefix(f"{owner}: ")) from None


def _schema(file: Path) -> tuple[Any, int]:
    pyarrow = arrow()
    try:
        with pyarrow.parquet.ParquetFile(file) as opened:
            return opened.schema_arrow, opened.metadata.num_rows
    except (pyarrow.ArrowInvalid, OSError) as error:
        text = " ".join(str(error).split())
        raise CorruptFileError(f"{file}: no Parquet file, or damaged: {text}") from None


def read_flat(file: Path, parts: Sequence[str]) -> dict[str, np.ndarray]:
    """Whole columns of single numbers, by tensor: those of counters and Bloom cells that the file has.

    Raises:
      CorruptFileError: it is no Parquet file.
      InputError: a column holds nulls or no numbers.
    """
    pyarrow = arrow()
    schema, _ = _schema(file)
    found = {}
    try:
        for part in parts:
            name = column_name(part)
            if name not in schema.names:
                continue
            column = pyarrow.parquet.read_table(file, columns=[name]).column(0)
            if column.null_count:
                raise InputError(f"{file}: column {name!r} holds {column.null_count} nulls, expected none")
            found[part] = column.to_numpy()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise CorruptFileError(f"{file}: damaged: {' '.join(str(error).split())}") from None
    return found
