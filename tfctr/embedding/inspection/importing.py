"""Makes a checkpoint of .npz and Parquet files: one that an EmbeddingVariable restores, by every way.

The bundle is written under a temporary name, in slices, checked on the way (shapes, dtypes, numbers that are not
finite, keys that come twice), synced, and renamed; after an error nothing is left. Memory is one block and the keys.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfctr.bundle import naming
from tfctr.core import library
from tfctr.embedding import parquet_rows, table_config
from tfctr.embedding.inspection import exporting, object_graph
from tfctr.embedding.inspection.columns import Progress, no_progress
from tfctr.embedding.inspection.row_files import RowFile, open_rows
from tfctr.embedding.inspection.sources import BLOOM, COUNTERS, FORMAT, ROOT, ROW_COUNTS, Table, read_description
from tfctr.embedding.options import Uniform
from tfctr.errors import InputError, TfctrError, UsageError

_DATA, _INDEX = ".data-00000-of-00001", ".index"


@dataclasses.dataclass(frozen=True)
class ImportOptions:
    """How tables are made where the files don't say it.

    Attributes:
      step: of the save; None: as the file says, else the largest last step, else 0.
      time_ms: of the save; None: as the file says, else now.
      like: a table whose configuration the new ones take (but dim); None: as the file says, else plain defaults.
      columns: tensor -> column of a Parquet file, or array of an .npz file; several columns of single numbers as tuple.
    """

    step: int | None = None
    time_ms: int | None = None
    like: Table | None = None
    columns: Mapping[str, parquet_rows.Columns] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Imported:
    """One table of the new checkpoint. ignored: columns of its files that are no tensor."""

    table: str
    rows: int
    dim: int
    parts: tuple[str, ...]
    ignored: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class TableFiles:
    """The files of one table, and its name; None: as the first file says, else the file's own name."""

    files: tuple[Path, ...]
    name: str | None = None


def import_tables(
    tables: Sequence[TableFiles], out: str, options: ImportOptions | None = None, progress: Progress = no_progress
) -> list[Imported]:
    """Writes the checkpoint `out` (OUT.index, OUT.data-00000-of-00001).

    Raises:
      UsageError: `out` exists, two tables have one name, an option does not fit.
      InputError: the contents of a file don't fit; names file, table and column.
      CorruptFileError: a file is damaged.
    """
    given = options or ImportOptions()
    prefix = Path(out)
    if os.path.isdir(out) or out.endswith("/"):
        raise UsageError(f"{out}: a folder, expected the prefix of a checkpoint, such as {os.path.join(out, 'ckpt')}")
    exporting.check_new(prefix)
    for ending in (_INDEX, _DATA):
        exporting.check_new(Path(f"{out}{ending}"))
    opened = [open_rows(one.files, given.columns) for one in tables]
    names = [_name(one, rows) for one, rows in zip(tables, opened, strict=True)]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name!r} is the name of two tables: give --name to import one at a time")
    folder = naming.temporary(prefix)
    folder.mkdir()
    try:
        written = _write(folder / "part", list(zip(names, opened, strict=True)), given, progress)
        _put_in_place(folder, prefix)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return written


