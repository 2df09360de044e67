"""``tfctr.convert``: the converter of ``graph_opt``, with the file formats that the command line knows."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graph_opt import convert as _convert
from graph_opt.options import ConvertOptions, SampleColumns
from graph_opt.report import Pass
from tfctr.bundle.report_page import render_report
from tfctr.data import InputFile, read_inputs
from tfctr.errors import EngineDiffersError, UsageError

if TYPE_CHECKING:
    from export.dense.options import DenseOptions
    from graph_opt.conversion import ConvertReport, Note, Progress

# What becomes of the dense tower where nobody says.
DEFAULT_DENSE = "auto"
_DENSE_PASS = "dense_engine"


def convert(
    in_path: str | Path,
    out_path: str | Path,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
    note: Note | None = None,
    dense: DenseOptions | str | None = None,
    **fields: Any,
) -> ConvertReport:
    """Converts a SavedModel into a bundle; see ``graph_opt.conversion.convert`` for arguments and errors.

    ``samples_path`` may be .npz or .jsonl. ``report_path`` gets the HTML report, after the bundle is in place. dense:
    what becomes of the dense tower, "auto" (the default), "tensorflow", "openvino" or "tensorrt", or all of
    ``export.dense_pass.DenseOptions``; ``options.dense_passes`` where those are given. Raises UsageError also where
    that can't be had here, StrictRefusal where ``dense.required`` and a tower stays on TensorFlow. Where the last
    comparison finds an engine's outputs different, the model is converted once more without engines, and the reason
    stands in the report; with ``dense.required`` that is an EngineDiffersError.
    """
    options = dataclasses.replace(options or ConvertOptions(), **fields)
    ours = dense is not None or not options.dense_passes  # else the caller's own passes
    if ours:
        options = dataclasses.replace(options, dense_passes=(pass_of(dense),))
    if not isinstance(dense, str | None) and dense.required and _DENSE_PASS in options.disable:
        raise UsageError(f"--dense-required: contradicts --disable {_DENSE_PASS}, which leaves the tower where it is")
    options = with_samples(options)
    if options.report_path is not None:
        check_report(Path(options.report_path), Path(in_path), Path(out_path))
    try:
        report = _convert(in_path, out_path, options, progress, note)
    except EngineDiffersError as error:
        if not ours or (not isinstance(dense, str | None) and dense.required):
            raise
        without = dataclasses.replace(options, dense_passes=(_pass_without_engines(dense, error),))
        report = _convert(in_path, out_path, without, progress, note)
    if options.report_path is not None:
        write_report(report, Path(options.report_path))
    return report


def pass_of(dense: DenseOptions | str | None) -> Pass:
    """The pass that does what ``dense`` says; see ``convert``."""
    from export.dense_pass import DenseOptions, dense_pass

    chosen = DEFAULT_DENSE if dense is None else dense
    return dense_pass(DenseOptions(dense=chosen) if isinstance(chosen, str) else chosen)


def _pass_without_engines(dense: DenseOptions | str | None, error: EngineDiffersError) -> Pass:
    from export.dense_pass import DenseOptions, dense_pass

    asked = dense if isinstance(dense, DenseOptions) else DenseOptions(dense=dense or DEFAULT_DENSE)
    reason = f"with an engine the last comparison fails: {str(error).removesuffix('; nothing was written')}"
    return dense_pass(dataclasses.replace(asked, stay=reason))


def with_samples(options: ConvertOptions) -> ConvertOptions:
    """``options`` with readers of ``samples_path``; as they are where there is none, or one has readers already."""
    if options.samples_path is None or options.read_samples is not None:
        return options
    path, label, request_column = str(options.samples_path), options.label, options.request_column
    read: dict[str, InputFile] = {}  # by signature description: a file is read once

    def file(info: Mapping[str, Any]) -> InputFile:
        key = repr(
            [(e["name"], e["dtype"], e["shape"]) for e in info["inputs"]] + [f["parts"] for f in info["features"]]
        )
        if key not in read:
            read[key] = read_inputs(path, info, label, request_column)
        return read[key]

    def columns(info: Mapping[str, Any]) -> SampleColumns:
        found = file(info)
        return SampleColumns(labels=found.labels, request_ids=found.request_ids)

    return dataclasses.replace(options, read_samples=lambda info: file(info).inputs, read_sample_columns=columns)


def check_report(report: Path, model: Path, out: Path) -> None:
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


def write_report(report: ConvertReport, path: Path) -> None:
    """The HTML report of a bundle that is in place."""
    try:
        path.write_text(render_report(report.manifest), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path}: the report can't be written ({error.strerror}); the bundle {report.path} is complete"
        ) from error
