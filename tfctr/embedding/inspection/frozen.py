"""Tables of bundles as sources: hash files (frozen embedding tables) and static tables, each with its overlay.

Rows are read through a mapping, as they are served: an overlay's row before the file's, removed keys gone. Checksums of
a table's files are compared before its first row is given out. Memory: with an overlay, 8 bytes per key.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfctr.bundle import reader
from tfctr.core import library
from tfctr.embedding.inspection.columns import Column, Progress, no_progress, numpy_dtype
from tfctr.embedding.inspection.sources import Source, Table
from tfctr.errors import CorruptFileError, UsageError

_LINE_BYTES = 64  # of a hash file's index


class Served:
    """One table file with its overlay, opened."""

    def __init__(self, path: str, overlay: str | None, storage: str) -> None:
        self.paths = [path] if overlay is None else [path, overlay]
        native = library.native()
        with library.native_errors():
            self.table = native.ServedTable(path, overlay, storage=storage)
            self._hash = native.HashTable(path) if self.table.hashed and overlay is None else None
        self._keys: np.ndarray | None = None
        self._verified = False

    @property
    def rows(self) -> int:
        return len(self.table)

    @property
    def dim(self) -> int:
        return int(self.table.dim)

    def verify(self) -> None:
        """Compares all checksums, once. CorruptFileError names the file."""
        if self._verified:
            return
        with library.native_errors():
            for path in self.paths:
                library.native().verify_file(path)
        self._verified = True

    def keys(self, first: int, rows: int) -> np.ndarray:
        """Keys of a block: of rows in the order of the file, new ones of the overlay last."""
        if self._hash is not None:
            with library.native_errors():
                keys: np.ndarray = self._hash.keys(first, rows)
                return keys
        return self.all_keys()[first : first + rows]

    def all_keys(self) -> np.ndarray:
        """Keys of all rows; of a static table its row numbers."""
        if self._keys is None:
            with library.native_errors():
                self._keys = self.table.keys()
        return self._keys

    def values(self, first: int, rows: int) -> np.ndarray:
        """float32 rows of a block."""
        with library.native_errors():
            block: np.ndarray
            if self._hash is not None:
                block = self._hash.values(first, rows)
            else:
                block = self.table.rows(self.all_keys()[first : first + rows])
        return block


@dataclasses.dataclass(frozen=True)
class ServedColumn:
    """Keys or values of a served table."""

    name: str
    file: str
    served: Served
    bytes: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.int64 if self.name == "keys" else np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.served.rows,) if self.name == "keys" else (self.served.rows, self.served.dim)

    def blocks(self, rows: int, progress: Progress = no_progress) -> Iterator[np.ndarray]:
        self.served.verify()
        total = self.served.rows
        each = self.bytes / max(total, 1)
        for first in range(0, total, rows):
            n = min(rows, total - first)
            progress(int(each * n))
            yield self.served.keys(first, n) if self.name == "keys" else self.served.values(first, n)

    def take(self, places: np.ndarray) -> np.ndarray:
        keys = self.served.all_keys()[places]
        if self.name == "keys":
            return keys
        with library.native_errors():
            rows: np.ndarray = self.served.table.rows(keys)
        return rows


@dataclasses.dataclass(frozen=True)
class FileColumn:
    """A static table file without an overlay, of any dtype: mapped."""

    name: str
    file: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return int(self.dtype.itemsize * np.prod(self.shape, dtype=np.int64))

    def _mapped(self) -> np.ndarray:
        if self.bytes == 0:
            return np.zeros(self.shape, self.dtype)
        flat = np.memmap(self.file, np.uint8, "r", shape=(self.bytes,))
        return np.ndarray(self.shape, self.dtype, flat)

    def blocks(self, rows: int, progress: Progress = no_progress) -> Iterator[np.ndarray]:
        with library.native_errors():
            library.native().verify_file(self.file)
        mapped = self._mapped().reshape(self.shape or (1,))
        for first in range(0, len(mapped), rows):
            block = np.array(mapped[first : first + rows])
            progress(block.nbytes)
            yield block

    def take(self, places: np.ndarray) -> np.ndarray:
        return np.asarray(self._mapped()[places])


def open_bundle(folder: Path) -> Source:
    """The tables of a bundle: hash files, and static tables as variables.

    Raises:
      UsageError, VersionError, CorruptFileError: as `reader.open_bundle`.
    """
    bundle = reader.open_bundle(folder)
    files = bundle.manifest["store"]["files"]
    overlays = {entry["base"]: str(folder / entry["file"]) for entry in files if entry["kind"] == "overlay"}
    tables, variables = {}, {}
    for index, entry in enumerate(files):
        path, overlay = str(folder / entry["file"]), overlays.get(index)
        if entry["kind"] == "hash":
            tables[entry["name"]] = _hash_table(entry["name"], path, overlay)
        elif entry["kind"] == "table":
            column = _static(entry, path, overlay)
            if column is not None:
                variables[entry["name"]] = column
    return Source(str(folder), "bundle", dict(sorted(tables.items())), dict(sorted(variables.items())))


def open_file(path: str) -> Source:
    """One hash file.

    Raises:
      UsageError: the file is something else.
    """
    native = library.native()
    expected = "expected a checkpoint, a SavedModel, a bundle or a hash file"
    try:
        info = native.file_info(path)
    except (native.CorruptFile, ValueError) as error:
        raise CorruptFileError(f"{path}: {expected}: {error}") from None
    if info["kind"] != "hash":
        raise UsageError(f"{path}: a {info['kind']} file, {expected}")
    table = _hash_table(info["name"] or os.path.basename(path), path, None)
    return Source(path, "hash file", {table.name: table}, {})


def _hash_table(name: str, path: str, overlay: str | None) -> Table:
    with library.native_errors():
        info = library.native().hash_info(path)
    served = Served(path, overlay, "")
    index = int(info["lines"]) * _LINE_BYTES
    stored = int(info["file_bytes"]) - index + (os.path.getsize(overlay) if overlay else 0)
    columns = {
        "keys": ServedColumn("keys", path, served, index),
        "values": ServedColumn("values", path, served, stored),
    }
    step, time_ms = info.get("step"), info.get("time_ms")
    return Table(
        name=name,
        file=path,
        kind="hash",
        dim=served.dim,
        columns=columns,
        config=_config(info.get("config")),
        step=None if step is None or int(step) < 0 else int(step),
        time_ms=int(time_ms) if time_ms else None,
        key_dtype=str(info.get("key_dtype") or ""),
        left_out=("slots", "counters", "steps"),
        storage=str(info["storage"]),
        source=str(info.get("source") or ""),
        saves=tuple(served.paths) if overlay else (),
    )


def _config(text: Any) -> Mapping[str, Any] | None:
    try:
        told = json.loads(text) if text else None
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def _static(entry: Mapping[str, Any], path: str, overlay: str | None) -> Column | None:
    narrow = entry.get("stands_for")
    if overlay is not None or narrow:
        storage = str(entry.get("storage") or "") if narrow else ""
        return ServedColumn("values", path, Served(path, overlay, storage), int(entry["bytes"]))
    dtype = numpy_dtype(str(entry["dtype"]))
    return None if dtype is None else FileColumn(entry["name"], path, dtype, tuple(entry["shape"]))
