"""Admission and eviction of docs/embedding_variable.md in plain Python; used by reference_table.py."""

import dataclasses
import math
from typing import Any

UINT32_MAX = 2**32 - 1
WORD64 = 2**64 - 1


@dataclasses.dataclass
class Judged:
    """What eviction looks at, of a row or (without norm) of a counter."""

    last_step: int
    last_time_ms: int
    frequency: int
    norm: float | None = None


class NoAdmission:
    """A row at the first occurrence."""

    def add(self, counts: dict[int, int], step: int, time_ms: int) -> dict[int, int]:
        """Counts keys without a row; returns the admitted ones with their totals."""
        return {key: min(count, UINT32_MAX) for key, count in counts.items()}

    def count(self, key: int) -> int:
        return 0

    def forget(self, key: int) -> None:
        pass

    def counters(self) -> dict[int, Judged]:
        """A copy of all counters that have keys."""
        return {}


class CounterAdmission(NoAdmission):
    """Exact counts."""

    def __init__(self, min_count: int) -> None:
        self.min_count = min_count
        self.counted: dict[int, Judged] = {}

    def add(self, counts: dict[int, int], step: int, time_ms: int) -> dict[int, int]:
        admitted = {}
        for key, count in counts.items():
            total = min(self.count(key) + count, UINT32_MAX)
            if total >= self.min_count:
                admitted[key] = total
                self.forget(key)
            else:
                self.counted[key] = Judged(step, time_ms, total)
        return admitted

    def count(self, key: int) -> int:
        return self.counted[key].frequency if key in self.counted else 0

    def forget(self, key: int) -> None:
        self.counted.pop(key, None)

    def counters(self) -> dict[int, Judged]:
        return dict(self.counted)


def mix_key(x: int) -> int:
    """The 64-bit finalizer of MurmurHash3."""
    x ^= x >> 33
    x = x * 0xFF51AFD7ED558CCD & WORD64
    x ^= x >> 33
    x = x * 0xC4CEB9FE1A85EC53 & WORD64
    return x ^ x >> 33


class BloomAdmission(NoAdmission):
    """Groups of saturating cells; a key's count is the least of its cells, one in each group."""

    def __init__(self, spec: dict[str, Any]) -> None:
        rate = spec["false_positive_rate"]
        cells = math.ceil(spec["expected_keys"] * -math.log(rate) / math.log(2) ** 2)
        self.groups = min(max(math.ceil(-math.log2(rate)), 1), 64)
        self.width = max(1, math.ceil(cells / self.groups))
        self.most = 2 ** spec["counter_bits"] - 1
        self.min_count = spec["min_count"]
        self.reset_every = spec["reset_every_steps"]
        self.epoch: int | None = None
        self.cells = [[0] * self.width for _ in range(self.groups)]
        self._places: dict[int, list[int]] = {}

    def add(self, counts: dict[int, int], step: int, time_ms: int) -> dict[int, int]:
        if not counts:
            return {}
        if self.reset_every:
            epoch = step // self.reset_every
            if self.epoch is not None and epoch > self.epoch:
                self.cells = [[0] * self.width for _ in range(self.groups)]
            self.epoch = epoch if self.epoch is None else max(epoch, self.epoch)
        for key, count in counts.items():
            for cells, place in zip(self.cells, self.places(key), strict=True):
                cells[place] = min(cells[place] + count, self.most)
        return {key: self.count(key) for key in counts if self.count(key) >= self.min_count}

    def places(self, key: int) -> list[int]:
        """The key's cell in each group."""
        if key not in self._places:
            value = mix_key(key % 2**64)
            stride = mix_key(value ^ 0x9E3779B97F4A7C15) | 1
            self._places[key] = [((value + i * stride & WORD64) * self.width) >> 64 for i in range(self.groups)]
        return self._places[key]

    def count(self, key: int) -> int:
        return min(cells[place] for cells, place in zip(self.cells, self.places(key), strict=True))


def admission_of(spec: dict[str, Any] | None) -> NoAdmission:
    """The admission of a table's configuration."""
    if spec is None:
        return NoAdmission()
    return CounterAdmission(spec["min_count"]) if spec["kind"] == "counter" else BloomAdmission(spec)


@dataclasses.dataclass
class Report:
    """What a run took: rows and counters of every policy."""

    rule_rows: list[int] = dataclasses.field(default_factory=list)
    rule_counters: list[int] = dataclasses.field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(self.rule_rows)

    @property
    def counters(self) -> int:
        return sum(self.rule_counters)


def run(
    rules: list[dict[str, Any]], rows: dict[int, Judged], counters: dict[int, Judged], step: int, time_ms: int
) -> Report:
    """Takes keys out of `rows` and `counters`, rule by rule."""
    report = Report()
    for rule in rules:
        shielded = {int(key) for key in rule.get("protected_keys", ())}
        keep = max(rule.get("min_rows", 0), rule.get("max_rows", 0))
        report.rule_rows.append(_take(rule, rows, len(rows) - keep, shielded, step, time_ms))
        spare = len(counters) - rule["max_rows"] if rule["kind"] == "capacity" else len(counters)
        report.rule_counters.append(_take(rule, counters, spare, shielded, step, time_ms))
    return report


def _take(
    rule: dict[str, Any], items: dict[int, Judged], at_most: int, shielded: set[int], step: int, time_ms: int
) -> int:
    """Takes what the rule condemns, the least by (rank, key) first, `at_most` of them."""
    ranked = []
    for key, item in items.items():
        rank = _rank(rule, item, step, time_ms)
        if rank is not None and key not in shielded:
            ranked.append((rank, key))
    gone = sorted(ranked)[: max(at_most, 0)]
    for _, key in gone:
        del items[key]
    return len(gone)


def _rank(rule: dict[str, Any], item: Judged, step: int, time_ms: int) -> float | int | None:
    """What orders the item among those that the rule may take; None: the rule leaves it."""
    kind = rule["kind"]
    if kind == "step":
        return item.last_step if step - item.last_step > rule["steps_to_live"] else None
    if kind == "ttl":
        return item.last_time_ms if time_ms - item.last_time_ms > round(rule["seconds"] * 1000) else None
    if kind == "l2":
        return item.norm if item.norm is not None and item.norm < rule["threshold"] else None
    return item.frequency if rule["order"] == "lfu" else item.last_step
