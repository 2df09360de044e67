"""From training to serving to an update: one model, three versions of its bundle.  python -m examples.ev_serving

A DeepFM on embedding variables (examples/deepfm_ev.py) trains on the first part of the clicks, is converted into a
bundle and served. Training goes on: new ids get rows, old ones are evicted, dense weights move. A delta carries what
changed; it is applied to the bundle on disk and, without its dense part's files being read again, to a session that is
serving. At last the version is compacted. At each step a new process predicts the test rows, and they must be what the
model in training predicts.

MovieLens-100k (--data, or ../shared/data/ml-100k where that is there), else generated clicks.
"""

from __future__ import annotations

import argparse
import json
import os
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

from examples import deepfm_ev
from examples.demo import ABSOLUTE, RELATIVE, Narrator, make_console
from tfctr.errors import OutputsDifferError, TfctrError, UsageError

if TYPE_CHECKING:
    from examples.schema import ClickData, Columns

ROOT = Path(__file__).resolve().parent.parent
MARK = ".tfctr_ev_serving"
WARM_UP = 0.7  # of the training rows, in order of time: what the first version has seen


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the example; returns the exit code (0 ok, 2 bad input, 3 predictions differ, 1 anything else)."""
    try:
        args = parse(argv)
        if args.serve:
            serve(Path(args.serve), Path(args.out))
        else:
            run(args, make_console())
    except TfctrError as error:
        print(f"ev_serving: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="ev_serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", metavar="DIR", help="MovieLens-100k in GroupLens' or RecBole's layout")
    parser.add_argument("--generated", action="store_true", help="generated clicks, also where MovieLens is there")
    parser.add_argument("--rows", type=int, default=60_000, help="generated clicks, at least 1000 (%(default)s)")
    parser.add_argument("--out", metavar="DIR", default="ev_serving_out", help="what is written (%(default)s)")
    parser.add_argument("--serve", metavar="BUNDLE", help=argparse.SUPPRESS)  # what other processes are started with
    args = parser.parse_args(argv)
    if args.rows < 1000:
        parser.error("--rows must be at least 1000")
    if args.data is None and not args.generated and deepfm_ev.SHARED.is_dir():
        args.data = str(deepfm_ev.SHARED)
    return args


def run(args: argparse.Namespace, console: rich.console.Console) -> dict[str, Any]:
    """Train, convert, serve; train on, delta, apply, serve; compact. Returns the figures."""
    import keras

    import tfctr
    from examples.models.keras_deepfm_ev import deepfm_ev as build
    from examples.models.keras_deepfm_ev import tables

    tell = Narrator(console)
    out = Path(args.out)
    deepfm_ev.claim(out, MARK, "make example-serving")
    source = {"data": args.data, "rows": args.rows}
    (out / "plan.json").write_text(json.dumps(source), encoding="utf-8")
    data = deepfm_ev.load(source)
    tell("data", f"{data.name}: {len(data.train_labels):,} training rows, {len(data.test_labels):,} test rows")
    keras.utils.set_random_seed(1)
    steps = -(-len(data.train_labels) // deepfm_ev.BATCH)
    model = build(deepfm_ev.fields(data.train, steps // 4), deepfm_ev.WIDTH)
    found = tables(model)
    first = int(len(data.train_labels) * WARM_UP)

    train(model, data, slice(0, first))
    rows_before = {name: int(table.size()) for name, table in found.items()}
    tfctr.keras.export(model, out / "saved" / "1")
    tell("train", f"on the first {first:,} rows; {sum(rows_before.values()):,} rows in {len(found)} tables")
    # The tower stays in TensorFlow: "auto" measures, and might choose otherwise in the one compared below.
    tfctr.convert(out / "saved" / "1", out / "bundles" / "1", dense="tensorflow")
    scores = {"1": deepfm_ev.predict(model, data.test)}
    tell("convert", f"bundle of {megabytes(out / 'bundles' / '1'):.1f} MB; tables are files, mapped by whoever serves")
    check(elsewhere(out, "1"), scores["1"], "bundle 1")
    tell("serve", f"in a new process: {len(data.test_labels):,} predictions, those of the model in training")

    with tfctr.ServingSession(out / "bundles" / "1") as session:
        check(scored(session, data.test), scores["1"], "the session")
        train(model, data, slice(first, len(data.train_labels)))
        evicted = sum(t["evicted"] for t in deepfm_ev.evict(found).values())
        tfctr.keras.export(model, out / "saved" / "2")
        scores["2"] = deepfm_ev.predict(model, data.test)
        tell("train on", f"on the other {len(data.train_labels) - first:,} rows; {evicted:,} rows evicted")
        delta = tfctr.make_delta(out / "bundles" / "1", out / "saved" / "2", out / "deltas" / "2")
        tell("delta", f"{megabytes(out / 'deltas' / '2'):.1f} MB, the dense weights among them")
        session.apply_deltas([out / "deltas" / "2"])
        check(scored(session, data.test), scores["2"], "the session after the delta")
        tell("in memory", "the running session took the delta; its next answers are those of the model now")

    tfctr.apply_delta(out / "bundles" / "1", [out / "deltas" / "2"], out / "bundles" / "2")
    updated = elsewhere(out, "2")
    check(updated, scores["2"], "version 2")
    tell("on disk", "bundle 2 = bundle 1's files, linked, and overlays; served in a new process")
    tfctr.compact(out / "bundles" / "2", out / "bundles" / "2-compact")
    same(elsewhere(out, "2-compact"), updated, "the compacted version")
    tell("compact", f"overlays worked in: {megabytes(out / 'bundles' / '2-compact'):.1f} MB, the same to the last bit")
    tfctr.convert(out / "saved" / "2", out / "bundles" / "2-full", dense="tensorflow")
    same(elsewhere(out, "2-full"), updated, "a full conversion")
    tell("full", "a full conversion of the newer model gives the same to the last bit")
    rows_after = {name: int(table.size()) for name, table in found.items()}
    figures = {"rows_before": rows_before, "rows_after": rows_after, "evicted": evicted, "delta": delta.as_dict()}
    console.print()
    console.print(table_of(figures))
    console.print(f"\nFormat and rules of deltas: docs/deltas.md\n[dim]Total {tell.total:.0f} s[/dim]", highlight=False)
    return figures


def train(model: Any, data: ClickData, rows: slice) -> None:
    """One pass over some of the training rows, in order of time."""
    from examples.schema import take

    part = take(data.train, np.arange(rows.start, rows.stop))
    model.fit(deepfm_ev.dataset(part, data.train_labels[rows]), shuffle=False, verbose=0)


def serve(bundle: Path, out: Path) -> None:
    """What the other processes do: predictions of the test rows by a bundle, into a file."""
    import tfctr

    try:
        source = json.loads((out / "plan.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{out / 'plan.json'}: {error.strerror}; --out takes a folder of this example") from error
    with tfctr.ServingSession(bundle) as session:
        np.save(out / "scores.npy", scored(session, deepfm_ev.load(source).test))


def scored(session: Any, columns: Columns) -> np.ndarray:
    """Scores float32 [rows] by a session, batch by batch."""
    return np.concatenate([session.predict(batch)["click"][:, 0] for batch in deepfm_ev.dataset(columns)])


def elsewhere(out: Path, version: str) -> np.ndarray:
    """Predictions of ``bundles/version`` by a new process."""
    (out / "scores.npy").unlink(missing_ok=True)
    bundle = (out / "bundles" / version).resolve()
    command = [sys.executable, "-m", "examples.ev_serving", "--serve", str(bundle), "--out", str(out.resolve())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OutputsDifferError(
            f"the process that serves {version} ended with {done.returncode}: {done.stderr[-2000:]}"
        )
    return np.asarray(np.load(out / "scores.npy"))


def check(scores: np.ndarray, expected: np.ndarray, what: str) -> None:
    """OutputsDifferError unless the scores are those of the model in training, within rounding."""
    worst = np.abs(scores - expected) - (ABSOLUTE + RELATIVE * np.abs(expected))
    if scores.shape != expected.shape or not (worst <= 0).all():
        raise OutputsDifferError(
            f"{what} predicts otherwise than the model: by up to {np.abs(scores - expected).max():.2e}"
        )


def same(scores: np.ndarray, expected: np.ndarray, what: str) -> None:
    """OutputsDifferError unless equal to the last bit."""
    if not np.array_equal(scores, expected):
        raise OutputsDifferError(f"{what} predicts otherwise: by up to {np.abs(scores - expected).max():.2e}")


def megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def table_of(figures: dict[str, Any]) -> rich.table.Table:
    made = rich.table.Table(title="Tables", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in ("field", "rows in bundle 1", "rows in bundle 2"):
        made.add_column(column, justify="left" if column == "field" else "right")
    for name, before in figures["rows_before"].items():
        made.add_row(name, f"{before:,}", f"{figures['rows_after'][name]:,}")
    return made


if __name__ == "__main__":
    sys.exit(main())
