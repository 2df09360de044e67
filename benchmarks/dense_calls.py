"""Whole calls and whole conversions of bench_predict's model with its tower in an engine."""

from __future__ import annotations

import argparse
import pathlib
import tempfile
import time
from typing import Any

ROWS = 256
SIGNATURE = "serving_default"


def call(args: argparse.Namespace) -> dict[str, Any]:
    """A whole predict call: stock, our executor with the tower on TensorFlow, and with the tower in OpenVINO."""
    import numpy as np

    import graph_opt
    import tfctr
    from benchmarks.bench_dense import FLOOR_CALL
    from benchmarks.models import baseline_inputs
    from tfctr.engines.isa import cpu_isa
    from tfctr.profiling.paired import measure_paired, ratio
    from tfctr.profiling.stock import StockFunction, StockSession

    precision = "bf16" if cpu_isa() == "amx_bf16" else "fp32"
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        model = _model(args, folder)
        kept, _ = _convert(model, folder / "tensorflow", args, "tensorflow")
        bundle, dense = _convert(model, folder / "openvino", args, "openvino", precision)
        if dense["provider"] != "openvino":
            print(f"call: not run: the tower stays on TensorFlow: {dense['reason']}", flush=True)
            return {"not_run": dense["reason"]}
        info = graph_opt.analyse(str(model))["signatures"][SIGNATURE]
        inputs = baseline_inputs(args.features, ROWS, seed=1)
        session = StockSession(str(model), info, threads=1)
        function = StockFunction(str(model), info, SIGNATURE)
        with tfctr.ServingSession(bundle) as ours, tfctr.ServingSession(kept) as plain:
            for name, value in session.predict(inputs).items():
                tolerance = 1e-5 if precision == "fp32" else 2e-2
                np.testing.assert_allclose(ours.predict(inputs)[name], value, rtol=tolerance, atol=tolerance)
            calls = {
                "stock Session": lambda: session.predict(inputs),
                "stock tf.function": lambda: function.predict(inputs),
                "tower on TensorFlow": lambda: plain.predict(inputs),
                "tower in OpenVINO": lambda: ours.predict(inputs),
            }
            timings = measure_paired(calls, args.rounds)
            told = ours.describe()
        session.close()
    best = min((timings[n] for n in ("stock Session", "stock tf.function")), key=lambda t: t.median_ms)
    speedups = {name: ratio(best, timings[name]) for name in ("tower on TensorFlow", "tower in OpenVINO")}
    median = speedups["tower in OpenVINO"]["median"]
    floor = f"floor {FLOOR_CALL:g}x: {'held' if median >= FLOOR_CALL else 'MISSED'}"
    if precision == "fp32":
        floor = f"the floor of {FLOOR_CALL:g}x is of bf16 with AMX, which this CPU ({cpu_isa()}) lacks"
    print(
        f"{args.features}/{ROWS}: {best.name} {best.median_ms:.2f} ms, tower on TensorFlow "
        f"{timings['tower on TensorFlow'].median_ms:.2f} ms, in OpenVINO {precision} "
        f"{timings['tower in OpenVINO'].median_ms:.2f} ms: {median:.1f}x median, "
        f"{speedups['tower in OpenVINO']['min']:.1f}x min, {speedups['tower in OpenVINO']['p99']:.1f}x p99 ({floor})",
        flush=True,
    )
    return {
        "precision": precision,
        "timings": {name: timing.as_dict() for name, timing in timings.items()},
        "speedup": speedups,
        "dense": told.get("dense"),
    }


def convert(args: argparse.Namespace) -> dict[str, Any]:
    """Two conversions of one model with one compile cache, for both engines that build here."""
    from export.tensorrt import library

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        model = _model(args, folder)
        for provider in ("openvino", "tensorrt"):
            if provider == "tensorrt" and library.installed() is None:
                print("convert, tensorrt: not run: neither tensorrt nor tensorrt_rtx is installed", flush=True)
                continue
            runs = []
            for k in range(2):
                begin = time.perf_counter()
                _, dense = _convert(
                    model, folder / f"{provider}{k}", args, provider, cache=folder / f"cache_{provider}"
                )
                runs.append({"whole_s": time.perf_counter() - begin, **_steps(dense)})
            compiles = _compiles(folder / "openvino1", dense, folder) if provider == "openvino" else None
            found[provider] = {"cold": runs[0], "again": runs[1], "compiles": compiles}
            print(_verdict(provider, runs[0], runs[1], compiles), flush=True)
    return found


