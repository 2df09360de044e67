"""The main job on a model trained on the spot: train, convert, compare, measure.  python -m examples.demo [--data DIR]

A Wide & Deep is trained with Keras on generated clicks (or on MovieLens-100k with ``--data``), saved as a SavedModel
and converted into a bundle. Both are run on the test set, outputs and AUC are compared, and whole predict calls are
timed in turn: stock TensorFlow's signature function against ``tfctr.ServingSession``. At the end both are profiled:
a page shows where the time of a call went, and where it goes now.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import io
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # a small model on the CPU, also where there is a GPU

import numpy as np
import rich.console
import rich.markup
import rich.table

from tfctr.errors import OutputsDifferError, TfctrError, UsageError

if TYPE_CHECKING:
    from examples.schema import ClickData

Predict = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
BATCHES = (32, 256)
PROFILED_ROWS, PROFILED_STEPS = 256, 30
SCORING_BATCH = 1000
MARK = ".tfctr_demo"
# |a-b| <= absolute + 1e-5 |b|, as `tfctr convert` and `tfctr verify` demand: 1e-5 where an engine runs the dense tower.
ABSOLUTE, ABSOLUTE_ENGINE, RELATIVE = 1e-6, 1e-5, 1e-5


class Narrator:
    """Prints what happens, one line per step with its seconds."""

    def __init__(self, console: rich.console.Console) -> None:
        self.console = console
        self.started = self.last = time.monotonic()

    def __call__(self, step: str, found: str) -> None:
        now = time.monotonic()
        self.console.print(f"[bold]{step:<9}[/bold] {found}  [dim]{now - self.last:.1f} s[/dim]", highlight=False)
        self.last = now

    @property
    def total(self) -> float:
        return time.monotonic() - self.started


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo; returns the exit code (0 ok, 2 bad input, 3 outputs differ, 1 anything else)."""
    try:
        run(parse(argv), make_console())
    except TfctrError as error:
        print(f"demo: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def make_console() -> rich.console.Console:
    """Standard output; 120 columns where it is no terminal (rich would take 80)."""
    return rich.console.Console(width=None if sys.stdout.isatty() else 120)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", metavar="DIR", help="MovieLens-100k in GroupLens' or RecBole's layout (default: generated)"
    )
    parser.add_argument(
        "--out", metavar="DIR", default="demo_out", help="where model, bundle and report go (%(default)s)"
    )
    parser.add_argument("--rows", type=int, default=60_000, help="generated impressions, at least 1000 (%(default)s)")
    parser.add_argument(
        "--epochs", type=int, default=None, help="passes over the training rows (default: 4, MovieLens 3)"
    )
    parser.add_argument("--rounds", type=int, default=150, help="timed calls of each contestant (%(default)s)")
    args = parser.parse_args(argv)
    if args.rows < 1000 or args.rounds < 1 or (args.epochs is not None and args.epochs < 1):
        parser.error("--rows must be at least 1000, --epochs and --rounds at least 1")
    return args


def run(args: argparse.Namespace, console: rich.console.Console, data: ClickData | None = None) -> dict[str, Any]:
    """The whole demo, on ``data`` or on what the arguments name; returns its figures."""
    tell = Narrator(console)
    out = Path(args.out)
    data = data or _data(args, tell)
    _claim(out)
    model, bundle, report = out / "model", out / "bundle", out / "report.html"
    _train(args, data, model, tell)
    stock = _stock(model)
    converted = _convert(model, bundle, report, tell)
    import tfctr

    with tfctr.ServingSession(bundle) as session, tfctr.ServingSession(bundle, engine="tensorflow") as plain:
        figures = _compare(data, stock, session.predict, converted["dense"], tell)
        runs: dict[str, Predict] = {"tfctr": plain.predict} | (
            {"engine": session.predict} if converted["dense"]["engine"] else {}
        )
        timings = _measure(data, stock, runs, args.rounds, tell)
    profile = _profile(data, model, bundle, out, tell)
    _summary(console, data, converted, figures, timings)
    console.print(f"\nSavedModel  {model}\nBundle      {bundle}\nReport      {report}", highlight=False)
    for head, text in (("What was slow", profile["slow"]), ("What changed", profile["changed"])):
        console.print(f"\n[bold]{head}.[/bold] {rich.markup.escape(text)}", highlight=False)
    for text in profile["warnings"]:
        console.print(f"[yellow]{rich.markup.escape(text)}[/yellow]", highlight=False)
    console.print(f"\nSee it on one scale, before and after: open {profile['page']} in a browser", highlight=False)
    body, command = _write_request(data, out), _command()
    console.print(f"\nServe it:   {command} serve {bundle}", highlight=False)
    console.print(f"and ask it: curl -d @{body} http://127.0.0.1:8501/v1/models/{bundle.name}:predict", highlight=False)
    console.print(f"\n[dim]Total {tell.total:.0f} s. Next: {command} inspect {bundle}[/dim]", highlight=False)
    return {**converted, "timings": timings, **figures, "profile": profile}


