"""TensorRT plans of the five dense towers in FP16, for every target that the installed library lists.

Run: python -m benchmarks.bench_plans [--json FILE] [--targets sm80,sm89] [--builds 3] [--rows 256]

Needs no GPU with tensorrt_rtx; nothing is run on one. Per tower: FP32 ONNX, FP16 judged on generated rows (--rows; the
NumPy judge), then one plan per target, batch 1 to 1024. A plan is built --builds times; the table has the fastest, and
what the process computed in that time (the machine's other load makes the first larger, not the second).
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from typing import Any

from examples.models.towers import TOWERS, dense_tower, tower_inputs
from export.fp16.inputs import embedding_inputs
from export.fp16.narrow import NarrowOptions, narrow_tower
from export.onnx.exporter import to_onnx
from export.tensorrt.build import build
from export.tensorrt.library import load, parse_targets

FLOOR_S, FLOOR_DP = 1.0, 4e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--targets", default="all", help="such as sm80,sm89 (default: all that the library lists)")
    parser.add_argument("--builds", type=int, default=3, help="builds of each plan")
    parser.add_argument("--rows", type=int, default=256, help="rows that FP16 is judged on")
    args = parser.parse_args()
    library = load()
    targets = parse_targets(args.targets, library)
    print(f"{library.label}: {', '.join(targets)}", flush=True)
    figures: dict[str, Any] = {"library": library.label, "towers": {}}
    for name in TOWERS:
        figures["towers"][name] = found = _measure(name, targets, args.builds, args.rows)
        print("\n".join(_lines(name, found)), flush=True)
    worst = max(plan["wall_s"] for tower in figures["towers"].values() for plan in tower["plans"].values())
    error = max(tower["max_dp"] for tower in figures["towers"].values())
    figures |= {"slowest_s": worst, "max_dp": error}
    print(f"slowest plan {worst:.2f} s (floor {FLOOR_S:g} s); largest |dp| {error:.2g} (floor {FLOOR_DP:g})")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


def _measure(name: str, targets: tuple[str, ...], builds: int, rows: int) -> dict[str, Any]:
    tower = dense_tower(name)
    start = time.perf_counter()
    model = to_onnx(tower).model
    exported = time.perf_counter()
    narrow = narrow_tower(model, tower_inputs(name, rows), NarrowOptions(clamped=embedding_inputs(tower)))
    judged = time.perf_counter()
    plans = {}
    for target in targets:
        runs = []
        for _ in range(builds):
            cpu = time.process_time()
            made = build(narrow.model, target)
            runs.append((made.seconds[target], time.process_time() - cpu, len(made[target]), made.warnings))
        wall, cpu, size, warnings = min(runs)
        plans[target] = {"wall_s": wall, "cpu_s": cpu, "bytes": size, "warnings": list(warnings)}
    return {
        "precision": narrow.precision,
        "casts": narrow.fp16.casts if narrow.fp16 else 0,
        "islands": len(narrow.fp16.islands) if narrow.fp16 else 0,
        "max_dp": narrow.gate.worst_dp if narrow.gate else 0.0,
        "export_s": exported - start,
        "fp16_s": judged - exported,
        "plans": plans,
    }


def _lines(name: str, found: dict[str, Any]) -> list[str]:
    head = (
        f"{name}: {found['precision']}, {found['islands']} islands, {found['casts']} casts, "
        f"max |dp| {found['max_dp']:.2g}; ONNX {found['export_s']:.2f} s, FP16 and judge {found['fp16_s']:.2f} s"
    )
    rows = [
        f"  {target:6} {plan['wall_s']:5.2f} s (cpu {plan['cpu_s']:.2f} s)  {plan['bytes'] / 1e6:5.2f} MB"
        + (f"  {len(plan['warnings'])} warnings" if plan["warnings"] else "")
        for target, plan in found["plans"].items()
    ]
    return [head, *rows]


if __name__ == "__main__":
    main()
