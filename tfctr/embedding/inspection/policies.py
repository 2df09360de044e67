"""What a policy would do to a table at rest: which rows and counters an eviction would take, which rows an admission
would not have let in. docs/embedding_variable.md has the rules; numbers are those of `evict(dry_run=True)` of the
restored table at the same step and time.

Memory is that of keys and what the policies order by: 8 bytes per row and policy, never the values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfctr.embedding.inspection.columns import Progress, no_progress, read_all
from tfctr.embedding.inspection.histogram import Counts
from tfctr.embedding.inspection.sources import Table
from tfctr.embedding.inspection.statistics import Now, layout_of, moment_of, row_norms
from tfctr.errors import UsageError

_MOST_COUNT = 2**32 - 1
_INT64_LOW, _INT64_HIGH = -(2**63), 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Rule:
    """One eviction policy. limit: steps, milliseconds, norm or rows, by kind: "step", "ttl", "l2", "lru", "lfu"."""

    kind: str
    limit: int | float
    min_rows: int = 0
    protected: tuple[int, ...] = ()

    def words(self) -> str:
        """The policy as the command line takes it."""
        told = {
            "step": f"step:{self.limit}",
            "ttl": f"ttl:{self.limit // 1000 if self.limit % 1000 == 0 else self.limit / 1000}",
            "l2": f"l2:{self.limit}",
            "lru": f"capacity:{self.limit}:lru",
            "lfu": f"capacity:{self.limit}:lfu",
        }[self.kind]
        return told + (f",min_rows={self.min_rows}" if self.min_rows else "")

    @property
    def capacity(self) -> bool:
        return self.kind in ("lru", "lfu")


@dataclasses.dataclass(frozen=True)
class Taken:
    """What one policy would take; `examples`: keys of the first rows to go, the first one first."""

    policy: str
    rows: int
    counters: int
    bytes: int | None
    examples: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class DryRun:
    """What an eviction would take at `now`: in total, and by policy in the order in which they run."""

    now: Now
    rows: int
    counters: int
    bytes: int | None
    left: int
    policies: tuple[Taken, ...]


@dataclasses.dataclass(frozen=True)
class AdmissionLine:
    """With `min_count`: rows that would have one, that would not, counted keys that would get one, and what rows and
    counters would take in memory (None: not known)."""

    min_count: int
    rows: int
    refused: int
    admitted: int
    memory: int | None


def rule_of(text: str) -> Rule:
    """The policy of "step:1000", "ttl:86400", "l2:0.01", "capacity:1000000", "capacity:1000000:lfu", each with
    ",min_rows=100".

    Raises:
      UsageError: it is none; says what was expected.
    """
    expected = "step:STEPS, ttl:SECONDS, l2:NORM, capacity:ROWS or capacity:ROWS:lfu, each with ,min_rows=N"
    head, *options = text.split(",")
    kind, _, rest = head.partition(":")
    number, _, order = rest.partition(":")
    try:
        min_rows = 0
        for option in options:
            name, _, value = option.partition("=")
            if name.strip() != "min_rows":
                raise ValueError(option)
            min_rows = int(value)
        rule = _rule(kind.strip(), number, order.strip(), min_rows)
    except ValueError:
        raise UsageError(f"--evict {text!r}: expected {expected}") from None
    return rule


def _rule(kind: str, number: str, order: str, min_rows: int) -> Rule:
    if min_rows < 0 or (order and kind != "capacity") or order not in ("", "lru", "lfu"):
        raise ValueError
    limit: int | float
    if kind == "step":
        limit = int(number)
    elif kind == "ttl":
        limit = _milliseconds(float(number))
    elif kind == "l2":
        limit = float(number)
    elif kind == "capacity":
        kind, limit = order or "lru", int(number)
        if limit < max(1, min_rows):
            raise ValueError
    else:
        raise ValueError
    if not 0 <= limit < float("inf"):
        raise ValueError
    return Rule(kind, limit, min_rows)


def _milliseconds(seconds: float) -> int:
    """As the table's configuration is read: halves go away from 0."""
    if not 0 <= seconds <= 1e12:
        raise ValueError(seconds)
    return int(np.floor(seconds * 1000.0 + 0.5))


