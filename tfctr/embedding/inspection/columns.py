"""A tensor as the tools go through it: block by block in row order, or row by row at given places.

A column never is in memory as a whole: `blocks` reads at most `BLOCK_BYTES` at a time and compares the checksum of each
stored piece when its last byte was read; `take` looks at a mapping of the file.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tfctr.core import library
from tfctr.errors import CorruptFileError

BLOCK_ROWS = 1 << 16
BLOCK_BYTES = 8 << 20

# Told how many bytes were read since the last call.
Progress = Callable[[int], None]


def no_progress(read: int) -> None:
    """Tells nobody."""


class Column(Protocol):
    """One tensor.

    Attributes:
      name: of the tensor, in its file.
      file: for messages.
      dtype, shape: of the whole tensor; rows are its first axis.
      bytes: as stored.
    """

    @property
    def name(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def bytes(self) -> int: ...

    def blocks(self, rows: int, progress: Progress = no_progress) -> Iterator[np.ndarray]:
        """All rows in order, `rows` at a time (the last block may be shorter; no rows: no block)."""

    def take(self, places: np.ndarray) -> np.ndarray:
        """The rows at `places` (int64 [n]), in that order. What is read so has no checksum compared."""


def rows_of(column: Column) -> int:
    """Rows of a column; 1 of a scalar."""
    return column.shape[0] if column.shape else 1


def block_rows(columns: Sequence[Column]) -> int:
    """How many rows of all of `columns` side by side make a block."""
    row = sum(_row_bytes(column.dtype, column.shape) for column in columns)
    return max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(1, row)))


def side_by_side(columns: Mapping[str, Column], progress: Progress = no_progress) -> Iterator[dict[str, np.ndarray]]:
    """Blocks of several columns of as many rows: name -> rows, the same rows of each."""
    rows = block_rows(list(columns.values()))
    streams = [column.blocks(rows, progress) for column in columns.values()]
    for blocks in zip(*streams, strict=True):
        yield dict(zip(columns, blocks, strict=True))


def read_all(column: Column, progress: Progress = no_progress) -> np.ndarray:
    """The whole column in memory: for keys, counts and steps (8 bytes per row), not for values."""
    whole = np.empty(column.shape, column.dtype)
    if not column.shape:
        for block in column.blocks(1, progress):
            return block.reshape(())
    at = 0
    for block in column.blocks(block_rows([column]), progress):
        whole[at : at + len(block)] = block
        at += len(block)
    return whole


@dataclasses.dataclass(frozen=True)
class Piece:
    """Rows [first, first + rows) of a tensor as they lie in a data file; `crc`: masked crc32c of all its bytes."""

    path: str
    offset: int
    bytes: int
    crc: int
    first: int
    rows: int


@dataclasses.dataclass(frozen=True)
class CheckpointColumn:
    """A tensor of a checkpoint, stored in one piece or in slices of rows."""

    name: str
    file: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self.pieces)

    def blocks(self, rows: int, progress: Progress = no_progress) -> Iterator[np.ndarray]:
        parts: list[np.ndarray] = []
        missing = rows
        for piece in self.pieces:
            for read in self._read(piece, rows):
                progress(read.nbytes)
                while len(read):
                    part, read = read[:missing], read[missing:]
                    parts.append(part)
                    missing -= len(part)
                    if missing == 0:
                        yield parts[0] if len(parts) == 1 else np.concatenate(parts)
                        parts, missing = [], rows
        if parts:
            yield parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _read(self, piece: Piece, rows: int) -> Iterator[np.ndarray]:
        """The rows of one piece, at most `rows` at a time; CorruptFileError behind the last if they are damaged."""
        native = library.native()
        row = _row_bytes(self.dtype, self.shape)
        if piece.bytes != row * piece.rows:
            raise CorruptFileError(
                f"{piece.path}: tensor {self.name!r} has {piece.bytes} bytes for {piece.rows} rows, expected "
                f"{row * piece.rows}"
            )
        crc = 0
        with open(piece.path, "rb", buffering=0) as file:
            for first in range(0, piece.rows, rows):
                buffer = np.empty(min(rows, piece.rows - first) * row, np.uint8)
                _read_into(file.fileno(), piece.offset + first * row, buffer, piece.path, self.name)
                crc = native.crc32c_extend(crc, buffer)
                if first + rows >= piece.rows and _masked(crc) != piece.crc:  # before anybody sees the last of it
                    raise CorruptFileError(f"{piece.path}: tensor {self.name!r} is damaged: its checksum is wrong")
                yield buffer.view(self.dtype).reshape(-1, *self.shape[1:])

    def take(self, places: np.ndarray) -> np.ndarray:
        taken = np.empty((len(places), *self.shape[1:]), self.dtype)
        firsts = np.array([piece.first for piece in self.pieces], np.int64)
        which = np.searchsorted(firsts, places, "right") - 1
        for number in np.unique(which):
            piece = self.pieces[number]
            mapped = np.memmap(piece.path, np.uint8, "r", piece.offset, (piece.bytes,))
            there = which == number
            # Tensors lie at any address; a view of unaligned numbers is fine to gather from.
            stored = np.ndarray((piece.rows, *self.shape[1:]), self.dtype, mapped)
            taken[there] = stored[places[there] - piece.first]
        return taken


def _read_into(fd: int, offset: int, buffer: np.ndarray, path: str, tensor: str) -> None:
    at = 0
    while at < len(buffer):
        read = os.preadv(fd, [buffer[at:].data], offset + at)
        if read == 0:
            raise CorruptFileError(f"{path}: it ends within tensor {tensor!r}: it has been cut short")
        at += read


def _row_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return int(dtype.itemsize * np.prod(shape[1:], dtype=np.int64))


def _masked(crc: int) -> int:
    """A checksum as checkpoints store it."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def column_of(prefix: str, entry: Mapping[str, Any]) -> CheckpointColumn | None:
    """A column from an entry of the native index reader; None of dtypes that have no NumPy form, such as strings.

    Raises:
      CorruptFileError: its slices don't split the first axis.
    """
    dtype = numpy_dtype(entry["dtype"])
    if dtype is None:
        return None
    shape = tuple(int(size) for size in entry["shape"])
    rows = shape[0] if shape else 1
    if not entry["slices"]:
        whole = (_piece(entry, 0, rows),) if rows else ()
        return CheckpointColumn(entry["key"], prefix, dtype, shape, whole)
    pieces = tuple(_piece(part, part["start"][0], part["length"][0]) for part in entry["slices"])
    if any(tuple(part["length"][1:]) != shape[1:] for part in entry["slices"]):
        return None  # partitioned along another axis
    at = 0
    for piece in pieces:
        if piece.first != at:
            raise CorruptFileError(f"{prefix}: tensor {entry['key']!r} lacks rows from {at} on, of {rows} rows")
        at += piece.rows
    if at != rows:
        raise CorruptFileError(f"{prefix}: tensor {entry['key']!r} lacks rows from {at} on, of {rows} rows")
    return CheckpointColumn(entry["key"], prefix, dtype, shape, pieces)


def _piece(part: Mapping[str, Any], first: int, rows: int) -> Piece:
    return Piece(part["shard"], part["offset"], part["size"], part["crc32c"], int(first), int(rows))


def numpy_dtype(name: str) -> np.dtype[Any] | None:
    """The dtype of TensorFlow's (or NumPy's) name; None where NumPy has none."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    try:
        dtype = np.dtype(name)
    except TypeError:
        return None
    return dtype if dtype.kind in "biufc" else None
