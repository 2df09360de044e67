"""Compares two sources: per table which rows came, went and changed, per variable whether and by how much.

Rows are found by key, whatever their order and number of slices. Memory is that of both tables' keys (16 bytes per key
and side) and one block; rows of the second side are looked at through a mapping.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from tfctr.embedding.inspection.columns import Column, Progress, block_rows, no_progress, read_all
from tfctr.embedding.inspection.sources import Source, Table
from tfctr.errors import CorruptFileError, UsageError

_FROZEN = ("bundle", "hash file")  # kinds of sources that keep keys and values only


@dataclasses.dataclass
class ColumnDifference:
    """One tensor of rows that both sides have. changed: rows in which any number differs (by more than the tolerance);
    largest, mean: of the absolute differences of all numbers; largest_key: the row of the largest."""

    name: str
    changed: int = 0
    largest: float = 0.0
    mean: float = 0.0
    largest_key: int | None = None


@dataclasses.dataclass
class TableDifference:
    """One table. only: "a" or "b" where the other side lacks it. `missing`: columns that one side alone keeps, with the
    side that has them. `reason`: why rows can't be compared, else ""."""

    name: str
    rows_a: int = 0
    rows_b: int = 0
    only: str = ""
    added: int = 0
    removed: int = 0
    changed: int = 0
    columns: list[ColumnDifference] = dataclasses.field(default_factory=list)
    counters: list[ColumnDifference] = dataclasses.field(default_factory=list)
    counters_added: int = 0
    counters_removed: int = 0
    bloom_changed: bool = False
    missing: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    settings: list[str] = dataclasses.field(default_factory=list)
    reason: str = ""
    examples: dict[str, list[int]] = dataclasses.field(default_factory=dict)

    @property
    def differs(self) -> bool:
        counted = self.counters_added or self.counters_removed or any(one.changed for one in self.counters)
        rows = self.added or self.removed or self.changed
        return bool(self.only or self.reason or rows or counted or self.bloom_changed or self.missing)


@dataclasses.dataclass
class VariableDifference:
    """One variable that is no embedding table. rows, changed: along its first axis."""

    name: str
    only: str = ""
    shapes: tuple[str, str] = ("", "")
    rows: int = 0
    changed: int = 0
    largest: float = 0.0
    mean: float = 0.0

    @property
    def differs(self) -> bool:
        return bool(self.only or self.changed or self.shapes[0] != self.shapes[1])


@dataclasses.dataclass
class Differences:
    """All of two sources. remarks: what was not compared, and why."""

    tables: list[TableDifference]
    variables: list[VariableDifference]
    remarks: list[str]

    @property
    def differs(self) -> bool:
        return any(one.differs for one in self.tables) or any(one.differs for one in self.variables)


def compare(
    a: Source, b: Source, *, table: str | None = None, tolerance: float = 0.0, progress: Progress = no_progress
) -> Differences:
    """Compares all tables and variables, or one table.

    Args:
      a, b: the older and the newer side.
      table: the name of the only table to compare.
      tolerance: numbers that differ by no more are equal; 0: the same bits.
      progress: told bytes read.

    Raises:
      UsageError: neither side has the table.
      CorruptFileError: a checksum is wrong.
    """
    a, b = _named_alike(a, b), _named_alike(b, a)
    a, b, renamed = _by_own_names(a, b)
    if table is not None:
        table = renamed.get(table, table)
        if table not in a.tables and table not in b.tables:
            own = any(one.own_name == table for one in b.tables.values())
            table = (b if own else a).table(table).name
    names = [table] if table is not None else sorted({*a.tables, *b.tables})
    mixed = any(side.kind in _FROZEN for side in (a, b)) and not all(side.kind in _FROZEN for side in (a, b))
    remarks = []
    tables = []
    for name in names:
        if name in a.tables and name in b.tables:
            tables.append(compare_tables(a.tables[name], b.tables[name], tolerance, progress))
            if mixed and tables[-1].missing:
                kept = ", ".join(sorted(column for column, _ in tables[-1].missing))
                remarks.append(f"{name}: a bundle keeps keys and values only; {kept} not compared")
                tables[-1].missing = []
        else:
            tables.append(_only(name, a, b))
    variables = []
    if table is None and not mixed:
        for name in sorted({*a.variables, *b.variables}):
            variables.append(_compare_variables(name, a.variables, b.variables, tolerance, progress))
    elif mixed and table is None:
        remarks.append("variables are not compared: one side is a bundle, whose dense weights lie in its graph")
    return Differences(tables, variables, remarks)


