"""``tfctr passes``: the graph passes in the order in which they run."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from tfctr.cli import common
from tfctr.errors import UsageError

if TYPE_CHECKING:
    from graph_opt.report import Pass

HELP = "list the graph passes, in order, with what each does and when it refuses"
DESCRIPTION = """The graph passes in the order in which they run. Names are what `tfctr convert --disable` takes.

  tfctr passes                     the list
  tfctr passes fuse_lookups        one pass: what it does, its options, the reasons for which it refuses
  tfctr passes --markdown          all of them as docs/passes.md has it"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "passes", help=HELP, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", metavar="PASS", help="tell everything about this pass")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print as JSON")
    shown.add_argument("--markdown", action="store_true", help="print the page docs/passes.md")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from graph_opt.pass_docs import passes_markdown

    passes = listed()
    chosen = [p for p in passes if args.name in (None, p.name)]
    if not chosen:
        names = ", ".join(p.name for p in passes)
        raise UsageError(f"there is no pass {args.name!r}; the passes are: {names}")
    if args.markdown:
        if args.name is not None:
            raise UsageError("--markdown: prints the page of all passes; leave out the name")
        sys.stdout.write(passes_markdown(passes))
        return 0
    rows = [_row(p) for p in chosen]
    if args.json:
        common.print_json(rows)
        return 0
    if args.name is not None:
        _print_one(rows[0])
        return 0
    table = common.table("Passes, in order", "name", "what it does", "why here", "--disable")
    for row in rows:
        table.add_row(str(row["name"]), str(row["does"]), str(row["order"]), "yes" if row["can_disable"] else "no")
    common.results().print(table)
    return 0


def listed() -> tuple[Pass, ...]:
    """Every pass of ``tfctr convert``, in order."""
    from export.dense_pass import DENSE_PASS
    from graph_opt.options import ConvertOptions
    from graph_opt.pipeline import all_passes

    return all_passes(ConvertOptions(dense_passes=(DENSE_PASS,)))


def _row(one: Pass) -> dict[str, Any]:
    from graph_opt.pass_docs import pass_doc

    doc = pass_doc(one)
    return {
        "name": one.name,
        "does": one.does,
        "order": one.order_reason,
        "can_disable": one.can_disable,
        "detail": list(doc.detail),
        "options": list(doc.options),
        "reasons": list(dict.fromkeys(doc.reasons.values())),
        "example": doc.example,
    }


def _print_one(row: dict[str, Any]) -> None:
    console = common.results()
    console.print(f"[bold]{row['name']}[/]: {row['does']}", highlight=False)
    for paragraph in row["detail"]:
        console.print(f"\n{paragraph}", markup=False)
    console.print(f"\nwhy here: {row['order']}", markup=False)
    console.print(f"can be disabled: {'yes' if row['can_disable'] else 'no'}")
    for title, lines in (("options", row["options"]), ("leaves things as they were because", row["reasons"])):
        if lines:
            console.print(f"\n{title}:")
            for line in lines:
                console.print(f"  {line}", markup=False)
    if row["example"]:
        console.print(f"\n{row['example'].rstrip()}", markup=False)
