"""The dense tower as an engine, against the tower as a TF Session with default grappler.

Run: python -m benchmarks.bench_dense [--json FILE] [--parts towers,bf16,fp16,call,convert] [--towers dlrm,dcn]
  [--rows 32,256,512] [--rounds 60] [--clock wall|cpu] [--budget 6] [--tuning 4] [--samples 2000] [--features 100]
  [--data FOLDER]

One thread everywhere; contestants take turns in one process, after a warm-up; ratios are medians of the ratios round by
round. Five random towers of examples/models/towers.py.

towers   OpenVINO FP32 as the tuner chooses its variants; also its dynamic variant alone, and TensorFlow in our
         executor, which is what `--dense auto` compares with and takes where OpenVINO is not faster
bf16     the same in bfloat16, where the CPU has AMX; what the accuracy gate says stands beside
fp16     largest |dp| of the FP16 towers by the NumPy-half judge, and the AUC of a tower trained on MovieLens-100k
call     a whole predict call of the model of bench_predict (100 features, 256 rows), its tower in OpenVINO
convert  a second conversion of that model with the compile cache of the first
"""

from __future__ import annotations

import argparse
import json
import pathlib
import tempfile
from typing import Any

FLOOR_MEAN, FLOOR_LEAST, FLOOR_BF16, FLOOR_DP, FLOOR_AUC, FLOOR_CALL = 1.2, 0.95, 3.0, 4e-3, 1e-4, 6.0
FLOOR_EXPORT, FLOOR_COMPILE, FLOOR_COMPILE_MS = 0.05, 0.5, 30.0
PARTS = ("towers", "bf16", "fp16", "call", "convert")
DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data" / "ml-100k"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--towers", default="", help="names, comma-separated; default: all five")
    parser.add_argument("--rows", default="32,256,512")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: of the process, for a busy machine"
    )
    parser.add_argument("--budget", type=float, default=6.0, help="seconds per tower and number of rows, at most")
    parser.add_argument("--tuning", type=float, default=4.0, help="seconds of the tuner per tower")
    parser.add_argument("--samples", type=int, default=2000, help="rows that precisions are judged on")
    parser.add_argument("--features", type=int, default=100, help="features of the model of call and convert")
    parser.add_argument("--data", type=pathlib.Path, default=DATA, help="folder of MovieLens-100k")
    args = parser.parse_args()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    from benchmarks import dense_calls, dense_precision
    from tfctr.engines.isa import cpu_isa

    print(f"CPU: {cpu_isa()}; one thread", flush=True)
    run = {
        "towers": _towers,
        "bf16": _bf16,
        "fp16": dense_precision.fp16,
        "call": dense_calls.call,
        "convert": dense_calls.convert,
    }
    figures: dict[str, Any] = {"isa": cpu_isa()}
    for part in args.parts.split(","):
        if part not in run:
            parser.error(f"no part {part!r}; there is: {', '.join(PARTS)}")
        figures[part] = run[part](args)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


def _towers(args: argparse.Namespace) -> dict[str, Any]:
    found = _measure(args, "fp32")
    total = found["summary"]
    print(
        f"OpenVINO FP32 as chosen: geometric mean {total['geometric_mean']:.2f}x "
        f"(floor {FLOOR_MEAN:g}x: {_held(total['geometric_mean'] >= FLOOR_MEAN)}), least {total['least']:.2f}x; "
        f"dynamic variant alone {total['dynamic_geometric_mean']:.2f}x; of the minima {total['minima_mean']:.2f}x"
    )
    print(
        f"as auto chooses: geometric mean {total['auto_geometric_mean']:.2f}x, least {total['auto_least']:.2f}x "
        f"(floor {FLOOR_LEAST:g}x: {_held(total['auto_least'] >= FLOOR_LEAST)})",
        flush=True,
    )
    return found


def _bf16(args: argparse.Namespace) -> dict[str, Any]:
    from benchmarks import dense_precision
    from tfctr.engines.isa import cpu_isa

    if cpu_isa() != "amx_bf16":
        reason = f"this CPU ({cpu_isa()}) has no AMX"
        print(f"bf16: not run: {reason}", flush=True)
        return {"not_run": reason}
    found = _measure(args, "bf16")
    for name, tower in found["towers"].items():
        tower["gate"] = gate = dense_precision.bf16_gate(name, args.samples)
        print(f"{name}: bf16 {gate['text']}", flush=True)
    from benchmarks.dense_towers import summary

    passed = {name: tower for name, tower in found["towers"].items() if tower["gate"]["passed"]}
    mean = summary(passed)["geometric_mean"] if passed else 0.0
    print(f"bf16, towers that pass: geometric mean {mean:.2f}x (floor {FLOOR_BF16:g}x: {_held(mean >= FLOOR_BF16)})")
    return {**found, "passed_geometric_mean": mean}


def _measure(args: argparse.Namespace, precision: str) -> dict[str, Any]:
    from benchmarks.dense_towers import measure_tower, summary, table
    from examples.models.towers import TOWERS

    names = args.towers.split(",") if args.towers else list(TOWERS)
    rows = [int(n) for n in args.rows.split(",")]
    towers: dict[str, Any] = {}
    print(
        "| tower | rows | TF Session ms min / median / p99 | OpenVINO as chosen | ratio | dynamic alone | TF, our "
        "executor |\n|---|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            towers[name] = measure_tower(
                name, pathlib.Path(folder), precision, rows, args.rounds, args.tuning, args.budget, args.clock
            )
            print("\n".join(table(name, towers[name])), flush=True)
    for name, tower in towers.items():
        tuned = tower["tuned"]
        choice = "openvino" if tuned["versus_tensorflow"]["faster"] else "tensorflow"
        print(
            f"{name}: {tuned['timing']['note']}; tuned in {tuned['timing']['seconds']:.1f} s; auto: {choice}: "
            f"{tuned['versus_tensorflow']['reason']}",
            flush=True,
        )
    return {"towers": towers, "summary": summary(towers)}


def _held(good: bool) -> str:
    return "held" if good else "MISSED"


if __name__ == "__main__":
    main()
