"""Rows of tables that changed, found by the native library: one pass over the newer rows, in blocks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from graph_opt.delta.base import BaseTable
from tfctr.core import library
from tfctr.errors import ConvertAnewError, UsageError

LAST_STEP, ROWS = "last step", "rows"
# How the native library says that a trusted row differs, that a row does not fit its table, and that the default row
# is another one.
UNTRUSTED = "the last steps can't be trusted"
UNSTORED = "so it can't be stored as"
_NOT_IN_A_DELTA = "which a delta can't say"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableDelta:
    """What changed in one table. index: in the new store. rows: of the newer state; base_rows: of the version before.
    added, changed, removed: rows and keys in the delta. trusted: rows that were not compared, their last step being
    older than the version before. compared_by: "rows" or "last step"; why: where it is not what was asked for.
    nonfinite: rows in the delta with NaN or infinity, first_nonfinite: key of the first. old_steps: changed rows whose
    last step is before that of the version before (the table did not go on from it). whole: the table is in the delta
    as a file, and why. elapsed_ms: of the comparison. bytes: of the file in the delta.
    """

    index: int
    kind: str
    name: str
    rows: int
    base_rows: int
    added: int = 0
    changed: int = 0
    removed: int = 0
    trusted: int = 0
    compared_by: str = ROWS
    why: str = ""
    nonfinite: int = 0
    first_nonfinite: int | None = None
    old_steps: int = 0
    whole: str = ""
    elapsed_ms: float = 0.0
    bytes: int = 0


Source = dict[str, Any]  # as ``diff_table`` takes them


def compare(
    table: BaseTable,
    sources: Sequence[Source],
    out: Path,
    *,
    base_step: int | None = None,
    trust: bool = False,
    extra: dict[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Writes the delta of ``table`` to ``out``; the counts of ``native.diff_table``.

    CorruptFileError: a damaged checkpoint or table, or one that holds a key twice. ConvertAnewError: another default
    row. UsageError: rows that can't be stored as the table stores them; trusted rows that differ (it says UNTRUSTED).
    """
    dtype, width = table.row_dtype, row_width(table)
    if sources and sources[0]["kind"] == "table" and table.storage:
        dtype, width = table.dtype, math.prod(table.shape[1:])  # a file in the same storage
    try:
        with library.native_errors():
            return dict(
                library.native().diff_table(
                    table.kind, table.path, table.overlay, out, list(sources), dtype, width, base_step, trust,
                    extra or {}, progress,
                )
            )  # fmt: skip
    except UsageError as error:
        if _NOT_IN_A_DELTA in str(error):
            raise ConvertAnewError(f"{error}; convert the new model, or refresh the bundle") from error
        raise


def row_width(table: BaseTable) -> int:
    """Values of one row."""
    width = math.prod(table.shape[1:])
    return width - 4 if table.storage == "int8" and table.kind == "table" else width
