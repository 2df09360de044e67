"""Rows of a table in .npz or Parquet files as an import takes them: one form, dtypes checked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tfctr.embedding import parquet_rows
from tfctr.embedding.inspection import npz_files, parquet_files
from tfctr.embedding.inspection.columns import Progress, read_all, side_by_side
from tfctr.embedding.inspection.sources import BLOOM, COUNTERS, ROW_COUNTS
from tfctr.errors import InputError, UsageError


class RowFile(Protocol):
    """The rows of one table.

    Attributes:
      path: for messages.
      rows: how many.
      parts: the tensors that there are: keys, values, slots/NAME, frequency, last_step, last_time.
      widths: of values and slots, where the file says it without its rows.
      texts: "table", its name, and "config", its description, where it was exported.
      step: of a step variable of the table's own; None: none.
      ignored: columns that are no tensor.
      strings: whether keys are strings; blocks hold their fingerprints.
    """

    path: str
    rows: int
    parts: list[str]
    widths: dict[str, int]
    texts: dict[str, str]
    step: int | None
    ignored: list[str]
    strings: bool

    @property
    def key_dtype(self) -> str: ...

    def blocks(self, progress: Progress) -> Iterator[dict[str, np.ndarray]]:
        """Keys and counts int64 [n], values and slots float32 [n, width]. InputError where they are something else."""

    def counters(self) -> dict[str, np.ndarray]:
        """Counters and Bloom cells, whole."""


def open_rows(files: Sequence[Path], columns: Mapping[str, parquet_rows.Columns]) -> RowFile:
    """The rows of `files`: one .npz file, or Parquet files.

    Raises:
      UsageError: another kind of file, several .npz files, a column for no tensor.
      InputError, CorruptFileError: the file is missing, damaged, or lacks keys or values.
    """
    for part in columns:
        if part not in ("keys", "values", *ROW_COUNTS) and not part.startswith("slots/"):
            raise UsageError(
                f"--column {part}=...: expected keys, values, frequency, last_step, last_time or slots/NAME"
            )
    for file in files:
        if not file.is_file():
            raise UsageError(f"{file}: no such file")
    kinds = {file.suffix.lower() for file in files}
    if kinds == {".npz"} and len(files) == 1:
        return _Npz(files[0], columns)
    if kinds == {".parquet"}:
        return _Parquet(files, columns)
    if kinds == {".npz"}:
        raise UsageError(f"{files[1]}: a table is one .npz file; several are several tables, without --name")
    raise UsageError(f"{files[0]}: expected a file whose name ends with .npz or .parquet")


class _Rows:
    strings = False

    @property
    def key_dtype(self) -> str:
        return "string" if self.strings else "int64"

    def _plain(self, path: str, block: Mapping[str, np.ndarray], names: Mapping[str, Any]) -> dict[str, np.ndarray]:
        made = {}
        for part, array in block.items():
            where = f"{path}: column {names.get(part, part)!r}"
            if part == "keys":
                made[part] = self._as_keys(where, array)
            elif part == "values" or part.startswith("slots/"):
                made[part] = _as_floats(where, array)
            else:
                made[part] = _as_whole(where, array)
        return made

    def _as_keys(self, where: str, keys: np.ndarray) -> np.ndarray:
        if keys.dtype.kind in "iu" and keys.ndim == 1 and not self.strings:
            return _as_whole(where, keys)
        if keys.dtype.kind in "SUO" and keys.ndim == 1:
            if keys.dtype.kind == "O" and not all(isinstance(key, str | bytes) for key in keys):
                raise InputError(f"{where} holds {type(keys[0]).__name__}, expected whole numbers or strings")
            self.strings = True
            return _fingerprints(keys)
        raise InputError(f"{where} is {keys.dtype} {list(keys.shape)}, expected whole numbers [n], or strings")


def _fingerprints(keys: np.ndarray) -> np.ndarray:
    import tensorflow as tf

    from tfctr.embedding.keys import fingerprint

    listed = [key.encode() if isinstance(key, str) else bytes(key) for key in keys.tolist()]
    fingerprints: np.ndarray = fingerprint(tf.constant(listed, tf.string, [len(listed)])).numpy()
    return fingerprints


def _as_whole(where: str, numbers: np.ndarray) -> np.ndarray:
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise InputError(f"{where} is {numbers.dtype} {list(numbers.shape)}, expected whole numbers [n]")
    if numbers.dtype == np.uint64 and len(numbers) and numbers.max() > 2**63 - 1:
        raise InputError(f"{where} holds {numbers.max()}, expected int64 values")
    return np.ascontiguousarray(numbers, np.int64)


def _as_floats(where: str, numbers: np.ndarray) -> np.ndarray:
    if numbers.ndim != 2 or numbers.dtype.kind not in "fiu" or numbers.shape[1] == 0:
        raise InputError(f"{where} is {numbers.dtype} {list(numbers.shape)}, expected numbers [n, width]")
    with np.errstate(over="ignore"):  # what becomes infinite is refused as such
        return np.ascontiguousarray(numbers, np.float32)


class _Npz(_Rows):
    def __init__(self, file: Path, columns: Mapping[str, parquet_rows.Columns]) -> None:
        self.path = str(file)
        arrays, self.texts, self.step = npz_files.read(file)
        wanted = {part: part for part in ("keys", "values", *ROW_COUNTS) if part in arrays}
        wanted |= {name: name for name in arrays if name.startswith("slots/")}
        for part, name in columns.items():
            if not isinstance(name, str):
                raise UsageError(f"--column {part}={','.join(name)}: an .npz file has one array for it")
            wanted[part] = name
        for part in ("keys", "values"):
            wanted.setdefault(part, part)
        for part, name in wanted.items():
            if name not in arrays:
                raise InputError(f"{file}: no array {name!r} for {part}; it has {', '.join(arrays) or 'none'}")
        self._names = wanted
        order = ["keys", "values", *(part for part in wanted if part not in ("keys", "values"))]
        self._columns = {part: arrays[wanted[part]] for part in order}
        self._counters = {name: arrays[name] for name in (*COUNTERS, BLOOM) if name in arrays}
        self.parts = order
        self.ignored = [name for name in arrays if name not in {*wanted.values(), *self._counters}]
        keys = self._columns["keys"]
        if len(keys.shape) != 1:
            raise InputError(f"{file}: column {wanted['keys']!r} is {keys.dtype} {list(keys.shape)}, expected [n]")
        self.rows = keys.shape[0]
        for part, column in self._columns.items():
            wide = part == "values" or part.startswith("slots/")
            if column.shape[:1] != keys.shape or len(column.shape) != (2 if wide else 1):
                raise InputError(
                    f"{file}: column {wanted[part]!r} is {column.dtype} {list(column.shape)}, expected "
                    f"[{self.rows}{', width' if wide else ''}]: a row for each key"
                )
        self.widths = {part: one.shape[1] for part, one in self._columns.items() if len(one.shape) == 2}

    def blocks(self, progress: Progress) -> Iterator[dict[str, np.ndarray]]:
        for block in side_by_side(self._columns, progress):
            yield self._plain(self.path, block, self._names)

    def counters(self) -> dict[str, np.ndarray]:
        return {name: read_all(column) for name, column in self._counters.items()}


class _Parquet(_Rows):
    def __init__(self, files: Sequence[Path], columns: Mapping[str, parquet_rows.Columns]) -> None:
        self._rows = parquet_files.ParquetRows(files, columns)
        self._beside = [Path(str(file).removesuffix(file.suffix)) for file in files]
        self.path, self.rows = self._rows.path, self._rows.rows
        self.parts, self.widths = list(self._rows.parts), self._rows.widths
        self.texts, self.ignored = self._rows.texts, self._rows.ignored
        step = self.texts.get("step")
        self.step = int(step) if step is not None else None

    def blocks(self, progress: Progress) -> Iterator[dict[str, np.ndarray]]:
        for block in self._rows.blocks():
            made = self._plain(self.path, block, self._rows.parts)
            progress(sum(array.nbytes for array in made.values()))
            yield made

    def counters(self) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for base in self._beside[:1]:
            for ending, parts in ((parquet_files.COUNTERS, COUNTERS), (parquet_files.BLOOM, (BLOOM,))):
                file = Path(f"{base}{ending}")
                if file.is_file():
                    found |= parquet_files.read_flat(file, parts)
        return found


def files_in(path: str) -> list[Path]:
    """A file, or the table files of a folder (not those of counters and Bloom cells, which belong to them).

    Raises:
      UsageError: there is no such file, or nothing in the folder.
    """
    if not os.path.isdir(path):
        return [Path(path)]
    endings = (parquet_files.COUNTERS, parquet_files.BLOOM)
    found = sorted(one for one in Path(path).iterdir() if one.suffix.lower() in (".npz", ".parquet"))
    files = [one for one in found if not one.name.endswith(endings)]
    if not files:
        raise UsageError(f"{path}: a folder without .npz and .parquet files")
    return files
