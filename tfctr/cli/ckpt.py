"""``tfctr ckpt``: looks into embedding tables at rest, compares them, writes them out, reads them in."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfctr.cli import common
from tfctr.errors import OutputsDifferError, UsageError

if TYPE_CHECKING:
    from tfctr.embedding.inspection.columns import Progress
    from tfctr.embedding.inspection.sources import Source, Table
    from tfctr.embedding.inspection.statistics import Now

HELP = "look into, compare, export and import embedding tables of checkpoints and bundles"
DESCRIPTION = """Works on embedding tables at rest. A PATH is a checkpoint (its prefix, or the folder of a
CheckpointManager: the latest), a SavedModel, a bundle, or one hash file of a bundle.

  tfctr ckpt inspect ckpt-1000                          which tables there are: rows, dim, bytes, slots
  tfctr ckpt inspect ckpt-1000 --table users            one table: histograms, top keys, ages, dead rows
  tfctr ckpt inspect ckpt-1000 --evict step:50000       what a policy would take
  tfctr ckpt inspect ckpt-1000 --html page.html         all of it as one page
  tfctr ckpt diff ckpt-900 ckpt-1000                    rows that came, went and changed; exits with 3 where any did
  tfctr ckpt export ckpt-1000 users.parquet --table users
  tfctr ckpt import users.parquet new/ckpt              a checkpoint that EmbeddingVariable restores

Tables are streamed: of a row only 8 to 40 bytes are held, where keys are compared or policies tried."""
INSPECT = """Shows a table of the tables; with --table one of them in detail. --html and --json always go into detail.
Ages are measured from step and time of the save, unless --step and --now say otherwise.

  tfctr ckpt inspect ckpt-1000 --table users --top 50
  tfctr ckpt inspect ckpt-1000 --evict ttl:604800 --evict capacity:5000000:lfu,min_rows=1000
  tfctr ckpt inspect ckpt-1000 --table users --admit 2 --admit 5
  tfctr ckpt inspect ckpt-1000 --html page.html --json > tables.json

Policies run in the order given, each on what the former left: the numbers are those of evict(dry_run=True) of the
restored table. "--evict config" runs those that the table was trained with."""
DIFF = """Compares every table by key, with its slots and counters, and every other variable. A is the older side.
Exits with 3 where they differ. A row has changed where any of its bits has; with --tolerance, where a number differs
by more than that.

  tfctr ckpt diff ckpt-900 ckpt-1000 --table users
  tfctr ckpt diff ckpt-1000 bundle/ --tolerance 1e-3    what storing a table in fewer bits has changed"""
EXPORT = """Writes tables to .npz files (an array per tensor) or Parquet (a column per tensor; needs pyarrow). With one
table OUT is a file; with several, or where OUT has no such ending, a folder with a file for each. A static table
(--table names a plain variable) gets its row numbers as keys.

  tfctr ckpt export ckpt-1000 users.npz --table users
  tfctr ckpt export ckpt-1000 tables/ --format parquet

What is exported can be imported again; the tensors are then the same to the bit."""
IMPORT = """Makes a checkpoint OUT of .npz and Parquet files, one table each (or, with --name, all FILEs the rows of one
table). A folder means all table files in it. Needed are keys (whole numbers, or strings) and values; slots/NAME,
frequency, last_step and last_time are taken where they are there.

  tfctr ckpt import users.npz items.parquet new/ckpt
  tfctr ckpt import part-*.parquet new/ckpt --name users --column keys=user_id --column values=embedding
  tfctr ckpt import users.npz new/ckpt --like ckpt-1000       options (optimizer, policies) of that table

Restore it with tf.train.Checkpoint(users=table).restore(OUT), for a name "a/b" with the objects a.b, or with
tfctr.embedding.checkpoint.restore_tables(OUT, {"users": table})."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "ckpt", help=HELP, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(title="what to do", dest="action", metavar="ACTION", required=True)
    _add_inspect(actions)
    _add_diff(actions)
    _add_export(actions)
    _add_import(actions)
    parser.set_defaults(run=run)


