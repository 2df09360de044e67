"""Tables as .npz files: an array per tensor, by its name in a checkpoint, streamed in and out.

Arrays: keys int64 [n], values float32 [n, dim], slots/NAME float32 [n, width], frequency, last_step, last_time int64
[n], counters/keys, counters/counts, counters/last_step, counters/last_time int64 [m], bloom uint8, and beside them
`table`, the table's name, `config`, its description (JSON), and `step`. Only keys and values must be there.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tfctr.embedding.inspection.columns import Column, Progress, block_rows, no_progress
from tfctr.errors import CorruptFileError, InputError

TEXTS = ("table", "config")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same table makes the same bytes

# What opening one raises where its directory is damaged (RuntimeError: packed or locked in a way that is not known).
_NO_ARCHIVE = (zipfile.BadZipFile, RuntimeError, ValueError, EOFError, OverflowError, struct.error)


def write(
    file: BinaryIO, columns: Mapping[str, Column], texts: Mapping[str, str], step: int | None, progress: Progress
) -> None:
    """Writes a table; a column at a time, a block in memory."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, text in texts.items():
            _write_array(archive, name, np.array(text))
        if step is not None:
            _write_array(archive, "step", np.int64(step))
        for name, column in columns.items():
            with _member(archive, name) as to:
                _write_header(to, column.dtype, column.shape)
                for block in column.blocks(block_rows([column]), progress):
                    to.write(np.ascontiguousarray(block).data)


def _member(archive: zipfile.ZipFile, name: str) -> Any:
    return archive.open(zipfile.ZipInfo(f"{name}.npy", _EPOCH), "w", force_zip64=True)


def _write_array(archive: zipfile.ZipFile, name: str, array: Any) -> None:
    with _member(archive, name) as to:
        np.lib.format.write_array(to, np.asarray(array), allow_pickle=False)


def _write_header(to: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    described = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(to, {"descr": described, "fortran_order": False, "shape": shape})


class NpzColumn:
    """One array of an .npz file; a `Column` whose rows can only be gone through in order."""

    def __init__(self, path: str, name: str) -> None:
        self.file, self.name = path, name
        with _opened(path, name) as member:
            self.shape, self._fortran, self.dtype = _read_header(path, name, member)

    @property
    def bytes(self) -> int:
        return int(self.dtype.itemsize * np.prod(self.shape, dtype=np.int64))

    def blocks(self, rows: int, progress: Progress = no_progress) -> Iterator[np.ndarray]:
        total = self.shape[0] if self.shape else 1
        with _opened(self.file, self.name) as member:
            _read_header(self.file, self.name, member)
            if self._fortran and len(self.shape) > 1:  # rows are scattered: it is read as a whole
                whole = self._read(member, total, last=True).reshape(self.shape[::-1]).T
                for first in range(0, total, rows):
                    yield np.ascontiguousarray(whole[first : first + rows])
                progress(self.bytes)
                return
            for first in range(0, total, rows):
                block = self._read(member, min(rows, total - first), last=first + rows >= total)
                progress(block.nbytes)
                yield block

    def _read(self, member: Any, rows: int, last: bool) -> np.ndarray:
        size = int(rows * self.dtype.itemsize * np.prod(self.shape[1:], dtype=np.int64))
        try:
            data = member.read(size)
            if last:  # its end is where the archive compares the checksum
                member.read(1)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise CorruptFileError(f"{self.file}: array {self.name!r} is damaged: {error}") from None
        if len(data) != size:
            raise CorruptFileError(f"{self.file}: array {self.name!r} is cut short")
        return np.frombuffer(data, self.dtype).reshape(rows, *self.shape[1:])

    def take(self, places: np.ndarray) -> np.ndarray:
        """Not for rows of an archive."""
        raise TypeError("rows of an .npz file are read in order only")


@contextlib.contextmanager
def _opened(path: str, name: str) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(path))
            member = stack.enter_context(archive.open(f"{name}.npy"))
        except (*_NO_ARCHIVE, OSError) as error:
            raise CorruptFileError(f"{path}: array {name!r} is damaged: {error}") from None
        yield member


def _read_header(path: str, name: str, member: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(member)
    except (zipfile.BadZipFile, zlib.error) as error:
        raise CorruptFileError(f"{path}: array {name!r} is damaged: {error}") from None
    except (ValueError, EOFError, OSError, SyntaxError, tokenize.TokenError, struct.error) as error:
        raise CorruptFileError(f"{path}: array {name!r} has no header of NumPy's: {error}") from None
    if dtype.hasobject:
        raise InputError(f"{path}: array {name!r} holds Python objects, expected numbers or fixed-length text")
    return shape, fortran, dtype


def read(path: str | os.PathLike[str]) -> tuple[dict[str, NpzColumn], dict[str, str], int | None]:
    """Columns, texts (of TEXTS) and step of a file.

    Raises:
      CorruptFileError: it is no .npz file, or cut short.
      InputError: an array holds Python objects.
    """
    name = str(Path(path))
    try:
        with zipfile.ZipFile(name) as archive:
            members = [one.removesuffix(".npy") for one in archive.namelist() if one.endswith(".npy")]
    except _NO_ARCHIVE as error:
        raise CorruptFileError(f"{name}: no .npz file, or cut short: {error}") from None
    columns = {member: NpzColumn(name, member) for member in members}
    texts = {}
    for text in TEXTS:
        if text in columns:
            texts[text] = str(_scalar(columns.pop(text), "U", "text"))
    step = int(_scalar(columns.pop("step"), "iu", "a whole number")) if "step" in columns else None
    return columns, texts, step


def _scalar(column: NpzColumn, kinds: str, expected: str) -> Any:
    if column.shape not in ((), (1,)) or column.dtype.kind not in kinds:
        raise InputError(
            f"{column.file}: array {column.name!r} is {column.dtype} {list(column.shape)}, expected {expected}"
        )
    for block in column.blocks(1):
        return block.reshape(-1)[0]
    raise CorruptFileError(f"{column.file}: array {column.name!r} is empty")
