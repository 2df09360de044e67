"""How `tfctr ckpt diff` prints what it found."""

from __future__ import annotations

import dataclasses
from typing import Any

import rich.console

from tfctr.cli import common
from tfctr.cli.ckpt_report import plain
from tfctr.embedding.inspection.differences import ColumnDifference, Differences, TableDifference, VariableDifference
from tfctr.embedding.inspection.sources import Source

_VARIABLES = 40


def print_differences(a: Source, b: Source, found: Differences) -> None:
    """All that differs, and that nothing does."""
    console = common.results()
    console.print(f"A: {a.kind} {a.path}", markup=False, soft_wrap=True)
    console.print(f"B: {b.kind} {b.path}", markup=False, soft_wrap=True)
    if found.tables:
        numbers = ("rows A", "rows B", "added", "removed", "changed", "unchanged")
        shown = common.table("Embedding tables", "table", *numbers, right=numbers)
        for table in found.tables:
            unchanged = table.rows_a - table.removed - table.changed
            cells = (table.rows_a, table.rows_b, table.added, table.removed, table.changed, unchanged)
            hidden = bool(table.reason)
            shown.add_row(plain(table.name), *("?" if hidden and k > 1 else f"{c:,}" for k, c in enumerate(cells)))
        console.print(shown)
    for table in found.tables:
        _print_table(console, table)
    _print_variables(console, found.variables)
    for remark in found.remarks:
        console.print(remark, markup=False, soft_wrap=True)
    different = sum(one.differs for one in found.tables)
    variables = sum(one.differs for one in found.variables)
    if found.differs:
        words = [f"{different} of {len(found.tables)} tables"] if found.tables else []
        words += [f"{variables} of {len(found.variables)} variables"] if found.variables else []
        console.print(f"{' and '.join(words)} differ", markup=False)
    else:
        console.print("no difference")


def _print_table(console: rich.console.Console, table: TableDifference) -> None:
    if not table.differs and not table.settings:
        return
    console.print()
    console.print(f"[bold]{plain(table.name)}[/]", highlight=False)
    if table.only:
        console.print(f"  only {table.only.upper()} has this table", markup=False)
        return
    if table.reason:
        console.print(f"  rows can't be compared: {table.reason}", markup=False)
    for what, keys in table.examples.items():
        if keys:
            count = {"added": table.added, "removed": table.removed, "changed": table.changed}[what]
            more = ", ..." if count > len(keys) else ""
            console.print(f"  {what}: {', '.join(map(str, keys))}{more}", markup=False, soft_wrap=True)
    columns = [one for one in (*table.columns, *table.counters) if one.changed]
    if columns:
        numbers = ("rows changed", "largest change", "at key", "mean change")
        shown = common.table("", "tensor", *numbers, right=numbers)
        shown.title = None
        for one in columns:
            shown.add_row(plain(one.name), f"{one.changed:,}", f"{one.largest:.4g}", _key(one), f"{one.mean:.4g}")
        console.print(shown)
    for name, side in table.missing:
        console.print(f"  only {side.upper()} has {name}", markup=False)
    if table.counters_added or table.counters_removed:
        console.print(f"  counted keys: {table.counters_added:,} came, {table.counters_removed:,} went", markup=False)
    if table.bloom_changed:
        console.print("  the cells of the Bloom filter differ")
    if table.settings:
        console.print(f"  options differ (no difference of contents): {', '.join(table.settings)}", markup=False)


def _key(one: ColumnDifference) -> str:
    return "" if one.largest_key is None else str(one.largest_key)


def _print_variables(console: rich.console.Console, variables: list[VariableDifference]) -> None:
    different = [one for one in variables if one.differs]
    if not different:
        return
    numbers = ("rows", "rows changed", "largest change", "mean change")
    shown = common.table("Other variables that differ", "variable", *numbers, "", right=numbers)
    for one in different[:_VARIABLES]:
        if one.only:
            shown.add_row(plain(one.name), "", "", "", "", f"only {one.only.upper()} has it")
        elif one.shapes[0] != one.shapes[1]:
            shown.add_row(plain(one.name), "", "", "", "", plain(f"{one.shapes[0]} and {one.shapes[1]}"))
        else:
            cells = (f"{one.rows:,}", f"{one.changed:,}", f"{one.largest:.4g}", f"{one.mean:.4g}", "")
            shown.add_row(plain(one.name), *cells)
    console.print()
    console.print(shown)
    if len(different) > _VARIABLES:
        console.print(f"... and {len(different) - _VARIABLES} more (--json lists all)")


def as_json(a: Source, b: Source, found: Differences) -> dict[str, Any]:
    """The same for machines. Keys are decimal strings."""
    tables = []
    for table in found.tables:
        told = {**dataclasses.asdict(table), "differs": table.differs}
        told["examples"] = {what: [str(key) for key in keys] for what, keys in table.examples.items()}
        for column in (*told["columns"], *told["counters"]):
            column["largest_key"] = None if column["largest_key"] is None else str(column["largest_key"])
        tables.append(told)
    return {
        "a": {"path": a.path, "kind": a.kind},
        "b": {"path": b.path, "kind": b.kind},
        "differs": found.differs,
        "tables": tables,
        "variables": [{**dataclasses.asdict(one), "differs": one.differs} for one in found.variables],
        "remarks": found.remarks,
    }