def rules_of(table: Table) -> list[Rule]:
    """The policies that the table was trained with."""
    return [_rule_of_config(told) for told in (table.config or {}).get("eviction") or []]


def _rule_of_config(told: Mapping[str, Any]) -> Rule:
    kind = told["kind"]
    limit: int | float
    if kind == "step":
        limit = int(told["steps_to_live"])
    elif kind == "ttl":
        limit = _milliseconds(float(told["seconds"]))
    elif kind == "l2":
        limit = float(told["threshold"])
    else:
        kind, limit = told.get("order", "lru"), int(told["max_rows"])
    protected = tuple(int(key) for key in told.get("protected_keys") or ())
    return Rule(kind, limit, int(told.get("min_rows") or 0), protected)


def dry_run(
    table: Table, rules: Sequence[Rule], *, now: Now | None = None, examples: int = 5, progress: Progress = no_progress
) -> DryRun:
    """What `rules` would take, one after the other, each of what the former left.

    Raises:
      UsageError: the table does not keep what a policy goes by, or the step or time of now is not known.
      CorruptFileError: a checksum is wrong.
    """
    moment = moment_of(table, now)
    rows = _Population(table, rules, moment, progress)
    counters = _Counters(table, rules, moment, rows.keys, progress)
    layout = layout_of(table)
    taken = []
    for rule in rules:
        keep = max(rule.limit, rule.min_rows) if rule.capacity else rule.min_rows
        went = rows.take(rule, max(0, rows.left - int(keep)))
        counted = 0
        if len(counters.keys):
            most = max(0, counters.left - int(rule.limit)) if rule.capacity else counters.left
            counted = len(counters.take(rule, most))
        size = None
        if layout is not None:
            size = len(went) * layout["indexed_row_bytes"] + counted * layout["counter_bytes"]
        taken.append(Taken(rule.words(), len(went), counted, size, tuple(int(key) for key in went[:examples])))
    return DryRun(
        now=moment,
        rows=sum(one.rows for one in taken),
        counters=sum(one.counters for one in taken),
        bytes=None if layout is None else sum(one.bytes or 0 for one in taken),
        left=rows.left,
        policies=tuple(taken),
    )


class _Keyed:
    """Keys with what rules order them by; those that went are marked."""

    def __init__(self, keys: np.ndarray, ranks: Mapping[str, np.ndarray], now: Now) -> None:
        self.keys, self._ranks, self._now = keys, ranks, now
        self._there = np.ones(len(keys), bool)

    @property
    def left(self) -> int:
        return int(np.count_nonzero(self._there))

    def take(self, rule: Rule, most: int) -> np.ndarray:
        """Takes at most `most` of what the rule takes, the least first; of equals the smaller key. Their keys."""
        rank = self._ranks.get(ORDERED_BY[rule.kind])
        if rank is None or most == 0:
            return np.zeros(0, np.int64)
        open_to = self._there & self._judged(rule, rank)
        if rule.protected:
            open_to &= ~np.isin(self.keys, np.array(rule.protected, np.int64))
        places = np.flatnonzero(open_to)
        if len(places) > most:
            ranks = rank[places]
            last = np.partition(ranks, most - 1)[most - 1]
            surely, ties = places[ranks < last], places[ranks == last]
            needed = most - len(surely)
            ties = ties[np.argpartition(self.keys[ties], needed - 1)[:needed]]
            places = np.concatenate([surely, ties])
        places = places[np.lexsort((self.keys[places], rank[places]))]
        self._there[places] = False
        return self.keys[places]

    def _judged(self, rule: Rule, rank: np.ndarray) -> np.ndarray:
        if rule.capacity:
            return np.ones(len(rank), bool)
        if rule.kind == "l2":
            return rank < rule.limit
        now = self._now.step if rule.kind == "step" else self._now.time_ms
        youngest = (now or 0) - int(rule.limit)  # what is older goes
        if youngest <= _INT64_LOW:
            return np.zeros(len(rank), bool)
        return rank < youngest if youngest <= _INT64_HIGH else np.ones(len(rank), bool)


ORDERED_BY = {"step": "last_step", "ttl": "last_time", "l2": "norm", "lru": "last_step", "lfu": "frequency"}


