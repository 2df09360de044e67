"""``tfctr passes``: the graph passes in the order in which they run."""

from __future__ import annotations

import argparse
from typing import Any

from tfctr.cli import common

HELP = "list the graph passes, in order, with what each does"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "passes", help=HELP, description=HELP + ". Names are what `tfctr convert --disable` takes."
    )
    parser.add_argument("--json", action="store_true", help="print as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from graph_opt.pipeline import DEFAULT_PASSES

    rows = [
        {"name": p.name, "does": p.does, "order": p.order_reason, "can_disable": p.can_disable} for p in DEFAULT_PASSES
    ]
    if args.json:
        common.print_json(rows)
        return 0
    table = common.table("Passes, in order", "name", "what it does", "why here", "--disable")
    for row in rows:
        table.add_row(str(row["name"]), str(row["does"]), str(row["order"]), "yes" if row["can_disable"] else "no")
    common.results().print(table)
    return 0