def _claim(out: Path) -> None:
    """Makes the output folder; what is in it may be replaced only if a demo made it."""
    mark = out / MARK
    if not mark.exists() and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and was not made by the demo; name another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    mark.write_text(
        "Made by `make demo`; the next run replaces model, bundle, report.html and profile here.\n", encoding="utf-8"
    )


def _data(args: argparse.Namespace, tell: Narrator) -> ClickData:
    if args.data:
        from examples import movielens

        data = movielens.load(args.data)
    else:
        from examples import click_data

        data = click_data.generate(args.rows)
    rate = float(data.train_labels.mean())
    tell(
        "data",
        f"{data.name}: {len(data.features)} sparse features, {rate:.0%} clicks, {len(data.test_labels):,} test rows",
    )
    return data


def _train(args: argparse.Namespace, data: ClickData, folder: Path, tell: Narrator) -> None:
    import keras

    from examples import wide_deep

    keras.utils.set_random_seed(1)
    model = wide_deep.build(data.features, data.crosses)
    epochs = args.epochs or (3 if args.data else 4)

    class Losses(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            tell("train", f"epoch {epoch + 1} of {epochs}, loss {(logs or {}).get('loss', float('nan')):.4f}")

    wide_deep.train(model, data, epochs, callbacks=[Losses()])
    shutil.rmtree(folder, ignore_errors=True)
    wide_deep.save(model, data.features, str(folder))
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    tell("save", f"SavedModel, {len(model.weights)} variables, {size / 1e6:.1f} MB")


def _stock(model: Path) -> Predict:
    """Stock TensorFlow: the loaded signature as a function, NumPy at both ends."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(model))
    function = loaded.signatures["serving_default"]

    def predict(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert loaded is not None  # keeps the variables alive
        return {k: v.numpy() for k, v in function(**{k: tf.constant(v) for k, v in inputs.items()}).items()}

    return predict


def _convert(model: Path, bundle: Path, report: Path, tell: Narrator) -> dict[str, Any]:
    import tfctr
    from tfctr.engines.providers import why_not

    # Not "auto": a tower as small as this one may be as fast in TensorFlow, and an engine is to be seen.
    dense = "auto" if why_not("openvino") else "openvino"
    found = tfctr.convert(model, bundle, force=bundle.exists(), report_path=report, dense=dense).as_dict()
    lookups = found["signatures"]["serving_default"]["lookups"]
    fused = sum(entry["status"] == "fused" for entry in lookups)
    tell("convert", f"{fused} of {len(lookups)} lookups fused, each proven against the original")
    tower = engine_words(found)
    tell("engine", tower["line"])
    return {"lookups": lookups, "ops": found["ops"], "dense": tower}


def engine_words(manifest: dict[str, Any]) -> dict[str, Any]:
    """What runs the dense tower of the model's one signature: engine ("" for TensorFlow), precision, parity, a line."""
    from tfctr.bundle import dense_summary

    (tower,) = dense_summary.towers(manifest)
    if not tower.engine:
        line = f"the dense tower stays on TensorFlow: {tower.reason}"
    else:
        versus = tower.entry.get("versus_tensorflow") or {}
        auto = "would take it too" if versus.get("faster") else "would leave it on TensorFlow"
        line = (
            f"{tower.engine} in {tower.precision} runs the dense tower, as the demo asks; {tower.parity}; "
            f"--dense auto {auto}: {versus.get('reason', 'not measured')}"
        )
    return {"engine": tower.engine, "precision": tower.precision, "parity": tower.parity, "line": line}


def _compare(data: ClickData, stock: Predict, fused: Predict, dense: dict[str, Any], tell: Narrator) -> dict[str, Any]:
    """Scores of the whole test set by both, their largest difference and both AUCs."""
    from examples.schema import take
    from examples.wide_deep import OUTPUT, request
    from tfctr.profiling.auc import auc

    scores: dict[str, list[np.ndarray]] = {"stock": [], "tfctr": []}
    for start in range(0, len(data.test_labels), SCORING_BATCH):
        inputs = request(take(data.test, np.arange(start, min(start + SCORING_BATCH, len(data.test_labels)))))
        scores["stock"].append(stock(inputs)[OUTPUT][:, 0])
        scores["tfctr"].append(fused(inputs)[OUTPUT][:, 0])
    before, after = np.concatenate(scores["stock"]), np.concatenate(scores["tfctr"])
    difference = np.abs(after - before)
    absolute = ABSOLUTE_ENGINE if dense["engine"] else ABSOLUTE
    if not np.all(difference <= absolute + RELATIVE * np.abs(before)):
        raise OutputsDifferError(f"the bundle's scores differ from the model's by up to {difference.max():.2e}")
    figures = {
        "auc_stock": auc(data.test_labels, before),
        "auc_tfctr": auc(data.test_labels, after),
        "max_difference": float(difference.max()),
    }
    tell("compare", f"{len(before):,} scores, largest difference {figures['max_difference']:.1e}")
    return figures


def _measure(
    data: ClickData, stock: Predict, runs: dict[str, Predict], rounds: int, tell: Narrator
) -> dict[int, dict[str, Any]]:
    """Whole predict calls in milliseconds, all taking turns, by batch size. ratio: of stock to "tfctr"."""
    from examples.schema import take
    from examples.wide_deep import request
    from tfctr.profiling.paired import measure_paired, ratio

    found = {}
    for batch in BATCHES:
        inputs = request(take(data.test, np.arange(min(batch, len(data.test_labels)))))
        calls = {name: functools.partial(call, inputs) for name, call in {"stock": stock, **runs}.items()}
        times = measure_paired(calls, rounds, budget_s=8.0)
        found[batch] = {**{k: v.as_dict() for k, v in times.items()}, "ratio": ratio(times["stock"], times["tfctr"])}
    tell("measure", f"{rounds} calls each at batch {' and '.join(map(str, BATCHES))}, taking turns")
    return found


def _profile(data: ClickData, model: Path, bundle: Path, out: Path, tell: Narrator) -> dict[str, Any]:
    """``tfctr profile`` of both on rows of the test set; what it tells, and ``page``, the path to open."""
    from examples.schema import take
    from examples.wide_deep import request
    from tfctr.cli.main import main as tfctr_command

    rows, folder = out / "rows.npz", out / "profile"
    np.savez(rows, **request(take(data.test, np.arange(min(PROFILED_ROWS, len(data.test_labels))))))
    arguments = ["profile", str(bundle), "--baseline", str(model), "--inputs", str(rows), "--out", str(folder)]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = tfctr_command([*arguments, "--steps", str(PROFILED_STEPS), "--json"])
    if code:
        raise TfctrError(f"tfctr {' '.join(arguments)} ended with code {code}")
    page = (folder / "index.html").resolve()
    tell("profile", f"{PROFILED_STEPS} steps of each at batch {PROFILED_ROWS}, one thread per operation, all recorded")
    return {**json.loads(printed.getvalue()), "page": str(page)}


def _write_request(data: ClickData, out: Path) -> Path:
    """A body for ``tfctr serve``: two rows of the test set in TensorFlow Serving's JSON, one list per input."""
    from examples.schema import take
    from examples.wide_deep import request

    def plain(value: Any) -> Any:
        return [plain(one) for one in value] if isinstance(value, list) else _text(value)

    body = out / "request.json"
    inputs = {name: plain(array.tolist()) for name, array in request(take(data.test, np.arange(2))).items()}
    body.write_text(json.dumps({"inputs": inputs}), encoding="utf-8")
    return body


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _command() -> str:
    """``tfctr`` as this shell would find it; `make` puts it into .venv without touching the path."""
    beside = Path(sys.executable).with_name("tfctr")
    return "tfctr" if shutil.which("tfctr") or not beside.exists() else os.path.relpath(beside)


def _summary(
    console: rich.console.Console,
    data: ClickData,
    converted: dict[str, Any],
    figures: dict[str, Any],
    timings: dict[int, dict[str, Any]],
) -> None:
    table = _table("What was fused", "ids", "fused", "left", "features")
    groups = collections.defaultdict(list)
    for entry in converted["lookups"]:
        groups[lookup_kind(entry)].append(entry)
    for kind, entries in sorted(groups.items()):
        left = [entry for entry in entries if entry["status"] != "fused"]
        names = ", ".join(sorted({short_name(entry["name"]) for entry in entries}))
        reasons = "".join(f"\nleft: {short_name(e['name'])}: {e.get('reason') or 'no reason given'}" for e in left)
        table.add_row(kind, str(len(entries) - len(left)), str(len(left)), names + reasons)
    console.print()
    console.print(table)
    ops = converted["ops"]
    console.print(f"Operations in the graph: {ops['before']} before, {ops['after']} after.", highlight=False)
    console.print(f"Dense tower: {converted['dense']['line']}.\n", highlight=False)
    title = "One predict call, NumPy in and out, milliseconds"
    known = [who for who in ("stock", "tfctr", "engine") if who in next(iter(timings.values()))]
    heads = [f"{who} {what}" for who in known for what in ("median", "p99")]
    table = _table(title, "batch", *heads, "faster")
    for batch, times in timings.items():
        cells = [f"{times[who][what]:.2f}" for who in known for what in ("median_ms", "p99_ms")]
        table.add_row(str(batch), *cells, f"{times['ratio']['median']:.1f}x")
    console.print(table)
    told = "Stock TensorFlow may use every core here; tfctr used one thread."
    if "engine" in known:
        told += " tfctr: the bundle with its tower on TensorFlow; engine: the same bundle with its engine."
    console.print(f"{told}\n", highlight=False)
    best = f"; of the planted truth itself {data.best_auc:.4f}" if data.best_auc is not None else ""
    console.print(
        f"AUC on the test set: stock {figures['auc_stock']:.4f}, tfctr {figures['auc_tfctr']:.4f}{best}.\n"
        f"Largest difference between two scores: {figures['max_difference']:.1e}.",
        highlight=False,
    )


def _table(title: str, *columns: str) -> rich.table.Table:
    """An empty table: words on the left, numbers on the right."""
    made = rich.table.Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="left" if column in ("ids", "features") else "right", overflow="fold")
    return made


def lookup_kind(entry: dict[str, Any]) -> str:
    """What a lookup reads, in words, from its entry in the report."""
    steps = " ".join(entry.get("steps") or ())
    if entry.get("form") in ("sparse", "ragged", "segments"):
        return (
            "several per row" + (", hashed" if "hash" in steps else "") + (", weighted" if entry.get("weights") else "")
        )
    if entry.get("combiner", "none") != "none":
        return "sequence"
    for step, words in (
        ("hash", "one, hashed string"),
        ("vocab", "one, from a vocabulary"),
        ("bucketize", "one, bucketized"),
    ):
        if step in steps:
            return words
    return "one per row"


def short_name(name: str) -> str:
    """A feature by its own name; a lookup on computed ids, named after a graph node, by the node's layer."""
    return name.split("/")[-2] if "/" in name else name.removesuffix("_values")


if __name__ == "__main__":
    sys.exit(main())
