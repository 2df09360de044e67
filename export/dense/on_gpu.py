"""A TensorRT plan on the GPU of this machine: its numbers by the accuracy gate, its speed beside TensorFlow's.

Runs only where there is a GPU that the plans fit; no test of this repository has one (they put a provider of their own
in TensorRT's place).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export.dense.built import NotUsable
from export.dense.options import TENSORRT, DenseOptions
from export.dense.tower import ExportedTower
from export.openvino.measure import COMPARED
from export.openvino.tensorflow_runner import TensorFlowRunner
from export.samples import BoundarySamples
from export.tower import Tower
from export.tower_session import TowerSession
from graph_opt.gate import GateLimits, GateResult, judge
from tfctr.engines import providers
from tfctr.engines.native import Engine, open_engine
from tfctr.engines.spec import EngineFile, EngineSpec, EngineTensor
from tfctr.errors import TfctrError

ROUNDS, WARM_UP = 30, 5
# As ``auto`` asks of OpenVINO.
CLEARLY_FASTER, NEVER_BELOW = 1.05, 0.95


def run_on_gpu(
    exported: ExportedTower,
    tensors: tuple[tuple[EngineTensor, ...], tuple[EngineTensor, ...]],
    precision: str,
    files: Sequence[tuple[str, str, bytes]],
    run_options: Mapping[str, Any],
    samples: BoundarySamples,
    options: DenseOptions,
    clamp: Mapping[str, float],
) -> tuple[GateResult, dict[str, Any]]:
    """(the gate's verdict on the samples, ``versus_tensorflow``). clamp: of the inputs that are clipped, in the
    reference too. fp32 plans are judged by the limits of fp16: TensorRT may multiply in TF32. Raises NotUsable where
    the plan does not open or run, or its numbers do not pass.
    """
    tower, limits = exported.tower, options.limits("fp16")
    with tempfile.TemporaryDirectory(prefix="tfctr-plan-") as folder:
        made = []
        for role, name, data in files:
            path = Path(folder) / name
            path.write_bytes(data)
            made.append(EngineFile(role, path))
        spec = EngineSpec(
            provider=TENSORRT,
            precision=precision,
            inputs=tensors[0],
            outputs=tensors[1],
            files=tuple(made),
            options=run_options,
            label=tower.signature,
        )
        try:
            providers.load(TENSORRT)
            with open_engine(spec) as engine:
                gate = _judge(engine, tower, samples, limits, clamp)
                return gate, _versus(engine, tower, samples)
        except TfctrError as error:
            raise NotUsable(f"on this GPU: {error}") from error


def _judge(
    engine: Engine, tower: Tower, samples: BoundarySamples, limits: GateLimits, clamp: Mapping[str, float]
) -> GateResult:
    feeds = samples.take(tower, samples.rows(tower))
    clipped = {name: np.clip(v, -clamp[name], clamp[name]) if name in clamp else v for name, v in feeds.items()}
    with TowerSession(tower) as reference:
        want = reference.run(clipped)
    gate = judge(want, engine.run(feeds), samples.labels, limits, label_output=samples.label_output)
    if not gate.passed:
        raise NotUsable(f"on this GPU its numbers do not pass the accuracy gate, which {gate.text}")
    return gate


def _versus(engine: Engine, tower: Tower, samples: BoundarySamples) -> dict[str, Any]:
    """Median milliseconds of calls from host memory to host memory, the two in turn."""
    rows = []
    with TensorFlowRunner(tower, 1) as stock:
        for count in COMPARED:
            feeds = samples.take(tower, count)
            ours, theirs = _in_turn(lambda f=feeds: engine.run(f), lambda f=feeds: stock.run(f))  # type: ignore[misc]
            rows.append({"rows": count, "tensorflow_ms": theirs, "engine_ms": ours, "ratio": round(theirs / ours, 4)})
    mean = statistics.geometric_mean(row["ratio"] for row in rows)
    worst = min(rows, key=lambda row: row["ratio"])
    at = ", ".join(f"{row['ratio']:.2f}x at {row['rows']} rows" for row in rows)
    faster = mean >= CLEARLY_FASTER and worst["ratio"] >= NEVER_BELOW
    told = f"TensorRT is {mean:.2f}x as fast as TensorFlow on this machine's CPU ({at})"
    return {
        "faster": faster,
        "reason": told if faster else f"{told}: not clearly faster",
        "geometric_mean": round(mean, 4),
        "least": worst["ratio"],
        "rows": rows,
    }


def _in_turn(one: Callable[[], object], two: Callable[[], object]) -> tuple[float, float]:
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(-WARM_UP, ROUNDS):
        for which, call in enumerate((one, two)):
            start = time.perf_counter()
            call()
            if number >= 0:
                times[which].append((time.perf_counter() - start) * 1e3)
    return round(statistics.median(times[0]), 4), round(statistics.median(times[1]), 4)
