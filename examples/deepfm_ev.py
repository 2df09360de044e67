"""DeepFM on embedding variables: train, evict, checkpoint, restore in a new process.  python -m examples.deepfm_ev

Ids go into the tables as they are: user and item numbers, zip codes, words of titles. Words need three occurrences
before they get a row (admission), rows that no step has updated for a quarter of the training go (eviction). Then the
model is written as one ordinary TensorFlow checkpoint, and a second process restores it and must predict the same
numbers.

MovieLens-100k (--data, or ../shared/data/ml-100k where that is there), else generated clicks.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # a small model on the CPU, also where there is a GPU

import numpy as np
import rich.console
import rich.table

from examples.demo import Narrator, make_console
from tfctr.errors import OutputsDifferError, TfctrError, UsageError

if TYPE_CHECKING:
    from examples.models.keras_deepfm_ev import Field
    from examples.schema import ClickData, Columns

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data" / "ml-100k"
BATCH, WIDTH = 256, 8
MARK = ".tfctr_deepfm_ev"
ADMITTED_AT = 3
# What of a data set enters the model, in this order; words are admitted by count.
COLUMNS = (
    "user_id",
    "item_id",
    "occupation",
    "zip",
    "genres",
    "title_words",
    "city",
    "publisher",
    "keywords",
    "query",
)
COUNTED = ("zip", "title_words", "query")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the example; returns the exit code (0 ok, 2 bad input, 3 predictions differ, 1 anything else)."""
    try:
        args = parse(argv)
        if args.restore:
            predict_restored(Path(args.restore))
        else:
            run(args, make_console())
    except TfctrError as error:
        print(f"deepfm_ev: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="deepfm_ev", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", metavar="DIR", help="MovieLens-100k in GroupLens' or RecBole's layout")
    parser.add_argument("--generated", action="store_true", help="generated clicks, also where MovieLens is there")
    parser.add_argument("--rows", type=int, default=60_000, help="generated clicks, at least 1000 (%(default)s)")
    parser.add_argument("--epochs", type=int, default=2, help="passes over the training rows (%(default)s)")
    parser.add_argument("--out", metavar="DIR", default="deepfm_ev_out", help="where the checkpoint goes (%(default)s)")
    parser.add_argument("--restore", metavar="DIR", help=argparse.SUPPRESS)  # what the second process is started with
    args = parser.parse_args(argv)
    if args.rows < 1000 or args.epochs < 1:
        parser.error("--rows must be at least 1000 and --epochs at least 1")
    if args.data is None and not args.generated and SHARED.is_dir():
        args.data = str(SHARED)
    return args


