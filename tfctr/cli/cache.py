"""``tfctr cache``: what the compile cache holds, whether it is whole, and how to make it smaller."""

from __future__ import annotations

import argparse
import dataclasses
import re
from typing import TYPE_CHECKING, Any

from tfctr.cli import common
from tfctr.errors import CorruptFileError

if TYPE_CHECKING:
    from export.cache.admin import Removed
    from export.cache.places import Places

HELP = "list, look into, check, prune or clear the compile cache"
DESCRIPTION = """`tfctr convert` keeps what it exports and compiles, so that a second conversion of the same model takes
it from there. An entry's key holds everything that it was made from: the graph, the weights, the recipe
and the versions of all tools. So nothing in the cache is ever out of date; it only becomes unused.

  tfctr cache list                        what is there, the one used last first
  tfctr cache show 3f9c                   the whole key of the entry whose key begins so
  tfctr cache verify                      read every byte and compare all checksums
  tfctr cache prune --max-bytes 500MB     remove what was not used for longest, until 500 MB are left
  tfctr cache prune --older-than-days 30  remove what was not used for 30 days
  tfctr cache clear                       remove all entries

The cache lies at --cache-dir, else $TFCTR_CACHE_DIR ("off": none), else $XDG_CACHE_HOME/tfctr, else
~/.cache/tfctr.

Entries that a process uses at the moment are never removed. The folder may be deleted at any time; a folder
that is no cache (it lacks the file CACHEDIR.TAG of tfctr) is never touched."""

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DIGITS = 12


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "cache", help=HELP, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(title="what to do", dest="action", metavar="ACTION", required=True)
    _action(actions, "list", "show all entries, the one used last first")
    show = _action(actions, "show", "show everything about one entry")
    show.add_argument("key", metavar="KEY", help="the first digits of its key (at least 4), as `list` has it")
    _action(actions, "verify", "read every byte and compare all checksums; ends with 2 where something is damaged")
    prune = _action(actions, "prune", "remove leftovers, damaged entries, and what was not used for longest")
    prune.add_argument(
        "--max-bytes",
        type=size,
        metavar="N",
        help="remove until this much is left: 500MB, 2GB (default: 2 GB, or any amount with --older-than-days)",
    )
    prune.add_argument(
        "--older-than-days", type=days, metavar="D", help="remove what was not used for so many days (0.5: half a day)"
    )
    _action(actions, "clear", "remove all entries")
    parser.set_defaults(run=run)


def _action(actions: Any, name: str, words: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=words, description=f"{words[0].upper()}{words[1:]}.", allow_abbrev=False
    )
    parser.add_argument("--cache-dir", metavar="DIR", help="the cache's folder (default: see `tfctr cache --help`)")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def size(text: str) -> int:
    """Bytes of "500MB", "1.5g", "1048576" (binary units)."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 500MB or 2GB")
    return int(float(found[1]) * _UNITS[found[2]])


def days(text: str) -> float:
    """Type of ``--older-than-days``."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days")
    return number


def run(args: argparse.Namespace) -> int:
    from export.cache.admin import open_cache

    places = open_cache(args.cache_dir)
    if places is None:
        return _no_cache(args)
    action = {"list": _list, "show": _show, "verify": _verify, "prune": _prune, "clear": _clear}[args.action]
    return action(args, places)


def _no_cache(args: argparse.Namespace) -> int:
    """Nothing has been kept yet: an empty cache."""
    from export.cache.places import OFF, Places, default_root

    root = Places(args.cache_dir or default_root() or OFF).root
    if args.action == "show":
        from tfctr.errors import UsageError

        raise UsageError(f"{root}: there is no compile cache yet, so no entry {args.key!r}")
    if args.json:
        empty: dict[str, dict[str, Any]] = {
            "list": {"entries": []},
            "verify": {"entries": 0, "bytes": 0, "damaged": [], "foreign": []},
        }
        nothing = {"entries": 0, "bytes": 0, "left": 0, "left_bytes": 0, "in_use": 0, "leftovers": 0}
        common.print_json({"root": str(root), **empty.get(args.action, nothing)})
    else:
        common.results().print(f"{_line(str(root))}: there is no compile cache yet", markup=False, soft_wrap=True)
    return 0


def _list(args: argparse.Namespace, places: Places) -> int:
    from export.cache.admin import listing
    from export.cache.files import size_text

    found = listing(places)
    if args.json:
        common.print_json({"root": str(places.root), "entries": [dataclasses.asdict(one) for one in found]})
        return 0
    console = common.results()
    total = size_text(sum(one.bytes for one in found))
    noun = "entry" if len(found) == 1 else "entries"
    console.print(f"{_line(str(places.root))}: {len(found)} {noun}, {total}", markup=False, soft_wrap=True)
    if not found:
        return 0
    table = common.table(
        "", "key", "level", "for", "size", "built in", "last used", "state", right=("size", "built in")
    )
    table.title = None
    for one in found:
        took = f"{one.build_seconds:.1f} s" if one.build_seconds is not None else ""
        used = one.used.replace("T", " ").removesuffix("+00:00")
        cells = (_short(one.key), one.level, one.label, size_text(one.bytes), took, used, one.state)
        table.add_row(*(_plain(cell) for cell in cells))
    console.print(table)
    return 0


