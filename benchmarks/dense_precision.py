"""What half precisions do to the scores of the five towers, and to the AUC of one that is trained."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np


def fp16(args: argparse.Namespace) -> dict[str, Any]:
    """FP16 by the NumPy-half judge: the largest |dp| of every tower, and the AUC of a trained one."""
    from benchmarks.bench_dense import FLOOR_DP
    from examples.models.towers import TOWERS, dense_tower, tower_inputs
    from export.fp16.inputs import embedding_inputs
    from export.fp16.narrow import NarrowOptions, narrow_tower
    from export.onnx.exporter import to_onnx

    found: dict[str, Any] = {"towers": {}}
    for name in args.towers.split(",") if args.towers else TOWERS:
        tower = dense_tower(name)
        narrow = narrow_tower(
            to_onnx(tower).model, tower_inputs(name, args.samples), NarrowOptions(clamped=embedding_inputs(tower))
        )
        dp = narrow.gate.worst_dp if narrow.gate else 0.0
        islands = len(narrow.fp16.islands) if narrow.fp16 else 0
        found["towers"][name] = {"precision": narrow.precision, "max_dp": dp, "islands": islands}
        print(f"{name}: {narrow.precision}, {islands} islands, max |dp| {dp:.2g} on {args.samples} rows", flush=True)
    worst = max(tower["max_dp"] for tower in found["towers"].values())
    half = all(tower["precision"] == "fp16" for tower in found["towers"].values())
    verdict = "held" if half and worst <= FLOOR_DP else "MISSED"
    print(f"FP16: largest |dp| {worst:.2g} (floor {FLOOR_DP:g}: {verdict})", flush=True)
    return {**found, "max_dp": worst, "trained": _trained(args)}


def _trained(args: argparse.Namespace) -> dict[str, Any]:
    """A tower trained on MovieLens-100k: AUC in FP32 and FP16 on the test rows."""
    from benchmarks.bench_dense import FLOOR_AUC
    from examples.models.movielens_tower import trained_tower
    from export.fp16.inputs import embedding_inputs
    from export.fp16.narrow import NarrowOptions, narrow_tower
    from export.onnx.exporter import to_onnx

    if not args.data.is_dir():
        print(f"trained tower: not run: no MovieLens-100k in {args.data} (--data)", flush=True)
        return {"not_run": "no data"}
    tower, feeds, labels = trained_tower(args.data)
    narrow = narrow_tower(to_onnx(tower).model, feeds, NarrowOptions(clamped=embedding_inputs(tower)), labels=labels)
    if narrow.gate is None:
        print(f"trained on MovieLens-100k: {narrow.text}", flush=True)
        return {"precision": narrow.precision}
    verdict = narrow.gate.outputs[0]
    assert verdict.auc_delta is not None, "labels were given"
    held = "held" if narrow.precision == "fp16" and abs(verdict.auc_delta) <= FLOOR_AUC else "MISSED"
    print(
        f"trained on MovieLens-100k: {narrow.precision}, {len(labels):,} test rows, AUC {verdict.auc_reference:.5f}, "
        f"delta {verdict.auc_delta:+.1e} (floor {FLOOR_AUC:g}: {held}), max |dp| {narrow.gate.worst_dp:.2g}",
        flush=True,
    )
    return {
        "precision": narrow.precision,
        "rows": len(labels),
        "auc": verdict.auc_reference,
        "auc_delta": verdict.auc_delta,
        "max_dp": narrow.gate.worst_dp,
    }


def bf16_gate(name: str, samples: int) -> dict[str, Any]:
    """The accuracy gate of a tower in bfloat16, on random rows: OpenVINO in bf16 against TensorFlow."""
    import pathlib
    import tempfile

    import onnx

    from examples.models.towers import dense_tower, tower_inputs
    from export.onnx.exporter import to_onnx
    from export.openvino.tuning import engine_spec
    from export.tower_session import TowerSession
    from graph_opt.gate import ENGINE_LIMITS, judge
    from tfctr.engines.native import open_engine

    tower, feeds = dense_tower(name), tower_inputs(name, samples)
    with tempfile.TemporaryDirectory() as folder, TowerSession(tower) as reference:
        path = pathlib.Path(folder) / "tower.onnx"
        onnx.save(to_onnx(tower).model, str(path))
        with open_engine(engine_spec(tower, path, "bf16", 1, {})) as engine:
            got = {key: np.asarray(value) for key, value in engine.run(feeds).items()}
        verdict = judge(reference.run(feeds), got, None, ENGINE_LIMITS["bf16"])
    return {**verdict.to_json(), "passed": verdict.passed, "text": verdict.text}