def run(args: argparse.Namespace, console: rich.console.Console) -> dict[str, Any]:
    """Train, evict, checkpoint, restore elsewhere; returns the figures."""
    tell = Narrator(console)
    out = Path(args.out)
    claim(out, MARK, "make example-ev")
    source = {"data": args.data, "rows": args.rows}
    data = load(source)
    tell("data", f"{data.name}: {len(data.train_labels):,} training rows, {len(data.test_labels):,} test rows")

    import keras

    from examples.models.keras_deepfm_ev import deepfm_ev, tables
    from tfctr.profiling.auc import auc

    keras.utils.set_random_seed(1)
    steps = args.epochs * -(-len(data.train_labels) // BATCH)
    plan = {"source": source, "steps_to_live": steps // 4}
    model = deepfm_ev(fields(data.train, plan["steps_to_live"]), WIDTH)
    found = tables(model)
    tell("tables", _rules(found))
    losses = _train(model, data, args.epochs, found, tell)
    before = predict(model, data.test)
    figures: dict[str, Any] = {"losses": losses, "auc_before": auc(data.test_labels, before)}
    figures["tables"] = evict(found)
    scores = predict(model, data.test)
    figures["auc_after"] = auc(data.test_labels, scores)
    gone, rows = (sum(t[part] for t in figures["tables"].values()) for part in ("evicted", "rows"))
    tell("evict", f"{gone:,} of {rows:,} rows, which no step had updated for {plan['steps_to_live']} of {steps} steps")
    tell("test", f"AUC {figures['auc_before']:.4f} with them, {figures['auc_after']:.4f} without")
    figures["checkpoint"] = _save(model, plan, out)
    tell("save", f"one TensorFlow checkpoint of {_megabytes(out):.1f} MB: tables, dense weights, optimizer, step")
    figures["restored"] = _restore_elsewhere(out, scores)
    tell("restore", f"in a new process: {len(scores):,} predictions, all equal to the last bit")
    console.print()
    console.print(_tables_table(figures["tables"]))
    console.print(
        f"\nids seen    with a row, or counted and still short of one\n"
        f"KB          of rows, optimizer slots, counters and index; what evicted ids leave free is for later ids\n"
        f"Checkpoint  {figures['checkpoint']}\n"
        f"Model       examples/models/keras_deepfm_ev.py; rules of tables: docs/embedding_variable.md\n"
        f"[dim]Total {tell.total:.0f} s[/dim]",
        highlight=False,
    )
    return figures


def load(source: dict[str, Any]) -> ClickData:
    """The data set that the arguments name; equal arguments give equal rows."""
    if source["data"]:
        from examples import movielens

        return movielens.load(source["data"])
    from examples import click_data

    return click_data.generate(source["rows"])


def fields(columns: Columns, steps_to_live: int) -> list[Field]:
    """The fields of the model, from the columns that the data has."""
    import tfctr
    from examples.models.keras_deepfm_ev import Field
    from examples.schema import Bag

    found = []
    for name in COLUMNS:
        if name not in columns:
            continue
        column = columns[name]
        values = column.values if isinstance(column, Bag) else column
        found.append(
            Field(
                name,
                "string" if values.dtype == object else "int64",
                several=isinstance(column, Bag),
                admission=tfctr.CounterAdmission(ADMITTED_AT) if name in COUNTED else None,
                eviction=tfctr.StepEviction(steps_to_live),
            )
        )
    return found


def dataset(columns: Columns, labels: np.ndarray | None = None) -> Any:
    """Batches of inputs by field name (and labels): tensors, ragged where a row has several ids."""
    import tensorflow as tf

    from examples.schema import Bag

    inputs = {}
    for name in (n for n in COLUMNS if n in columns):
        column = columns[name]
        if isinstance(column, Bag):
            inputs[name] = tf.RaggedTensor.from_row_splits(tf.constant(column.values), column.splits)
        else:
            inputs[name] = tf.constant(column)
    parts = inputs if labels is None else (inputs, {"click": labels[:, None]})
    return tf.data.Dataset.from_tensor_slices(parts).batch(BATCH)


def predict(model: Any, columns: Columns) -> np.ndarray:
    """Scores float32 [rows]; looks up without counting or inserting."""
    return np.asarray(model.predict(dataset(columns), verbose=0)["click"])[:, 0]


def _rules(found: dict[str, Any]) -> str:
    """Who gets a row, in words."""
    counted = [name for name, table in found.items() if table.options.admission is not None]
    rest = f" ({', '.join(counted)}: {ADMITTED_AT} times)" if counted else ""
    return f"{len(found)}, empty; an id gets its row once it occurs in training{rest}"


def _train(model: Any, data: ClickData, epochs: int, found: dict[str, Any], tell: Narrator) -> list[float]:
    """Trains in order of time; losses by epoch."""
    batches, losses = dataset(data.train, data.train_labels), []
    for epoch in range(epochs):
        losses.append(float(model.fit(batches, shuffle=False, verbose=0).history["loss"][0]))
        rows = sum(table.size() for table in found.values())
        tell("train", f"epoch {epoch + 1} of {epochs}: loss {losses[-1]:.4f}, {rows:,} rows")
    return losses


def evict(found: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Asks each table what would go, then lets it go; rows and bytes by table."""
    figures = {}
    for name, table in found.items():
        rows, size, seen = int(table.size()), int(table.bytes()), int(table.size()) + int(table.counters())
        plan = table.evict(dry_run=True)
        report = table.evict()
        figures[name] = {
            "admitted_at": ADMITTED_AT if table.options.admission is not None else 1,
            "seen": seen,
            "rows": rows,
            "planned": int(plan.rows),
            "evicted": int(report.rows),
            "counters": int(report.counters),
            "left": int(table.size()),
            "bytes": size,
            "freed": int(report.bytes),
        }
    return figures


def _save(model: Any, plan: dict[str, Any], out: Path) -> str:
    import tensorflow as tf

    path = tf.train.Checkpoint(model=model).write(str(out / "checkpoint" / "model"))
    (out / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    return str(path)


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def predict_restored(out: Path) -> None:
    """The second process: the model anew, the checkpoint into it, predictions into a file."""
    import tensorflow as tf

    from examples.models.keras_deepfm_ev import deepfm_ev

    try:
        plan = json.loads((out / "plan.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{out / 'plan.json'}: {error.strerror}; --restore takes a folder of this example") from error
    data = load(plan["source"])
    model = deepfm_ev(fields(data.train, plan["steps_to_live"]), WIDTH)
    model.optimizer.build(model.trainable_variables)  # else Adam's slots come with the first training step
    status = tf.train.Checkpoint(model=model).read(str(out / "checkpoint" / "model"))
    status.assert_existing_objects_matched().assert_consumed()
    np.save(out / "restored.npy", predict(model, data.test))


def _restore_elsewhere(out: Path, scores: np.ndarray) -> int:
    """Runs this module anew on ``out``; the number of predictions, which must equal ``scores`` bit for bit."""
    (out / "restored.npy").unlink(missing_ok=True)
    command = [sys.executable, "-m", "examples.deepfm_ev", "--restore", str(out.resolve())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OutputsDifferError(f"the process that restores ended with {done.returncode}: {done.stderr[-2000:]}")
    restored = np.load(out / "restored.npy")
    if not np.array_equal(restored, scores):
        raise OutputsDifferError(
            f"restored predictions differ by up to {np.abs(restored - scores).max():.2e}; expected equal ones"
        )
    return len(restored)


def _tables_table(figures: dict[str, dict[str, int]]) -> rich.table.Table:
    made = rich.table.Table(
        title="Tables", title_justify="left", title_style="bold", box=None, pad_edge=False, show_footer=False
    )
    for column in ("field", "row from occurrence", "ids seen", "rows", "evicted", "rows left", "KB", "of it free"):
        made.add_column(column, justify="left" if column == "field" else "right")
    for name, t in figures.items():
        cells = [f"{t[k]:,}" for k in ("admitted_at", "seen", "rows", "evicted", "left")]
        made.add_row(name, *cells, f"{t['bytes'] / 1e3:,.0f}", f"{t['freed'] / 1e3:,.0f}")
    return made


def claim(out: Path, name: str, made_by: str) -> None:
    """Makes the output folder empty; only if ``made_by``, which leaves a file ``name`` in it, made it."""
    mark = out / name
    if not mark.exists() and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and was not made by this example; name another folder with --out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    mark.write_text(f"Made by `{made_by}`; the next run replaces what is here.\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
