"""``tfctr delta``: what changed from a bundle to a newer state of its model."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfctr.cli import common
from tfctr.cli.convert import progress_bar

if TYPE_CHECKING:
    from graph_opt.delta.report import DeltaReport

HELP = "what changed from a bundle to a newer state of its model, as a small folder"
DESCRIPTION = """Writes OUT: rows, removed keys and dense weights that changed from the bundle BASE (or a version
that deltas made of it) to NEW, a SavedModel of the same model trained on, or a checkpoint of its training.

  tfctr delta bundles/08 models/0815 deltas/1
  tfctr apply-delta bundles/08 deltas/1 bundles/0815
  tfctr delta bundles/0815 checkpoints/ckpt-4711 deltas/2

A delta belongs to the version it was made for: it holds that version's hash, and apply-delta refuses a gap, a wrong
base and a wrong order. BASE and the deltas in their order give what a conversion of NEW gives, row by row.

Every row is compared, in one pass over NEW; BASE is only read, and sessions may be serving it. Another structure (rows
of a static table, a dim, operations) is refused by name, with exit code 5: convert NEW then."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "delta", help=HELP, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", metavar="BASE", help="bundle, or a version of it made by apply-delta")
    parser.add_argument("new", metavar="NEW", help="SavedModel, or prefix (or folder) of checkpoints of its training")
    parser.add_argument("output", metavar="OUT", help="folder of the delta; must not exist unless --force")
    parser.add_argument("--root", metavar="NAME", help="what a checkpoint calls the model (default: found by itself)")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--compare-rows", action="store_true", help="compare every row of embedding variables (the default)"
    )
    choice.add_argument(
        "--by-last-step",
        action="store_true",
        help="take rows last updated before the served table was saved for unchanged. Right only where NEW was trained "
        "on from that very table, with steps that only grow; a sample is compared all the same",
    )
    parser.add_argument(
        "--samples", metavar="FILE", help=".npz or .jsonl inputs to compare the graph on (default: generated)"
    )
    common.add_label_option(parser)
    parser.add_argument("--force", action="store_true", help="replace OUT if it is a delta")
    parser.add_argument(
        "--cache-dir", metavar="DIR", help="folder of the compile cache, or 'off' (default: the user's cache folder)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the report as JSON to stdout (progress stays on stderr)"
    )
    common.add_model_options(parser, signature=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import tfctr
    from graph_opt.options import ConvertOptions

    label, label_output = common.split_label(args.label)
    options = ConvertOptions(
        tags=common.split_tags(args.tags),
        op_libraries=tuple(args.op_library),
        samples_path=args.samples,
        label=label,
        label_output=label_output,
        force=args.force,
    )
    with progress_bar() as (progress, note):
        report = tfctr.make_delta(
            args.base,
            args.new,
            args.output,
            options,
            progress=progress,
            note=note,
            compare_by="last_step" if args.by_last_step else "rows",
            root=args.root,
            cache_dir=args.cache_dir,
        )
    if args.json:
        common.print_json(report.as_dict())
    else:
        _print(report, args.output)
    return 0


def _print(report: DeltaReport, output: str) -> None:
    from tfctr.bundle.writer import size_text

    console = common.results()
    told = report.as_dict()
    table = common.table(
        "tables", "table", "kind", "rows", "added", "changed", "removed", "in the delta", "compared by",
        right=("rows", "added", "changed", "removed", "in the delta"),
    )  # fmt: skip
    for one in told["tables"]:
        table.add_row(*_row(one))
    console.print(table)
    dense = f"{report.dense}: the graph is in the delta" if report.dense else "no dense weight changed"
    console.print(dense, markup=False)
    if report.files:
        console.print(f"whole files: {', '.join(report.files)}", markup=False)
    if report.empty:
        console.print("nothing changed: the delta is empty")
    before, number = told["previous"]["sequence"], told["sequence"]
    console.print(
        f"delta {number}, from version {before} to {number} of bundle {told['base']['bundle_id'][:12]}; structure: "
        f"{report.structure}",
        markup=False,
    )
    console.print(f"{size_text(report.bytes)} in {report.elapsed_ms / 1000:.1f} s: {output}", markup=False)


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    from tfctr.bundle.writer import size_text

    counts = [f"{one[key]:,}" for key in ("rows", "added", "changed", "removed")]
    return (one["name"], one["kind"], *counts, size_text(one["bytes"]) if one["bytes"] else "-", one["compared_by"])
