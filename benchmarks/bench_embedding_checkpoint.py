"""Saving and restoring one large embedding variable: memory, speed of writing, rows per second of reading.

Run: python -m benchmarks.bench_embedding_checkpoint [--quick] [--rows 10000000] [--dim 16] [--folder DIR] [--json FILE]

One process fills a table (Adagrad slot) and then, round by round, writes as many bytes as the checkpoint has with plain
sequential writes and fsync, and saves a `tf.train.Checkpoint` (which syncs its files too), in alternating order.
Extra memory is the peak resident size during a save (VmHWM, reset before it) above the size before it, divided by the
table's `bytes()`. Another process restores into a new variable; rows per second count reading, checksums and inserting,
from the page cache where it holds the files.
Floors: extra memory 10 %, speed 0.70 of the plain writes (median of the rounds), load 2M rows/s.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from benchmarks.embedding_duel import machine, verdict, write_json
from benchmarks.embedding_keys import keys_of
from benchmarks.embedding_tables import configure
from benchmarks.memory import memory_mb, reset_peak

BLOCK = 8 << 20
FILL = 500_000
MEMORY_FLOOR, SPEED_FLOOR, LOAD_FLOOR = 0.10, 0.70, 2e6


def make_table(dim: int) -> Any:
    """The variable that is saved."""
    import tfctr

    return tfctr.EmbeddingVariable(dim, "table", optimizer=tfctr.optimizers.Adagrad(0.05), seed=1)


def fill(table: Any, rows: int) -> None:
    """Gives the table so many rows, with values and slots that do not repeat."""
    import tfctr

    random = np.random.default_rng(0)
    for first in range(0, rows, FILL):
        numbers = np.arange(first, min(rows, first + FILL))
        values = random.normal(size=[len(numbers), table.dim]).astype(np.float32)
        tfctr.warm_start.from_numpy(table, keys_of(numbers), values, slots={"accumulator": np.abs(values)})


def plain_write(path: pathlib.Path, size: int) -> float:
    """Seconds of writing ``size`` bytes in blocks, fsync included."""
    block = np.random.default_rng(1).bytes(BLOCK)
    begin = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for at in range(0, size, BLOCK):
            file.write(block[: min(BLOCK, size - at)])
        os.fsync(file.fileno())
    seconds = time.perf_counter() - begin
    path.unlink()
    return seconds


def size_of(folder: pathlib.Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def save_rounds(rows: int, dim: int, rounds: int, folder: pathlib.Path) -> dict[str, Any]:
    """Fills a table and measures saves against plain writes."""
    tf = configure(threads=2)
    table = make_table(dim)
    fill(table, rows)
    checkpoint = tf.train.Checkpoint(table=table)
    target = folder / "saved"
    target.mkdir(exist_ok=True)
    saves, writes, extra = [], [], []

    def save() -> None:
        shutil.rmtree(target)
        target.mkdir()
        os.sync()
        before = memory_mb()["VmRSS"]
        reset_peak()
        begin = time.perf_counter()
        checkpoint.write(str(target / "ckpt"))
        saves.append(time.perf_counter() - begin)
        extra.append(memory_mb()["VmHWM"] - before)

    save()  # warm-up: traces functions, and tells the size
    size = size_of(target)
    saves.clear()

    def write() -> None:
        os.sync()
        writes.append(plain_write(folder / "plain", size))

    for number in range(rounds):
        for run in (save, write) if number % 2 else (write, save):
            run()
    told = int(table.bytes()) / 2**20
    return {
        "rows": rows,
        "dim": dim,
        "checkpoint_mb": size / 2**20,
        "table_mb": told,
        "save_s": saves,
        "plain_s": writes,
        "speed_ratio": float(np.median(writes) / np.median(saves)),
        "extra_mb": max(extra),
        "extra_ratio": max(extra) / told,
    }


def load_rounds(rows: int, dim: int, rounds: int, folder: pathlib.Path) -> dict[str, Any]:
    """Restores the checkpoint into new variables."""
    tf = configure(threads=2)
    seconds = []
    for _ in range(rounds):
        table = make_table(dim)
        checkpoint = tf.train.Checkpoint(table=table)
        begin = time.perf_counter()
        checkpoint.read(str(folder / "saved" / "ckpt")).assert_consumed()
        seconds.append(time.perf_counter() - begin)
        if table.size() != rows:
            raise SystemExit(f"{table.size()} rows were restored, expected {rows}")
        del table, checkpoint
    return {"load_s": seconds, "rows_per_s": rows / float(np.median(seconds))}


def report(figures: dict[str, Any]) -> None:
    """Prints the figures and how they stand to the floors."""
    rows, dim, megabytes = figures["rows"], figures["dim"], figures["checkpoint_mb"]
    print(f"{rows:,} rows of dim {dim}, Adagrad slot: table {figures['table_mb']:.0f} MB, {megabytes:.0f} MB saved")
    for name in ("save", "plain", "load"):
        median, least = float(np.median(figures[f"{name}_s"])), min(figures[f"{name}_s"])
        print(f"  {name:<6} median {median:.2f} s, min {least:.2f} s, {megabytes / median:.0f} MB/s")
    extra = figures["extra_ratio"]
    said = "held" if extra <= MEMORY_FLOOR else "MISSED"
    print(f"  extra memory {figures['extra_mb']:.0f} MB: {extra:.3f} of the table (floor {MEMORY_FLOOR}: {said})")
    ratio = figures["speed_ratio"]
    print(f"  save at {ratio:.2f} of the speed of plain writing with fsync ({verdict(ratio, SPEED_FLOOR)})")
    speed = figures["rows_per_s"]
    print(f"  load {speed / 1e6:.2f}M rows/s ({verdict(speed, LOAD_FLOOR)})")


def main(argv: list[str] | None = None) -> int:
    """Runs both processes, prints the figures, writes JSON on request. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=pathlib.Path, help="on the disk to measure (default: the temporary folder)")
    parser.add_argument("--quick", action="store_true", help="1M rows, 2 rounds")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--here", choices=["save", "load"], help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.quick:
        args.rows, args.rounds = min(args.rows, 1_000_000), 2
    if args.here:
        measure = save_rounds if args.here == "save" else load_rounds
        print(json.dumps(measure(args.rows, args.dim, args.rounds, args.folder)))
        return 0
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for what in ("save", "load"):
            command = [sys.executable, "-m", "benchmarks.bench_embedding_checkpoint", "--here", what]
            command += ["--rows", str(args.rows), "--dim", str(args.dim), "--rounds", str(args.rounds)]
            done = subprocess.run([*command, "--folder", folder], check=True, stdout=subprocess.PIPE, text=True)
            figures |= json.loads(done.stdout.splitlines()[-1])
    report(figures)
    write_json(args.json, {"machine": machine(), **figures})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
