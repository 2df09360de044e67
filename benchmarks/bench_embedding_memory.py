"""Resident memory of an EmbeddingVariable that grows: at every size, and the peak while it grows.

Run: python -m benchmarks.bench_embedding_memory [--quick] [--rows 20000000] [--dim 16] [--json FILE]

Each table grows in a process of its own by training lookups of 20,000 new keys, nothing reserved. After every batch
from 1M rows on the resident size above the start (RSS) and the peak during the batch (VmHWM, reset before it) are
divided by the raw size: rows x (8 B key + 4 B x dim x (1 + slots); a row-wise slot is 4 B; + 12 B where frequency and
step are on).
Floors for the worst size: 1.25 (Adagrad), 1.35 (row-wise), 1.30 (Adagrad, frequency and last step); peak 1.35.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np

from benchmarks.embedding_duel import machine, write_json
from benchmarks.embedding_keys import keys_of
from benchmarks.embedding_tables import configure
from benchmarks.memory import memory_mb, reset_peak

BATCH = 20_000
FLOORS = {"adagrad": 1.25, "rowwise": 1.35, "counted": 1.30}
PEAK_FLOOR = 1.35
TITLES = {"adagrad": "Adagrad", "rowwise": "row-wise Adagrad", "counted": "Adagrad, frequency, last step"}


def raw_bytes(kind: str, dim: int) -> int:
    """Of one row."""
    slot = 4 if kind == "rowwise" else 4 * dim
    return 8 + 4 * dim + slot + (12 if kind == "counted" else 0)


def make_table(kind: str, dim: int) -> Any:
    """A variable whose rows hold what ``kind`` says."""
    import tfctr

    if kind == "rowwise":
        return tfctr.EmbeddingVariable(dim, optimizer=tfctr.optimizers.RowWiseAdagrad(0.05))
    options = {}
    if kind == "counted":  # admission keeps frequencies, step eviction last steps; every key has its row at once
        options = {"admission": tfctr.CounterAdmission(1), "eviction": tfctr.StepEviction(1_000_000)}
    return tfctr.EmbeddingVariable(dim, optimizer=tfctr.optimizers.Adagrad(0.05), **options)


def grow(kind: str, dim: int, rows: int, least: int) -> dict[str, Any]:
    """Grows one table in this process; the samples from ``least`` rows on."""
    tf = configure(threads=1)
    import tfctr

    def inserter(ev: Any) -> Any:
        return tf.function(
            lambda keys: tf.reduce_sum(tfctr.embedding_lookup(ev, keys, training=True)),
            input_signature=[tf.TensorSpec([None], tf.int64)],
        )

    # Another table goes through such batches first and stays: what TensorFlow and malloc keep for them is in the base.
    warm, ev = make_table(kind, dim), make_table(kind, dim)
    fill, insert = inserter(warm), inserter(ev)
    insert.get_concrete_function()
    for start in range(0, 10 * BATCH, BATCH):
        fill(tf.constant(keys_of(np.arange(start, start + BATCH))))
    base = memory_mb()["VmRSS"]
    samples = []
    for start in range(0, rows, BATCH):
        keys = tf.constant(keys_of(np.arange(start, start + BATCH)))
        reset_peak()
        insert(keys)
        count = start + BATCH
        if count >= least:
            now = memory_mb()
            samples.append((count, (now["VmRSS"] - base) * 2**20, (now["VmHWM"] - base) * 2**20))
    if int(ev.size()) != rows:
        raise AssertionError(f"{int(ev.size())} rows in the table, {rows} inserted")
    return _judged(kind, dim, np.array(samples), int(ev.bytes()))


def _judged(kind: str, dim: int, samples: np.ndarray, told: int) -> dict[str, Any]:
    raw = samples[:, 0] * raw_bytes(kind, dim)
    resident, peak = samples[:, 1] / raw, samples[:, 2] / raw
    worst, high = int(resident.argmax()), int(peak.argmax())
    above = np.flatnonzero(resident > FLOORS[kind])
    return {
        "kind": kind,
        "worst": float(resident[worst]),
        "worst_at_rows": int(samples[worst, 0]),
        "median": float(np.median(resident)),
        "last_above_floor_at_rows": int(samples[above[-1], 0]) if len(above) else 0,
        "peak": float(peak[high]),
        "peak_at_rows": int(samples[high, 0]),
        "last_rss_mb": float(samples[-1, 1] / 2**20),
        "told_by_bytes_mb": told / 2**20,
        "raw_mb": float(raw[-1] / 2**20),
    }


def main(argv: list[str] | None = None) -> int:
    """Grows each kind of table in its process, prints a table, writes JSON on request. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--least", type=int, default=1_000_000, help="smallest size that is judged")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--kinds", default="adagrad,rowwise,counted")
    parser.add_argument("--quick", action="store_true", help="up to 2M rows")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--here", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    rows = 2_000_000 if args.quick else args.rows
    if args.here:
        print(json.dumps(grow(args.here, args.dim, rows, args.least)))
        return 0
    print(f"dim {args.dim}, grown to {rows:,} rows; resident bytes / raw bytes")
    points = []
    for kind in args.kinds.split(","):
        command = [sys.executable, "-m", "benchmarks.bench_embedding_memory", "--here", kind, "--dim", str(args.dim)]
        command += ["--rows", str(rows), "--least", str(args.least)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        point = json.loads(done.stdout.splitlines()[-1])
        points.append(point)
        held = [point["worst"] <= FLOORS[kind], point["peak"] <= PEAK_FLOOR]
        said = ["held" if h else "MISSED" for h in held]
        print(
            f"{TITLES[kind]:<32} worst {point['worst']:.3f} at {point['worst_at_rows'] / 1e6:.2f}M rows"
            f" (median {point['median']:.3f}; floor {FLOORS[kind]}: {said[0]}"
            + (f", last at {point['last_above_floor_at_rows'] / 1e6:.2f}M" if not held[0] else "")
            + "),"
            f" peak {point['peak']:.3f} at {point['peak_at_rows'] / 1e6:.2f}M (floor {PEAK_FLOOR}: {said[1]});"
            f" at the end RSS {point['last_rss_mb']:.0f} MB, bytes() {point['told_by_bytes_mb']:.0f} MB,"
            f" raw {point['raw_mb']:.0f} MB",
            flush=True,
        )
    write_json(args.json, {"machine": machine(), "points": points})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