def _put_in_place(folder: Path, prefix: Path) -> None:
    """The data first: what has no index is no checkpoint yet."""
    for ending in (_DATA, _INDEX):
        fd = os.open(folder / f"part{ending}", os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    os.rename(folder / f"part{_DATA}", f"{prefix}{_DATA}")
    try:
        os.rename(folder / f"part{_INDEX}", f"{prefix}{_INDEX}")
    except BaseException:
        os.unlink(f"{prefix}{_DATA}")
        raise
    exporting.sync_folder(prefix.parent)


def _name(given: TableFiles, rows: RowFile) -> str:
    if given.name is not None:
        return _checked_name(given.name, "--name")
    name = rows.texts.get("table") or given.files[0].stem
    return name if name == ROOT else _checked_name(name, str(given.files[0]))


def _checked_name(name: str, where: str) -> str:
    if name == ROOT:
        return name
    try:
        return table_config.check_name(name)
    except TfctrError as error:
        raise UsageError(f"{where}: {error}") from None


def _write(
    prefix: Path, tables: Sequence[tuple[str, RowFile]], options: ImportOptions, progress: Progress
) -> list[Imported]:
    writer = library.native().CheckpointWriter(prefix)
    written, steps = [], {}
    for name, rows in tables:
        table = _TableWriter(writer, name, rows, options)
        written.append(table.write(progress))
        steps[name] = table.own_step
        if table.own_step is not None:
            writer.add(f"{_folder(name)}step/.ATTRIBUTES/VARIABLE_VALUE", np.asarray(table.own_step, np.int64))
    writer.add_text("_CHECKPOINTABLE_OBJECT_GRAPH", object_graph.of_tables(steps))
    writer.finish()
    return written


def _folder(name: str) -> str:
    return "" if name == ROOT else f"{name}/"


class _TableWriter:
    """Writes the tensors of one table."""

    def __init__(self, writer: Any, name: str, rows: RowFile, options: ImportOptions) -> None:
        self._writer, self._name, self._rows, self._options = writer, name, rows, options
        self._where = f"{rows.path}: table {name!r}"
        text = rows.texts.get("config", "")
        self._told = read_description(text, self._where) if text else None
        if self._told is not None and self._told["format"] != FORMAT:
            raise InputError(f"{self._where}: its description is that of a delta, expected that of a whole table")
        self._keys: list[np.ndarray] = []
        self._last_step = 0
        self.own_step: int | None = None

    def write(self, progress: Progress) -> Imported:
        parts: dict[str, tuple[int, ...]] = {}
        at = 0
        for block in self._rows.blocks(progress):
            for part, array in block.items():
                parts.setdefault(part, array.shape[1:])
                self._check(part, array, parts[part], at)
                self._add(part, array, at)
            at += len(block["keys"])
        if at == 0:
            parts = self._write_empty()
        self._check_keys()
        self._write_counters()
        self._write_description(parts)
        self.own_step = self._rows.step
        if self.own_step is None and self._told is None:
            self.own_step = self._step()
        return Imported(self._name, at, self._dim(parts), tuple(parts), tuple(self._rows.ignored))

    def _check(self, part: str, array: np.ndarray, width: tuple[int, ...], at: int) -> None:
        if array.shape[1:] != width:
            raise InputError(f"{self._where}: {part} is {array.shape[1]} wide from row {at} on, {width[0]} before")
        if part == "values" and self._told_dim() not in (None, array.shape[1]):
            raise InputError(
                f"{self._where}: values are {array.shape[1]} wide, its configuration says {self._told_dim()}"
            )
        if array.dtype == np.float32 and not np.isfinite(array).all():
            row, column = np.argwhere(~np.isfinite(array))[0]
            raise InputError(
                f"{self._where}: {part} holds {array[row, column]} in row {at + row}, column {column}, expected finite "
                "numbers"
            )
        if part == "frequency" and len(array) and array.min() < 0:
            raise InputError(f"{self._where}: frequency holds {array.min()}, expected counts")
        if part == "keys":
            self._keys.append(array)
        if part == "last_step" and len(array):
            self._last_step = max(self._last_step, int(array.max()))

    def _add(self, part: str, array: np.ndarray, at: int) -> None:
        shape = [self._rows.rows, *array.shape[1:]]
        key = _folder(self._name) + part
        if len(array) == self._rows.rows:
            self._writer.add(key, array)
        else:
            self._writer.add_slice(key, shape, at, array)

    def _write_empty(self) -> dict[str, tuple[int, ...]]:
        """The tensors of a table without rows: their widths can't be read from rows."""
        dim = self._rows.widths.get("values") or self._told_dim()
        if dim is None:
            raise InputError(f"{self._where}: no rows, and nothing says how wide they would be")
        parts: dict[str, tuple[int, ...]] = {}
        for part in self._rows.parts:
            wide = part == "values" or part.startswith("slots/")
            parts[part] = (self._rows.widths.get(part) or dim,) if wide else ()
            array = np.zeros((0, *parts[part]), np.float32 if wide else np.int64)
            self._writer.add(_folder(self._name) + part, array)
        return parts

    def _check_keys(self) -> None:
        keys = np.concatenate(self._keys) if self._keys else np.zeros(0, np.int64)
        ordered = np.sort(keys)
        twice = np.flatnonzero(ordered[1:] == ordered[:-1])
        if len(twice):
            key = ordered[twice[0]]
            rows = np.flatnonzero(keys == key)
            words = "a fingerprint of two equal strings" if self._rows.strings else f"key {key}"
            raise InputError(
                f"{self._where}: {words} is there {len(rows)} times (rows {', '.join(map(str, rows[:3]))}), expected "
                f"keys once; {len(np.unique(ordered[twice]))} keys come more than once"
            )

    def _write_counters(self) -> None:
        counters = self._rows.counters()
        if counters and not {"counters/keys", "counters/counts"} <= counters.keys() and set(counters) != {BLOOM}:
            raise InputError(
                f"{self._where}: counters need counters/keys and counters/counts, there are {list(counters)}"
            )
        shape = counters["counters/keys"].shape if "counters/keys" in counters else None
        for part in (*COUNTERS, BLOOM):
            if part not in counters:
                continue
            array = counters[part]
            kind = np.uint8 if part == BLOOM else np.int64
            if array.ndim != 1 or array.dtype != kind or (part in COUNTERS and array.shape != shape):
                wanted = "uint8 [bytes]" if part == BLOOM else f"int64 {list(shape or ())}"
                raise InputError(f"{self._where}: {part} is {array.dtype} {list(array.shape)}, expected {wanted}")
            if part == "counters/keys" and len(np.unique(array)) != len(array):
                raise InputError(f"{self._where}: {part} holds a key more than once")
            if part == "counters/counts" and len(array) and array.min() < 0:
                raise InputError(f"{self._where}: {part} holds {array.min()}, expected counts")
            self._writer.add(_folder(self._name) + part, array)

    def _write_description(self, parts: Mapping[str, tuple[int, ...]]) -> None:
        text = self._rows.texts.get("config", "")
        options = self._options
        if self._told is None or options.step is not None or options.time_ms is not None or options.like is not None:
            text = json.dumps(self._description(parts))
        elif int(self._told.get("rows", -1)) != self._rows.rows:
            text = json.dumps({**self._told, "rows": str(self._rows.rows)})
        self._writer.add_text(_folder(self._name) + "config", text.encode())

    def _description(self, parts: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        options, told = self._options, dict(self._told or {})
        slots = any(part.startswith("slots/") for part in parts)
        left_out = [] if slots else ["slots"]
        left_out += [] if "frequency" in parts else ["counters"]
        left_out += [] if "last_step" in parts or "last_time" in parts else ["steps"]
        now = int(time.time() * 1000)
        config = dict(options.like.config or {}) if options.like is not None else told.get("table")
        return {
            "format": FORMAT,
            "rows": str(self._rows.rows),
            "step": str(self._step()),
            "time_ms": str(options.time_ms if options.time_ms is not None else int(told.get("time_ms") or now)),
            "key_dtype": told.get("key_dtype") or self._rows.key_dtype,
            "left_out": told.get("left_out", left_out),
            "table": config or self._plain_config(parts),
        }

    def _step(self) -> int:
        if self._options.step is not None:
            return self._options.step
        step = int((self._told or {}).get("step") or -1)
        return max(self._last_step, 0) if step < 0 else step

    def _plain_config(self, parts: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """That of a table made without options, keeping what the files hold."""
        plain = dict.fromkeys(("optimizer", "admission", "eviction", "max_bytes", "shards", "seed"))
        made = table_config.table_options(
            "table" if self._name == ROOT else self._name,
            self._dim(parts),
            initializer=Uniform(),
            default_value=0.0,
            evict_every_steps=0,
            evict_on_save=False,
            record_frequency="frequency" in parts,
            record_last_step="last_step" in parts,
            record_changes=False,
            expected_rows=0,
            **plain,
        )
        config = json.loads(made.to_json(lambda keys: []))
        return {**config, **{name: name in parts for name in ROW_COUNTS}}

    def _dim(self, parts: Mapping[str, tuple[int, ...]]) -> int:
        return parts["values"][0]

    def _told_dim(self) -> int | None:
        like = self._options.like
        config = like.config if like is not None else (self._told or {}).get("table")
        dim = (config or {}).get("dim")
        return int(dim) if isinstance(dim, int) else None
