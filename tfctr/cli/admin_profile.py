"""``tfctr admin profile``: its options, its request, and what is printed."""

from __future__ import annotations

import argparse
from typing import Any

from tfctr.cli import common
from tfctr.errors import UsageError

_ONE = "expected one of --every N, --off, --status, --seconds S"


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("of profile")
    add = group.add_argument
    add("--every", type=int, metavar="N", help="trace one request in N, by RunMetadata of that request alone")
    add("--off", action="store_true", help="trace no more; the files stay")
    add("--status", action="store_true", help="what is on, where the files are, what was lost and why")
    add("--seconds", type=float, metavar="S", help="record the whole process for so long (60 at most), for TensorBoard")
    add("--folder", metavar="NAME", help="with --every: a folder of this name below that of the server")
    add("--max-mb", type=float, metavar="MB", help="with --every: what the files may take; the oldest go")


def body_of(args: argparse.Namespace) -> dict[str, Any] | None:
    """Of the request; None: it only asks. UsageError where the options do not fit together."""
    given = [args.every is not None, args.off, args.status, args.seconds is not None]
    if sum(given) != 1:
        raise UsageError(f"tfctr admin profile MODEL: {_ONE}")
    if args.every is None and (args.folder is not None or args.max_mb is not None):
        raise UsageError("--folder and --max-mb go with --every N")
    if args.version is not None:
        raise UsageError(f"tfctr admin profile MODEL: {args.version!r} is one word too many; all versions are traced")
    if args.status:
        return None
    if args.seconds is not None:
        return {"seconds": args.seconds}
    if args.off:
        return {"every": 0}
    if args.every < 1:
        raise UsageError(f"--every {args.every}: expected 1 or more (--off switches off)")
    options = {"folder": args.folder, "max_mb": args.max_mb}
    return {"every": args.every} | {key: value for key, value in options.items() if value is not None}


def none_given(args: argparse.Namespace) -> bool:
    """Whether none of the options of profile is there."""
    return not (args.off or args.status) and all(
        getattr(args, name) is None for name in ("every", "seconds", "folder", "max_mb")
    )


def show(answer: dict[str, Any]) -> None:
    """A few lines."""
    model, told = answer["model"], answer["profile"]
    say = common.results().print
    lines = [f"{model}: " + (f"1 request in {told['every']} is traced" if told["every"] else "no request is traced")]
    if told.get("recorded"):
        lines.append(f"recorded: {told['recorded']} (tensorboard --logdir {told['folder']})")
    if told["folder"]:
        lines.append(
            f"{told['files']} files, {told['bytes'] / 1e6:.1f} of {told['max_mb']:g} MB, in {told['folder']}"
            f"{': the latest is ' + told['latest'] if told['latest'] else ''}"
        )
    if told["page"]:
        lines.append(f"page: {told['page']}")
    if told["every"] and not told["traced"]:
        lines.append("none was traced yet: the first request that is due on an executor only prepares its traced form")
    waiting = told["traced"] - told["written"] - told["write_failed"]
    if told["every"] and waiting > 0:
        lines.append(f"waiting to be written, by a process of low priority: {waiting}")
    lost = {
        "not traced, as earlier ones were not written yet": told["dropped"],
        "not traced, as the run failed": told["run_failed"],
        "not written": told["write_failed"],
    }
    lines += [f"{why}: {count}" for why, count in lost.items() if count]
    lines += [f"not traced: {one}" for one in told.get("untraced", ())]
    lines += [f"last trouble: {text}" for text in (told["error"], told.get("page_error")) if text]
    if told["recording"]:
        lines.append(told["recording"])
    for line in lines:
        say(line, markup=False, soft_wrap=True)