def _short(key: str) -> str:
    """The first digits of a key; those of what was set aside have its level before them."""
    level = key[: key.find("-") + 1]
    return key[: len(level) + _DIGITS]


def _plain(text: str) -> str:
    """Labels are what users call their models: brackets are no markup, and there is one line."""
    from rich.markup import escape

    return escape(_line(text))


def _line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _show(args: argparse.Namespace, places: Places) -> int:
    from export.cache.admin import find, record_of
    from export.cache.files import size_text

    one = find(places, args.key)
    record = record_of(one)
    if args.json:
        common.print_json({**record, "folder": str(one.folder), "bytes": one.bytes})
        return 0
    console = common.results()
    rows = [
        ("key", f"{one.level}/{one.name}"),
        ("for", record["label"]),
        ("folder", str(one.folder)),
        ("created", record["created"]),
        ("built in", f"{record['build_seconds']} s"),
        ("built with", ", ".join(f"{name} {version}" for name, version in record["tools"].items())),
    ]
    for name, text in rows:
        console.print(f"{name + ':':12}{_line(text)}", markup=False, soft_wrap=True)
    for file in record["files"]:
        text = f"{file['name']}  {size_text(file['bytes'])}  sha256 {file['sha256']}"
        console.print(f"{'file:':12}{_line(text)}", markup=False, soft_wrap=True)
    console.print("made from:")
    _print_key(console, record["key"], 2)
    return 0


def _print_key(console: Any, value: Any, indent: int) -> None:
    """A key as an indented list."""
    pairs = value.items() if isinstance(value, dict) else ((None, one) for one in value)
    for name, one in pairs:
        lead = " " * indent + (f"{name}: " if name is not None else "- ")
        nested = isinstance(one, dict | list) and one and len(str(one)) > 100
        console.print(_line(lead.rstrip() if nested else f"{lead}{one}"), markup=False, soft_wrap=True)
        if nested:
            _print_key(console, one, indent + 2)


def _verify(args: argparse.Namespace, places: Places) -> int:
    import rich.progress

    from export.cache.admin import verify_all
    from export.cache.files import size_text

    console = common.remarks()
    with rich.progress.Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("checking", total=None)
        found = verify_all(places, lambda name, total: bar.update(task, advance=1, total=total, description=name))
    if args.json:
        damaged = [{"folder": folder, "reason": why} for folder, why in found.damaged]
        common.print_json({"root": str(places.root), **dataclasses.asdict(found), "damaged": damaged})
        return CorruptFileError.exit_code if found.damaged else 0
    console = common.results()
    for folder, why in found.damaged:
        console.print(f"damaged: {_line(folder)}: {_line(why)}", markup=False, soft_wrap=True)
    for folder in found.foreign:
        console.print(f"not checked: {_line(folder)}: another version's", markup=False, soft_wrap=True)
    noun = "entry is" if found.entries == 1 else "entries are"
    console.print(f"{found.entries} {noun} whole, {size_text(found.bytes)}")
    if found.damaged:
        raise CorruptFileError(
            f"{_line(str(places.root))}: {len(found.damaged)} damaged; "
            "each is set aside and built anew when it is next asked for"
        )
    return 0


def _prune(args: argparse.Namespace, places: Places) -> int:
    from export.cache.admin import prune

    return _print_removed(args, places, prune(places, args.max_bytes, args.older_than_days))


def _clear(args: argparse.Namespace, places: Places) -> int:
    from export.cache.admin import clear

    return _print_removed(args, places, clear(places))


def _print_removed(args: argparse.Namespace, places: Places, removed: Removed) -> int:
    from export.cache.files import size_text

    if args.json:
        common.print_json({"root": str(places.root), **dataclasses.asdict(removed)})
        return 0
    console = common.results()
    noun = "entry" if removed.entries == 1 else "entries"
    console.print(
        f"{_line(str(places.root))}: {removed.entries} {noun} removed, {size_text(removed.bytes)}; "
        f"{removed.left} left, {size_text(removed.left_bytes)}",
        markup=False,
        soft_wrap=True,
    )
    if removed.leftovers:
        console.print(f"{removed.leftovers} half-built or half-removed, of processes that died, removed too")
    if removed.in_use:
        console.print(f"{removed.in_use} stay because they are in use")
    return 0
