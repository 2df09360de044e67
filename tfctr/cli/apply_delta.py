"""``tfctr apply-delta``: a bundle and deltas, in order, give the next version."""

from __future__ import annotations

import argparse
from typing import Any

from tfctr.cli import common
from tfctr.cli.convert import progress_bar

HELP = "make the next version of a bundle from deltas"
DESCRIPTION = """Writes OUT: the bundle BUNDLE with the changes of every DELTA, in the order given. BUNDLE is only
read: sessions may be serving it. Files that did not change are hard links, so a version takes the disk of its
changes; on another file system they are copied, and the report says so. Changed rows lie in one overlay per table.

  tfctr apply-delta bundles/08 deltas/0805 bundles/0805
  tfctr apply-delta bundles/0805 deltas/0810 deltas/0815 bundles/0815 --json

A delta knows which version it follows: a gap, the wrong order, the same delta twice, or a delta of another model is
refused by name, and so is a damaged or half-copied one; then nothing is written. Deltas come from `tfctr delta`. Where
more than 5 % of a table's rows lie in its overlay, `tfctr compact` is advised."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "apply-delta", help=HELP, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", metavar="BUNDLE", help="bundle that the first delta was made for; it is only read")
    parser.add_argument("deltas", metavar="DELTA", nargs="+", help="folders made by tfctr delta, in order")
    parser.add_argument("output", metavar="OUT", help="bundle folder to write; must not exist unless --force")
    add_version_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import tfctr

    with progress_bar() as (progress, note):
        report = tfctr.apply_delta(
            args.bundle, args.deltas, args.output, force=args.force, progress=progress, note=note
        ).as_dict()
    if args.json:
        common.print_json(report)
        return 0
    table = common.table(
        "Overlays",
        *("table", "kind", "rows given", "removed", "in overlay", "of table"),
        right=("rows given", "removed", "in overlay", "of table"),
    )
    for one in report["tables"]:
        numbers = [f"{one[key]:,}" for key in ("rows", "removed", "overlay_rows")]
        table.add_row(one["name"], one["kind"], *numbers, f"{one['share']:.2%}")
    if report["tables"]:
        common.results().print(table)
    for name in report["files"]:
        common.results().print(f"replaced as a whole: {name}", markup=False)
    if report["dense"]:
        common.results().print("dense weights: new")
    print_version(report)
    return 0


def add_version_options(parser: argparse.ArgumentParser) -> None:
    """What the commands that write a version share."""
    parser.add_argument("--force", action="store_true", help="replace OUT if it is a SavedModel or bundle")
    parser.add_argument(
        "--json", action="store_true", help="print the report as JSON to stdout (progress stays on stderr)"
    )


def print_version(report: dict[str, Any]) -> None:
    """The last lines of these commands: disk, version, what to do next."""
    from tfctr.bundle.deltas.identity import short
    from tfctr.bundle.summary import size_words

    console = common.results()
    links, version = report["links"], report["version"]
    line = f"disk: {size_words(report['written_bytes'])} written, {links['linked']} files linked"
    if links["copied"]:
        line += f", {links['copied']} COPIED ({size_words(links['copied_bytes'])}: {links['reason']})"
    lines = [
        line,
        f"version {version['sequence']} ({short(version['hash'])}), in {report['elapsed_ms']:.0f} ms: {report['path']}",
        report["advice"],
    ]
    for one in filter(None, lines):  # not folded: paths are to be copied
        console.print(one, markup=False, soft_wrap=True)
