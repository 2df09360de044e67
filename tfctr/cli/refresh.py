"""``tfctr refresh``: a bundle again, with the weights and tables of a newer export of the same model."""

from __future__ import annotations

import argparse
from typing import Any

from tfctr.cli import common
from tfctr.cli.convert import progress_bar

HELP = "give a bundle the weights and tables of a newer export of its model"
DESCRIPTION = """Writes OUT: the bundle BUNDLE again, with weights, tables and vocabularies of the SavedModel NEW. NEW
must be the same model, trained on: another structure is refused, and the first node that differs is
named (exit code 5; `tfctr convert` is the way then).

  tfctr refresh bundles/08 models/09 bundles/09
  tfctr refresh bundles/08 models/09 bundles/09 --samples clicks.npz --label click=score

Nothing is recognised, fused or proven on surrogates again, so it takes a fraction of a conversion. What
held because of a value is looked at again: lookups over vocabularies that changed, smaller tables and
engines (their accuracy gates), forms with user features once per user. At the end every form is compared
with the model as it was saved, as a conversion does; nothing is written where they differ. All other
options are those that BUNDLE was converted with. BUNDLE itself is only read: sessions may be serving it."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "refresh", help=HELP, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", metavar="BUNDLE", help="bundle of the model as it was, made by convert or refresh")
    parser.add_argument(
        "model", metavar="NEW", help="SavedModel with the new weights, or a folder of numbered versions"
    )
    parser.add_argument("output", metavar="OUT", help="bundle folder to write; must not exist unless --force")
    parser.add_argument(
        "--samples", metavar="FILE", help=".npz or .jsonl inputs for the comparisons (default: generated)"
    )
    common.add_label_option(parser)
    parser.add_argument("--force", action="store_true", help="replace OUT if it is a SavedModel or bundle")
    parser.add_argument("--report", metavar="FILE", help="write an HTML report, with a first timing (default: none)")
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
        report_path=args.report,
        force=args.force,
    )
    with progress_bar() as (progress, note):
        report = tfctr.refresh(
            args.bundle, args.model, args.output, options, progress=progress, note=note, cache_dir=args.cache_dir
        )
    if args.json:
        common.print_json(report.as_dict())
    else:
        _print(report.as_dict(), args)
    return 0


def _print(report: dict[str, Any], args: argparse.Namespace) -> None:
    from tfctr.bundle import dense_summary, summary

    console = common.results()
    told = report["refreshed"]
    changed = told["changed"]
    console.print(
        f"structure: {told['structure']}; {told['tables']} tables and {told['weights']} dense weights read, "
        f"{changed['weights']} weights and {changed['vocabularies']} vocabularies changed",
        markup=False,
    )
    for form, reason in told["dropped"].items():
        console.print(f"dropped: the split form of {form}: {reason}", markup=False)
    for line in (*summary.lines(report), *dense_summary.lines(report)):
        console.print(line, markup=False)
    console.print(f"outputs against the new model: {'equal' if report['parity']['ok'] else 'DIFFERENT'}")
    count = told["generation"]
    times = f"{count} time{'' if count == 1 else 's'}"
    console.print(f"took {report['elapsed_ms'] / 1000:.1f} s; refreshed {times} since its conversion")
    console.print(f"bundle: {args.output}", markup=False)
