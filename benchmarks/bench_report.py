"""The effect table: each pass, engine and session setting, on and off, on the five reference models.

Run: make bench-report, or python -m benchmarks.bench_report [--quick] [--models din,dlrm] [--json FILE] [--out DIR]

Each setting is switched on alone, against a bundle with every pass off that can be off (but prune_training, which all
others need), and left out alone, against everything that fits together. Sides run in turn in one process. Writes
DIR/report.html and DIR/report.md (DIR: benchmarks/), and with --readme the table of the README. About 10 minutes on two
quiet cores, 3 with --quick, which times fewer rounds of smaller models. A setting that fails has its error in its row,
and the exit code is 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.effects.harness import Effort, Step, run_model, steps_of
from benchmarks.effects.markdown import effect_table, put_table, report_markdown
from benchmarks.effects.models import Shape
from benchmarks.effects.page import report_page
from benchmarks.effects.rows import FAILED, LOSS, MEASURED, Report, Row
from benchmarks.effects.settings import CONTEXTS, Setting, settings

if TYPE_CHECKING:
    import rich.progress

HERE = pathlib.Path(__file__).parent
README = HERE.parent / "README.md"
_CLOCK_WORDS = {
    "wall": "wall",
    "cpu": "CPU seconds of all threads (the machine was busy): nothing can be said of threads and executors",
}
QUICK_SHAPE = Shape(vocabulary=20_000, hidden=(256, 128), steps=20)
QUICK_EFFORT = Effort(rounds=30, seconds=2.5, warmup_rounds=2)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, writes both files. Returns 1 where a row failed."""
    args = _parser().parse_args(argv)
    from examples.models import REFERENCE_MODELS

    names = args.models.split(",") if args.models else list(REFERENCE_MODELS)
    unknown = [name for name in names if name not in REFERENCE_MODELS]
    if unknown:
        print(f"no model {unknown[0]!r}; the models are {', '.join(REFERENCE_MODELS)}", file=sys.stderr)
        return 2
    shape, effort = (QUICK_SHAPE, QUICK_EFFORT) if args.quick else (Shape(), Effort())
    if args.rounds:
        effort = dataclasses.replace(effort, rounds=args.rounds)
    if args.clock == "cpu":  # of the wall's seconds others have most
        effort = dataclasses.replace(effort, clock="cpu", seconds=3 * effort.seconds)
    report = measure(names, settings(), shape, effort, quick=args.quick)
    write(report, args.out, args.readme)
    if args.json:
        args.json.write_text(json.dumps(report.to_json(), indent=1) + "\n")
    print("\n".join(_told(report)))
    return 1 if report.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller models, fewer rounds: about 3 minutes")
    parser.add_argument("--models", default="", metavar="A,B", help="names, comma-separated; default: all five")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="of each group of contestants")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: seconds of all threads, where the machine is busy; it says nothing of threads and executors",
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all figures here")
    parser.add_argument("--out", type=pathlib.Path, default=HERE, metavar="DIR", help="where the report goes")
    parser.add_argument("--readme", action="store_true", help="put the table into README.md too")
    return parser


def measure(
    names: Sequence[str], chosen: Sequence[Setting], shape: Shape, effort: Effort, *, quick: bool = False
) -> Report:
    """Rows of all models. A model that can't be made has its error in every row."""
    import tensorflow as tf

    import tfctr

    start, load = time.perf_counter(), os.getloadavg()[0]
    rows: list[Row] = []
    trained: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch, _progress() as bars:
        models = bars.add_task("models", total=len(names))
        for name in names:
            folder = pathlib.Path(scratch) / name
            folder.mkdir()
            task = bars.add_task(name, total=steps_of(chosen))
            try:
                found, trained[name] = run_model(
                    name, chosen, folder, pathlib.Path(scratch) / "cache", shape, effort, _step(bars, task, name)
                )
            except Exception as error:  # of any kind: told in the rows of this model, the others go on
                found = _all_failed(name, chosen, f"{type(error).__name__}: {error}")
            rows += found
            bars.remove_task(task)
            bars.advance(models)
            _forget(folder)
    conditions = {
        "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC") + (", --quick" if quick else ""),
        "machine": _machine(),
        "load": f"{load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end (this run is 1 of it)",
        "versions": f"tfctr {tfctr.__version__}, TensorFlow {tf.__version__}",
        "models": shape.words(),
        "training loss": ", ".join(
            f"{k} {v['first_loss']:.2f} to {v['last_loss']:.2f}" for k, v in trained.items() if v
        ),
        "rounds": f"up to {effort.rounds} of each group of contestants, {effort.seconds:g} s at most",
        "clock": _CLOCK_WORDS[effort.clock],
        "took": f"{time.perf_counter() - start:.0f} s",
    }
    return Report(conditions=conditions, models=tuple(names), rows=tuple(rows))


def _step(bars: rich.progress.Progress, task: Any, name: str) -> Step:
    def step(what: str) -> None:
        bars.update(task, advance=1, description=f"{name}: {what}"[:70])

    return step


def _progress() -> rich.progress.Progress:
    import rich.console
    import rich.progress as made

    console = rich.console.Console(stderr=True)
    columns = (made.TextColumn("{task.description:<70}"), made.BarColumn(30), made.TimeElapsedColumn())
    return made.Progress(*columns, console=console, transient=True)


def _all_failed(name: str, chosen: Sequence[Setting], reason: str) -> list[Row]:
    reason = reason.splitlines()[0][:300]
    return [
        Row(model=name, setting=setting.name, context=context, status=FAILED, reason=reason, request=setting.request)
        for context in CONTEXTS
        for setting in chosen
    ]


def _forget(folder: pathlib.Path) -> None:
    import gc
    import shutil

    from benchmarks.embedding_duel import free_memory

    shutil.rmtree(folder, ignore_errors=True)
    gc.collect()
    free_memory()


def _machine() -> str:
    from benchmarks.embedding_duel import machine
    from tfctr.engines.isa import cpu_isa

    found = machine()
    return f"{found['cpu']}, {found['cores']} cores, {cpu_isa()}"


def write(report: Report, folder: pathlib.Path, readme: bool) -> None:
    """Both files, each by a temporary name; the README's table where asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"report.md": report_markdown(report, settings()), "report.html": report_page(report, settings())}
    for name, text in texts.items():
        made = folder / f".{name}.tmp"
        made.write_text(text, encoding="utf-8")
        made.replace(folder / name)
    if readme:
        put_table(README, effect_table(report, settings()))


def _told(report: Report) -> list[str]:
    losses = [row for row in report.rows if row.verdict == LOSS]
    measured = sum(row.status == MEASURED for row in report.rows)
    lines = [f"{measured} comparisons on {len(report.models)} models in {report.conditions['took']}"]
    lines += [
        f"loses: {row.model}, {row.setting}, {row.context}: {row.ratio:.2f} [{row.low:.2f}, {row.high:.2f}]"
        for row in losses
    ]
    return lines + [f"FAILED: {row.model}, {row.setting}, {row.context}: {row.reason}" for row in report.failed]


if __name__ == "__main__":
    raise SystemExit(main())
