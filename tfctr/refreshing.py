"""``tfctr.refresh``: the refresh of ``graph_opt``, with the engines of ``export`` and the command line's files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graph_opt.options import ConvertOptions
from graph_opt.renewal.refresh import refresh as _refresh
from graph_opt.report import Pass
from tfctr.bundle.reader import open_bundle
from tfctr.converting import check_report, with_samples, write_report

if TYPE_CHECKING:
    from graph_opt.conversion import ConvertReport, Note, Progress


def refresh(
    bundle_path: str | Path,
    model_path: str | Path,
    out_path: str | Path,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
    note: Note | None = None,
    cache_dir: str | Path | None = None,
    **fields: Any,
) -> ConvertReport:
    """Writes the bundle at ``bundle_path`` again at ``out_path``, with the weights, tables and vocabularies of the
    SavedModel at ``model_path``; see ``graph_opt.renewal.refresh.refresh`` for options and errors.

    The dense tower keeps its provider, precision, variants, islands and targets; its engine is compiled (a TensorRT
    plan refitted where there is a GPU) and judged again. cache_dir: folder of the compile cache; None: the user's.
    """
    options = dataclasses.replace(options or ConvertOptions(), **fields)
    if not options.dense_passes:
        options = dataclasses.replace(options, dense_passes=dense_passes(bundle_path, options, cache_dir))
    options = with_samples(options)
    if options.report_path is not None:
        check_report(Path(options.report_path), Path(model_path), Path(out_path))
    report = _refresh(bundle_path, model_path, out_path, options, progress, note)
    if options.report_path is not None:
        write_report(report, Path(options.report_path))
    return report


def dense_passes(
    bundle_path: str | Path, options: ConvertOptions, cache_dir: str | Path | None = None
) -> tuple[Pass, ...]:
    """The pass that makes the engines of the bundle again; none where it has no entry of a tower."""
    from export.dense.reuse import entries_of

    bundle = open_bundle(bundle_path)
    entries = entries_of(bundle.manifest)
    if not entries:
        return ()
    from export.dense_pass import DenseOptions, dense_pass

    files = {f["file"]: bundle.path / _store_path(bundle.manifest, f) for e in entries.values() for f in e["files"]}
    return (
        dense_pass(
            DenseOptions(
                reuse=entries,
                reuse_files=files,
                cache_dir=cache_dir,
                max_dp=options.max_dp,
                max_bias=options.max_bias,
                max_auc_delta=options.max_auc_delta,
            )
        ),
    )


def _store_path(manifest: dict[str, Any], file: dict[str, Any]) -> str:
    return str(manifest["store"]["files"][file["index"]]["file"])