def _action(actions: Any, name: str, words: str, description: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name,
        help=words,
        description=description,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print as JSON")
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def _add_inspect(actions: Any) -> None:
    inspect = _action(actions, "inspect", "show tables, one table in detail, what a policy would take", INSPECT)
    inspect.add_argument("path", metavar="PATH", help="checkpoint, SavedModel, bundle or hash file")
    inspect.add_argument(
        "--table", action="append", metavar="NAME", help="go into detail about this table (repeatable)"
    )
    inspect.add_argument("--top", type=_count, default=20, metavar="N", help="so many top keys (default: 20)")
    inspect.add_argument(
        "--below-norm", type=_positive, default=1e-3, metavar="X", help="smaller rows count as dead (default: 0.001)"
    )
    inspect.add_argument(
        "--evict", action="append", metavar="POLICY",
        help="dry run: step:STEPS, ttl:SECONDS, l2:NORM, capacity:ROWS[:lfu], each with ,min_rows=N; or config "
        "(repeatable, run in order)",
    )  # fmt: skip
    inspect.add_argument(
        "--admit", action="append", type=_count, metavar="N", help="what an admission by N occurrences would let in"
    )
    _add_now(inspect)
    inspect.add_argument("--html", metavar="FILE", help="write a page with the histograms too")


def _add_now(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--step", type=_whole, metavar="N", help="now, as a step (default: the save's)")
    parser.add_argument(
        "--now", type=moment, metavar="TIME", help='now: "2026-11-30T12:00", seconds since 1970, or "now"'
    )


def _add_diff(actions: Any) -> None:
    diff = _action(actions, "diff", "rows that came, went and changed; exits with 3 where any did", DIFF)
    diff.add_argument("a", metavar="A", help="the older side")
    diff.add_argument("b", metavar="B", help="the newer side")
    diff.add_argument("--table", metavar="NAME", help="compare this table only")
    diff.add_argument(
        "--tolerance", type=_tolerance, default=0.0, metavar="X", help="differences up to X are none (default: 0, bits)"
    )


def _add_export(actions: Any) -> None:
    export = _action(actions, "export", "write tables to .npz or Parquet files", EXPORT)
    export.add_argument("path", metavar="PATH", help="checkpoint, SavedModel, bundle or hash file")
    export.add_argument("out", metavar="OUT", help="a new .npz or .parquet file, or a folder")
    export.add_argument("--table", action="append", metavar="NAME", help="this table only (repeatable)")
    export.add_argument("--format", choices=("npz", "parquet"), help="default: by OUT's ending, else npz")


def _add_import(actions: Any) -> None:
    imported = _action(actions, "import", "make a checkpoint of .npz and Parquet files", IMPORT)
    imported.add_argument("files", nargs="+", metavar="FILE", help=".npz or .parquet file, or a folder of them")
    imported.add_argument("out", metavar="OUT", help="prefix of the new checkpoint, such as new/ckpt")
    imported.add_argument("--name", metavar="NAME", help="name of the table; all FILEs are its rows")
    imported.add_argument(
        "--column", action="append", default=[], metavar="TENSOR=COLUMN",
        help="where a tensor lies: keys=user_id, values=f0,f1,f2, slots/accumulator=acc (repeatable)",
    )  # fmt: skip
    imported.add_argument("--like", metavar="PATH", help="take the options of the table of the same name in there")
    imported.add_argument("--like-table", metavar="NAME", help="... or of this table in there")
    _add_now(imported)


def _whole(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**63:
        raise argparse.ArgumentTypeError(f"{text} is no step: expected 0 to 2^63 - 1")
    return number


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number < 2**32:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and 2^32 - 1")
    return number


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number above 0")
    return number


def _tolerance(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number from 0 on")
    return number


def moment(text: str) -> int:
    """Type of ``--now``: milliseconds since 1970."""
    if text == "now":
        return int(datetime.datetime.now().timestamp() * 1000)
    with contextlib.suppress(ValueError, OverflowError):
        return round(float(text) * 1000)
    try:
        return round(datetime.datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f'{text!r} is no time: expected "2026-11-30T12:00", seconds since 1970 or "now"'
        ) from None


def run(args: argparse.Namespace) -> int:
    import tfctr  # noqa: F401 - checks TensorFlow's version and loads the op library

    return {"inspect": _inspect, "diff": _diff, "export": _export, "import": _import}[args.action](args)


@contextlib.contextmanager
def progress_bar(words: str, total: int) -> Iterator[Progress]:
    """A bar of bytes on stderr, where that is a terminal."""
    import rich.progress

    console = common.remarks()
    columns = (
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.BarColumn(),
        rich.progress.DownloadColumn(),
        rich.progress.TimeRemainingColumn(),
    )
    with rich.progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(words, total=total or None)
        yield lambda read: bar.update(task, advance=read)


def _open(path: str) -> Source:
    from tfctr.embedding.inspection.sources import open_source

    source = open_source(path)
    if source.note:
        common.remarks().print(source.note, markup=False, soft_wrap=True)
    return source


def _now(args: argparse.Namespace) -> Now:
    from tfctr.embedding.inspection.statistics import Now

    return Now(args.step, args.now)


def _chosen(source: Source, names: list[str] | None) -> list[Table]:
    return [source.table(name) for name in names] if names else list(source.tables.values())


def _inspect(args: argparse.Namespace) -> int:
    from tfctr.cli import ckpt_report
    from tfctr.embedding.inspection import report

    asked = {"top": args.top, "below_norm": args.below_norm, "evict": args.evict or (), "admit": args.admit or ()}
    source = _open(args.path)
    tables = _chosen(source, args.table)
    if not source.tables:
        common.remarks().print(f"{source.path}: {source.names()}", markup=False, soft_wrap=True)
    detailed = bool(args.table or args.json or args.html or args.evict or args.admit)
    if args.html:
        from tfctr.embedding.inspection.exporting import check_new

        check_new(Path(args.html))
    reports = []
    if detailed:
        for table in tables:
            with progress_bar(table.name, table.bytes) as progress:
                reports.append(report.report_of(table, now=_now(args), **asked, progress=progress))
    if args.html:
        from tfctr.embedding.inspection import page
        from tfctr.embedding.inspection.exporting import new_file

        with new_file(Path(args.html)) as file:
            file.write(page.render(source, reports).encode())
        common.remarks().print(f"written: {args.html}", markup=False, soft_wrap=True)
    if args.json:
        common.print_json(report.source_json(source, reports))
        return 0
    ckpt_report.print_source(source)
    if args.table or args.evict or args.admit:
        for one in reports:
            ckpt_report.print_report(one)
    return 0


def _diff(args: argparse.Namespace) -> int:
    from tfctr.cli import ckpt_diff
    from tfctr.embedding.inspection import differences

    a, b = _open(args.a), _open(args.b)
    differences.check_comparable(a, b)
    with progress_bar("comparing", differences.total_bytes((a, b), args.table)) as progress:
        found = differences.compare(a, b, table=args.table, tolerance=args.tolerance, progress=progress)
    if args.json:
        common.print_json(ckpt_diff.as_json(a, b, found))
    else:
        ckpt_diff.print_differences(a, b, found)
    return OutputsDifferError.exit_code if found.differs else 0


def _export(args: argparse.Namespace) -> int:
    from tfctr.embedding.inspection import exporting

    source = _open(args.path)
    out = Path(args.out)
    variables = [name for name in args.table or () if name in source.variables and name not in source.tables]
    names = [name if name in variables else source.table(name).name for name in args.table or source.tables]
    if not names:
        raise UsageError(f"{source.path}: {source.names()}; --table takes the name of a plain variable too")
    tables = [source.table(name) for name in names if name not in variables]
    ending = exporting.format_of(out)
    fmt = args.format or ending or "npz"
    if ending is not None and ending != fmt:
        raise UsageError(f"--format {fmt}: OUT is {out}, expected another ending or none")
    places = dict.fromkeys(names, out)
    if ending is not None and len(names) > 1:
        raise UsageError(f"{out}: {source.path} has {len(names)} tables: choose one with --table, or give a folder")
    if ending is None:
        out.mkdir(exist_ok=True)
        places = {name: exporting.files_of(name, out, fmt) for name in names}
        for name, place in places.items():
            exporting.check_new(place)
            if list(places.values()).count(place) > 1:
                raise UsageError(f"{place}: two tables would be written there, {name!r} is one: export them one by one")
    written = []
    for table in tables:
        with progress_bar(table.name, table.bytes) as progress:
            step = exporting.own_step(source, table.name)
            written.append(exporting.export_table(table, places[table.name], fmt, step, progress))
    for name in variables:
        column = source.variables[name]
        with progress_bar(name, column.bytes) as progress:
            written.append(exporting.export_variable(name, column, places[name], fmt, progress))
    return _print_written(args, source, written)


def _print_written(args: argparse.Namespace, source: Source, written: list[Any]) -> int:
    import dataclasses

    from tfctr.bundle.summary import size_words

    if args.json:
        common.print_json({"path": source.path, "exported": [dataclasses.asdict(one) for one in written]})
        return 0
    for one in written:
        line = f"{one.table}: {one.rows:,} rows, {size_words(one.bytes)}, {', '.join(one.files)}"
        common.results().print(line, markup=False, soft_wrap=True)
    return 0


def _import(args: argparse.Namespace) -> int:
    import dataclasses

    from tfctr.embedding.inspection import importing, row_files

    files = [file for path in args.files for file in row_files.files_in(path)]
    if args.name is not None:
        tables = [importing.TableFiles(tuple(files), args.name)]
    else:
        tables = [importing.TableFiles((file,)) for file in files]
    options = importing.ImportOptions(
        step=args.step, time_ms=args.now, like=_like(args, tables), columns=dict(map(_column, args.column))
    )
    total = sum(os.path.getsize(file) for file in files if file.is_file())
    with progress_bar("importing", total) as progress:
        written = importing.import_tables(tables, args.out, options, progress)
    if args.json:
        common.print_json({"checkpoint": args.out, "tables": [dataclasses.asdict(one) for one in written]})
        return 0
    for one in written:
        line = f"{one.table}: {one.rows:,} rows x {one.dim}, {', '.join(one.parts)}"
        if one.ignored:
            line += f"; not taken: {', '.join(one.ignored)}"
        common.results().print(line, markup=False, soft_wrap=True)
    common.results().print(f"written: {args.out}", markup=False, soft_wrap=True)
    return 0


def _like(args: argparse.Namespace, tables: list[Any]) -> Table | None:
    if args.like is None:
        return None
    source = _open(args.like)
    wanted = args.like_table or args.name
    if wanted is None and len(source.tables) != 1:
        raise UsageError(f"--like {args.like}: {source.names()}; choose one with --like-table")
    if wanted is None and len(tables) > 1:
        raise UsageError(f"--like {args.like}: {len(tables)} tables would get its options; import one, with --name")
    table = source.table(wanted) if wanted is not None else next(iter(source.tables.values()))
    if table.config is None:
        raise UsageError(f"--like {args.like}: table {table.name!r} has no configuration")
    return table


def _column(text: str) -> tuple[str, Any]:
    part, equals, names = text.partition("=")
    if not equals or not part or not names:
        raise UsageError(f"--column {text!r}: expected TENSOR=COLUMN, such as keys=user_id")
    return part, tuple(names.split(",")) if "," in names else names
