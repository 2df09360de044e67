"""``tfctr.convert``: the converter of ``graph_opt``, with the file formats that the command line knows."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graph_opt import convert as _convert
from graph_opt.options import ConvertOptions
from tfctr.bundle.report_page import render_report
from tfctr.data import read_inputs
from tfctr.errors import UsageError

if TYPE_CHECKING:
    from graph_opt.conversion import ConvertReport, Note, Progress


def convert(
    in_path: str | Path,
    out_path: str | Path,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
    note: Note | None = None,
    **fields: Any,
) -> ConvertReport:
    """Converts a SavedModel into a bundle; see ``graph_opt.conversion.convert`` for arguments and errors.

    ``samples_path`` may be .npz or .jsonl. ``report_path`` gets the HTML report, after the bundle is in place.
    """
    options = dataclasses.replace(options or ConvertOptions(), **fields)
    if options.samples_path is not None and options.read_samples is None:
        path, label = str(options.samples_path), options.label

        def read(info: Mapping[str, Any]) -> Mapping[str, Any]:
            return read_inputs(path, info, label).inputs

        options = dataclasses.replace(options, read_samples=read)
    if options.report_path is not None:
        _check_report(Path(options.report_path), Path(in_path), Path(out_path))
    report = _convert(in_path, out_path, options, progress, note)
    if options.report_path is not None:
        try:
            Path(options.report_path).write_text(render_report(report.manifest), encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"{options.report_path}: the report can't be written ({error.strerror}); "
                f"the bundle {report.path} is complete"
            ) from error
    return report


def _check_report(report: Path, model: Path, out: Path) -> None:
    """UsageError where the report can't be written: said before the work, not after it."""
    if os.path.realpath(report).startswith(os.path.realpath(model) + os.sep):
        raise UsageError(f"{report}: the report would lie inside the model {model}; choose another --report")
    if os.path.realpath(report) == os.path.realpath(out):
        raise UsageError(f"{report}: the report can't have the path of the bundle")
    if report.is_dir():
        raise UsageError(f"{report}: the report is to be a file, but a folder is there")
    if os.path.abspath(report.parent) in (os.path.abspath(out), *map(os.path.abspath, out.absolute().parents)):
        return  # made with the bundle
    if not os.access(report.parent, os.W_OK | os.X_OK):
        what = "can't be written to" if report.parent.is_dir() else "does not exist"
        raise UsageError(f"{report}: the folder of the report, {report.parent}, {what}")
