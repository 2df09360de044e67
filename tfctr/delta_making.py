"""``tfctr.make_delta``: the deltas of ``graph_opt``, with the engines of ``export`` and the command line's files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graph_opt.delta.make import BY_ROWS
from graph_opt.delta.make import make_delta as _make_delta
from graph_opt.options import ConvertOptions
from tfctr.converting import with_samples
from tfctr.refreshing import dense_passes

if TYPE_CHECKING:
    from graph_opt.conversion import Note, Progress
    from graph_opt.delta.report import DeltaReport


def make_delta(
    base_path: str | Path,
    new_path: str | Path,
    out_path: str | Path,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
    note: Note | None = None,
    compare_by: str = BY_ROWS,
    root: str | None = None,
    cache_dir: str | Path | None = None,
    **fields: Any,
) -> DeltaReport:
    """Writes to ``out_path`` what changed from the bundle at ``base_path`` to the state of its model at ``new_path``, a
    SavedModel or a checkpoint of its training; see ``graph_opt.delta.make.make_delta`` for arguments and errors.

    Where dense weights changed, engines are compiled again, as by ``tfctr.refresh``. cache_dir: folder of the compile
    cache; None: the user's. ``tfctr.apply_delta`` gives the next version of the bundle.

    >>> tfctr.make_delta("bundles/08", "models/0815", "deltas/1")
    >>> tfctr.apply_delta("bundles/08", ["deltas/1"], "bundles/0815")
    """
    options = dataclasses.replace(options or ConvertOptions(), **fields)
    if not options.dense_passes:
        options = dataclasses.replace(options, dense_passes=dense_passes(base_path, options, cache_dir))
    return _make_delta(base_path, new_path, out_path, with_samples(options), progress, note, compare_by, root)
