"""``tfctr convert``: from a SavedModel to a fused bundle."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import rich.progress

from tfctr.cli import common, convert_options

if TYPE_CHECKING:
    from graph_opt.options import ConvertOptions

HELP = "make a SavedModel fast: fused lookups, shared tables, packed inputs, a compiled tower"
DESCRIPTION = """Reads the SavedModel IN and writes the bundle OUT: a SavedModel again, whose embedding lookups are
fused, whose tables are files shared by all sessions and processes, and whose dense tower runs in the fastest
engine of this machine. Every rewrite is proven against the original; what could not be proven stays as it was, and
the report says why.

  tfctr convert model/ bundle/
  tfctr convert models/ranker bundle/ --signature serving_default --strict
  tfctr convert model/ bundle/ --user-features 'user_*' --device-map sparse=/CPU:0,dense=/GPU:0
  tfctr convert model/ bundle/ --dense openvino --precision bf16 --samples clicks.npz
  tfctr convert model/ bundle/ --table-dtype fp16 --samples clicks.npz --label click=score

IN may be a folder of versions (models/ranker/1, models/ranker/2): the highest is taken."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "convert", help=HELP, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("input", metavar="IN", help="SavedModel folder, or a folder of numbered versions")
    parser.add_argument("output", metavar="OUT", help="bundle folder to write; must not exist unless --force")
    parser.add_argument(
        "--signature",
        "-s",
        action="append",
        metavar="S",
        help="optimise this signature (repeatable; default: all). The others survive as they are",
    )
    parser.add_argument(
        "--samples", metavar="FILE", help=".npz or .jsonl inputs for the final comparison (default: generated)"
    )
    common.add_label_option(parser)
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit 4 and write nothing when a pass fails or a lookup fails its proof (documented limits do not count)",
    )
    parser.add_argument(
        "--require-fused",
        action="append",
        default=[],
        metavar="PATTERN",
        help="exit 4 when a lookup whose name matches is not fused (repeatable, e.g. 'user_*')",
    )
    parser.add_argument("--force", action="store_true", help="replace OUT if it is a SavedModel or bundle")
    parser.add_argument("--report", metavar="FILE", help="where the HTML report goes (default: OUT.report.html)")
    parser.add_argument(
        "--json", action="store_true", help="print the report as JSON to stdout (progress stays on stderr)"
    )
    common.add_model_options(parser, signature=False)
    convert_options.add_options(parser)
    convert_options.add_dense(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import tfctr

    label, label_output = common.split_label(args.label)
    options = convert_options.options_of(
        args,
        signatures=tuple(args.signature) if args.signature else None,
        strict=args.strict,
        require_fused=tuple(args.require_fused),
        force=args.force,
        samples_path=args.samples,
        label=label,
        label_output=label_output,
        report_path=args.report or _default_report(args.output),
    )
    dense = convert_options.dense_of(args)
    with progress_bar() as (progress, note):
        report = tfctr.convert(args.input, args.output, options=options, progress=progress, note=note, dense=dense)
    if args.json:
        common.print_json(report.as_dict())
    else:
        _print(report.as_dict(), args.output, options)
    return 0


def _default_report(output: str) -> str:
    return output.rstrip(os.sep) + ".report.html"


@contextlib.contextmanager
def progress_bar() -> Iterator[Any]:
    """A progress bar on stderr as ``progress(stage, done, total)``, and ``note(text)`` for a line above it."""
    columns = (
        rich.progress.TextColumn("{task.description:<28}"),
        rich.progress.BarColumn(),
        rich.progress.TaskProgressColumn(),
        rich.progress.TimeElapsedColumn(),
    )
    console = common.remarks()
    # Without a terminal there is no bar to draw; rich would write empty lines into the log.
    with rich.progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, rich.progress.TaskID] = {}

        def advance(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total or None)
            bar.update(tasks[stage], completed=done, total=total or None)

        def note(text: str) -> None:
            bar.console.print(text, markup=False)

        yield advance, note


def _print(report: dict[str, Any], output: str, options: ConvertOptions) -> None:
    from tfctr.bundle import dense_summary, summary

    console = common.results()
    for name, signature in report["signatures"].items():
        lookups = signature["lookups"]
        if not lookups:
            continue
        fused = sum(entry["status"] == "fused" for entry in lookups)
        console.print(f"signature [bold]{name}[/]: {fused} of {len(lookups)} lookups fused")
        for entry in lookups:
            if entry["status"] != "fused":
                console.print(f"  left as it was: {entry['name']}: {entry['reason']}", markup=False)
    for line in (*summary.lines(report), *dense_summary.lines(report)):
        console.print(line, markup=False)
    ops = report.get("ops")
    if ops:
        console.print(f"operations: {ops['before']} -> {ops['after']}")
    if report.get("parity"):
        gated = " over float32 tables; over the smaller ones the gate passed" if report["parity"].get("gate") else ""
        console.print(f"outputs against the original: {'equal' if report['parity']['ok'] else 'DIFFERENT'}{gated}")
    console.print(f"bundle: {output}", markup=False)
    console.print(f"report: {options.report_path}", markup=False)
