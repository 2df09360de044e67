"""Writes tables at rest to .npz or Parquet files: streamed, under a temporary name, renamed when they are whole."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tfctr.bundle import naming
from tfctr.embedding.inspection import npz_files, parquet_files
from tfctr.embedding.inspection.columns import Column, Progress, no_progress, read_all
from tfctr.embedding.inspection.sources import BLOOM, FORMAT, ROOT, Source, Table
from tfctr.errors import UsageError

FORMATS = ("npz", "parquet")


@dataclasses.dataclass(frozen=True)
class Exported:
    """One table that was written, and its files."""

    table: str
    rows: int
    files: tuple[str, ...]
    bytes: int


def format_of(path: Path) -> str | None:
    """The format that a file's name asks for; None where it asks for none."""
    return {".npz": "npz", ".parquet": "parquet"}.get(path.suffix.lower())


def files_of(name: str, out: Path, fmt: str) -> Path:
    """Where a table goes in a folder: its name with "." for "/"."""
    return out / f"{name.strip('()').replace('/', '.')}.{fmt}"


def export_table(
    table: Table, out: Path, fmt: str, step: int | None = None, progress: Progress = no_progress
) -> Exported:
    """Writes one table to the file `out`.

    Args:
      table: of any source.
      out: a file that does not exist.
      fmt: "npz" or "parquet".
      step: the table's own step variable, where it has one.
      progress: told bytes read.

    Raises:
      UsageError: `out` exists, or pyarrow is missing.
      CorruptFileError: a checksum is wrong; nothing is written then.
    """
    texts = {"table": table.name, "config": description(table)}
    written = [out]
    if fmt == "npz":
        with new_file(out) as file:
            npz_files.write(file, {**table.columns, **table.counters}, texts, step, progress)
    else:
        texts |= {} if step is None else {"step": str(step)}
        counters = {part: column for part, column in table.counters.items() if part != BLOOM}
        beside = [(counters, parquet_files.COUNTERS)] if counters else []
        beside += [({BLOOM: table.counters[BLOOM]}, parquet_files.BLOOM)] if BLOOM in table.counters else []
        with contextlib.ExitStack() as stack:  # entered first, named last: who sees the rows sees all
            parquet_files.write(stack.enter_context(new_file(out)), table.columns, texts, progress)
            for columns, ending in beside:
                place = out.with_name(out.name.removesuffix(".parquet") + ending)
                written.append(place)
                parquet_files.write(stack.enter_context(new_file(place)), columns, {}, progress)
    return Exported(table.name, table.rows, tuple(map(str, written)), sum(one.stat().st_size for one in written))


def export_variable(name: str, column: Column, out: Path, fmt: str, progress: Progress = no_progress) -> Exported:
    """Writes a static table: the number of each row is its key, so that the file can be imported as a table.

    Raises:
      UsageError: it is no matrix of floats.
    """
    if len(column.shape) != 2 or column.dtype.kind != "f" and column.dtype.name != "bfloat16":
        raise UsageError(
            f"{column.file}: variable {name!r} is {column.dtype} {list(column.shape)}, expected floats [rows, dim] or "
            "an embedding table"
        )
    rows = column.shape[0]
    columns: dict[str, Column] = {"keys": _Numbers(column.file, rows), "values": _AsFloat(column)}
    texts = {"table": name}
    with new_file(out) as file:
        if fmt == "npz":
            npz_files.write(file, columns, texts, None, progress)
        else:
            parquet_files.write(file, columns, texts, progress)
    return Exported(name, rows, (str(out),), out.stat().st_size)


def description(table: Table) -> str:
    """NAME/config of the table as a checkpoint has it; of a frozen table, one that says what it lacks."""
    if table.description:
        return table.description
    told: dict[str, Any] = {
        "format": FORMAT,
        "rows": str(table.rows),
        "step": str(-1 if table.step is None else table.step),
        "time_ms": str(table.time_ms or 0),
        "key_dtype": table.key_dtype,
        "left_out": ["slots", "counters", "steps"],
        "table": table.config,
    }
    return json.dumps(told)


def own_step(source: Source, name: str) -> int | None:
    """The step variable of its own that a table has in a checkpoint; of a frozen table the step of its save."""
    if name in source.tables and source.tables[name].kind == "hash":
        return source.tables[name].step or 0
    column = source.variables.get("step" if name == ROOT else f"{name}/step")
    if column is None or column.shape != () or column.dtype != np.int64:
        return None
    return int(read_all(column))


@contextlib.contextmanager
def new_file(out: Path) -> Iterator[BinaryIO]:
    """A file under a temporary name, synced and named `out` at the end of the block; removed after an error.

    Raises:
      UsageError: `out` exists, or its folder does not.
    """
    check_new(out)
    temporary = naming.temporary(out)
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, out)
        sync_folder(out.parent)
    finally:
        temporary.unlink(missing_ok=True)


def check_new(out: Path) -> None:
    """Removes what killed exports to `out` left. UsageError where `out` exists, or can't be made."""
    if os.path.lexists(out):
        raise UsageError(f"{out}: exists already; nothing is overwritten")
    if not out.parent.is_dir():
        raise UsageError(f"{out}: there is no folder {out.parent}")
    for left, _ in naming.leftovers(out):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Makes new names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class _Numbers:
    """0, 1, 2, ... as a column."""

    def __init__(self, file: str, rows: int) -> None:
        self.name, self.file, self.dtype, self.shape, self.bytes = "keys", file, np.dtype(np.int64), (rows,), 8 * rows

    def blocks(self, rows: int, progress: Progress = no_progress) -> Iterator[np.ndarray]:
        for first in range(0, self.shape[0], rows):
            yield np.arange(first, min(first + rows, self.shape[0]), dtype=np.int64)

    def take(self, places: np.ndarray) -> np.ndarray:
        return places


class _AsFloat:
    """A column of floats as float32."""

    def __init__(self, column: Column) -> None:
        self._column = column
        self.name, self.file, self.dtype = column.name, column.file, np.dtype(np.float32)
        self.shape = column.shape
        self.bytes = 4 * int(np.prod(column.shape, dtype=np.int64))

    def blocks(self, rows: int, progress: Progress = no_progress) -> Iterator[np.ndarray]:
        for block in self._column.blocks(rows, progress):
            yield block.astype(np.float32, copy=False)

    def take(self, places: np.ndarray) -> np.ndarray:
        return self._column.take(places).astype(np.float32, copy=False)