def _named_alike(frozen: Source, other: Source) -> Source:
    """The tables of a bundle under the names of the checkpoint that they were made from, where the other side has those
    and lacks theirs."""
    if frozen.kind not in _FROZEN or other.kind in _FROZEN:
        return frozen
    names = {
        name: table.source if name not in other.tables and table.source in other.tables else name
        for name, table in frozen.tables.items()
    }
    tables = {names[name]: dataclasses.replace(table, name=names[name]) for name, table in frozen.tables.items()}
    return dataclasses.replace(frozen, tables=tables)


def _by_own_names(a: Source, b: Source) -> tuple[Source, Source, dict[str, str]]:
    """Tables that only one side has, under the name that the variable has itself, where that is another side's too:
    Keras' tensors are called otherwise in a checkpoint than in a SavedModel. The names that went, with the new ones.
    """
    sides = ((a, b), (b, a))
    alone = [{n: t.own_name or n for n, t in side.tables.items() if n not in other.tables} for side, other in sides]
    own = [list(names.values()) for names in alone]
    taken = {name for side in (a, b) for name in side.tables} - alone[0].keys() - alone[1].keys()
    shared = {name for name in own[0] if own[0].count(name) == own[1].count(name) == 1} - taken
    renamed = {name: to for names in alone for name, to in names.items() if to in shared and to != name}

    def called(side: Source) -> Source:
        tables = {renamed.get(name, name): table for name, table in side.tables.items()}
        variables = {}  # a table's own step variable goes with it
        for name, column in side.variables.items():
            folder, slash, last = name.rpartition("/")
            variables[renamed.get(folder, folder) + slash + last] = column
        tables = {name: dataclasses.replace(table, name=name) for name, table in tables.items()}
        return dataclasses.replace(side, tables=tables, variables=variables)

    return (called(a), called(b), renamed) if renamed else (a, b, {})


def _only(name: str, a: Source, b: Source) -> TableDifference:
    side, source = ("a", a) if name in a.tables else ("b", b)
    rows = source.tables[name].rows
    if side == "a":
        return TableDifference(name, rows_a=rows, only=side, removed=rows)
    return TableDifference(name, rows_b=rows, only=side, added=rows)


def compare_tables(a: Table, b: Table, tolerance: float = 0.0, progress: Progress = no_progress) -> TableDifference:
    """Compares rows, counters and Bloom cells of one table."""
    told = TableDifference(a.name, a.rows, b.rows)
    told.settings = _settings(a, b)
    if a.dim != b.dim:
        told.reason = f"dim {a.dim} and {b.dim}"
        return told
    if a.key_dtype and b.key_dtype and a.key_dtype != b.key_dtype:
        told.reason = f"keys are {a.key_dtype} and {b.key_dtype}"
        return told
    shared = [name for name in a.columns if name in b.columns and name != "keys"]
    for name in shared:
        if a.columns[name].shape[1:] != b.columns[name].shape[1:]:
            told.reason = f"{name} {list(a.columns[name].shape)} and {list(b.columns[name].shape)}"
            return told
    told.missing = _missing(a.columns, b.columns) + _missing(a.counters, b.counters)
    match = _Match(a, b, a.columns["keys"], b.columns["keys"], progress)
    told.added, told.removed = len(match.added), len(match.removed)
    told.examples = {"added": _first(match.added), "removed": _first(match.removed)}
    changed = np.zeros(a.rows, bool)
    for name in shared:
        one = _compare_columns(name, a.columns[name], b.columns[name], match, changed, tolerance, progress)
        told.columns.append(one)
    told.changed = int(np.count_nonzero(changed))
    told.examples["changed"] = _first(match.keys_a[changed])
    _compare_counters(told, a, b, progress)
    return told


