"""OpenVINO for one tower: the variants that pay, compiled by way of the cache, then held against TensorFlow.

fp32 must give TensorFlow's numbers within 1e-5 + 1e-5 |b| at every batch size that takes another path. bf16 is run on
the samples and judged by the accuracy gate; where it fails, or this CPU has no such instructions, it is FP32.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from export.cache import CompileCache, engine_key
from export.dense.built import Built, NotUsable, step, worst_difference
from export.dense.options import OPENVINO, DenseOptions
from export.dense.reuse import tuned_before
from export.dense.spec import engine_tensors
from export.dense.tower import ONNX_FILE, ExportedTower
from export.openvino.tuning import TUNER_VERSION, Tuned, tune
from export.referee import ATOL, RTOL
from export.samples import BoundarySamples, batches
from export.tower_session import TowerSession
from graph_opt.gate import GateLimits, GateResult, judge
from tfctr.engines.isa import cpu_isa, supports_bf16
from tfctr.engines.native import Engine, open_engine
from tfctr.engines.openvino_library import installed
from tfctr.engines.spec import EngineFile, EngineSpec
from tfctr.errors import TfctrError, UsageError

TUNING_SECONDS = 3.0
_TUNED, _BLOB = "tuned.json", ".blob"
# Raised with every change of what is compiled for an unchanged model.
RECIPE_VERSION = 1


def openvino_engine(
    exported: ExportedTower, samples: BoundarySamples, options: DenseOptions, cache: CompileCache
) -> Built:
    """Raises NotUsable with the reason: OpenVINO refuses the tower, or gives other numbers."""
    wanted = options.precision_for(OPENVINO)
    steps: list[dict[str, Any]] = []
    if wanted == "bf16":
        found = _bf16(exported, samples, options, cache, steps)
        if found is not None:
            return found
    return _fp32(exported, samples, options, cache, steps)


def _bf16(
    exported: ExportedTower,
    samples: BoundarySamples,
    options: DenseOptions,
    cache: CompileCache,
    steps: list[dict[str, Any]],
) -> Built | None:
    """The engine in bf16, or None with a step that says why not."""
    if not supports_bf16():
        steps.append(step(f"BF16: this CPU ({cpu_isa()}) has no instructions for it, so it can't be judged; FP32"))
        return None
    compiled = _Compiled(exported, "bf16", options, cache)
    with compiled.engine() as engine:
        used = engine.describe()["precision"]
        if used != "bf16":
            steps.append(step(f"BF16: OpenVINO computes in {used} on this CPU; FP32"))
            return None
        gate = _judge(engine, exported, samples, options.limits("bf16"))
        steps.append(step("BF16" if gate.passed else "BF16 does not pass the accuracy gate; FP32", gate))
        return compiled.built(engine, samples, steps, gate, {}) if gate.passed else None


def _fp32(
    exported: ExportedTower,
    samples: BoundarySamples,
    options: DenseOptions,
    cache: CompileCache,
    steps: list[dict[str, Any]],
) -> Built:
    compiled = _Compiled(exported, "fp32", options, cache)
    with compiled.engine() as engine, TowerSession(exported.tower) as reference:
        parity = _parity(engine, reference, samples, compiled.tuned.buckets)
        steps.append(step("FP32"))
        return compiled.built(engine, samples, steps, None, parity)


class _Compiled:
    """One precision of a tower in OpenVINO: what the cache has of it, and an engine over that."""

    def __init__(self, exported: ExportedTower, precision: str, options: DenseOptions, cache: CompileCache) -> None:
        self.exported, self.precision, self.options = exported, precision, options
        self.inputs, self.outputs = engine_tensors(exported.tower)
        key = engine_key(exported.model, self._recipe())
        label = f"{exported.tower.signature}, openvino {precision}"
        self.entry = cache.get_or_build("engine", key, self._build, label=label)
        self.tuned = Tuned.from_json(json.loads(self.entry.read(_TUNED)))
        self._scratch = tempfile.TemporaryDirectory(prefix="tfctr-openvino-")
        self._onnx = Path(self._scratch.name) / ONNX_FILE
        self._onnx.write_bytes(exported.data)

    def _recipe(self) -> dict[str, Any]:
        return {
            "recipe": RECIPE_VERSION,
            "tuner": TUNER_VERSION,
            "provider": OPENVINO,
            "version": installed(),
            "precision": self.precision,
            "threads": self.options.threads,
            "isa": cpu_isa(),
            "buckets": None if self.options.buckets is None else list(self.options.buckets),
            "before": tuned_before(self.options, self.exported.tower.signature, self.precision),
        }

    def _build(self, folder: Path) -> None:
        """Tunes and compiles: ``tuned.json`` and a blob per variant."""
        with tempfile.TemporaryDirectory(prefix="tfctr-openvino-") as scratch:
            onnx_path = Path(scratch) / ONNX_FILE
            onnx_path.write_bytes(self.exported.data)
            tower, threads = self.exported.tower, self.options.threads
            before = tuned_before(self.options, tower.signature, self.precision)
            if before is not None:
                tuned = Tuned.from_json(before)
            else:
                buckets = self.options.buckets
                tuned = tune(tower, onnx_path, self.precision, threads, TUNING_SECONDS, buckets=buckets)
            with _opened(self._spec(tuned, (EngineFile(role="onnx", path=onnx_path),))) as engine:
                for role, data in engine.export().items():
                    (folder / _blob_name(role)).write_bytes(data)
        (folder / _TUNED).write_text(json.dumps(tuned.to_json()), encoding="utf-8")

    def engine(self) -> Any:
        """A context manager that gives the engine."""
        blobs = [path for name, path in sorted(self.entry.files.items()) if name.endswith(_BLOB)]
        files = [EngineFile(role="onnx", path=self._onnx), *(EngineFile(role=_role(p), path=p) for p in blobs)]
        return _opened(self._spec(self.tuned, tuple(files)))

    def _spec(self, tuned: Tuned, files: tuple[EngineFile, ...]) -> EngineSpec:
        return EngineSpec(
            provider=OPENVINO,
            precision=self.precision,
            inputs=self.inputs,
            outputs=self.outputs,
            files=files,
            options=tuned.options,
            threads=self.options.threads,
            label=self.exported.tower.signature,
        )

    def built(
        self,
        engine: Engine,
        samples: BoundarySamples,
        steps: list[dict[str, Any]],
        gate: GateResult | None,
        parity: Mapping[str, Any],
    ) -> Built:
        told = engine.describe()
        return Built(
            provider=OPENVINO,
            precision=self.precision,
            files=(("onnx", ONNX_FILE, self.exported.data),),
            inputs=self.inputs,
            outputs=self.outputs,
            options=self.tuned.options,
            engine={"name": OPENVINO, "version": str(told["version"])},
            parity=parity,
            judged_on=samples.told,
            isa=cpu_isa(),
            gate=gate,
            buckets=tuple({"rows": rows} for rows in self.tuned.buckets),
            steps=tuple(steps),
            versus=self.tuned.versus_tensorflow,
            timing=self.tuned.timing,
            key=self.entry.key,
            cache=self.entry.status,
            seconds={"tune and compile": round(self.entry.seconds, 3)},
        )


def _blob_name(role: str) -> str:
    return role.replace(":", "_") + _BLOB


def _role(path: Path) -> str:
    """ "blob_32.blob" -> "blob:32"."""
    return path.name.removesuffix(_BLOB).replace("_", ":", 1)


@contextlib.contextmanager
def _opened(spec: EngineSpec) -> Iterator[Engine]:
    """NotUsable where OpenVINO does not take the tower."""
    try:
        engine = open_engine(spec)
    except (UsageError, TfctrError) as error:
        raise NotUsable(f"OpenVINO: {error}") from error
    try:
        yield engine
    finally:
        engine.close()


def _parity(
    engine: Engine, reference: TowerSession, samples: BoundarySamples, buckets: Sequence[int]
) -> dict[str, Any]:
    """fp32 against TensorFlow: alone, one row fewer and more than each variant, and all samples."""
    sizes = sorted({1, 2, *(rows + more for rows in buckets for more in (-1, 0, 1))} - {0})
    worst, rows = 0.0, []
    for feeds in batches(samples, reference.tower, tuple(sizes)):
        want = reference.run(feeds)
        rows.append(max((len(value) for value in want.values() if value.ndim), default=1))
        worst = max(worst, worst_difference(engine.run(feeds), want, f"OpenVINO at {rows[-1]} rows"))
    return {"max_difference": worst, "rows": rows, "atol": ATOL, "rtol": RTOL}


def _judge(engine: Engine, exported: ExportedTower, samples: BoundarySamples, limits: GateLimits) -> GateResult:
    feeds = samples.take(exported.tower, samples.rows(exported.tower))
    with TowerSession(exported.tower) as reference:
        want = reference.run(feeds)
    return judge(want, engine.run(feeds), samples.labels, limits, label_output=samples.label_output)
