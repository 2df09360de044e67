"""What profiling costs the requests of a model that is served: off, one in 1000, and the request that is traced.

Run: python -m benchmarks.bench_server_profile [--quick] [--json FILE] [--features 40] [--rows 100]

In process, one `SessionGroup` for each way, one request at a time; the ways take turns within every round, so that a
machine that slows down slows all. The bundle and the plain SavedModel of the same model: what a trace costs grows with
the nodes of the graph. "1 in 1000" is the whole of it: traces are written by their process meanwhile.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import baseline_inputs, save_baseline

EVERY = 1000
FLOORS = {"switched off": 1.01, "1 in 1000": 1.01, "traced": 1.35, "others": 1.01}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a look, no claim")
    parser.add_argument("--features", type=int, default=40)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    figures: dict[str, Any] = {"features": args.features, "rows": args.rows, "models": {}}
    with tempfile.TemporaryDirectory(prefix="tfctr-bench-") as temporary:
        for name, path in _models(Path(temporary), args.features).items():
            inputs = [baseline_inputs(args.features, args.rows, seed) for seed in range(8)]
            figures["models"][name] = told = _measure(path, inputs, Path(temporary), args.quick)
            _show(name, told)
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1))


def _models(folder: Path, features: int) -> dict[str, Path]:
    from tfctr import convert, converting

    converting.DEFAULT_DENSE = "tensorflow"
    save_baseline(features, str(folder / "saved"))
    convert(str(folder / "saved"), str(folder / "bundle"))
    return {"bundle": folder / "bundle", "SavedModel": folder / "saved"}


def _measure(path: Path, inputs: list[Any], folder: Path, quick: bool) -> dict[str, Any]:
    import tfctr

    groups = {name: tfctr.SessionGroup(path) for name in ("off", "switched off", "1 in 1000", "traced")}
    native = {name: group.version.group for name, group in groups.items()}
    try:
        native["switched off"].trace_start(1)
        _prepare(groups["switched off"], inputs)
        native["switched off"].trace_stop()
        native["traced"].trace_start(2, 64)
        ops = _prepare(groups["traced"], inputs)
        groups["1 in 1000"].profile(EVERY, folder=folder / "traces")
        _until_written(groups["1 in 1000"], inputs)
        told = _singles(groups, inputs, rounds=400 if quick else 4000)
        told |= _blocks(groups, inputs, rounds=10 if quick else 60, size=EVERY // 4)
        status = groups["1 in 1000"].profile()
        told["status"] = {key: status[key] for key in ("written", "dropped", "error")}
        told["ops"] = ops
    finally:
        for group in groups.values():
            group.close()
    return told


def _prepare(group: Any, inputs: list[Any]) -> int:
    """Until runs are traced; returns how many ops a trace has."""
    from tensorflow.core.protobuf import config_pb2

    native = group.version.group
    group.predict(inputs[0])
    assert native.trace_prepare() == []
    while (trace := native.trace_take()) is None:
        group.predict(inputs[0])
    stats = config_pb2.RunMetadata.FromString(trace["metadata"]).step_stats
    return sum(len(device.node_stats) for device in stats.dev_stats)


def _until_written(group: Any, inputs: list[Any]) -> None:
    end = time.monotonic() + 300
    while not group.profile()["written"]:
        assert time.monotonic() < end, group.profile()
        group.predict(inputs[0])
        time.sleep(0.05)  # who writes has the lowest priority


def _singles(groups: dict[str, Any], inputs: list[Any], rounds: int) -> dict[str, Any]:
    """Single requests: never traced, switched off again, traced, and the one beside it that is not."""
    native = groups["traced"].version.group
    calls: dict[str, Callable[[Any], object]] = {
        "off": groups["off"].predict,
        "switched off": groups["switched off"].predict,
        "traced or not": groups["traced"].predict,
    }
    samples: dict[str, list[float]] = {name: [] for name in ("off", "switched off", "traced", "others")}
    names = list(calls)
    gc.disable()
    for k in range(rounds):
        for name in names[k % 3 :] + names[: k % 3]:
            begin = time.perf_counter()
            calls[name](inputs[k // 2 % len(inputs)])
            took = (time.perf_counter() - begin) * 1e3
            if name == "traced or not":
                samples["others" if native.trace_take({0}) is None else "traced"].append(took)
            else:
                samples[name].append(took)
    gc.enable()
    off = np.array(samples["off"])
    return {"off_ms": _figures(off)} | {
        name: _figures(np.array(values)) | {"ratio": float(np.median(values) / np.median(off))}
        for name, values in samples.items()
        if name != "off"
    }


def _blocks(groups: dict[str, Any], inputs: list[Any], rounds: int, size: int) -> dict[str, Any]:
    """Blocks of requests in turn; the mean of a block, as a trace is one of many."""
    means: dict[str, list[float]] = {"off": [], "1 in 1000": []}
    every: dict[str, list[float]] = {"off": [], "1 in 1000": []}
    for k in range(rounds):
        for name in ("off", "1 in 1000") if k % 2 else ("1 in 1000", "off"):
            times = []
            for i in range(size):
                begin = time.perf_counter()
                groups[name].predict(inputs[i % len(inputs)])
                times.append((time.perf_counter() - begin) * 1e3)
            means[name].append(float(np.mean(times)))
            every[name] += times
    ratios = np.array(means["1 in 1000"]) / np.array(means["off"])
    low, high = np.percentile(ratios, [25, 75])
    return {
        "1 in 1000": _figures(np.array(every["1 in 1000"]))
        | {"ratio": float(np.median(ratios)), "quartiles": [float(low), float(high)]},
        "off_blocks": _figures(np.array(every["off"])),
    }


def _figures(samples: np.ndarray) -> dict[str, float]:
    return {
        "min_ms": float(samples.min()),
        "median_ms": float(np.median(samples)),
        "p99_ms": float(np.percentile(samples, 99)),
        "samples": len(samples),
    }


def _show(name: str, told: dict[str, Any]) -> None:
    off = told["off_ms"]
    print(f"{name}, {told['ops']} ops; off: median {off['median_ms']:.3f} ms, p99 {off['p99_ms']:.3f}")
    for way, floor in FLOORS.items():
        one = told[way]
        spread = f", quartiles {one['quartiles'][0]:.3f} {one['quartiles'][1]:.3f}" if "quartiles" in one else ""
        verdict = "reached" if one["ratio"] <= floor else "MISSED"
        print(
            f"  {way:13} {one['ratio']:.3f}x of off{spread} (at most {floor}: {verdict}); "
            f"median {one['median_ms']:.3f} ms, p99 {one['p99_ms']:.3f}"
        )
    print(f"  traces written meanwhile: {told['status']}")


if __name__ == "__main__":
    main()
