"""Lookups in dynamic tables: an EmbeddingVariable against tf.gather on a static variable, stock's hash tables, TFRA.

Run: python -m benchmarks.bench_embedding_lookup [--quick] [--rows 1000000,10000000] [--dims 16,64] [--rounds 40]
     [--batch 100000] [--threads 1] [--huge-pages] [--skip tfra,mutable] [--json FILE]

Batches of 100,000 ids, every id in the table, uniform and Zipf 1.05, a ring of 16 different batches; one tf.function
call each, output rows included: of 100,000 x 64 floats they are 26 MB of fresh pages, a cost that all share and that
--batch 10000 leaves out. Our table and one opponent at a time take turns (both grown to full size before).
--huge-pages restarts the process with GLIBC_TUNABLES=glibc.malloc.hugetlb=1, for every contestant.
Floors: 0.9 times tf.gather (geometric mean over the grid), 5 times TFRA, 2 times DenseHashTable.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable
from typing import Any

from benchmarks import tfra_client
from benchmarks.embedding_duel import (
    CLOCKS,
    Run,
    duel,
    free_memory,
    geometric_mean,
    machine,
    ratio,
    restart_with_huge_pages,
    times_line,
    use_clock,
    verdict,
    write_json,
)
from benchmarks.embedding_keys import BATCH, lookup_rows
from benchmarks.embedding_tables import DenseTable, EvTable, MutableTable, StaticTable, Table, configure

RING, ZIPF = 16, 1.05
FLOORS = {"tf.gather": 0.9, "DenseHashTable": 2.0, "TFRA": 5.0}
OPPONENTS: dict[str, Callable[[int, int], Table]] = {
    "gather": StaticTable,
    "dense": DenseTable,
    "mutable": MutableTable,
}


class TfraTable:
    """TFRA's table in the worker, as a contestant."""

    name = "TFRA"

    def __init__(self, worker: tfra_client.TfraWorker, rows: int, dim: int):
        self._worker, self._rows = worker, rows
        if worker.call("lookup_setup", rows=rows, dim=dim) != rows:
            raise AssertionError("TFRA lost rows")

    def runner(self, exponent: float | None, batch: int) -> Run:
        shape = {"rows": self._rows, "exponent": exponent, "batches": RING, "batch": batch}
        self._worker.call("lookup_batches", **shape)
        return lambda k: self._worker.call("lookup", batch=k)


def _runner(table: Any, rows: int, exponent: float | None, batch: int) -> Run:
    if isinstance(table, TfraTable):
        return table.runner(exponent, batch)
    batches = [table.batch(r) for r in lookup_rows(rows, exponent, RING, batch)]
    return lambda k: table.run(batches[k])


def measure(rows: int, dim: int, batch: int, rounds: int, opponents: list[str], worker: Any) -> list[dict[str, Any]]:
    """One size: our table against each opponent, both popularities. A list of points."""
    import tensorflow as tf

    tf.random.set_seed(0)
    ours = EvTable(rows, dim)
    points = []
    for opponent in opponents:
        table = TfraTable(worker, rows, dim) if opponent == "tfra" else OPPONENTS[opponent](rows, dim)
        for popularity, exponent in (("uniform", None), ("zipf", ZIPF)):
            runs = {"ours": _runner(ours, rows, exponent, batch), "theirs": _runner(table, rows, exponent, batch)}
            if opponent == "gather":
                batches = [ours.batch(r) for r in lookup_rows(rows, exponent, RING, batch)]
                runs["training"] = lambda k, batches=batches: ours.training(batches[k])
            found = duel(runs, rounds, warmup=4, batches=RING)
            point = {"rows": rows, "dim": dim, "popularity": popularity, "opponent": table.name}
            point |= {name: times.as_dict() for name, times in found.items()}
            point["ratio"] = ratio(found["theirs"], found["ours"])
            points.append(point)
            what = f"{rows / 1e6:g}M x {dim} {popularity}"
            for name, label in (("ours", "EmbeddingVariable"), ("theirs", table.name), ("training", "EV training")):
                if name in found:
                    print(times_line(what, label, found[name], batch / 1e6))
            r = point["ratio"]
            print(f"{'':<26}x {r['paired']:.2f} (minima {r['min']:.2f}, medians {r['median']:.2f})", flush=True)
        del table
        if opponent == "tfra":
            worker.call("clear")
        free_memory()
    return points


def summary(points: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means over the grid, and least ratios, per opponent; printed with their floors."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(p["opponent"] for p in points):
        ratios = [p["ratio"]["paired"] for p in points if p["opponent"] == name]
        mean, least = geometric_mean(ratios), min(ratios)
        found[name] = {"geometric_mean": mean, "least": least}
        # Against tf.gather the floor is for the mean; against the others it is for every point.
        judged = mean if name == "tf.gather" else least
        said = verdict(judged, FLOORS[name]) if name in FLOORS else "reported"
        print(f"against {name:<18} geometric mean {mean:6.2f}, least {least:6.2f}   {said}", flush=True)
    return found


def main(argv: list[str] | None = None) -> int:
    """Measures the grid, prints tables, writes JSON on request. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1000000,10000000")
    parser.add_argument("--dims", default="16,64")
    parser.add_argument("--batch", type=int, default=BATCH, help="ids of a lookup")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads of every contestant")
    parser.add_argument("--skip", default="", help="opponents to leave out: gather,dense,mutable,tfra")
    parser.add_argument("--huge-pages", action="store_true")
    parser.add_argument("--quick", action="store_true", help="100,000 rows, few rounds: does it run?")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: of the process; for a busy machine")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args(argv)
    if args.huge_pages:
        restart_with_huge_pages()
    sizes = [100_000] if args.quick else [int(n) for n in args.rows.split(",")]
    rounds = 5 if args.quick else args.rounds
    opponents = [name for name in (*OPPONENTS, "tfra") if name not in args.skip.split(",")]
    if "tfra" in opponents and not tfra_client.available():
        opponents.remove("tfra")
    configure(args.threads)
    use_clock(args.clock)
    print(f"batches of {args.batch:,} ids, {args.threads} thread(s), {machine()}; min / median / p99", flush=True)
    worker = tfra_client.TfraWorker(args.threads, args.huge_pages, args.clock) if "tfra" in opponents else None
    points = []
    for rows in sizes:
        for dim in (int(n) for n in args.dims.split(",")):
            points += measure(rows, dim, args.batch, rounds, opponents, worker)
    figures = {
        "machine": machine(),
        "threads": args.threads,
        "batch": args.batch,
        "points": points,
        "summary": summary(points),
    }
    if worker:
        figures["tfra"] = worker.versions
        worker.close()
    write_json(args.json, figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