def _model(args: argparse.Namespace, folder: pathlib.Path) -> pathlib.Path:
    from benchmarks.models import save_baseline

    save_baseline(args.features, str(folder / "model"))
    return folder / "model"


def _convert(
    model: pathlib.Path,
    to: pathlib.Path,
    args: argparse.Namespace,
    provider: str,
    precision: str | None = None,
    cache: pathlib.Path | str = "off",
) -> tuple[str, dict[str, Any]]:
    """(the bundle, its signature's ``dense``)."""
    import tfctr
    from export.dense.options import DenseOptions

    targets = ("sm89",) if provider == "tensorrt" else ()
    options = DenseOptions(dense=provider, precision=precision, cache_dir=cache, targets=targets)
    report = tfctr.convert(model, to, dense=options)
    return str(report.path), dict(report.manifest["signatures"][SIGNATURE]["dense"] or {})


def _steps(dense: dict[str, Any]) -> dict[str, Any]:
    """Seconds of what the cache saves: the export, and the engine's own steps (tuning, FP16, plans)."""
    export = float(dense["export"].get("seconds", {}).get("export", 0.0))
    engine = {name: float(seconds) for name, seconds in dense["timing"].get("seconds", {}).items()}
    return {"export_s": export, "engine_s": engine, "all_s": export + sum(engine.values()), "cache": dense["cache"]}


def _compiles(bundle: pathlib.Path, dense: dict[str, Any], scratch: pathlib.Path) -> dict[str, Any]:
    """Milliseconds that OpenVINO needs for all variants of the tower: from ONNX, and from the blobs of the cache."""
    import dataclasses

    from tfctr.engines.native import open_engine
    from tfctr.engines.spec import EngineFile, EngineSpec, EngineTensor

    def tensors(kind: str) -> tuple[EngineTensor, ...]:
        return tuple(
            EngineTensor(one["name"], one["dtype"], tuple("N" if size is None else size for size in one["shape"]))
            for one in dense[kind]
        )

    file = next(bundle.rglob(dense["files"][0]["file"]))
    spec = EngineSpec(
        provider="openvino",
        precision=dense["precision"],
        inputs=tensors("inputs"),
        outputs=tensors("outputs"),
        files=(EngineFile("onnx", file),),
        options={**dense["options"], "contexts": 1, "max_contexts": 1},
    )
    cold, again = [], []
    for _ in range(5):
        with open_engine(spec) as engine:
            cold.append(sum(variant["compile_ms"] for variant in engine.describe()["variants"]))
            exported = engine.export()
        blobs = []
        for role, data in exported.items():
            path = scratch / role.replace(":", "_")
            path.write_bytes(data)
            blobs.append(EngineFile(role, path))
        with open_engine(dataclasses.replace(spec, files=(*spec.files, *blobs))) as engine:
            variants = engine.describe()["variants"]
            unused = [variant["note"] for variant in variants if not variant["from_blob"]]
            again.append(sum(variant["compile_ms"] for variant in variants))
    return {"variants": len(variants), "cold_ms": min(cold), "again_ms": min(again), "unused": unused}


def _verdict(provider: str, cold: dict[str, Any], again: dict[str, Any], compiles: dict[str, Any] | None) -> str:
    from benchmarks.bench_dense import FLOOR_COMPILE, FLOOR_COMPILE_MS, FLOOR_EXPORT

    share = again["all_s"] / cold["all_s"]
    hit = again["cache"] == {"tower": "hit", "engine": "hit"}
    text = (
        f"convert, {provider}: export {cold['export_s']:.2f} s, "
        + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in cold["engine_s"].items())
        + f"; again {again['all_s'] * 1e3:.0f} ms: {share:.1%} (floor {FLOOR_EXPORT:.0%}: "
        f"{'held' if hit and share <= FLOOR_EXPORT else 'MISSED'}); whole conversions {cold['whole_s']:.1f} s, "
        f"{again['whole_s']:.1f} s"
    )
    if compiles is not None:
        less = compiles["again_ms"] / compiles["cold_ms"]
        held = not compiles["unused"] and (less <= FLOOR_COMPILE or compiles["again_ms"] < FLOOR_COMPILE_MS)
        text += (
            f"\n  {compiles['variants']} variants: compiled in {compiles['cold_ms']:.0f} ms, from the cache "
            f"{compiles['again_ms']:.0f} ms: {less:.0%} (floor {FLOOR_COMPILE:.0%} or {FLOOR_COMPILE_MS:g} ms: "
            f"{'held' if held else 'MISSED'})"
        )
    return text
