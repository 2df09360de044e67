"""One training step on 26 tables: lookup, gradient, Adagrad update of the rows that were looked up.

Run: python -m benchmarks.bench_embedding_step [--quick] [--rows 1000000] [--batch 1024] [--rounds 60]
     [--pages default,huge] [--skip keras3,tfra] [--json FILE]

26 features, one id each and example, dim 16, ids uniform or Zipf 1.2, all rows in the tables, a ring of 32 batches.
EmbeddingVariables (one grouped lookup, one fused update) take turns with one other at a time: hand-written sparse
apply (tf.unique, unsorted_segment_sum, ResourceSparseApplyAdagradV2), tf_keras 2.21 and Keras 3 Adagrad, TFRA's
wrapper of Adagrad. --pages huge: all of it again in a process with GLIBC_TUNABLES=glibc.malloc.hugetlb=1.
Floors: 2 times (uniform) and 1.2 times (Zipf) hand-written, with huge pages too; 3 times tf_keras; 3 times TFRA.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks import tfra_client
from benchmarks.embedding_duel import (
    CLOCKS,
    HUGE,
    Run,
    duel,
    free_memory,
    machine,
    ratio,
    times_line,
    use_clock,
    verdict,
    write_json,
)
from benchmarks.embedding_keys import step_rows
from benchmarks.embedding_tables import configure
from benchmarks.embedding_trainers import HandWritten, Keras3, Ours, TfKeras, Trainer

FEATURES, DIM, RING, ZIPF = 26, 16, 32, 1.2
OPPONENTS: dict[str, type[Trainer]] = {"hand": HandWritten, "tf_keras": TfKeras, "keras3": Keras3}
FLOORS = {
    ("hand", "uniform"): 2.0,
    ("hand", "zipf"): 1.2,
    ("tf_keras", "uniform"): 3.0,
    ("tf_keras", "zipf"): 3.0,
    ("tfra", "uniform"): 3.0,
    ("tfra", "zipf"): 3.0,
}


def _run(trainer: Trainer, rows: int, exponent: float | None, batch: int, targets: Any) -> Run:
    batches = [trainer.batch(r) for r in step_rows(rows, exponent, FEATURES, batch, RING)]
    return lambda k: trainer.run(batches[k], targets)


def measure(ours: Trainer, opponent: str, rows: int, batch: int, rounds: int, worker: Any) -> list[dict[str, Any]]:
    """Ours against one opponent, both popularities."""
    import tensorflow as tf

    targets = tf.random.stateless_normal([batch, FEATURES * DIM], [1, 2])
    trainer = None if opponent == "tfra" else OPPONENTS[opponent](FEATURES, rows, DIM)
    name = "TFRA" if trainer is None else trainer.name
    if trainer is None:
        worker.call("step_setup", features=FEATURES, rows=rows, dim=DIM)
    points = []
    for popularity, exponent in (("uniform", None), ("zipf", ZIPF)):
        if trainer is None:
            shape = {"features": FEATURES, "rows": rows, "exponent": exponent, "batch": batch, "batches": RING}
            worker.call("step_batches", **shape)
        theirs = _run(trainer, rows, exponent, batch, targets) if trainer else lambda k: worker.call("step", batch=k)
        few = opponent == "keras3"
        found = duel(
            {"ours": _run(ours, rows, exponent, batch, targets), "theirs": theirs},
            min(rounds, 5) if few else rounds,
            warmup=1 if few else 4,
            batches=RING,
        )
        point = {"popularity": popularity, "opponent": opponent, "rows": rows, "batch": batch}
        point |= {who: times.as_dict() for who, times in found.items()}
        point["ratio"] = r = ratio(found["theirs"], found["ours"])
        points.append(point)
        for who, label in (("ours", ours.name), ("theirs", name)):
            print(times_line(popularity, label, found[who], FEATURES * batch / 1e6))
        floor = FLOORS.get((opponent, popularity))
        said = "reported" if floor is None else verdict(r["paired"], floor)
        print(f"{'':<26}x {r['paired']:.2f} (minima {r['min']:.2f}, medians {r['median']:.2f})   {said}", flush=True)
    if trainer is None:
        worker.call("clear")
    else:
        trainer.close()
    return points


def run_here(args: argparse.Namespace) -> dict[str, Any]:
    """All opponents in this process, with the pages that it was started with."""
    tf = configure(threads=1)
    use_clock(args.clock)
    tf.random.set_seed(0)
    huge = HUGE in os.environ.get("GLIBC_TUNABLES", "")
    opponents = [name for name in (*OPPONENTS, "tfra") if name not in args.skip.split(",")]
    if "tfra" in opponents and not tfra_client.available():
        opponents.remove("tfra")
    print(f"{FEATURES} x {args.rows:,} rows x {DIM}, batch {args.batch}, 1 thread, {machine()}; min / median / p99")
    worker = tfra_client.TfraWorker(1, huge, args.clock) if "tfra" in opponents else None
    ours = Ours(FEATURES, args.rows, DIM)
    points = []
    for opponent in opponents:
        points += measure(ours, opponent, args.rows, args.batch, args.rounds, worker)
        free_memory()
    if worker:
        worker.close()
    return {"machine": machine(), "points": points}


def in_process(args: argparse.Namespace, pages: str) -> dict[str, Any]:
    """The same in a process of its own; its lines go to our standard output."""
    environment = dict(os.environ) | ({"GLIBC_TUNABLES": HUGE} if pages == "huge" else {})
    with tempfile.TemporaryDirectory() as folder:
        figures = pathlib.Path(folder) / "figures.json"
        command = [sys.executable, "-m", "benchmarks.bench_embedding_step", "--pages", "here", "--json", str(figures)]
        command += ["--rows", str(args.rows), "--batch", str(args.batch), "--rounds", str(args.rounds)]
        command += ["--clock", args.clock]
        subprocess.run([*command, "--skip", args.skip], check=True, env=environment)
        return json.loads(figures.read_text())


def main(argv: list[str] | None = None) -> int:
    """Measures with every kind of pages asked for, prints tables, writes JSON on request. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each table")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument(
        "--pages", default="default,huge", help='"default", "huge", both; "here": this process as it is'
    )
    parser.add_argument("--skip", default="", help="opponents to leave out: hand,tf_keras,keras3,tfra")
    parser.add_argument("--quick", action="store_true", help="10,000 rows, few rounds: does it run?")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: of the process; for a busy machine")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args(argv)
    if args.quick:
        args.rows, args.rounds = 10_000, 5
    if args.pages == "here":
        write_json(args.json, run_here(args))
        return 0
    found = {}
    for pages in args.pages.split(","):
        print(f"-- {pages} pages", flush=True)
        found[pages] = in_process(args, pages)
    write_json(args.json, found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
