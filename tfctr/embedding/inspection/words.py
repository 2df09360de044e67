"""How numbers of a table read: the same on the terminal and on the page."""

from __future__ import annotations

import datetime

from tfctr.bundle.summary import size_words
from tfctr.embedding.inspection.report import Report
from tfctr.embedding.inspection.sources import Table


def time_words(milliseconds: int | None) -> str:
    """A moment for people, UTC."""
    if milliseconds is None:
        return "?"
    try:
        moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def facts(report: Report) -> list[tuple[str, str]]:
    """(what, how much) of one table, for terminal and page."""
    table, told = report.table, report.statistics
    dead = told.dead
    rows = [("stored", size_words(table.bytes))]
    if told.memory is not None:
        rows.append(("memory while trained", f"about {size_words(told.memory)}, {told.row_bytes} bytes per row"))
    if table.step is not None or table.time_ms:
        step = "" if table.step is None else f"step {table.step:,}, "
        rows.append(("saved at", step + time_words(table.time_ms)))
    if table.saves:
        rows.append(("made up of", f"{len(table.saves)} saves: {', '.join(table.saves)}"))
    if table.left_out:
        rows.append(("left out by the save", ", ".join(table.left_out)))
    rows += [("all zero", share(dead.zero, table.rows))]
    if dead.never_trained is not None:
        rows.append(("never trained (first value)", share(dead.never_trained, table.rows)))
    rows.append((f"norm below {dead.norm_limit:g}", share(dead.below_norm, table.rows)))
    if dead.not_finite:
        rows.append(("NOT FINITE", share(dead.not_finite, table.rows)))
    if told.norms.total:
        rows.append(("norm", _range(told.norms.least, told.norms.summary()["mean"], told.norms.most)))
    for slot in told.slots:
        initial = "" if slot.initial is None else f"; at its first value in {share(slot.initial, table.rows)} rows"
        rows.append((f"slot {slot.name} x {slot.width}", _range(slot.least, slot.mean, slot.most) + initial))
    if told.counters is not None:
        rows.append(("counted keys without a row", f"{told.counter_rows:,}"))
    if told.bloom_bytes:
        rows.append(("Bloom filter", size_words(told.bloom_bytes)))
    return rows


def _range(least: float | None, mean: float | None, most: float | None) -> str:
    if least is None or mean is None or most is None:
        return "no rows"
    return f"{least:.4g} to {most:.4g}, mean {mean:.4g}"


def share(part: int, whole: int) -> str:
    return f"{part:,} ({percent(part, whole)})" if whole else f"{part:,}"


def percent(part: int, whole: int) -> str:
    """A share that does not hide what there is little of."""
    if not whole:
        return ""
    return "< 0.1 %" if 0 < part / whole < 0.0005 else f"{100 * part / whole:.1f} %"


def slot_words(table: Table, name: str) -> str:
    """A slot with its width, where that is not the table's dim."""
    width = table.columns[f"slots/{name}"].shape[1]
    return name if width == table.dim else f"{name} x {width}"


def kept_words(table: Table) -> str:
    """What is kept per row and per key without a row, besides values and slots."""
    kept = [name for name in ("frequency", "last_step", "last_time") if name in table.columns]
    kept += ["counters"] if "counters/keys" in table.counters else []
    kept += ["Bloom filter"] if "bloom" in table.counters else []
    return ", ".join(kept) or "-"
