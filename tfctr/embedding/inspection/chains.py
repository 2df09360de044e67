"""A table whose checkpoint is a delta: the whole save and the deltas on it, as one table.

What a key has is what the newest save says of it. Keys of all saves are read when the table is opened (8 bytes each);
their other columns are streamed as ever, without the rows that a later save replaced or removed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfctr.embedding.inspection.columns import Column, Progress, no_progress, read_all
from tfctr.errors import CorruptFileError

REMOVED = "removed"


@dataclasses.dataclass(frozen=True)
class Save:
    """One save of a table: its tensors, and NAME/config."""

    file: str
    parts: Mapping[str, Column]
    told: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class ChainedColumn:
    """A tensor of several saves: the rows of each that `kept` (bool, per row) leaves, one save after the other."""

    name: str
    file: str
    columns: tuple[Column, ...]
    kept: tuple[np.ndarray, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.columns[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(int(np.count_nonzero(kept)) for kept in self.kept), *self.columns[0].shape[1:])

    @property
    def bytes(self) -> int:
        return sum(column.bytes for column in self.columns)

    def blocks(self, rows: int, progress: Progress = no_progress) -> Iterator[np.ndarray]:
        parts: list[np.ndarray] = []
        missing = rows
        for column, kept in zip(self.columns, self.kept, strict=True):
            at = 0
            for block in column.blocks(rows, progress):
                left = block[kept[at : at + len(block)]]
                at += len(block)
                while len(left):
                    part, left = left[:missing], left[missing:]
                    parts.append(part)
                    missing -= len(part)
                    if missing == 0:
                        yield np.concatenate(parts)
                        parts, missing = [], rows
        if parts:
            yield np.concatenate(parts)

    def take(self, places: np.ndarray) -> np.ndarray:
        taken = np.empty((len(places), *self.shape[1:]), self.dtype)
        first = 0
        for column, kept in zip(self.columns, self.kept, strict=True):
            stored = np.flatnonzero(kept)
            there = (places >= first) & (places < first + len(stored))
            if there.any():
                taken[there] = column.take(stored[places[there] - first])
            first += len(stored)
        return taken


def merge(where: str, saves: Sequence[Save]) -> tuple[dict[str, Column], str, dict[str, Any]]:
    """The tensors of a table, and NAME/config as a whole save of it would have it (text and contents).

    Args:
      where: the table in messages.
      saves: the whole save first.

    Raises:
      CorruptFileError: a save lacks a tensor that the others have, or a checksum of keys is wrong.
    """
    rows = _kept(saves, "keys", ())
    counters = _kept(saves, "counters/keys", ("keys",)) if "counters/keys" in saves[-1].parts else []
    if counters:
        # A key that has got a row since it was counted is counted no more.
        final = _final_keys(saves, rows)
        counters = [
            kept & ~np.isin(_keys_of(save, "counters/keys"), final) for save, kept in zip(saves, counters, strict=True)
        ]
    merged: dict[str, Column] = {}
    for part in saves[-1].parts:
        if part == REMOVED:
            continue
        if part == "bloom":
            merged[part] = saves[-1].parts[part]
            continue
        lacking = [save.file for save in saves if part not in save.parts]
        if lacking:
            raise CorruptFileError(f"{where}: {lacking[0]} has no tensor {part!r}, which the saves after it have")
        columns = tuple(save.parts[part] for save in saves)
        kept = counters if part.startswith("counters/") else rows
        merged[part] = ChainedColumn(columns[-1].name, columns[-1].file, columns, tuple(kept))
    if "bloom" not in merged:
        merged |= next(({"bloom": save.parts["bloom"]} for save in reversed(saves) if "bloom" in save.parts), {})
    told = {name: value for name, value in saves[-1].told.items() if name not in ("previous", "save")}
    told |= {"format": 1, "rows": str(merged["keys"].shape[0])}
    return merged, json.dumps(told), told


def _keys_of(save: Save, part: str) -> np.ndarray:
    return read_all(save.parts[part]) if part in save.parts else np.zeros(0, np.int64)


def _kept(saves: Sequence[Save], part: str, others: tuple[str, ...]) -> list[np.ndarray]:
    """Which keys of `part` of each save no later save says something else of: in the same tensor, in one of `others`,
    or among the removed."""
    kept: list[np.ndarray] = []
    later = np.zeros(0, np.int64)
    for save in reversed(saves):
        keys = _keys_of(save, part)
        kept.insert(0, ~np.isin(keys, later))
        said = [keys, *(_keys_of(save, other) for other in (*others, REMOVED))]
        later = np.unique(np.concatenate([later, *said]))
    return kept


def _final_keys(saves: Sequence[Save], rows: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([_keys_of(save, "keys")[kept] for save, kept in zip(saves, rows, strict=True)])