def _settings(a: Table, b: Table) -> list[str]:
    """What the configurations say differently: no difference of contents, but a reason for one."""
    one, other = a.config or {}, b.config or {}
    if not one or not other:
        return []
    names = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    return [name for name in names if name not in ("name", "shards", "expected_rows")]


def _missing(a: Mapping[str, Column], b: Mapping[str, Column]) -> list[tuple[str, str]]:
    return [(name, "a") for name in a if name not in b] + [(name, "b") for name in b if name not in a]


def _first(keys: np.ndarray) -> list[int]:
    """Five keys for a message, the least first."""
    least = np.partition(keys, 5)[:5] if len(keys) > 5 else keys
    return [int(key) for key in np.sort(least)]


class _Match:
    """Where each key of one side lies on the other."""

    def __init__(self, a: Table, b: Table, keys_a: Column, keys_b: Column, progress: Progress) -> None:
        self.keys_a, keys = read_all(keys_a, progress), read_all(keys_b, progress)
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        for table, listed in ((a, np.sort(self.keys_a)), (b, ordered)):
            twice = np.flatnonzero(listed[1:] == listed[:-1])
            if len(twice):
                raise CorruptFileError(f"{table.describe()}: key {listed[twice[0]]} is there twice")
        at = np.searchsorted(ordered, self.keys_a)
        found = np.zeros(len(self.keys_a), bool)
        inside = at < len(ordered)
        found[inside] = ordered[at[inside]] == self.keys_a[inside]
        self.places = np.full(len(self.keys_a), -1, np.int64)  # row in b of each row of a; -1: not there
        self.places[found] = order[at[found]]
        self.removed = self.keys_a[~found]
        self.common = int(np.count_nonzero(found))
        there = np.zeros(len(keys), bool)
        there[self.places[found]] = True
        self.added = keys[~there]


