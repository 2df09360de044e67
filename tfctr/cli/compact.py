"""``tfctr compact``: a version without overlays."""

from __future__ import annotations

import argparse
from typing import Any

from tfctr.cli import common
from tfctr.cli.apply_delta import add_version_options, print_version
from tfctr.cli.convert import progress_bar

HELP = "merge the overlays of a version into its tables"
DESCRIPTION = """Writes OUT: the bundle BUNDLE with the rows of its overlays in the table files again. It is the same
version: the next delta fits it as it fits BUNDLE. BUNDLE is only read; every byte that is merged is checked. Files of
tables without overlays are hard links.

  tfctr compact bundles/0815 bundles/0815-compact

It pays when lookups slow down: `tfctr apply-delta` says so beyond 5 % of a table's rows."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "compact", help=HELP, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", metavar="BUNDLE", help="bundle with overlays; it is only read")
    parser.add_argument("output", metavar="OUT", help="bundle folder to write; must not exist unless --force")
    add_version_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import tfctr

    with progress_bar() as (progress, note):
        report = tfctr.compact(args.bundle, args.output, force=args.force, progress=progress, note=note).as_dict()
    if args.json:
        common.print_json(report)
        return 0
    columns = ("rows merged", "removed", "rows now")
    table = common.table("Merged", "table", "kind", *columns, right=columns)
    for one in report["tables"]:
        table.add_row(one["name"], one["kind"], *(f"{one[key]:,}" for key in ("rows", "removed", "table_rows")))
    if report["tables"]:
        common.results().print(table)
    print_version(report)
    return 0
