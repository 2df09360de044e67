"""How `tfctr ckpt inspect` prints what it found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import rich.console

from tfctr.bundle.summary import size_words
from tfctr.cli import common
from tfctr.embedding.inspection.histogram import Bar, age_words, duration_words
from tfctr.embedding.inspection.report import Report
from tfctr.embedding.inspection.sources import Source, Table
from tfctr.embedding.inspection.words import facts, kept_words, percent, share, slot_words, time_words

_BAR = 40  # characters of the longest bar
_VARIABLES = 40


def print_source(source: Source) -> None:
    """The tables and variables of a source."""
    console = common.results()
    console.print(f"{source.kind} {source.path}", markup=False, soft_wrap=True)
    if source.tables:
        numbers = ("rows", "dim", "stored")
        own = ["variable"] if any(table.own_name for table in source.tables.values()) else []
        shown = common.table(
            "Embedding tables",
            "table",
            *own,
            "rows",
            "dim",
            "keys",
            "stored",
            "slots",
            "kept per row",
            "step",
            right=numbers,
        )
        for table in source.tables.values():
            name, *cells = map(plain, _table_cells(table))
            shown.add_row(name, *([plain(table.own_name)] if own else []), *cells)
        console.print(shown)
    if source.variables:
        shown = common.table("Other variables", "variable", "dtype", "shape", "size", right=("size",))
        for name, column in list(source.variables.items())[:_VARIABLES]:
            shown.add_row(plain(name), str(column.dtype), plain(str(list(column.shape))), size_words(column.bytes))
        console.print(shown)
        if len(source.variables) > _VARIABLES:
            console.print(f"... and {len(source.variables) - _VARIABLES} more (--json lists all)")


def _table_cells(table: Table) -> tuple[str, ...]:
    slots = [slot_words(table, name) for name in table.slots]
    stored = size_words(table.bytes) + ("" if table.storage == "float32" else f" ({table.storage})")
    return (
        table.name, f"{table.rows:,}", str(table.dim), table.key_dtype or "?", stored, ", ".join(slots) or "-",
        kept_words(table), "" if table.step is None else f"{table.step:,}",
    )  # fmt: skip


def plain(text: str) -> str:
    """Text with brackets and control characters as they are: names come from files."""
    from rich.markup import escape

    return escape("".join(c if c.isprintable() else "?" for c in text))


def print_report(report: Report) -> None:
    """One table in detail."""
    console = common.results()
    table, told = report.table, report.statistics
    console.print()
    own = f" ({plain(table.own_name)})" if table.own_name else ""
    console.print(f"[bold]{plain(table.name)}[/]{own}: {table.rows:,} rows x {table.dim}", highlight=False)
    _print_facts(console, report)
    if told.frequency is not None:
        _print_bars(console, "How often keys came (frequency)", "occurrences", told.frequency.bars(), Bar.words)
    if told.age_steps is not None:
        title = f"Age of rows in steps, at step {told.now.step:,}"
        _print_bars(console, title, "steps since the last update", told.age_steps.bars(), Bar.words)
    if told.age_time is not None:
        title = f"Age of rows in time, at {time_words(told.now.time_ms)}"
        _print_bars(console, title, "since the last update", told.age_time.bars(), age_words)
    _print_bars(console, "Length of rows (Euclidean norm)", "norm", told.norms.bars(), Bar.words)
    if told.counters is not None and told.counter_rows:
        _print_bars(console, "Keys without a row (counted)", "occurrences", told.counters.bars(), Bar.words)
    _print_top(console, report)
    _print_eviction(console, report)
    _print_admission(console, report)


def _print_facts(console: rich.console.Console, report: Report) -> None:
    for name, text in facts(report):
        console.print(f"  {name + ':':30}{text}", markup=False, soft_wrap=True)


def _print_bars(console: rich.console.Console, title: str, what: str, bars: Sequence[Bar], words: Any) -> None:
    if not bars:
        return
    total, most = sum(bar.count for bar in bars), max(bar.count for bar in bars)
    shown = common.table(title, what, "rows", "share", "", right=(what, "rows", "share"))
    for bar in bars:
        length = -(-bar.count * _BAR // most) if most else 0
        shown.add_row(words(bar), f"{bar.count:,}", percent(bar.count, total), "█" * length)
    console.print()
    console.print(shown)


def _print_top(console: rich.console.Console, report: Report) -> None:
    told = report.statistics
    if not told.top:
        return
    numbers = ("key", "frequency", "norm", "steps ago", "time ago")
    shown = common.table(f"Top keys by {told.top_by}", *numbers, right=numbers)
    for one in told.top:
        steps = "" if one.last_step is None or told.now.step is None else f"{told.now.step - one.last_step:,}"
        time = ""
        if one.last_time_ms is not None and told.now.time_ms is not None:
            time = duration_words(told.now.time_ms - one.last_time_ms)
        shown.add_row(
            str(one.key), "" if one.frequency is None else f"{one.frequency:,}", f"{one.norm:.4g}", steps, time
        )
    console.print()
    console.print(shown)


def _print_eviction(console: rich.console.Console, report: Report) -> None:
    run = report.eviction
    if run is None:
        if report.no_eviction:
            console.print(f"\n{report.no_eviction}", markup=False)
        return
    at = ", ".join(
        ([] if run.now.step is None else [f"step {run.now.step:,}"])
        + [time_words(run.now.time_ms)] * bool(run.now.time_ms)
    )
    numbers = ("rows", "counters", "memory")
    shown = common.table("An eviction would take", "policy", *numbers, "first to go", right=numbers)
    for one in run.policies:
        size = "?" if one.bytes is None else size_words(one.bytes)
        keys = ", ".join(map(str, one.examples))
        shown.add_row(one.policy, f"{one.rows:,}", f"{one.counters:,}", size, keys)
    console.print()
    console.print(shown)
    gone = f"{share(run.rows, report.table.rows)} rows would go, {run.left:,} stay, at {at}"
    console.print(gone, markup=False, soft_wrap=True)


def _print_admission(console: rich.console.Console, report: Report) -> None:
    if not report.admission:
        return
    numbers = ("min_count", "rows with it", "rows that would have none", "counted keys that would have one", "memory")
    shown = common.table("Had keys been admitted by another count", *numbers, right=numbers)
    for line in report.admission:
        memory = "?" if line.memory is None else size_words(line.memory)
        refused = share(line.refused, report.table.rows)
        shown.add_row(str(line.min_count), f"{line.rows:,}", refused, f"{line.admitted:,}", memory)
    console.print()
    console.print(shown)
