"""What a table looks like, from one pass over its rows: histograms, top keys, ages, dead rows, memory.

Memory is one block of rows; a table of any size takes a few tens of MB.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from tfctr.core import library
from tfctr.embedding.inspection.columns import Progress, no_progress, side_by_side
from tfctr.embedding.inspection.histogram import Ages, Counts, Magnitudes, saturated_difference
from tfctr.embedding.inspection.sources import BLOOM, Table


@dataclasses.dataclass(frozen=True)
class Now:
    """The moment that ages are measured from; None where it is not known."""

    step: int | None
    time_ms: int | None


@dataclasses.dataclass(frozen=True)
class TopKey:
    """One of the keys with most of something; frequency None where it is not kept."""

    key: int
    frequency: int | None
    norm: float
    last_step: int | None
    last_time_ms: int | None


@dataclasses.dataclass
class Dead:
    """Rows that add nothing. never_trained: the value is, bit for bit, the key's first value; None: not known."""

    zero: int = 0
    below_norm: int = 0
    norm_limit: float = 0.0
    never_trained: int | None = None
    not_finite: int = 0


@dataclasses.dataclass
class SlotStatistics:
    """One optimizer slot. initial: rows that hold the slot's first value throughout; None: not known."""

    name: str
    width: int
    bytes: int
    initial_value: float | None
    initial: int | None
    least: float | None = None
    most: float | None = None
    mean: float | None = None


@dataclasses.dataclass
class Statistics:
    """Of one table; a part is None where the table does not keep what it needs. `row_bytes`: of a live table's row
    with its index entry; `memory`: of all rows and counters."""

    rows: int
    dim: int
    norms: Magnitudes
    frequency: Counts | None
    age_steps: Counts | None
    age_time: Ages | None
    top: list[TopKey]
    top_by: str
    dead: Dead
    slots: list[SlotStatistics]
    now: Now
    counters: Counts | None
    counter_rows: int
    bloom_bytes: int
    row_bytes: int | None
    memory: int | None


def collect(
    table: Table,
    *,
    now: Now | None = None,
    top: int = 20,
    below_norm: float = 1e-3,
    progress: Progress = no_progress,
) -> Statistics:
    """Goes through all of a table once.

    Args:
      table: of any source.
      now: what ages are measured from; a None in it, or none: step and time of the save.
      top: how many top keys.
      below_norm: rows of a smaller norm count as dead.
      progress: told bytes read.

    Raises:
      CorruptFileError: a checksum is wrong.
    """
    rows = _RowPass(table, moment_of(table, now), top, below_norm)
    for block in side_by_side(table.columns, progress):
        rows.add(block)
    return rows.finish(_count_counters(table, progress))


class _RowPass:
    """What is counted of each block of rows."""

    def __init__(self, table: Table, now: Now, top: int, below_norm: float) -> None:
        self._table, self._now, self._layout = table, now, layout_of(table)
        kept = table.columns
        self._frequency = Counts() if "frequency" in kept else None
        self._steps = Counts() if "last_step" in kept and now.step is not None else None
        self._times = Ages() if "last_time" in kept and now.time_ms is not None else None
        self._initial = _initial_rows(table)
        self._dead = Dead(norm_limit=below_norm, never_trained=None if self._initial is None else 0)
        self._slots = [_SlotPass(table, name, self._layout) for name in table.slots]
        self._norms, self._top = Magnitudes(), _Top(top, by_frequency=self._frequency is not None)

    def add(self, block: dict[str, np.ndarray]) -> None:
        lengths = row_norms(block["values"])
        self._norms.add(lengths)
        _count_dead(self._dead, block, lengths, self._initial)
        if self._frequency is not None:
            self._frequency.add(block["frequency"])
        if self._steps is not None and self._now.step is not None:
            self._steps.add(saturated_difference(self._now.step, block["last_step"]))
        if self._times is not None and self._now.time_ms is not None:
            self._times.add(saturated_difference(self._now.time_ms, block["last_time"]))
        for slot in self._slots:
            slot.add(block[f"slots/{slot.told.name}"])
        self._top.offer(block, lengths)

    def finish(self, pending: Counts | None) -> Statistics:
        table, layout = self._table, self._layout
        counters = pending.total if pending else 0
        memory = None
        if layout is not None:
            memory = table.rows * layout["indexed_row_bytes"] + counters * layout["counter_bytes"]
        return Statistics(
            rows=table.rows,
            dim=table.dim,
            norms=self._norms,
            frequency=self._frequency,
            age_steps=self._steps,
            age_time=self._times,
            top=self._top.keys(),
            top_by=self._top.by,
            dead=self._dead,
            slots=[slot.finish() for slot in self._slots],
            now=self._now,
            counters=pending,
            counter_rows=counters,
            bloom_bytes=table.counters[BLOOM].bytes if BLOOM in table.counters else 0,
            row_bytes=layout["indexed_row_bytes"] if layout else None,
            memory=memory,
        )


