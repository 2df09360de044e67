"""The contestants of bench_dense: a tower as a TF Session, as tfctr runs it on TensorFlow, and in OpenVINO."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from export.tower import Tower

# Beside OpenVINO as chosen: the dynamic variant alone, and TensorFlow in our executor (what `auto` compares with).
CHOSEN, DYNAMIC, SESSION, EXECUTOR = "openvino", "openvino dynamic", "tf session", "tf executor"


class TowerCallable:
    """The tower as a ``tf.compat.v1.Session`` with a callable made once: default grappler.

    Threads are the process's: ``tf.config.threading`` has to be told before TensorFlow does anything.
    """

    def __init__(self, tower: Tower, threads: int) -> None:
        import tensorflow as tf

        graph = tf.Graph()
        with graph.as_default():
            tf.import_graph_def(tower.graph_def, name="")
        config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads, use_per_session_threads=True
        )
        self._session = tf.compat.v1.Session(graph=graph, config=config)
        self._names = [one.name for one in tower.inputs]
        self._outputs = [one.name for one in tower.outputs]
        self._call = self._session.make_callable(
            [graph.get_tensor_by_name(one.tensor) for one in tower.outputs],
            feed_list=[graph.get_tensor_by_name(one.tensor) for one in tower.inputs],
        )

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(self._outputs, self._call(*[feeds[name] for name in self._names]), strict=True))

    def close(self) -> None:
        self._session.close()


def measure_tower(
    name: str, folder: Path, precision: str, rows: list[int], rounds: int, tuning_s: float, budget_s: float, clock: str
) -> dict[str, Any]:
    """Figures of one tower, one thread: what the tuner chose, and every contestant at every number of rows."""
    import onnx

    from examples.models.towers import dense_tower, tower_inputs
    from export.onnx.exporter import to_onnx
    from export.openvino import tune
    from export.openvino.options import EngineOptions
    from export.openvino.tensorflow_runner import TensorFlowRunner
    from export.openvino.tuning import engine_spec
    from tfctr.engines.native import open_engine

    tower = dense_tower(name)
    path = folder / f"{name}.onnx"
    onnx.save(to_onnx(tower).model, str(path))
    tuned = tune(tower, path, precision, threads=1, seconds=tuning_s)
    specs = {CHOSEN: tuned.options, DYNAMIC: EngineOptions().to_json()}
    found: dict[str, Any] = {"tuned": tuned.to_json(), "rows": {}}
    with contextlib.ExitStack() as stack:
        runners: dict[str, Any] = {SESSION: TowerCallable(tower, 1), EXECUTOR: TensorFlowRunner(tower, 1)}
        for contestant, options in specs.items():
            runners[contestant] = open_engine(engine_spec(tower, path, precision, 1, options))
        for runner in runners.values():
            stack.callback(runner.close)
        for n in rows:
            feeds = tower_inputs(name, n, seed=n)
            found["rows"][str(n)] = _compare(runners, feeds, precision, rounds, budget_s, clock)
        found["engine"] = runners[CHOSEN].describe()
    return found


def _compare(
    runners: Mapping[str, Any],
    feeds: Mapping[str, np.ndarray],
    precision: str,
    rounds: int,
    budget_s: float,
    clock: str,
) -> dict[str, Any]:
    import functools
    import time

    from tfctr.profiling.paired import measure_paired, ratio

    want = runners[SESSION].run(feeds)
    difference = 0.0
    for output, value in runners[CHOSEN].run(feeds).items():
        difference = max(difference, float(np.max(np.abs(value - want[output]))))
        if precision == "fp32":
            np.testing.assert_allclose(value, want[output], rtol=1e-5, atol=1e-5)
    calls: dict[str, Callable[[], object]] = {
        contestant: functools.partial(runner.run, feeds) for contestant, runner in runners.items()
    }
    read = time.process_time if clock == "cpu" else time.perf_counter
    timings = measure_paired(calls, rounds, warmup_rounds=3, budget_s=budget_s, clock=read)
    return {
        "timings": {contestant: timing.as_dict() for contestant, timing in timings.items()},
        "speedup": {
            contestant: ratio(timings[SESSION], timing)
            for contestant, timing in timings.items()
            if contestant != SESSION
        },
        "max_difference": difference,
    }


def summary(towers: Mapping[str, Any]) -> dict[str, float]:
    """Over all towers and rows, medians of the ratios round by round: geometric mean and least of OpenVINO as chosen
    and of what `auto` gives, the mean of the dynamic variant alone; and the mean of the ratios of minima.
    """
    points = [(tower, point) for tower in towers.values() for point in tower["rows"].values()]
    chosen = [point["speedup"][CHOSEN]["paired_median"] for _, point in points]
    dynamic = [point["speedup"][DYNAMIC]["paired_median"] for _, point in points]
    auto = [
        point["speedup"][CHOSEN if tower["tuned"]["versus_tensorflow"]["faster"] else EXECUTOR]["paired_median"]
        for tower, point in points
    ]
    return {
        "geometric_mean": _mean(chosen),
        "least": min(chosen),
        "auto_geometric_mean": _mean(auto),
        "auto_least": min(auto),
        "dynamic_geometric_mean": _mean(dynamic),
        "minima_mean": _mean([point["speedup"][CHOSEN]["min"] for _, point in points]),
    }


def _mean(ratios: list[float]) -> float:
    return math.exp(sum(math.log(one) for one in ratios) / len(ratios))


def table(name: str, figures: Mapping[str, Any]) -> list[str]:
    """Markdown rows of one tower: milliseconds min / median / p99, ratios of medians round by round."""
    lines = []
    for rows, point in figures["rows"].items():
        times = {
            contestant: " / ".join(f"{timing[key]:.2f}" for key in ("min_ms", "median_ms", "p99_ms"))
            for contestant, timing in point["timings"].items()
        }
        ratios = {contestant: f"{speedup['paired_median']:.2f}x" for contestant, speedup in point["speedup"].items()}
        lines.append(
            f"| {name} | {rows} | {times[SESSION]} | {times[CHOSEN]} | {ratios[CHOSEN]} | {ratios[DYNAMIC]} | "
            f"{ratios[EXECUTOR]} |"
        )
    return lines
