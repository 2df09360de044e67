"""Embedding op time: TfctrFusedLookup against a bare C++ gather loop and against stock TensorFlow's embedding part.

Run: python -m benchmarks.bench_lookup [--features 40,100,200] [--batch 32,256,512] [--rounds 60] [--json FILE]

Model: safe mean, width 16, vocabulary 100k, Zipf 1.05, 1-3 ids per row; one thread. The three run in turn in one
process on the same batches, each on its own batch of a ring so that none finds its rows fetched by another. Times:
op time of the fused op and summed op times of stock's embedding part from RunMetadata (stock with default grappler),
the loop's own clock. Floors: the op within 1.15x of the loop at each point; stock / op at least 2.5 everywhere,
geometric mean 5. torch's EmbeddingBag and FBGEMM's TBE are measured too where they are installed.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import tempfile
from typing import Any

import numpy as np

from benchmarks.lookup_contestants import FusedOp, StockGraph, peers
from benchmarks.lookup_inputs import WIDTH, make_batches, make_tables
from benchmarks.loop import GatherLoop

RING = 8  # different batches, so that rows are not all in cache


def measure(features: int, batch: int, rounds: int, folder: pathlib.Path) -> dict[str, Any]:
    """One point of the grid: medians in microseconds, and ratios of paired samples."""
    tables = make_tables(features)
    batches = make_batches(features, batch, RING)
    fused = FusedOp(tables, batches, folder)
    loop = GatherLoop(fused.mapped_tables())
    bound = [loop.bind(b.ids, b.indices, batch) for b in batches]
    stock = StockGraph(tables, batches)
    expected = stock.run(0)[1]
    if not (
        np.array_equal(fused.run(0)[1], expected) and bound[0].run() > 0 and np.array_equal(bound[0].output, expected)
    ):
        raise AssertionError("the contestants do not compute the same numbers")
    contestants = {
        "op": lambda k: fused.run(k)[0],
        "loop": lambda k: bound[k].run() / 1e3,
        "stock": lambda k: stock.run(k)[0],
    }
    contestants |= peers(tables, batches)
    samples = _interleave(contestants, rounds)
    point: dict[str, Any] = {"features": features, "batch": batch, "ids": sum(len(i) for i in batches[0].ids)}
    for name, times in samples.items():
        point[name] = {"min_us": times.min(), "median_us": np.median(times), "p99_us": np.percentile(times, 99)}
    # Whoever runs second of the two finds popular rows and their page table entries warm: they take turns, and each
    # place counts alike.
    first = np.arange(rounds) % 2 == 0
    sums = {n: np.median(samples[n][first]) + np.median(samples[n][~first]) for n in ("op", "loop")}
    point["op_over_loop"] = float(sums["op"] / sums["loop"])
    for name in samples:
        if name not in ("op", "loop"):
            point[f"{name}_over_op"] = float(np.median(samples[name] / samples["op"]))
    return point


def _interleave(contestants: dict[str, Any], rounds: int) -> dict[str, np.ndarray]:
    others = [n for n in contestants if n not in ("op", "loop")]
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for r in range(-8, rounds):
        turn = r % len(others)
        pair = ["op", "loop"] if r % 2 == 0 else ["loop", "op"]
        for name in [*pair, *others[turn:], *others[:turn]]:
            # Op and loop read the same files: half a ring apart, each finds its rows touched equally long ago.
            taken = contestants[name]((r + (RING // 2 if name == "loop" else 0)) % RING)
            if r >= 0:
                samples[name].append(taken)
    return {name: np.array(times) for name, times in samples.items()}


def main(argv: list[str] | None = None) -> int:
    """Measures the grid, prints a table, writes JSON on request. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", default="40,100,200")
    parser.add_argument("--batch", default="32,256,512")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args(argv)
    points = []
    print(f"width {WIDTH}; medians in microseconds")
    for features in (int(n) for n in args.features.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            for batch in (int(n) for n in args.batch.split(",")):
                point = measure(features, batch, args.rounds, pathlib.Path(folder))
                points.append(point)
                more = "".join(
                    f"  {name} {point[name]['median_us']:.0f}" for name in point if isinstance(point[name], dict)
                )
                print(
                    f"{features:4d} / {batch:3d}"
                    f"  op/loop {point['op_over_loop']:.2f}"
                    f"  stock/op {point['stock_over_op']:.1f} {more}",
                    flush=True,
                )
    mean = math.exp(sum(math.log(p["stock_over_op"]) for p in points) / len(points))
    print(f"geometric mean stock/op {mean:.2f}")
    if args.json:
        args.json.write_text(
            json.dumps({"points": points, "geometric_mean_stock_over_op": mean}, indent=1, default=float)
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
