"""``tfctr bisect``: which pass, which rewrite and which lookup make a converted model differ."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tfctr.cli import common, convert_options
from tfctr.cli.convert import progress_bar

if TYPE_CHECKING:
    from graph_opt.bisect import Findings

HELP = "find the pass, the rewrite and the lookup that make a converted model differ"
DESCRIPTION = """Converts the SavedModel IN one pass at a time and, after each, runs it on the inputs: as it is, with
packed inputs, and with user features once per user where those forms exist. Names the first pass after
which the outputs leave the tolerance, narrows that down to its rewrites, lookups, first wrong tensor and
the fewest rows, and writes a minimal reproduction: a small SavedModel for stock TensorFlow, the same as
a bundle, the inputs and a script that shows both.

  tfctr bisect model/ --inputs rows.npz --out repro/      then: python repro/run.py
  tfctr bisect model/ --inputs rows.npz --user-features 'user_*' --tolerance 1e-4
  tfctr bisect model/ --inputs rows.npz --what speed      which pass makes it slower?

Exit code 0: nothing differs; 3: a difference was found."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "bisect", help=HELP, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("input", metavar="IN", help="the original SavedModel (not the bundle)")
    common.add_inputs_option(parser)
    parser.add_argument(
        "--rows",
        type=common.count,
        default=64,
        metavar="N",
        help="rows to generate when no inputs are given (default: 64)",
    )
    parser.add_argument(
        "--what", choices=("outputs", "speed"), default="outputs", help="what differs (default: outputs)"
    )
    parser.add_argument(
        "--tolerance",
        type=convert_options.limit,
        default=None,
        metavar="X",
        help="largest |difference| of floats that counts as equal (default: 1e-6 + 1e-5 |b|, as verify; with "
        "--table-dtype the limit of its gate)",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="new folder for the minimal reproduction (default: none is written)"
    )
    parser.add_argument(
        "--rounds", type=common.count, default=60, metavar="N", help="rounds of timing for --what speed (default: 60)"
    )
    parser.add_argument(
        "--samples", metavar="FILE", help="samples for --user-features auto and the gate (default: --inputs)"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON (progress stays on stderr)")
    common.add_model_options(parser)
    convert_options.add_options(parser)
    convert_options.add_dense(parser, "tensorflow, so that no engine is searched")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import tfctr  # noqa: F401 - checks TensorFlow's version and loads the op library
    from tfctr.bisecting import bisect
    from tfctr.errors import UsageError

    if args.what == "speed" and (args.out or args.tolerance is not None):
        flag = "--out" if args.out else "--tolerance"
        raise UsageError(f"{flag}: is for --what outputs; speed is told in numbers")
    if args.rounds < 10:
        raise UsageError(f"--rounds {args.rounds}: at least 10, or the noise says everything")
    label, label_output = common.split_label(args.label)
    samples = args.samples or args.inputs
    options = convert_options.options_of(args, samples_path=samples, label=label, label_output=label_output)
    with progress_bar() as (progress, note):
        findings = bisect(
            args.input,
            args.inputs,
            signature=args.signature,
            what=args.what,
            tolerance=args.tolerance,
            out=args.out,
            rows=args.rows,
            rounds=args.rounds,
            options=options,
            dense=convert_options.dense_of(args, "tensorflow"),
            progress=progress,
            note=note,
        )
    if args.json:
        common.print_json(findings.as_dict())
    else:
        _print(findings)
    return 3 if findings.found else 0


def _print(findings: Findings) -> None:
    console = common.results()
    if findings.what == "speed":
        _print_speed(findings)
    else:
        table = common.table(
            "After each pass",
            "pass",
            "rewrites",
            "outputs",
            "largest difference",
            "",
            right=("rewrites", "largest difference"),
        )
        for step in findings.steps:
            drift = f"{step.drift:.2e}" if step.status in ("equal", "differs") else ""
            table.add_row(step.name, str(step.fired), _status(step.status), drift, step.note)
        console.print(table)
    if not findings.found:
        told = (
            "no pass makes it slower beyond the noise"
            if findings.what == "speed"
            else "the outputs are equal after every pass"
        )
        console.print(f"nothing differs: {told}")
    else:
        _print_culprit(findings)
    for note in findings.notes:
        console.print(f"note: {note}", markup=False)


def _print_speed(findings: Findings) -> None:
    table = common.table(
        "After each pass", "pass", "rewrites", "median ms", "time after / before", "95 % interval", "", "",
        right=("rewrites", "median ms", "time after / before", "95 % interval"),
    )  # fmt: skip
    for step in findings.steps:
        if step.ratio is None:
            table.add_row(step.name, str(step.fired), "", "", "", _status(step.status), step.note)
            continue
        interval = f"{step.low:.2f} to {step.high:.2f}"
        numbers = (f"{step.median_ms:.3f}", f"{step.ratio:.2f}", interval)
        table.add_row(step.name, str(step.fired), *numbers, _status(step.status), step.note)
    common.results().print(table)


def _print_culprit(findings: Findings) -> None:
    console = common.results()
    verb = "slower" if findings.what == "speed" else "different"
    console.print(f"made {verb} by the pass [bold]{findings.culprit}[/]")
    lines = {
        "lookup": ", ".join(findings.lookups),
        "rewrite": ", ".join(findings.rewrites),
        "first tensor with other values": findings.tensor,
        "rows that show it": ", ".join(map(str, findings.rows)),
    }
    for name, text in lines.items():
        if text:
            console.print(f"  {name}: {text}", markup=False)
    found = findings.difference
    if found is not None:
        row = f", row {found.row}" if found.row is not None else ""
        output = f"output {found.output}{row}" if found.output else "call"
        console.print(f"  {output} ({found.form} form): {found.reason}", markup=False)
        if found.want or found.got:
            console.print(f"    original {found.want}, converted {found.got}", markup=False)
    if findings.reproduction is not None:
        console.print(f"reproduction: {findings.reproduction}", markup=False)
        console.print(f"  python {findings.reproduction / 'run.py'}", markup=False)


def _status(status: str) -> str:
    colours = {"equal": "green", "faster": "green", "differs": "red", "slower": "red", "failed": "yellow"}
    return f"[{colours[status]}]{status}[/]" if status in colours else status