def moment_of(table: Table, now: Now | None) -> Now:
    """`now`, with the save's step and time where it has none."""
    step = table.step if now is None or now.step is None else now.step
    return Now(step, table.time_ms if now is None or now.time_ms is None else now.time_ms)


def row_norms(values: np.ndarray) -> np.ndarray:
    """Euclidean norms, float64 [n], to the bit those by which rows are evicted: squares added in column order."""
    total = np.zeros(len(values))
    for column in range(values.shape[1]):
        number = values[:, column].astype(np.float64)
        total += number * number
    return np.sqrt(total)


def layout_of(table: Table) -> dict[str, Any] | None:
    """What the native library says of a row of the table's configuration; None where that is not known.

    A frozen table's configuration does not say which slots it was trained with.
    """
    return None if table.config is None or table.kind == "hash" else _layout(table)


def _layout(table: Table) -> dict[str, Any] | None:
    try:
        return dict(library.native().embedding_layout(json.dumps(table.config)))
    except ValueError:  # a member that this version does not know: sizes are then not known either
        return None


def _initial_rows(table: Table) -> Callable[[np.ndarray], np.ndarray] | None:
    if table.config is None or _layout(table) is None or table.storage != "float32":
        return None
    native, config = library.native(), json.dumps(table.config)
    return lambda keys: native.initial_rows(config, keys)


def _count_dead(
    dead: Dead, block: dict[str, np.ndarray], lengths: np.ndarray, initial: Callable[[np.ndarray], np.ndarray] | None
) -> None:
    values = block["values"]
    dead.zero += int(np.count_nonzero(~values.any(axis=1)))
    dead.below_norm += int(np.count_nonzero(lengths < dead.norm_limit))
    dead.not_finite += int(np.count_nonzero(~np.isfinite(values).all(axis=1)))
    if initial is not None and dead.never_trained is not None:
        same = initial(block["keys"]).view(np.uint32) == values.view(np.uint32)
        dead.never_trained += int(np.count_nonzero(same.all(axis=1)))


def _count_counters(table: Table, progress: Progress) -> Counts | None:
    if "counters/counts" not in table.counters:
        return None
    counts = Counts()
    for block in table.counters["counters/counts"].blocks(1 << 16, progress):
        counts.add(block[block > 0])  # entries of count 0 fill the place of keys that went while the table was saved
    return counts


class _SlotPass:
    def __init__(self, table: Table, name: str, layout: dict[str, Any] | None) -> None:
        column = table.columns[f"slots/{name}"]
        known = {slot: value for slot, _, value in layout["slots"]} if layout else {}
        first = known.get(name)
        self.told = SlotStatistics(name, column.shape[1], column.bytes, first, None if first is None else 0)
        self._sum, self._count = 0.0, 0

    def add(self, values: np.ndarray) -> None:
        told = self.told
        if not values.size:
            return
        told.least = min(float(values.min()), *([] if told.least is None else [told.least]), float("inf"))
        told.most = max(float(values.max()), *([] if told.most is None else [told.most]), float("-inf"))
        self._sum += float(values.sum(dtype=np.float64))
        self._count += values.size
        if told.initial is not None and told.initial_value is not None:
            told.initial += int(np.count_nonzero((values == np.float32(told.initial_value)).all(axis=1)))

    def finish(self) -> SlotStatistics:
        if self._count:
            self.told.mean = self._sum / self._count
        return self.told


class _Top:
    """The keys that come most often, or of the largest norm; of equals the smaller key first."""

    def __init__(self, limit: int, by_frequency: bool) -> None:
        self._limit = limit
        self.by = "frequency" if by_frequency else "norm"
        self._kept: list[TopKey] = []

    def offer(self, block: dict[str, np.ndarray], lengths: np.ndarray) -> None:
        if self._limit == 0:
            return
        rank = block["frequency"] if self.by == "frequency" else np.nan_to_num(lengths, nan=-1.0, posinf=np.inf)
        if len(self._kept) == self._limit:
            worst = self._rank(self._kept[-1])
            places = np.flatnonzero(rank >= worst)
        else:
            places = np.arange(len(rank))
        if len(places) > self._limit:
            least = np.partition(rank[places], len(places) - self._limit)[len(places) - self._limit]
            places = places[rank[places] >= least]
            places = places[np.lexsort((block["keys"][places], -rank[places]))[: self._limit]]
        for place in places:
            self._kept.append(_top_key(block, lengths, int(place)))
        self._kept.sort(key=lambda one: (-self._rank(one), one.key))
        del self._kept[self._limit :]

    def _rank(self, one: TopKey) -> float:
        if self.by == "frequency":
            return one.frequency or 0
        return -1.0 if np.isnan(one.norm) else one.norm

    def keys(self) -> list[TopKey]:
        return self._kept


def _top_key(block: dict[str, np.ndarray], lengths: np.ndarray, place: int) -> TopKey:
    def number(name: str) -> int | None:
        return int(block[name][place]) if name in block else None

    return TopKey(
        int(block["keys"][place]), number("frequency"), float(lengths[place]), number("last_step"), number("last_time")
    )
