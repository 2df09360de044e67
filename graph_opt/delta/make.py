"""``make_delta``: what changed from a version of a bundle to a newer state of its model.

Rows are compared where they lie, in the checkpoint: no table is copied. Where a dense weight, a vocabulary or another
part of the graph changed, the graph is made again by the machinery of a refresh, compared with the new model and put
into the delta as a whole; it is small.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tensorflow.core.framework import graph_pb2

from graph_opt.conversion import Note, Progress
from graph_opt.delta.base import Base, BaseTable, open_base
from graph_opt.delta.dense import DensePart, dense_reason
from graph_opt.delta.places import Places
from graph_opt.delta.report import DeltaReport
from graph_opt.delta.rows import UNSTORED, TableDelta
from graph_opt.delta.steps import compare_table
from graph_opt.delta.training import TrainingSource, is_checkpoint, open_checkpoint
from graph_opt.item import GraphItem
from graph_opt.option_checks import check_options
from graph_opt.options import ConvertOptions
from graph_opt.renewal.rebuild import Changes, check_finite, check_readings, find_changes
from graph_opt.renewal.refresh import load_new, with_old_options
from graph_opt.renewal.values import NewValues, read_recorded, read_values
from graph_opt.saved_model import SavedModelSource
from graph_opt.store_files import item_size
from tfctr.bundle.deltas.delta_writer import DeltaWriter
from tfctr.bundle.writer import remove
from tfctr.core import library
from tfctr.errors import UsageError

_WORK = "work"  # in the hidden folder that becomes the delta; removed before
BY_ROWS, BY_LAST_STEP = "rows", "last_step"


def make_delta(
    base_path: str | Path,
    new_path: str | Path,
    out_path: str | Path,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
    note: Note | None = None,
    compare_by: str = BY_ROWS,
    root: str | None = None,
    **fields: Any,
) -> DeltaReport:
    """Writes to ``out_path`` what changed from the bundle at ``base_path`` to the state of its model at ``new_path``.

    Args:
      base_path: a bundle, or the version folder that deltas made of one. It is only read.
      new_path: a SavedModel of the same structure, or the prefix of a checkpoint of its training.
      out_path: the folder to write; must not exist, unless ``force``.
      options: those that matter where dense weights changed: tags, samples_path, label, label_output, op_libraries,
        dense_passes; and ``force``. The others are those of the bundle's conversion. ``fields`` override single ones.
      progress: called with (stage, done, total). note: called with one line for people.
      compare_by: "rows": every row is compared. "last_step": rows of embedding variables that were last updated before
        the served table was saved are taken for unchanged (a sample is compared all the same). That holds only where
        the new state was trained on from that very table, with steps that only grow; where a table or checkpoint lacks
        what it needs, rows are compared, and the report says so.
      root: what a checkpoint calls the model ("model" of tf.train.Checkpoint(model=...)); None: found by itself.

    Raises:
      UsageError: paths, no bundle, no model, NaN in dense weights, a row that can't be stored as its table is.
      ConvertAnewError: another structure: rows of a static table, a dim, operations; or a rewrite that held because of
        a value and holds no more. Convert the new model.
      OutputsDifferError: the new graph gives other outputs than the new model.
      CorruptFileError: a damaged checkpoint or bundle.
    """
    options = dataclasses.replace(options or ConvertOptions(), **fields)
    if compare_by not in (BY_ROWS, BY_LAST_STEP):
        raise UsageError(f"compare_by={compare_by!r}: expected {BY_ROWS!r} or {BY_LAST_STEP!r}")
    check_options(options)
    library.load_op_libraries([str(p) for p in options.op_libraries])
    base = open_base(base_path)
    source, kind = _open_new(base, new_path, options, root)
    protected = [base.path, source.path]
    with DeltaWriter(out_path, base.version, force=options.force, protected=protected) as writer:
        maker = _Maker(base, source, writer, options, progress or (lambda *_: None), note or (lambda _: None))
        return maker.run(compare_by, {"path": str(Path(new_path).resolve()), "kind": kind})


def _open_new(base: Base, path: str | Path, options: ConvertOptions, root: str | None) -> tuple[SavedModelSource, str]:
    if is_checkpoint(path):
        return open_checkpoint(base, path, root), "checkpoint"
    if root is not None:
        raise UsageError(f"{path}: a root is given, but this is no checkpoint")
    return load_new(path, options.tags or tuple(base.bundle.manifest["source"]["tags"])), "saved_model"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Found:
    """What changed in a table of the base. path: of the file with the rows; None where nothing changed. refused: why
    the table can't store a newer row, "" where it can.
    """

    table: BaseTable
    delta: TableDelta
    path: Path | None = None
    refused: str = ""


class _Maker:
    """One delta on its way."""

    def __init__(
        self,
        base: Base,
        source: SavedModelSource,
        writer: DeltaWriter,
        options: ConvertOptions,
        progress: Progress,
        tell: Note,
    ) -> None:
        self.base, self.source, self.writer, self.progress, self._tell = base, source, writer, progress, tell
        self.options = with_old_options(options, base.record)
        self.notes: list[str] = []
        self.steps: dict[str, float] = {}
        self.start = time.perf_counter()
        self._compared = 0

    def note(self, text: str) -> None:
        self.notes.append(text)
        self._tell(text)

    def run(self, compare_by: str, new: Mapping[str, Any]) -> DeltaReport:
        work = self.writer.folder / _WORK
        work.mkdir()
        self.progress("read the model", 0, 1)
        values = self._values(work)
        changes = find_changes(self.base.record, values)
        check_readings(self.base.record, changes)
        self.progress("read the model", 1, 1)
        reason = dense_reason(self.base, values, changes)
        found = self._tables(self._places(values, work), compare_by)
        unstored = [one.table.name for one in found if one.refused]
        if unstored and not reason:
            reason = f"table {unstored[0]!r} can't be stored as it was"
        part = self._dense_part(values, found, work) if reason else None
        with self._timed("files_ms"):
            tables = [self._enter(one, part) for one in found]
            if part is not None:
                part.write(self.writer)
        remove(work)
        return self._commit(values, changes, reason, tables, new)

    def _dense_part(self, values: NewValues, found: list[_Found], work: Path) -> DensePart:
        deltas = {one.table.index: one.path for one in found if one.path is not None}
        with self._timed("graph_ms"):
            part = DensePart(
                self.source, work / "bundle", self.options, self.progress, self.note, base=self.base, values=values
            )
            part.make(deltas)
        return part

    def _values(self, work: Path) -> NewValues:
        item = GraphItem(graph_def=graph_pb2.GraphDef(), signatures={}, work_dir=work, copies_tables=False)
        with self._timed("values_ms"):
            if isinstance(self.source, TrainingSource):
                values = read_recorded(self.source.record, self.source.checkpoint, self.base.bundle, item)
            else:
                values = read_values(self.base.record, self.source, self.base.bundle, item, self.options)
            check_finite(self.base.record, values)
        return values

    def _places(self, values: NewValues, work: Path) -> Places:
        return Places(
            template=self.base.record.template,
            files=values.files,
            prefix=self.source.checkpoint,
            weights=values.weights,
            folder=work,
        )

    def _tables(self, places: Places, compare_by: str) -> list[_Found]:
        total = sum(math.prod(t.shape) * item_size(t.row_dtype) for t in self.base.tables.values())
        with self._timed("tables_ms"):
            found = [
                self._table(table, places, compare_by, self._counter(total)) for table in self.base.tables.values()
            ]
        self.progress("compare tables", 1, 1)
        return found

    def _counter(self, total: int) -> Callable[[int], None]:
        def count(size: int) -> None:
            self._compared += size
            self.progress("compare tables", self._compared, max(self._compared, total))

        return count

    def _table(self, table: BaseTable, places: Places, compare_by: str, progress: Callable[[int], None]) -> _Found:
        sources = places.of(table)
        if sources is None or 0 in table.shape[1:]:  # a constant of the same graph; rows without a value
            return _Found(table=table, delta=unchanged(table))
        path = places.folder / f"{table.index:04d}.delta"
        try:
            found = compare_table(table, sources, path, by_step=compare_by == BY_LAST_STEP, progress=progress)
        except UsageError as error:
            if UNSTORED not in str(error) or table.storage is None:
                raise
            return _Found(table=table, delta=unchanged(table), refused=str(error))
        for text in found.notes:
            self.note(text)
        delta = found.delta
        if not (delta.added or delta.changed or delta.removed):
            path.unlink()
            return _Found(table=table, delta=delta)
        return _Found(table=table, delta=delta, path=path)

    def _enter(self, found: _Found, part: DensePart | None) -> TableDelta:
        """The rows of a table as a part of the delta."""
        table, delta = found.table, found.delta
        index = table.index if part is None else part.new_index(table)
        if index is None:
            whole = found.refused or "it is stored otherwise now"
            self.note(f"table {table.name}: the delta has all of it: {whole}")
            return dataclasses.replace(delta, whole=whole, why="")
        if found.refused:
            raise UsageError(found.refused)
        delta = dataclasses.replace(delta, index=index)
        if found.path is None:
            return delta
        path = self.writer.table_path(index, table.name)
        found.path.rename(path)
        self.writer.add_table(
            index=index,
            kind=table.kind,
            name=table.name,
            rows=delta.added + delta.changed,
            removed=delta.removed,
            added=delta.added,
        )
        return dataclasses.replace(delta, bytes=path.stat().st_size)

    def _commit(
        self,
        values: NewValues,
        changes: Changes,
        reason: str,
        tables: list[TableDelta],
        new: Mapping[str, Any],
    ) -> DeltaReport:
        structure = "the same export" if values.same_export else f"compared node by node ({values.nodes} nodes)"
        told = {"structure": structure, "dense": reason, "notes": self.notes}
        with self._timed("commit_ms"):
            delta = self.writer.commit({**new, "tags": list(self.source.tags)}, told)
        return DeltaReport(
            path=delta.path,
            content=delta.content,
            tables=tuple(tables),
            structure=structure,
            dense=reason,
            dense_weights=len(changes.weights),
            files=tuple(one["name"] for one in delta.files),
            notes=tuple(self.notes),
            bytes=delta.size(),
            steps=self.steps,
            elapsed_ms=round((time.perf_counter() - self.start) * 1000, 1),
        )

    def _timed(self, name: str) -> _Timed:
        return _Timed(self.steps, name)


class _Timed:
    """Adds the time of a ``with`` block to ``steps``."""

    def __init__(self, steps: dict[str, float], name: str) -> None:
        self._steps, self._name = steps, name

    def __enter__(self) -> None:
        self._since = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._steps[self._name] = round((time.perf_counter() - self._since) * 1000, 1)


def unchanged(table: BaseTable) -> TableDelta:
    """A table that was not compared, since nothing of it can have changed."""
    rows = table.shape[0] if table.shape else 1
    return TableDelta(
        index=table.index, kind=table.kind, name=table.name, rows=rows, base_rows=rows, why="no rows of it can change"
    )
