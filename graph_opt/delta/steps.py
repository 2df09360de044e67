"""Comparing one table, by rows or by the last steps of its rows."""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from graph_opt.delta.base import BaseTable
from graph_opt.delta.rows import LAST_STEP, ROWS, UNTRUSTED, Source, TableDelta, compare
from graph_opt.hash_files import tensor_key
from tfctr.errors import UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """delta: what changed. notes: what people should know of it."""

    delta: TableDelta
    notes: tuple[str, ...] = ()


def compare_table(
    table: BaseTable,
    sources: Sequence[Source],
    out: Path,
    *,
    by_step: bool,
    progress: Callable[[int], None] | None = None,
) -> Compared:
    """Writes what changed in ``table`` to ``out``. by_step: trust the last steps of its rows, where that can be."""
    start = time.perf_counter()
    base_step, why, extra = _steps(table, sources)
    trust = by_step and table.kind == "hash" and not why
    notes = []
    if by_step and why:
        notes.append(f"table {table.name}: its rows are compared: {why}")
    try:
        counts = compare(table, sources, out, base_step=base_step, trust=trust, extra=extra, progress=progress)
    except UsageError as error:
        if not trust or UNTRUSTED not in str(error):
            raise
        why = str(error)
        notes.append(f"{why}; all its rows are compared")
        trust = False
        counts = compare(table, sources, out, base_step=base_step, extra=extra, progress=progress)
    delta = TableDelta(
        index=table.index,
        kind=table.kind,
        name=table.name,
        compared_by=LAST_STEP if trust else ROWS,
        why=why if by_step else "",
        elapsed_ms=round((time.perf_counter() - start) * 1000, 1),
        **counts,
    )
    if delta.nonfinite:
        word = "key" if table.kind == "hash" else "row"
        notes.append(
            f"table {table.name}: {delta.nonfinite} rows of the delta hold NaN or infinity, the first is that of "
            f"{word} {delta.first_nonfinite}"
        )
    if delta.old_steps:
        notes.append(
            f"table {table.name}: {delta.old_steps} rows changed though their last step is before {base_step}, the "
            "step of the served table: the new state was not trained on from it"
        )
    return Compared(delta=delta, notes=tuple(notes))


def _steps(table: BaseTable, sources: Sequence[Source]) -> tuple[int | None, str, dict[str, str]]:
    """(step of the served table's file, why rows can't be told apart by steps, metadata of the delta)."""
    if table.kind != "hash" or len(sources) != 1 or sources[0]["kind"] != "embedding":
        return None, "it keeps no steps" if table.kind == "hash" else "", {}
    native = importlib.import_module("tfctr.core._native")
    prefix, place = sources[0]["path"], sources[0]["key"]
    _, new = native.frozen_description(prefix, place)
    extra = {key: str(new[key]) for key in ("step", "time_ms") if key in new}
    # An overlay has newer rows than its base; those are compared, since their last step is not before the base's.
    base_step, new_step = native.hash_info(table.path)["step"] or 0, int(new.get("step", 0))
    entries = {entry["key"] for entry in native.read_checkpoint_index(prefix)}
    if tensor_key(place, "last_step") not in entries:
        return None, "the checkpoint has no last steps (record_last_step=True keeps them)", extra
    if base_step <= 0 or new_step <= 0:
        return None, "the step of the served table or of the checkpoint is not known", extra
    if new_step < base_step:
        return base_step, f"the step went back, from {base_step} to {new_step}", extra
    return base_step, "", extra
