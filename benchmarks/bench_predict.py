"""Whole predict call, stock TensorFlow against the bundle: the headline figure.

Run: python -m benchmarks.bench_predict [--json FILE] [--points 40/32,40/256,100/256,200/512] [--threads 1]
  [--rounds 60]

F features of 1-3 ids per row (Zipf 1.05 over 100,000 rows of width 16, mean), tower 256-128-1. Contestants take
turns in one process: a dict of NumPy arrays in, NumPy arrays out. Stock is the faster of the Session callable and
tf.function, default grappler. Also counted: operations executed for the embedding part, and the time of converting
the 200-feature model.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import tempfile
import time
from typing import Any

from benchmarks.models import baseline_inputs, save_baseline

FLOORS = {"40/32": 5.0, "40/256": 3.5, "100/256": 3.5, "200/512": 2.5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--points", default=",".join(FLOORS), help="features/batch pairs")
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads of each contestant")
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    figures: dict[str, Any] = {"threads": args.threads, "points": {}, "convert": {}}
    with tempfile.TemporaryDirectory() as scratch:
        bundles: dict[int, tuple[str, str]] = {}
        for point in args.points.split(","):
            features, batch = (int(n) for n in point.split("/"))
            if features not in bundles:
                bundles[features] = _convert(pathlib.Path(scratch), features, figures["convert"])
            figures["points"][point] = _measure(*bundles[features], features, batch, args)
            print(_line(point, figures["points"][point]), flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


def _convert(scratch: pathlib.Path, features: int, times: dict[str, float]) -> tuple[str, str]:
    import tfctr

    model, bundle = str(scratch / f"m{features}"), str(scratch / f"m{features}.bundle")
    save_baseline(features, model)
    begin = time.perf_counter()
    report = tfctr.convert(model, bundle).as_dict()
    times[f"{features}_features_s"] = round(time.perf_counter() - begin, 1)
    lookups = report["signatures"]["serving_default"]["lookups"]
    fused = sum(entry["status"] == "fused" for entry in lookups)
    if fused != features:
        raise SystemExit(
            f"only {fused} of {features} lookups were fused: {[e for e in lookups if e['status'] != 'fused'][:3]}"
        )
    return model, bundle


def _measure(model: str, bundle: str, features: int, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    import numpy as np

    import graph_opt
    import tfctr
    from tfctr.profiling.paired import measure_paired, ratio
    from tfctr.profiling.stock import StockFunction, StockSession, op_times_us

    info = graph_opt.analyse(model)["signatures"]["serving_default"]
    inputs = baseline_inputs(features, batch, seed=1)
    session, function = StockSession(model, info, threads=args.threads), StockFunction(model, info, "serving_default")
    with tfctr.ServingSession(bundle, intra_op_threads=args.threads) as served:
        ours, stock = served.predict(inputs), session.predict(inputs)
        for name, value in stock.items():
            np.testing.assert_allclose(ours[name], value, rtol=1e-5, atol=1e-6)
        timings = measure_paired(
            {
                "tfctr": lambda: served.predict(inputs),
                "stock Session": lambda: session.predict(inputs),
                "stock tf.function": lambda: function.predict(inputs),
            },
            rounds=args.rounds,
        )
        ops = {
            "tfctr": len(op_times_us(served.run_traced(inputs)[1])),
            "stock Session": len(session.op_times_us(inputs)),
        }
    session.close()
    best = min((timings[n] for n in ("stock Session", "stock tf.function")), key=lambda t: t.median_ms)
    return {
        "timings": {name: timing.as_dict() for name, timing in timings.items()},
        "fastest_stock": best.name,
        "speedup": ratio(best, timings["tfctr"]),
        "ops_executed": ops,
    }


def _line(point: str, figure: dict[str, Any]) -> str:
    ours, stock = figure["timings"]["tfctr"], figure["timings"][figure["fastest_stock"]]
    speedup, floor = figure["speedup"], FLOORS.get(point)
    verdict = "" if floor is None else f" (floor {floor}x: {'held' if speedup['median'] >= floor else 'MISSED'})"
    return (
        f"{point:>8}: {figure['fastest_stock']} {stock['median_ms']:.2f} ms, tfctr {ours['median_ms']:.2f} ms, "
        f"{speedup['median']:.1f}x median, {speedup['min']:.1f}x min, {speedup['p99']:.1f}x p99{verdict}"
    )


if __name__ == "__main__":
    main()
