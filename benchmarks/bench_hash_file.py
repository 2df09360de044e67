"""Hash files: the frozen rows of embedding variables. Building one from a checkpoint, opening, finding keys, size.

Run: python -m benchmarks.bench_hash_file [--quick] [--rows 10000000] [--dim 16] [--folder DIR] [--json FILE]

build  A process of its own writes the hash file of a saved table. Seconds include reading the checkpoint (from the page
       cache, where it holds it) and fsync. Peak memory is the resident size during the call (VmHWM, reset before it)
       above the size before it, divided by the size of the file.
open   A file of 4 GB (64 numbers a row), opened warm, and cold: after its pages were dropped from the page cache.
find   Keys to row numbers, batches of 100,000 keys in random order, all there or none: nanoseconds a key, one thread;
       and whole rows (`HashTable.rows`). The file's pages are in the page cache.
size   Bytes of the file divided by those of keys and rows.
Floors: build 15 s and 1.2x of the file, open 100 ms, size 1.3x.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.embedding_duel import machine, write_json
from benchmarks.embedding_keys import BATCH, keys_of
from benchmarks.memory import memory_mb, reset_peak

FILL = 500_000
BUILD_FLOOR, MEMORY_FLOOR, OPEN_FLOOR, SIZE_FLOOR = 15.0, 1.2, 0.1, 1.3
LARGE = 4 << 30
LARGE_DIM = 64
SIZE_DIMS = (16, 17, 64)


def native() -> Any:
    from tfctr.core import library

    return library.native()


def save(rows: int, dim: int, folder: pathlib.Path) -> dict[str, Any]:
    """Saves a table of so many rows."""
    import tensorflow as tf

    import tfctr

    table = tfctr.EmbeddingVariable(dim, "table", seed=1)
    random = np.random.default_rng(0)
    for first in range(0, rows, FILL):
        numbers = np.arange(first, min(rows, first + FILL))
        tfctr.warm_start.from_numpy(table, keys_of(numbers), random.normal(size=[len(numbers), dim]))
    tf.train.Checkpoint(table=table).write(str(folder / "ckpt"))
    return {}


def build(rounds: int, folder: pathlib.Path) -> dict[str, Any]:
    """Writes the hash file of what was saved."""
    library = native()
    prefix = folder / "ckpt"
    (config,) = [e["key"] for e in library.read_checkpoint_index(prefix) if e["key"].endswith("/config")]
    place = config.removesuffix("/config")
    seconds, cpu, extra, info = [], [], [], {}
    for _ in range(rounds):
        os.sync()
        before = memory_mb()["VmRSS"]
        reset_peak()
        begin, begin_cpu = time.perf_counter(), time.process_time()
        info = library.build_hash_table_from_checkpoint(prefix, place, out(folder))
        seconds.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - begin_cpu)
        extra.append(memory_mb()["VmHWM"] - before)
    megabytes = info["file_bytes"] / 2**20
    peak = {"peak_mb": max(extra), "file_mb": megabytes, "peak_ratio": max(extra) / megabytes}
    return {"build_s": seconds, "build_cpu_s": cpu, **peak}


def out(folder: pathlib.Path) -> pathlib.Path:
    return folder / "table.hash"


def find(rows: int, rounds: int, folder: pathlib.Path) -> dict[str, Any]:
    """Looks keys up, batch after batch."""
    table = native().HashTable(out(folder))
    table.verify()  # brings all pages in
    random = np.random.default_rng(3)
    batches: dict[str, list[np.ndarray]] = {"present": [], "unknown": []}
    for _ in range(8):
        picked = random.integers(0, rows, BATCH)
        batches["present"].append(keys_of(picked))
        batches["unknown"].append(keys_of(picked + rows))
    figures: dict[str, list[float]] = {"find_present": [], "find_unknown": [], "rows_present": []}
    for turn in range(rounds * 8):
        for name, call, keys in (
            ("find_present", table.find, batches["present"][turn % 8]),
            ("find_unknown", table.find, batches["unknown"][turn % 8]),
            ("rows_present", table.rows, batches["present"][(turn + 4) % 8]),
        ):
            begin = time.perf_counter()
            call(keys)
            figures[name].append((time.perf_counter() - begin) / BATCH * 1e9)
    return {f"{name}_ns": values for name, values in figures.items()}


def large(rounds: int, folder: pathlib.Path, size: int) -> dict[str, Any]:
    """Opens a file of `size` bytes."""
    library = native()
    rows = size // (LARGE_DIM * 4 + 12)
    block = np.random.default_rng(0).normal(size=(1 << 16, LARGE_DIM)).astype(np.float32)
    path = folder / "large.hash"
    info = library.build_hash_table(path, "large", keys_of(np.arange(rows)), lambda _, n: block[:n], dim=LARGE_DIM)

    def opened() -> float:
        begin = time.perf_counter()
        library.HashTable(path)
        return (time.perf_counter() - begin) * 1e3

    warm = [opened() for _ in range(rounds)]
    cold = []
    for _ in range(rounds):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        cold.append(opened())
    path.unlink()
    return {"large_mb": info["file_bytes"] / 2**20, "open_warm_ms": warm, "open_cold_ms": cold}


def sizes(rows: int, folder: pathlib.Path) -> dict[str, Any]:
    """Bytes of files of several widths, against those of keys and rows."""
    found = {}
    for dim in SIZE_DIMS:
        values = np.zeros((rows, dim), np.float32)
        info = native().build_hash_table(folder / "sized", "sized", keys_of(np.arange(rows)), values)
        found[str(dim)] = info["file_bytes"] / (rows * (8 + 4 * dim))
    return {"size_ratio": found}


def held(value: float, floor: float) -> str:
    return f"floor {floor:g}: {'held' if value <= floor else 'MISSED'}"


def report(figures: dict[str, Any]) -> None:
    """Prints the figures and how they stand to the floors."""
    median = float(np.median(figures["build_s"]))
    print(f"{figures['rows']:,} rows of dim {figures['dim']}: file of {figures['file_mb']:.0f} MB")
    print(f"  build       median {median:.2f} s, min {min(figures['build_s']):.2f} s ({held(median, BUILD_FLOOR)})")
    print(f"  build CPU   median {float(np.median(figures['build_cpu_s'])):.2f} s")
    ratio = figures["peak_ratio"]
    print(f"  peak        {figures['peak_mb']:.0f} MB: {ratio:.2f} of the file ({held(ratio, MEMORY_FLOOR)})")
    for name in ("find_present", "find_unknown", "rows_present"):
        ns = np.array(figures[f"{name}_ns"])
        print(f"  {name:<13}median {np.median(ns):.1f} ns a key, min {ns.min():.1f}, p99 {np.percentile(ns, 99):.1f}")
    for name in ("warm", "cold"):
        ms = np.array(figures[f"open_{name}_ms"])
        print(
            f"  open {name}   median {np.median(ms):.2f} ms, max {ms.max():.2f} ms, of {figures['large_mb']:.0f} MB "
            f"({held(float(np.median(ms)), OPEN_FLOOR * 1e3)})"
        )
    for dim, size in figures["size_ratio"].items():
        print(f"  size dim {dim}: {size:.3f} of keys and rows ({held(size, SIZE_FLOOR)})")


def parts(args: argparse.Namespace, folder: pathlib.Path) -> Iterator[str]:
    """The output of each part, run in a process of its own."""
    for part in ("save", "build", "find", "large", "sizes"):
        command = [sys.executable, "-m", "benchmarks.bench_hash_file", "--here", part, "--folder", str(folder)]
        command += ["--rows", str(args.rows), "--dim", str(args.dim), "--rounds", str(args.rounds)]
        command += ["--quick"] * args.quick
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        yield done.stdout.splitlines()[-1]


def main(argv: list[str] | None = None) -> int:
    """Runs the parts, prints the figures, writes JSON on request. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=pathlib.Path, help="on the disk to measure (default: the temporary folder)")
    parser.add_argument("--quick", action="store_true", help="1M rows, 2 rounds, a large file of 256 MB")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--here", choices=["save", "build", "find", "large", "sizes"], help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.quick:
        args.rows, args.rounds = min(args.rows, 1_000_000), 2
    if args.here:
        run = {
            "save": lambda: save(args.rows, args.dim, args.folder),
            "build": lambda: build(args.rounds, args.folder),
            "find": lambda: find(args.rows, args.rounds, args.folder),
            "large": lambda: large(args.rounds, args.folder, LARGE // 16 if args.quick else LARGE),
            "sizes": lambda: sizes(min(args.rows, 1_000_000), args.folder),
        }[args.here]
        print(json.dumps(run()))
        return 0
    figures: dict[str, Any] = {"rows": args.rows, "dim": args.dim}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for output in parts(args, pathlib.Path(folder)):
            figures |= json.loads(output)
    report(figures)
    write_json(args.json, {"machine": machine(), **figures})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
