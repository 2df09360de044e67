"""Which variants pay on this machine, and whether OpenVINO is faster than TensorFlow here: measured, not assumed."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from export.onnx.naming import dimensions
from export.openvino.choose import LEAST_GAIN, Times, choose_options, compare, gain, most_variants
from export.openvino.measure import (
    COMPARED,
    Bench,
    Calls,
    Runner,
    as_json,
    candidates,
    least_ms,
    only_rows_are_open,
    users_of,
)
from export.openvino.options import EngineOptions
from export.tower import Tower, TowerTensor
from tfctr.engines.native import open_engine
from tfctr.engines.spec import EngineFile, EngineSpec, EngineTensor

# Raised with every change of what is chosen by equal times; part of the key under which a result is cached.
TUNER_VERSION = 1
# Of the seconds, for the variants; the rest is for the comparison with TensorFlow.
_VARIANTS_SHARE = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuned:
    """buckets: rows of the static variants, ascending. options: what the engine is told (``EngineSpec.options``).

    timing: {"seconds", "variants": [{"rows", "dynamic_ms", "static_ms"}], "gain", "note"}: what was measured.
    versus_tensorflow: {"faster": bool, "reason": str, "geometric_mean", "least", "rows": [{"rows", "tensorflow_ms",
    "openvino_ms", "ratio"}]}, the engine as chosen; ratios above 1: OpenVINO is faster. All JSON-able.
    """

    buckets: tuple[int, ...]
    options: Mapping[str, Any]
    timing: Mapping[str, Any]
    versus_tensorflow: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """``Tuned.from_json`` reads it back."""
        return {**dataclasses.asdict(self), "buckets": list(self.buckets)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Tuned:
        return Tuned(**{**data, "buckets": tuple(data["buckets"])})


def tune(
    tower: Tower,
    onnx_path: str | Path,
    precision: str = "fp32",
    threads: int = 1,
    seconds: float = 2.0,
    *,
    buckets: Sequence[int] | None = None,
    measure: Callable[[Calls, float], Mapping[str, float]] | None = None,
    open_runner: Callable[[EngineOptions], Runner] | None = None,
) -> Tuned:
    """Measures the tower of ``onnx_path`` on this machine.

    precision: "fp32" or "bf16". threads: of both engines. seconds: to measure in, about; compiling and a least number
    of rounds come on top. buckets: have these static variants, whatever they gain; only compare with TensorFlow.
    measure, open_runner: for tests.

    Raises UsageError where OpenVINO does not run here or can't take the tower.
    """
    started = time.perf_counter()
    bench = Bench(
        tower=tower,
        threads=threads,
        open_engine=open_runner or _opener(tower, Path(onnx_path), precision, threads),
        measure=measure or functools.partial(least_ms, threads=threads),
    )
    if buckets is not None:
        options, timing = (
            EngineOptions(buckets=tuple(sorted(set(buckets))), users=users_of(tower)),
            {"note": "variants were given"},
        )
    else:
        options, timing = _variants(bench, seconds * _VARIANTS_SHARE)
    versus = compare(*bench.against_tensorflow(options, COMPARED, seconds * (1 - _VARIANTS_SHARE)))
    return Tuned(
        buckets=options.buckets,
        options=options.to_json(),
        timing={**timing, "seconds": round(time.perf_counter() - started, 3)},
        versus_tensorflow=versus,
    )


def engine_spec(tower: Tower, onnx_path: Path, precision: str, threads: int, options: Mapping[str, Any]) -> EngineSpec:
    """The tower as OpenVINO runs it from Python."""
    return EngineSpec(
        provider="openvino",
        precision=precision,
        inputs=tuple(map(_tensor, tower.inputs)),
        outputs=tuple(map(_tensor, tower.outputs)),
        files=(EngineFile("onnx", onnx_path),),
        options=options,
        threads=threads,
        label=tower.signature,
    )


def _variants(bench: Bench, seconds: float) -> tuple[EngineOptions, dict[str, Any]]:
    """The options that pay, and what they were chosen by."""
    if not only_rows_are_open(bench.tower):
        note = "one dynamic variant: sizes other than the rows are open"
        return EngineOptions(), {"note": note, "variants": []}
    weights_bytes = bench.tower.graph_def.ByteSize()
    most = most_variants(weights_bytes)
    if not most:
        note = f"one dynamic variant: {weights_bytes >> 20} MB of weights are too much for more than one"
        return EngineOptions(), {"note": note, "variants": []}
    times = bench.variants(candidates(weights_bytes), seconds)
    options = choose_options(times, users_of(bench.tower), most)
    return options, {"note": _note(options, times), "variants": as_json(times), "gain": round(gain(times, options), 4)}


def _note(options: EngineOptions, times: Times) -> str:
    if not options.buckets:
        return f"one dynamic variant: no static one gains {LEAST_GAIN - 1:.1%}"
    return f"static variants of {', '.join(map(str, options.buckets))} rows: {gain(times, options):.2f}x on the whole"


def _opener(tower: Tower, onnx_path: Path, precision: str, threads: int) -> Callable[[EngineOptions], Runner]:
    def opened(options: EngineOptions) -> Runner:
        single = {**options.to_json(), "contexts": 1, "max_contexts": 1}
        return open_engine(engine_spec(tower, onnx_path, precision, threads, single))

    return opened


def _tensor(one: TowerTensor) -> EngineTensor:
    return EngineTensor(name=one.name, dtype=one.dtype, shape=tuple(dimensions(one)))
