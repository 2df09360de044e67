"""Surrogate tables: files of the exact rows, width and dtype of the real ones, with distinct random values in the rows
that probes reach and holes elsewhere.

A checkpoint's own values prove nothing where rows are equal (freshly initialised or constant tables). Values are a
function of (table, row, column), so that the parts of a partitioned table and the merged table agree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from graph_opt.hash_files import HASH, build_hash_file
from graph_opt.item import GraphItem
from graph_opt.prove.arena import Entry
from graph_opt.prove.pools import CannotProbe
from graph_opt.prove.probes import Probe
from tfctr.core.library import native


def row_values(rows: np.ndarray, width: int, dtype: str, seed: int, scale: float = 1.0) -> np.ndarray:
    """Values [len(rows), width] of ``dtype`` for int64 row numbers: signs and sizes at random, |value| <= 2 * scale.

    Every row has its own power of two, so that row norms lie on both sides of a max_norm when ``scale`` is chosen for
    it.
    """
    rows = np.asarray(rows, np.uint64)
    with np.errstate(over="ignore"):
        cells = rows[:, None] * np.uint64(width) + np.arange(width, dtype=np.uint64)[None, :]
        bits = _mix(cells + np.uint64(seed) * np.uint64(0xD1B54A32D192ED03))
        row_bits = _mix(rows ^ np.uint64(0x9E3779B97F4A7C15 ^ seed))
    size = 0.25 + 0.75 * (bits >> np.uint64(12)).astype(np.float64) / 2.0**52
    sign = np.where(bits & np.uint64(1), 1.0, -1.0)
    exponent = (row_bits >> np.uint64(61)).astype(np.float64) % 4.0 - 2.0
    return (size * sign * scale * np.exp2(exponent)[:, None]).astype(tf.as_dtype(dtype).as_numpy_dtype)


def scale_for_max_norm(max_norm: float, width: int) -> float:
    """Scale for which row norms are spread around ``max_norm``."""
    return max_norm / (0.66 * width**0.5)


def _mix(values: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser: 64 well mixed bits per value."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


@dataclasses.dataclass(frozen=True)
class PartOf:
    """One part of a partitioned table: its row r is row ``first + r * step`` of the whole table, store index
    ``merged``.
    """

    merged: int
    first: int
    step: int

    def local(self, rows: np.ndarray, count: int) -> np.ndarray:
        """The part's row numbers (of ``count``) among the whole table's ``rows``."""
        inside = rows[(rows >= self.first) & ((rows - self.first) % self.step == 0)]
        found = (inside - self.first) // self.step
        return found[found < count]


class SurrogateSet:
    """Surrogate files for the tables of one proof session, in ``folder``."""

    def __init__(self, item: GraphItem, folder: Path) -> None:
        self._files = list(item.files)
        self._tables = item.tables
        self._folder = folder
        self._parts: dict[int, PartOf] = {}
        self._merged: dict[tuple[tuple[str, ...], str], int] = {}
        self._written: list[Path] = []

    def merged(self, parts: tuple[str, ...], strategy: str) -> int:
        """Store index that stands for the merged table of ``parts`` (TfctrTable nodes) in this session.

        CannotProbe where one of the parts belongs to another partitioned table already.
        """
        if (parts, strategy) in self._merged:
            return self._merged[parts, strategy]
        indices = [self._tables[node] for node in parts]
        if any(index in self._parts for index in indices) or len(set(indices)) != len(indices):
            raise CannotProbe(f"the parts of table {self._files[indices[0]].name!r} are read in more than one order")
        files = [self._files[index] for index in indices]
        whole = len(self._files)
        rows = sum(f.shape[0] for f in files)
        self._files.append(dataclasses.replace(files[0], name=files[0].name, shape=(rows, *files[0].shape[1:])))
        self._merged[parts, strategy] = whole
        first = 0
        for k, (index, file) in enumerate(zip(indices, files, strict=True)):
            self._parts[index] = PartOf(whole, k, len(files)) if strategy == "mod" else PartOf(whole, first, 1)
            first += file.shape[0]
        return whole

    def write(self, jobs: Sequence[tuple[Entry, Sequence[Probe]]]) -> dict[int, tuple[Path, str]]:
        """Writes the tables that ``jobs`` read; returns store index -> (path, kind), vocabularies as they are."""
        rows: dict[int, list[np.ndarray]] = {}
        scales: dict[int, float] = {}
        for entry, probes in jobs:
            reached = np.concatenate([np.zeros(0, np.int64), *(p.rows for p in probes)])
            vocabularies = {int(s.args[0]) for s in entry.spec.steps if s.kind in ("vocab", "vocab_oov")}
            for index in entry.cone.files | {entry.spec.table} | vocabularies:
                rows.setdefault(index, []).append(reached)
                if entry.spec.max_norm is not None:
                    scales[self._whole(index)] = scale_for_max_norm(entry.spec.max_norm, entry.spec.table_width)
        found = {}
        for index, reached_by in rows.items():
            file = self._files[index]
            if file.kind == "vocab":
                if file.path is None:
                    raise CannotProbe(f"vocabulary {file.name!r} has no file")
                found[index] = (file.path, "vocab")
                continue
            if file.kind == HASH:
                found[index] = (self._write_hash(index, np.concatenate(reached_by), scales.get(index, 1.0)), HASH)
                continue
            found[index] = (self._write_table(index, np.concatenate(reached_by), scales), "table")
        return found

    def remove(self) -> None:
        """Deletes what :meth:`write` wrote."""
        for path in self._written:
            path.unlink(missing_ok=True)
        self._written.clear()

    def _whole(self, index: int) -> int:
        return self._parts[index].merged if index in self._parts else index

    def _write_hash(self, index: int, reached: np.ndarray, scale: float) -> Path:
        """A hash file that has two of three of the keys that are reached; the others get its default row."""
        file = self._files[index]
        keys = np.unique(reached).astype(np.int64)
        present = keys[_mix(keys.astype(np.uint64) + np.uint64(index)) % np.uint64(3) != 0]
        values = row_values(present, file.shape[1], "float32", index, scale)
        default = row_values(np.zeros(1, np.int64), file.shape[1], "float32", ~index & 0xFFFF, scale)[0]
        path = self._folder / f"hash_{index}"
        build_hash_file(path, file.name, present, values, default)
        self._written.append(path)
        return path

    def _write_table(self, index: int, reached: np.ndarray, scales: Mapping[int, float]) -> Path:
        file = self._files[index]
        count, width = file.shape[0], int(np.prod(file.shape[1:]))
        part = self._parts.get(index, PartOf(index, 0, 1))
        local = np.unique(np.append(part.local(np.unique(reached), count), [0, count - 1])).astype(np.int64)
        local = local[(local >= 0) & (local < count)]
        values = row_values(
            local * part.step + part.first, width, file.dtype, part.merged, scales.get(part.merged, 1.0)
        )
        path = self._folder / f"table_{index}"
        native().write_surrogate_table(str(path), file.name, file.dtype, list(file.shape), local, values)
        self._written.append(path)
        return path
