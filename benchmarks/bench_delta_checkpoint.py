"""Delta checkpoints of one embedding variable against full ones: seconds, bytes, memory; what they cost training.

Run: python -m benchmarks.bench_delta_checkpoint [--quick] [--rows 5000000] [--dim 16] [--changed 0.01] [--json FILE]

A table with `record_changes` (Adagrad slot) is filled and saved in full by a `DeltaCheckpointManager`. Then, round by
round: a share of its rows, drawn at random, is trained; `manager.save()` writes the delta; `tf.train.Checkpoint.write`
saves the same state in full (order alternates; both sync their files). Further: a delta of nothing (the scan alone),
the longest training step beside saves of each kind, restores of the full save and of the chain, both from the page
cache, and training steps of tables with and without `record_changes`, alternating.
Extra memory is the peak resident size during a save above the size before it.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.bench_embedding_checkpoint import FILL
from benchmarks.embedding_duel import machine, write_json
from benchmarks.embedding_keys import keys_of
from benchmarks.embedding_tables import configure
from benchmarks.memory import memory_mb, reset_peak

BATCH = 10_000


class Bench:
    """The table, its manager, and the figures."""

    def __init__(self, rows: int, dim: int, changed: float, folder: pathlib.Path) -> None:
        import tensorflow as tf

        import tfctr

        self.tf, self.rows, self.dim, self.changed, self.folder = tf, rows, dim, changed, folder
        self.random = np.random.default_rng(0)
        self.table = self.make(record_changes=True)
        self.fill(self.table)
        self.checkpoint = tf.train.Checkpoint(table=self.table)
        self.manager = tfctr.DeltaCheckpointManager(self.checkpoint, folder / "deltas", max_deltas=1000)
        self.figures: dict[str, Any] = {"rows": rows, "dim": dim, "table_mb": int(self.table.bytes()) / 2**20}

    def make(self, **options: Any) -> Any:
        """A new table."""
        import tfctr

        return tfctr.EmbeddingVariable(self.dim, "table", optimizer=tfctr.optimizers.Adagrad(0.05), seed=1, **options)

    def fill(self, table: Any) -> None:
        """Gives it all rows."""
        import tfctr

        for first in range(0, self.rows, FILL):
            numbers = np.arange(first, min(self.rows, first + FILL))
            values = self.random.normal(size=[len(numbers), self.dim]).astype(np.float32)
            tfctr.warm_start.from_numpy(table, keys_of(numbers), values, slots={"accumulator": np.abs(values)})

    def train(self, table: Any, keys: np.ndarray) -> None:
        """One step: look up, gradients, update."""
        table.lookup(keys, training=True)
        gradient = self.tf.IndexedSlices(self.tf.ones([len(keys), self.dim]), self.tf.constant(keys))
        table.apply_gradients(gradient)

    def change(self, rows: int) -> None:
        """Trains so many different rows."""
        keys = keys_of(self.random.choice(self.rows, rows, replace=False))
        for at in range(0, rows, BATCH):
            self.train(self.table, keys[at : at + BATCH])

    def timed(self, name: str, work: Callable[[], Any]) -> Any:
        """Adds the seconds of `work`, and its extra memory, to the figures."""
        before = memory_mb()["VmRSS"]
        reset_peak()
        begin = time.perf_counter()
        result = work()
        self.figures.setdefault(f"{name}_s", []).append(time.perf_counter() - begin)
        self.figures.setdefault(f"{name}_extra_mb", []).append(memory_mb()["VmHWM"] - before)
        return result

    def save_full(self) -> None:
        """As stock does it."""
        shutil.rmtree(self.folder / "full", ignore_errors=True)
        self.timed("full", lambda: self.checkpoint.write(str(self.folder / "full" / "ckpt")))

    def save_delta(self) -> None:
        """By the manager."""
        save = self.timed("delta", self.manager.save)
        if not save.is_delta:
            raise SystemExit(f"expected a delta: {save}")
        self.figures.setdefault("delta_mb", save.bytes / 2**20)  # of the first: no training beside it
        self.figures.setdefault("delta_rows", save.tables[0].rows)

    def saves(self, rounds: int) -> None:
        """Full saves and deltas of the same states."""
        save = self.timed("base", self.manager.save)
        self.figures["full_mb"] = save.bytes / 2**20
        for number in range(rounds):
            self.change(int(self.rows * self.changed))
            for run in (self.save_full, self.save_delta)[:: 1 if number % 2 else -1]:
                run()
        for _ in range(rounds):
            self.timed("nothing", self.manager.save)

    def beside(self, name: str, save: Callable[[], Any]) -> None:
        """Training steps of 2,000 rows while `save` runs."""
        steps: list[float] = []
        done = threading.Event()
        draws = [keys_of(self.random.integers(0, self.rows, 2000)) for _ in range(64)]

        def train() -> None:
            while not done.is_set():
                begin = time.perf_counter()
                self.train(self.table, draws[len(steps) % len(draws)])
                steps.append(time.perf_counter() - begin)

        thread = threading.Thread(target=train)
        thread.start()
        time.sleep(0.2)
        alone = len(steps)
        save()
        done.set()
        thread.join()
        self.figures[f"step_beside_{name}"] = {
            "alone_median_ms": float(np.median(steps[:alone])) * 1e3,
            "median_ms": float(np.median(steps[alone:])) * 1e3,
            "max_ms": max(steps[alone:]) * 1e3,
        }

    def restores(self, rounds: int) -> None:
        """The full save, and the chain, into new tables."""
        import tfctr

        self.save_full()
        self.figures["chain"] = len(self.manager.saves)
        for _ in range(rounds):
            back = self.tf.train.Checkpoint(table=self.make())
            self.timed("restore_full", functools.partial(back.read, str(self.folder / "full" / "ckpt")))
            full = back.table.size()
            for name, verify in (("restore_chain", True), ("restore_chain_unverified", False)):
                back = self.tf.train.Checkpoint(table=self.make(record_changes=True))
                manager = tfctr.DeltaCheckpointManager(back, self.folder / "deltas")
                self.timed(name, functools.partial(manager.restore, verify=verify))
                if back.table.size() != full:
                    raise SystemExit(f"the chain gives {back.table.size()} rows, the full save {full}")
            del back, manager

    def option(self, rounds: int) -> None:
        """Steps of tables with and without the option."""
        tables = {"without": self.make(), "with": self.make(record_changes=True)}
        for table in tables.values():
            self.fill(table)
        self.figures["bytes_per_row"] = {name: int(table.bytes()) / self.rows for name, table in tables.items()}
        seconds: dict[str, list[float]] = {name: [] for name in tables}
        for number in range(rounds):
            keys = keys_of(self.random.integers(0, self.rows, BATCH))
            for name in list(tables)[:: 1 if number % 2 else -1]:
                begin = time.perf_counter()
                self.train(tables[name], keys)
                seconds[name].append(time.perf_counter() - begin)
        ratios = np.array(seconds["with"][5:]) / np.array(seconds["without"][5:])
        self.figures["step_ratio_with_option"] = float(np.median(ratios))
        self.figures["step_ms"] = {name: float(np.median(values[5:])) * 1e3 for name, values in seconds.items()}


def report(figures: dict[str, Any]) -> None:
    """Prints the figures."""
    print(f"{figures['rows']:,} rows of dim {figures['dim']}, Adagrad slot: table {figures['table_mb']:.0f} MB")
    for name, said in [
        ("base", f"full save by the manager, {figures['full_mb']:.0f} MB"),
        ("full", "full save, tf.train.Checkpoint"),
        ("delta", f"delta of {figures['delta_rows']:,} rows, {figures['delta_mb']:.1f} MB"),
        ("nothing", "delta of nothing: the scan"),
        ("restore_full", "restore of the full save"),
        ("restore_chain", f"restore of {figures['chain']} saves, all bytes verified first"),
        ("restore_chain_unverified", "the same without that"),
    ]:
        seconds = figures[f"{name}_s"]
        extra = max(figures[f"{name}_extra_mb"])
        print(f"  {said:<58} median {np.median(seconds):.3f} s, min {min(seconds):.3f} s, extra memory {extra:.0f} MB")
    ratio = np.median(figures["delta_s"]) / np.median(figures["full_s"])
    size = figures["delta_mb"] / figures["full_mb"]
    print(f"  a delta takes {ratio:.3f} of a full save's time and {size:.4f} of its bytes")
    for name in ("full", "delta"):
        told = figures[f"step_beside_{name}"]
        print(
            f"  training steps of 2,000 rows: median {told['alone_median_ms']:.2f} ms alone, "
            f"{told['median_ms']:.2f} ms beside a {name} save, longest {told['max_ms']:.1f} ms"
        )
    sizes = figures["bytes_per_row"]
    print(
        f"  record_changes: a step of {BATCH:,} rows takes {figures['step_ratio_with_option']:.3f} of one without it; "
        f"{sizes['with']:.1f} instead of {sizes['without']:.1f} bytes a row"
    )


def main(argv: list[str] | None = None) -> int:
    """Measures, prints the figures, writes JSON on request. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--changed", type=float, default=0.01, help="share of the rows that changes between saves")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=pathlib.Path, help="on the disk to measure (default: the temporary folder)")
    parser.add_argument("--quick", action="store_true", help="500,000 rows, 2 rounds")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args(argv)
    if args.quick:
        args.rows, args.rounds = min(args.rows, 500_000), 2
    configure(threads=2)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        bench = Bench(args.rows, args.dim, args.changed, pathlib.Path(folder))
        bench.saves(args.rounds)
        bench.beside("full", bench.save_full)
        bench.manager.save()  # what was trained beside it
        bench.change(int(args.rows * args.changed))
        bench.beside("delta", bench.save_delta)
        bench.restores(min(args.rounds, 3))
        del bench.table, bench.checkpoint, bench.manager
        bench.option(20 * args.rounds)
        figures = bench.figures
    report(figures)
    write_json(args.json, {"machine": machine(), **figures})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
