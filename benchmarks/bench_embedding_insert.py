"""Inserting new keys: an EmbeddingVariable that grows from empty, against DenseHashTable and TFRA, which do too.

Run: python -m benchmarks.bench_embedding_insert [--quick] [--rounds 5] [--sizes 16/1000000,16/5000000,64/1000000]
     [--huge-pages] [--json FILE]

Batches of 100,000 new keys, one thread, page faults included: freed memory goes back to the kernel before each try.
Ours: training lookups (they insert, write initial values and an Adagrad slot, and return the rows). DenseHashTable at
its default initial_num_buckets and TFRA: rows made by tf.random.uniform in the same call; "with slot" keeps the slot
too (DenseHashTable: a row twice as wide; TFRA: a second table, as it keeps slots), "values" is the smaller job of
keeping the value alone. Pre-sized tables (expected_rows, initial_num_buckets) are reported.
Floors: 2 times DenseHashTable, 1.5 times TFRA, judged for both jobs.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import tfra_client
from benchmarks.embedding_duel import (
    CLOCKS,
    Times,
    free_memory,
    machine,
    now,
    ratio,
    restart_with_huge_pages,
    times_line,
    use_clock,
    verdict,
    write_json,
)
from benchmarks.embedding_keys import BATCH, keys_of
from benchmarks.embedding_tables import SLOT_START, configure

FLOORS = {
    "DenseHashTable values": 2.0,
    "DenseHashTable with slot": 2.0,
    "TFRA values": 1.5,
    "TFRA with slot": 1.5,
}
OURS = "EmbeddingVariable"


def _batches(rows: int) -> list[Any]:
    import tensorflow as tf

    return [tf.constant(keys_of(np.arange(s, min(rows, s + BATCH)))) for s in range(0, rows, BATCH)]


def _timed(insert: Callable[[Any], object], batches: list[Any], size: Callable[[], int], rows: int) -> float:
    begin = now()
    for keys in batches:
        insert(keys)
    seconds = now() - begin
    if size() != rows:
        raise AssertionError(f"{size()} rows in the table, {rows} inserted")
    return seconds


def insert_ours(batches: list[Any], rows: int, dim: int, expected: int | None = None) -> float:
    """Seconds for all batches into a new EmbeddingVariable."""
    import tensorflow as tf

    import tfctr

    sized = {} if expected is None else {"expected_rows": expected}
    ev = tfctr.EmbeddingVariable(dim, optimizer=tfctr.optimizers.Adagrad(0.05, SLOT_START), **sized)
    insert = tf.function(lambda keys: tfctr.embedding_lookup(ev, keys, training=True))
    insert.get_concrete_function(batches[0])
    return _timed(insert, batches, lambda: int(ev.size()), rows)


def insert_dense(batches: list[Any], rows: int, dim: int, slot: bool, buckets: int | None = None) -> float:
    """The same into a new DenseHashTable."""
    import tensorflow as tf

    sized = {} if buckets is None else {"initial_num_buckets": buckets}
    width = dim * (1 + slot)
    table = tf.lookup.experimental.DenseHashTable(
        tf.int64, tf.float32, tf.zeros([width]), empty_key=-1, deleted_key=-2, **sized
    )

    @tf.function
    def insert(keys: Any) -> None:
        values = tf.random.uniform([tf.size(keys), dim], -0.05, 0.05)
        table.insert(keys, tf.concat([values, tf.fill(tf.shape(values), SLOT_START)], 1) if slot else values)

    insert.get_concrete_function(batches[0])
    return _timed(insert, batches, lambda: int(table.size()), rows)


def contestants(rows: int, dim: int, worker: Any) -> dict[str, Callable[[], float]]:
    """Name to a try: seconds of inserting ``rows`` keys."""
    batches = _batches(rows)
    buckets = 1 << (rows * 5 // 4).bit_length()
    found: dict[str, Callable[[], float]] = {
        OURS: lambda: insert_ours(batches, rows, dim),
        f"{OURS} pre-sized": lambda: insert_ours(batches, rows, dim, rows),
        "DenseHashTable values": lambda: insert_dense(batches, rows, dim, slot=False),
        "DenseHashTable with slot": lambda: insert_dense(batches, rows, dim, slot=True),
        "DenseHashTable pre-sized": lambda: insert_dense(batches, rows, dim, False, buckets),
    }
    if worker:
        found["TFRA values"] = lambda: worker.call("insert", rows=rows, dim=dim, slot=False)
        found["TFRA with slot"] = lambda: worker.call("insert", rows=rows, dim=dim, slot=True)
    return found


def measure(rows: int, dim: int, rounds: int, worker: Any) -> dict[str, Any]:
    """One size: every contestant once per round, after one round that is not counted."""
    tries = contestants(rows, dim, worker)
    names = list(tries)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for r in range(-1, rounds):
        turn = r % len(names)
        for name in names[turn:] + names[:turn]:
            free_memory()
            taken = tries[name]()
            if r >= 0:
                samples[name].append(taken)
    times = {name: Times(np.array(s)) for name, s in samples.items()}
    point: dict[str, Any] = {"rows": rows, "dim": dim, "times": {n: t.as_dict() for n, t in times.items()}}
    point["ratios"] = {n: ratio(t, times[OURS]) for n, t in times.items() if n != OURS}
    what = f"{dim} / {rows / 1e6:g}M"
    for name, t in times.items():
        print(times_line(what, name, t, rows / 1e6))
    for name, r in point["ratios"].items():
        said = verdict(r["paired"], FLOORS[name]) if name in FLOORS else "reported"
        print(f"{what:<26}{name:<26} x {r['paired']:.2f} (minima {r['min']:.2f})   {said}", flush=True)
    return point


def main(argv: list[str] | None = None) -> int:
    """Measures every size, prints tables, writes JSON on request. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="16/1000000,16/5000000,64/1000000", help="dim/rows, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--huge-pages", action="store_true", help="for every contestant, through glibc")
    parser.add_argument("--quick", action="store_true", help="16/300000, one round: does it run?")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: of the process; for a busy machine")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args(argv)
    if args.huge_pages:
        restart_with_huge_pages()
    configure(threads=1)
    use_clock(args.clock)
    sizes = "16/300000" if args.quick else args.sizes
    print(f"batches of {BATCH:,} new keys, 1 thread, {machine()}; min / median / p99", flush=True)
    worker = tfra_client.TfraWorker(1, args.huge_pages, args.clock) if tfra_client.available() else None
    points = []
    for size in sizes.split(","):
        dim, _, rows = size.partition("/")
        points.append(measure(int(rows), int(dim), 1 if args.quick else args.rounds, worker))
    if worker:
        worker.close()
    write_json(args.json, {"machine": machine(), "points": points})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