def _compare_columns(
    name: str, a: Column, b: Column, match: _Match, changed: np.ndarray, tolerance: float, progress: Progress
) -> ColumnDifference:
    told = ColumnDifference(name)
    total, numbers, first = 0.0, 0, 0
    for _ in b.blocks(block_rows([b]), progress):
        pass  # its checksums: below it is read in another order
    for block in a.blocks(max(1, block_rows([a]) // 4), progress):
        places = match.places[first : first + len(block)]
        there = places >= 0
        mine, theirs = block[there], b.take(places[there])
        if len(mine):
            differs, distance = _apart(mine, theirs, tolerance)
            rows = np.flatnonzero(there)
            changed[first + rows[differs]] = True
            told.changed += int(np.count_nonzero(differs))
            total += float(distance.sum())
            numbers += distance.size
            most = int(distance.max(axis=1).argmax())
            if float(distance[most].max()) > told.largest:
                told.largest = float(distance[most].max())
                told.largest_key = int(match.keys_a[first + rows[most]])
        first += len(block)
    told.mean = total / numbers if numbers else 0.0
    return told


def _apart(mine: np.ndarray, theirs: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """(rows that differ, absolute differences [n, width] in float64). NaN differs from numbers by infinity."""
    mine, theirs = (np.ascontiguousarray(side).reshape(len(side), -1) for side in (mine, theirs))
    if mine.dtype.kind not in "fc":
        wide = [side.astype(object) if side.dtype.kind in "iu" and side.dtype.itemsize == 8 else side.astype(np.float64)
                for side in (mine, theirs)] if (mine != theirs).any() else None  # fmt: skip
        distance = np.zeros(mine.shape) if wide is None else np.abs(wide[0] - wide[1]).astype(np.float64)
    else:
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.abs(mine.astype(_wide(mine)) - theirs.astype(_wide(theirs))).astype(np.float64)
        same = _bits(mine) == _bits(theirs)
        distance[same] = 0.0
        distance[np.isnan(distance)] = np.inf
        if tolerance == 0:
            return ~same.all(axis=1), distance
    return np.asarray((distance > tolerance).any(axis=1)), distance


def _wide(array: np.ndarray) -> type:
    return np.complex128 if array.dtype.kind == "c" else np.float64


def _bits(array: np.ndarray) -> np.ndarray:
    if array.dtype.itemsize > 8:
        return array.view(np.uint64).reshape(*array.shape, 2).sum(axis=-1, dtype=np.uint64)
    return array.view(f"u{array.dtype.itemsize}")


def _compare_counters(told: TableDifference, a: Table, b: Table, progress: Progress) -> None:
    if "counters/keys" in a.counters and "counters/keys" in b.counters:
        counted = [_present(table, progress) for table in (a, b)]
        (keys_a, parts_a), (keys_b, parts_b) = counted
        both, in_a, in_b = np.intersect1d(keys_a, keys_b, assume_unique=True, return_indices=True)
        told.counters_removed, told.counters_added = len(keys_a) - len(both), len(keys_b) - len(both)
        for name in parts_a.keys() & parts_b.keys():
            mine, theirs = parts_a[name][in_a], parts_b[name][in_b]
            distance = np.abs(mine.astype(np.float64) - theirs.astype(np.float64))
            told.counters.append(
                ColumnDifference(
                    f"counters/{name}",
                    changed=int(np.count_nonzero(mine != theirs)),
                    largest=float(distance.max()) if len(distance) else 0.0,
                    mean=float(distance.mean()) if len(distance) else 0.0,
                    largest_key=int(both[distance.argmax()]) if len(distance) and distance.max() > 0 else None,
                )
            )
    if "bloom" in a.counters and "bloom" in b.counters:
        one, other = (read_all(table.counters["bloom"], progress) for table in (a, b))
        told.bloom_changed = not np.array_equal(one, other)


def _present(table: Table, progress: Progress) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Counted keys and the parts of their counters, without the entries of count 0 that only fill a place."""
    parts = {name.removeprefix("counters/"): read_all(column, progress)
             for name, column in table.counters.items() if name.startswith("counters/")}  # fmt: skip
    there = parts["counts"] > 0
    keys = parts.pop("keys")[there]
    return keys, {name: part[there] for name, part in parts.items()}


def _compare_variables(
    name: str, a: Mapping[str, Column], b: Mapping[str, Column], tolerance: float, progress: Progress
) -> VariableDifference:
    told = VariableDifference(name)
    if name not in a or name not in b:
        told.only = "a" if name in a else "b"
        return told
    one, other = a[name], b[name]
    told.shapes = (f"{one.dtype} {list(one.shape)}", f"{other.dtype} {list(other.shape)}")
    told.rows = one.shape[0] if one.shape else 1
    if told.shapes[0] != told.shapes[1]:
        return told
    rows = block_rows([one])
    total, numbers = 0.0, 0
    for mine, theirs in zip(one.blocks(rows, progress), other.blocks(rows, progress), strict=True):
        differs, distance = _apart(mine, theirs, tolerance)
        told.changed += int(np.count_nonzero(differs))
        told.largest = max(told.largest, float(distance.max(initial=0.0)))
        total += float(distance.sum())
        numbers += distance.size
    told.mean = total / numbers if numbers else 0.0
    return told


def total_bytes(sources: Sequence[Source], table: str | None) -> int:
    """What `compare` reads, for a progress bar."""
    total = 0
    for source in sources:
        if table is None:
            total += sum(column.bytes for column in source.variables.values())
        total += sum(one.bytes for name, one in source.tables.items() if table in (None, name, one.own_name))
    return total


def check_comparable(a: Source, b: Source) -> None:
    """UsageError where neither side has a table or variable: there is nothing to compare."""
    if not (a.tables or a.variables or b.tables or b.variables):
        raise UsageError(f"{a.path} and {b.path} hold no tables and no variables")
