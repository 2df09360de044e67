"""All that is told of one table, in one value: for people, as JSON and as a page."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tfctr.embedding.inspection import policies
from tfctr.embedding.inspection.columns import Progress, no_progress
from tfctr.embedding.inspection.policies import AdmissionLine, DryRun
from tfctr.embedding.inspection.sources import Source, Table
from tfctr.embedding.inspection.statistics import Now, Statistics, collect, moment_of

OF_CONFIG = "config"  # --evict config: the policies that the table was trained with


@dataclasses.dataclass(frozen=True)
class Report:
    """statistics: of one pass. eviction: None where no policy was asked for and the table has none. no_eviction: why a
    dry run was not possible, where nobody asked for it."""

    table: Table
    statistics: Statistics
    eviction: DryRun | None
    no_eviction: str
    admission: tuple[AdmissionLine, ...]


def report_of(
    table: Table,
    *,
    now: Now | None = None,
    top: int = 20,
    below_norm: float = 1e-3,
    evict: Sequence[str] = (),
    admit: Sequence[int] = (),
    progress: Progress = no_progress,
) -> Report:
    """Goes through a table: statistics, a dry run of policies, what admissions would let in.

    Args:
      table, now, top, below_norm, progress: as `statistics.collect`.
      evict: policies as `policies.rule_of` reads them, or OF_CONFIG; none: those of the table's configuration.
      admit: counts; none: some that are worth a line, where the table keeps frequencies.

    Raises:
      UsageError: a policy is none, or the table lacks what it goes by.
      CorruptFileError: a checksum is wrong.
    """
    rules = [rule for text in evict or (OF_CONFIG,) for rule in _rules(table, text)]
    statistics = collect(table, now=now, top=top, below_norm=below_norm, progress=progress)
    moment = moment_of(table, now)
    eviction, why = None, ""
    if rules:
        missing = "" if evict else _missing(table, rules, moment)
        if missing:
            why = f"the dry run of the table's own policies needs {missing}, which this save left out"
        else:
            eviction = policies.dry_run(table, rules, now=now, progress=progress)
    lines: list[AdmissionLine] = []
    if admit or statistics.frequency is not None:
        counts = list(admit) or policies.suggested_counts(statistics.frequency) if statistics.frequency else list(admit)
        lines = policies.admission_lines(table, counts, progress=progress)
    return Report(table, statistics, eviction, why, tuple(lines))


def _rules(table: Table, text: str) -> list[policies.Rule]:
    return policies.rules_of(table) if text == OF_CONFIG else [policies.rule_of(text)]


def _missing(table: Table, rules: Sequence[policies.Rule], now: Now) -> str:
    """What policies need and the table does not have."""
    needs = {policies.ORDERED_BY[rule.kind] for rule in rules} - {"norm"}
    missing = sorted(needs - table.columns.keys())
    if any(rule.kind == "step" for rule in rules) and now.step is None:
        missing.append("the step of the save (--step)")
    return ", ".join(missing)


def source_json(source: Source, reports: Sequence[Report]) -> dict[str, Any]:
    """The source with its tables and variables, each table that has a report in detail."""
    detailed = {report.table.name: report for report in reports}
    return {
        "path": source.path,
        "kind": source.kind,
        "tables": [
            report_json(detailed[name]) if name in detailed else table_json(table)
            for name, table in source.tables.items()
        ],
        "variables": [
            {"name": name, "dtype": str(column.dtype), "shape": list(column.shape), "bytes": column.bytes}
            for name, column in source.variables.items()
        ],
    }


def table_json(table: Table) -> dict[str, Any]:
    """What is known of a table without reading its rows."""
    return {
        "name": table.name,
        "kind": table.kind,
        "rows": table.rows,
        "dim": table.dim,
        "storage": table.storage,
        "bytes": table.bytes,
        "key_dtype": table.key_dtype or None,
        "slots": [{"name": name, "width": table.columns[f"slots/{name}"].shape[1]} for name in table.slots],
        "columns": {name: column.bytes for name, column in {**table.columns, **table.counters}.items()},
        "step": table.step,
        "time_ms": table.time_ms,
        "left_out": list(table.left_out),
        "saves": list(table.saves),
        "config": table.config,
    }


def report_json(report: Report) -> dict[str, Any]:
    """A table in detail. Keys are decimal strings: an int64 does not fit a JSON number."""
    told = report.statistics
    return {
        **table_json(report.table),
        "memory": told.memory,
        "row_bytes": told.row_bytes,
        "now": dataclasses.asdict(told.now),
        "norms": told.norms.summary(),
        "frequency": told.frequency.summary() if told.frequency else None,
        "age_steps": told.age_steps.summary() if told.age_steps else None,
        "age_time": told.age_time.summary() if told.age_time else None,
        "top_by": told.top_by,
        "top": [{**dataclasses.asdict(one), "key": str(one.key)} for one in told.top],
        "dead": dataclasses.asdict(told.dead),
        "slots": [dataclasses.asdict(slot) for slot in told.slots],
        "counters": told.counters.summary() if told.counters else None,
        "counted_keys": told.counter_rows,
        "bloom_bytes": told.bloom_bytes,
        "eviction": _eviction_json(report.eviction),
        "admission": [dataclasses.asdict(line) for line in report.admission],
    }


def _eviction_json(run: DryRun | None) -> Mapping[str, Any] | None:
    if run is None:
        return None
    told = dataclasses.asdict(run)
    for policy in told["policies"]:
        policy["examples"] = [str(key) for key in policy["examples"]]
    return told