class _Population(_Keyed):
    """The rows of a table."""

    def __init__(self, table: Table, rules: Sequence[Rule], now: Now, progress: Progress) -> None:
        ranks: dict[str, np.ndarray] = {}
        for rule in rules:
            name = ORDERED_BY[rule.kind]
            if rule.kind == "step" and now.step is None:
                raise UsageError(f"{table.describe()} does not know its step: give --step")
            if rule.kind == "ttl" and now.time_ms is None:
                raise UsageError(f"{table.describe()} does not know its time: give --now")
            if name not in ranks:
                ranks[name] = _ranks(table, name, rule, progress)
        super().__init__(read_all(table.columns["keys"], progress), ranks, now)


def _ranks(table: Table, name: str, rule: Rule, progress: Progress) -> np.ndarray:
    if name == "norm":
        norms = np.empty(table.rows)
        at = 0
        for block in table.columns["values"].blocks(1 << 14, progress):
            norms[at : at + len(block)] = row_norms(block)
            at += len(block)
        return norms
    if name not in table.columns:
        kept = ", ".join(part for part in ("frequency", "last_step", "last_time") if part in table.columns) or "none"
        raise UsageError(
            f"{table.describe()} keeps no {name}, which {rule.words()} goes by; of frequency, last_step and "
            f"last_time it keeps {kept}"
        )
    ranks = read_all(table.columns[name], progress)
    return np.clip(ranks, 0, _MOST_COUNT) if name == "frequency" else ranks


class _Counters(_Keyed):
    """Keys that are counted and have no row, as a restore takes them."""

    def __init__(self, table: Table, rules: Sequence[Rule], now: Now, rows: np.ndarray, progress: Progress) -> None:
        if "counters/keys" not in table.counters or not rules:
            super().__init__(np.zeros(0, np.int64), {}, now)
            return
        keys, counts = (read_all(table.counters[f"counters/{part}"], progress) for part in ("keys", "counts"))
        counted = (counts > 0) & ~np.isin(keys, rows)
        ranks = {"frequency": np.minimum(counts[counted], _MOST_COUNT)}
        for part in ("last_step", "last_time"):
            if f"counters/{part}" in table.counters:
                ranks[part] = read_all(table.counters[f"counters/{part}"], progress)[counted]
        super().__init__(keys[counted], ranks, now)


def admission_lines(
    table: Table, min_counts: Sequence[int], *, progress: Progress = no_progress
) -> list[AdmissionLine]:
    """How many rows there would be if keys had been admitted by other counts.

    Raises:
      UsageError: the table keeps no frequency.
    """
    if "frequency" not in table.columns:
        raise UsageError(f"{table.describe()} keeps no frequency, which --admit goes by")
    rows = np.zeros(len(min_counts), np.int64)
    pending = np.zeros(len(min_counts), np.int64)
    for block in table.columns["frequency"].blocks(1 << 16, progress):
        rows += _reaching(block, min_counts)
    counters = 0
    if "counters/counts" in table.counters:
        for block in table.counters["counters/counts"].blocks(1 << 16, progress):
            pending += _reaching(block[block > 0], min_counts)
            counters += int(np.count_nonzero(block > 0))
    layout = layout_of(table)

    def memory(k: int) -> int | None:
        if layout is None:
            return None
        with_row = int(rows[k] + pending[k])
        return with_row * layout["indexed_row_bytes"] + (table.rows + counters - with_row) * layout["counter_bytes"]

    return [
        AdmissionLine(count, int(rows[k]), table.rows - int(rows[k]), int(pending[k]), memory(k))
        for k, count in enumerate(min_counts)
    ]


def _reaching(counts: np.ndarray, least: Sequence[int]) -> np.ndarray:
    return np.array([np.count_nonzero(counts >= count) for count in least], np.int64)


def suggested_counts(frequency: Counts) -> list[int]:
    """Counts that are worth a line: 1, 2, 3, 5, 10, ... up to what the most used key reaches."""
    most = frequency.most or 0
    return [count for count in (1, 2, 3, 5, 10, 20, 50, 100, 1000) if count <= max(most, 1)]
