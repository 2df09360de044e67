"""TensorRT for one tower: FP16 behind the accuracy gate, then a plan per target, both by way of the cache.

Nothing is run here where there is no GPU: FP16 is judged by the NumPy evaluator, and the plans are what the library
built. The bundle holds the plans, the FP16 model and the FP32 model that a machine without a GPU runs instead.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from export.cache import CompileCache
from export.dense.built import Built, NotUsable, step
from export.dense.on_gpu import run_on_gpu
from export.dense.options import OPENVINO, TENSORFLOW, TENSORRT, DenseOptions
from export.dense.plans import PlanMaker, Plans
from export.dense.spec import engine_tensors
from export.dense.tower import ONNX_FILE, ExportedTower
from export.fp16.convert import RECIPE_VERSION
from export.fp16.inputs import embedding_inputs
from export.fp16.narrow import Narrowed, NarrowOptions, narrow_tower
from export.samples import BoundarySamples
from export.tensorrt.library import Library, load, parse_targets
from graph_opt.gate import GateLimits, GateResult, OutputVerdict
from graph_opt.item import GraphItem
from tfctr.engines.providers import why_not
from tfctr.errors import TfctrError

_FP16_FILE, _NARROWED = "fp16.onnx", "narrowed.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Half:
    """The tower as plans are built from it. data: ONNX bytes. narrowed: ``Narrowed.to_json``; {} where fp32 was asked
    for. cache: of the FP16 step. clamped: inputs that are clipped.
    """

    precision: str
    data: bytes
    narrowed: Mapping[str, Any]
    cache: str
    seconds: float
    clamped: tuple[str, ...] = ()

    @property
    def islands(self) -> tuple[Mapping[str, str], ...]:
        return tuple((self.narrowed.get("fp16") or {}).get("islands", ()))


def tensorrt_engine(
    item: GraphItem, exported: ExportedTower, samples: BoundarySamples, options: DenseOptions, cache: CompileCache
) -> Built:
    """Raises NotUsable where no plan can be built, UsageError for a library or target that is not there."""
    library = load()
    targets = parse_targets(options.targets or "all", library)
    inputs, outputs = engine_tensors(exported.tower)
    half = _narrowed(item, exported, samples, options, cache)
    steps = [step(s["what"], None, s["added"]) | {"gate": s["gate"]} for s in half.narrowed.get("steps", ())]
    if half.precision == "fp32":
        steps.append(step("FP32"))
    plans = PlanMaker(
        tower=exported.tower,
        model=onnx.load_from_string(half.data),
        precision=half.precision,
        islands=[one["node"] for one in half.islands],
        inputs=inputs,
        outputs=outputs,
        samples=samples,
        library=library,
        options=options,
        cache=cache,
    ).make(targets)
    if not plans.by_target:
        raise NotUsable(f"no plan was built: {'; '.join(plans.failed)}")
    files = _files(exported, half, plans.by_target)
    made_with = {"name": library.name, "version": library.version}
    run_options = {"tensorrt": {"library": library.name, "version": library.version}}
    clamp = (half.narrowed.get("clamp") or {}).get("clamp")
    gate = _gate(half.narrowed.get("gate"))
    versus: Mapping[str, Any] = {}
    not_run = why_not(TENSORRT, {"files": [{"role": role} for role, _, _ in files], "engine": made_with})
    if not not_run:
        clips = dict.fromkeys(half.clamped, clamp) if clamp is not None else {}
        tensors = (inputs, outputs)
        gate, versus = run_on_gpu(exported, tensors, half.precision, files, run_options, samples, options, clips)
        steps.append(step("on the GPU of this machine", gate))
    return Built(
        provider=TENSORRT,
        precision=half.precision,
        files=files,
        inputs=inputs,
        outputs=outputs,
        options=run_options,
        engine=made_with,
        parity={},
        judged_on=samples.told,
        fallback=TENSORFLOW if why_not(OPENVINO) else OPENVINO,
        gate=gate,
        targets=tuple(plans.by_target),
        islands=half.islands,
        clamp=clamp,
        steps=tuple(steps),
        notes=tuple(_notes(half, plans, library, options, targets, not_run)),
        versus=versus,
        timing={"build_seconds": dict(plans.seconds)},
        key=plans.keys[-1] if plans.keys else "",
        cache=plans.status,
        seconds={"fp16": round(half.seconds, 3), "plans": round(sum(plans.seconds.values()), 3)},
    )


def _files(exported: ExportedTower, half: _Half, plans: Mapping[str, bytes]) -> tuple[tuple[str, str, bytes], ...]:
    """(role, name, contents): the fp32 model is the fallback's."""
    fp16 = (("fp16_onnx", _FP16_FILE, half.data),) if half.precision == "fp16" else ()
    built = ((f"plan:{target}", f"{target}.plan", plan) for target, plan in plans.items())
    return (("onnx", ONNX_FILE, exported.data), *fp16, *built)


