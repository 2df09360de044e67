"""A refresh against a cold conversion: what new weights cost.

Run: python -m benchmarks.bench_refresh [--json FILE] [--features 100] [--rounds 3] [--providers openvino,tensorrt]
  [--target sm89]

The model of the benchmarks (100,000 rows of width 16 per feature, mean, tower 256-128-1) is saved twice, with other
weights. In each round it is converted with an empty compile cache, then the bundle is refreshed with the second model;
in one process, after one round that is not counted. `tensorrt` builds plans and runs none. The export to ONNX (cut,
translation, comparison with TensorFlow) is the same work in both and is shown apart: the floor is for the rest.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.models import save_baseline

FLOOR = 0.20
SIGNATURE = "serving_default"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--providers", default="openvino,tensorrt")
    parser.add_argument("--target", default="sm89", help="GPUs that plans are built for, separated by commas")
    args = parser.parse_args()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    figures: dict[str, Any] = {"features": args.features, "rounds": args.rounds, "floor": FLOOR, "providers": {}}
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for number, name in enumerate(("old", "new")):
            tf.random.set_seed(number)
            save_baseline(args.features, str(folder / name))
        for provider in args.providers.split(","):
            found = _measure(folder, provider, tuple(args.target.split(",")), args.rounds)
            figures["providers"][provider] = found
            print(_line(provider, found), flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


def _measure(folder: pathlib.Path, provider: str, targets: tuple[str, ...], rounds: int) -> dict[str, Any]:
    import tfctr
    from export.dense_pass import DenseOptions

    runs: dict[str, list[dict[str, float]]] = {"convert": [], "refresh": []}
    for number in range(-1, rounds):
        cache = folder / f"cache{number}"
        dense = DenseOptions(dense=provider, targets=targets if provider == "tensorrt" else (), cache_dir=cache)
        bundle, fresh = folder / "bundle", folder / "fresh"
        timed = {
            "convert": _timed(functools.partial(tfctr.convert, folder / "old", bundle, dense=dense)),
            "refresh": _timed(functools.partial(tfctr.refresh, bundle, folder / "new", fresh, cache_dir=cache)),
        }
        for what, one in timed.items():
            if number >= 0:
                runs[what].append(one)
        for path in (bundle, fresh, cache):
            shutil.rmtree(path)
    found: dict[str, Any] = {"runs": runs}
    for what, each in runs.items():
        found[what] = {key: round(statistics.median(one[key] for one in each), 3) for key in each[0]}
    pairs = list(zip(runs["refresh"], runs["convert"], strict=True))
    found["ratio"] = round(statistics.median(_rest(a) / _rest(b) for a, b in pairs), 3)
    found["ratio_with_export"] = round(statistics.median(a["seconds"] / b["seconds"] for a, b in pairs), 3)
    found["holds"] = found["ratio"] <= FLOOR
    return found


def _timed(run: Callable[[], Any]) -> dict[str, float]:
    """seconds: of the whole call; export: of them, of the tower's export; engine: of what is made of it."""
    start = time.perf_counter()
    report = run()
    seconds = time.perf_counter() - start
    dense = report.manifest["signatures"][SIGNATURE]["dense"]
    if dense["form"] is None:
        raise SystemExit(f"the tower stayed on TensorFlow: {dense['reason']}")
    engine = dense["timing"]["seconds"]
    return {
        "seconds": seconds,
        "export": sum(dense["export"]["seconds"].values()),
        "engine": sum(value for value in engine.values() if isinstance(value, int | float)),
    }


def _rest(one: dict[str, float]) -> float:
    return one["seconds"] - one["export"]


def _line(provider: str, found: dict[str, Any]) -> str:
    old, new = found["convert"], found["refresh"]
    return (
        f"{provider}: convert {old['seconds']:.1f} s (export {old['export']:.1f} s), refresh {new['seconds']:.1f} s "
        f"(export {new['export']:.1f} s): {found['ratio']:.1%} without the export, "
        f"{found['ratio_with_export']:.1%} with it; floor {FLOOR:.0%}: {'holds' if found['holds'] else 'MISSED'}"
    )


if __name__ == "__main__":
    main()
