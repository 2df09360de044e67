"""Smaller tables: time and bytes of lookups over tables stored as fp32, fp16, bf16 and int8.

Run: python -m benchmarks.bench_table_dtype [--points 40x256,100x256] [--large-rows 2000000] [--rounds 60]
     [--whole-rounds 100] [--json FILE]

Three parts, one thread, contestants in turn in one process, each on its own batch of a ring:
  op      op time (RunMetadata) of one TfctrFusedLookup: F features, each with a table of 100k x 16, safe mean of 1-3
          Zipf ids (1.05) per row
  large   the same: 8 features over one table of 2M x 64 (512 MB as fp32), beyond every cache
  whole   ServingSession.predict of the baseline model (benchmarks.models), converted with --table-dtype; packing, dense
          tower and all. The accuracy gate's limits are widened: the model is not trained
Ratios are medians of paired samples, fp32 over the narrow one: above 1 is faster. Floor: fp16 no slower than fp32, and
half the bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.lookup_contestants import FusedOp
from benchmarks.lookup_inputs import Batch, make_batches, make_tables

RING = 8
LARGE_RING = 64  # batches whose rows together are larger than any cache
LARGE_FEATURES, LARGE_WIDTH = 8, 64
DTYPES: dict[str, str | None] = {"fp32": None, "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}


def measure_op(
    tables: Sequence[np.ndarray], batches: Sequence[Batch], rounds: int, folder: pathlib.Path
) -> dict[str, Any]:
    """Op time in microseconds and bytes of files, by dtype."""
    ops = {name: FusedOp(tables, batches, folder, storage) for name, storage in DTYPES.items()}
    want = ops["fp32"].run(0)[1]
    for name, op in ops.items():
        if not np.allclose(op.run(0)[1], want, rtol=0, atol=0.05):
            raise AssertionError(f"{name} tables give other numbers")
    calls = {name: lambda k, op=op: op.run(k)[0] for name, op in ops.items()}
    samples = _in_turn(calls, rounds, len(batches))  # type: ignore[arg-type]
    return {name: _figures(samples, name) | {"bytes": ops[name].table_bytes()} for name in ops}


def measure_whole(features: int, batch: int, rounds: int, folder: pathlib.Path) -> dict[str, Any]:
    """Microseconds of a whole call, by dtype."""
    import time

    import tfctr
    from benchmarks.models import baseline_inputs, save_baseline

    model = folder / f"model{features}"
    save_baseline(features, str(model))
    requests = [baseline_inputs(features, batch, seed) for seed in range(RING)]
    with contextlib.ExitStack() as stack:
        calls: dict[str, Callable[[int], float]] = {}
        for name in DTYPES:
            limits: Any = {} if name == "fp32" else {"max_dp": 1.0, "max_bias": 1.0, "max_auc_delta": 1.0}
            manifest = tfctr.convert(model, folder / f"{name}{features}", table_dtype=name, **limits).manifest
            if name not in manifest["precision"]:
                raise AssertionError(f"asked for {name} tables, got {manifest['precision']}")
            session = stack.enter_context(tfctr.ServingSession(folder / f"{name}{features}"))

            def call(k: int, session: Any = session) -> float:
                start = time.perf_counter()
                session.predict(requests[k])
                return (time.perf_counter() - start) * 1e6

            calls[name] = call
        samples = _in_turn(calls, rounds, RING)
    return {name: _figures(samples, name) for name in samples}


def _in_turn(contestants: Mapping[str, Callable[[int], float]], rounds: int, ring: int) -> dict[str, np.ndarray]:
    """Samples by name. The order is drawn anew every round: whoever runs before leaves its rows in the caches."""
    names = list(contestants)
    rng = np.random.default_rng(0)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for r in range(-ring, rounds):
        for which in rng.permutation(len(names)):
            name = names[which]
            taken = contestants[name]((r + which * (ring // len(names))) % ring)
            if r >= 0:
                samples[name].append(taken)
    return {name: np.array(times) for name, times in samples.items()}


def _figures(samples: Mapping[str, np.ndarray], name: str) -> dict[str, Any]:
    times, wide = samples[name], samples["fp32"]
    return {
        "min_us": float(times.min()),
        "median_us": float(np.median(times)),
        "p99_us": float(np.percentile(times, 99)),
        "fp32_over_this": float(np.median(wide) / np.median(times)),
        "fp32_over_this_min": float(wide.min() / times.min()),
    }


def _print(part: str, point: str, found: Mapping[str, Any]) -> None:
    for name, f in found.items():
        size = f"  {f['bytes'] / 1e6:8.1f} MB" if "bytes" in f else ""
        print(
            f"{part:6s} {point:16s} {name:5s} median {f['median_us']:8.0f} us  min {f['min_us']:8.0f}  p99 "
            f"{f['p99_us']:8.0f}  fp32/this {f['fp32_over_this']:.2f} (minima {f['fp32_over_this_min']:.2f}){size}",
            flush=True,
        )


def main(argv: list[str] | None = None) -> int:
    """Measures, prints a table, writes JSON on request. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", default="40x256,100x256", help="FEATURESxBATCH, separated by commas")
    parser.add_argument("--large-rows", type=int, default=2_000_000, help="rows of the large table; 0: leave it out")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--whole-rounds", type=int, default=100, help="rounds of whole calls; 0: leave them out")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args(argv)
    points = []

    def add(part: str, point: str, found: dict[str, Any]) -> None:
        points.append({"part": part, "point": point, "dtypes": found})
        _print(part, point, found)

    for text in args.points.split(","):
        features, batch = (int(n) for n in text.split("x"))
        with tempfile.TemporaryDirectory() as folder:
            batches = make_batches(features, batch, RING)
            add("op", text, measure_op(make_tables(features), batches, args.rounds, pathlib.Path(folder)))
        if args.whole_rounds:
            with tempfile.TemporaryDirectory() as folder:
                add("whole", text, measure_whole(features, batch, args.whole_rounds, pathlib.Path(folder)))
    if args.large_rows:
        table = np.random.default_rng(0).normal(size=(args.large_rows, LARGE_WIDTH)).astype(np.float32)
        with tempfile.TemporaryDirectory() as folder:
            batches = make_batches(LARGE_FEATURES, 256, LARGE_RING, args.large_rows)
            found = measure_op([table] * LARGE_FEATURES, batches, args.rounds, pathlib.Path(folder))
            add("large", f"{args.large_rows}x{LARGE_WIDTH}", found)
    if args.json:
        args.json.write_text(json.dumps({"points": points}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