def _narrowed(
    item: GraphItem, exported: ExportedTower, samples: BoundarySamples, options: DenseOptions, cache: CompileCache
) -> _Half:
    if options.precision_for(TENSORRT) != "fp16":
        return _Half(precision="fp32", data=exported.data, narrowed={}, cache="off", seconds=0.0)
    tower = exported.tower
    narrow = NarrowOptions(
        clamp=options.clamp,
        clamped=embedding_inputs(tower, item.graph_def) if options.clamp is not None else (),
        islands=dict((options.islands or {}).get(tower.signature, {})),
        limits=options.limits("fp16"),
    )
    key = {
        "step": "fp16",
        "recipe": RECIPE_VERSION,
        "model": hashlib.sha256(exported.data).hexdigest(),
        "samples": _digest(samples),
        "clamp": narrow.clamp,
        "clamped": list(narrow.clamped),
        "islands": dict(narrow.islands),
        "limits": dataclasses.asdict(narrow.limits),
        "margin": narrow.margin,
    }

    def write(folder: Path) -> None:
        feeds = samples.take(tower, samples.rows(tower))
        found = narrow_tower(exported.model, feeds, narrow, labels=samples.labels, label_output=samples.label_output)
        _write(found, folder)

    try:
        entry = cache.get_or_build("tower", key, write, label=f"{tower.signature}, fp16")
    except TfctrError as error:
        raise NotUsable(f"FP16: {error}") from error
    told = json.loads(entry.read(_NARROWED))
    data = entry.read(_FP16_FILE) if told["precision"] == "fp16" else exported.data
    clamped = tuple(name for name in narrow.clamped if name not in told["clamp"]["masks"])
    return _Half(
        precision=told["precision"],
        data=data,
        narrowed=told,
        cache=entry.status,
        seconds=entry.seconds,
        clamped=clamped,
    )


def _write(found: Narrowed, folder: Path) -> None:
    if found.precision == "fp16":
        (folder / _FP16_FILE).write_bytes(found.model.SerializeToString(deterministic=True))
    (folder / _NARROWED).write_text(json.dumps(found.to_json()), encoding="utf-8")


def _digest(samples: BoundarySamples) -> str:
    """Of everything that the FP16 step reads of the samples."""
    made = hashlib.sha256(repr(samples.label_output).encode())
    arrays = dict(samples.feeds) if samples.labels is None else {**samples.feeds, "\0labels": samples.labels}
    for name, value in sorted(arrays.items()):
        array = np.ascontiguousarray(value)
        made.update(f"{name} {array.dtype} {array.shape}".encode())
        made.update(array.tobytes())
    return made.hexdigest()


def _notes(
    half: _Half,
    plans: Plans,
    library: Library,
    options: DenseOptions,
    targets: Sequence[str],
    not_run: str,
) -> list[str]:
    notes = []
    if half.narrowed:
        notes.append(half.narrowed["text"])
    if not options.targets:
        notes.append(f"no --target was given: plans for all that {library.label} builds here ({', '.join(targets)})")
    notes += [*plans.notes, *(f"no plan for {line}" for line in plans.failed)]
    if not_run:
        notes.append(f"the plans were not run here: {not_run}")
    if reason := why_not(OPENVINO):
        notes.append(f"no fallback to OpenVINO: {reason}")
    return notes


def _gate(told: Any) -> GateResult | None:
    """A gate's result back from JSON."""
    if told is None:
        return None
    fields = {field.name for field in dataclasses.fields(OutputVerdict)}
    outputs = tuple(
        OutputVerdict(**{k: v for k, v in one.items() if k in fields} | {"failed": tuple(one["failed"])})
        for one in told["outputs"]
    )
    return GateResult(
        passed=told["passed"],
        rows=told["rows"],
        limits=GateLimits(**told["limits"]),
        outputs=outputs,
        failed=tuple(told["failed"]),
    )
