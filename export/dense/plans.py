"""TensorRT plans of one tower, one per target: from the compile cache, by a refit of the bundle's before, or built.

A plan for the GPU of this machine is built to be refitted. A refresh then exchanges its weights, which is checked on a
probe batch; whatever speaks against that is a note, and the plan is built. Refits are not yet run on a GPU.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from export.cache import CompileCache, Entry, engine_key
from export.dense.options import DenseOptions
from export.samples import BoundarySamples
from export.tensorrt.build import BuildError, build
from export.tensorrt.library import Library
from export.tensorrt.options import BuildOptions, Profile, Range, batch_profile, recipe
from export.tensorrt.refit import refit_plan, refits_here
from export.tower import Tower
from tfctr.engines.spec import EngineTensor
from tfctr.errors import TfctrError

_PROBE_ROWS = 256


@dataclasses.dataclass(frozen=True)
class Plans:
    """by_target: the plans. failed: "target: why not". notes: what was refitted, or not and why. seconds: by target.
    keys: of the cache's entries. status: of the cache for all of them.
    """

    by_target: Mapping[str, bytes]
    failed: Sequence[str]
    notes: Sequence[str]
    seconds: Mapping[str, float]
    keys: Sequence[str]
    status: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanMaker:
    """model: what plans are built from, in ``precision``. islands: names of its nodes that stay FP32."""

    tower: Tower
    model: onnx.ModelProto
    precision: str
    islands: Sequence[str]
    inputs: Sequence[EngineTensor]
    outputs: Sequence[EngineTensor]
    samples: BoundarySamples
    library: Library
    options: DenseOptions
    cache: CompileCache

    def make(self, targets: Sequence[str]) -> Plans:
        plans, failed, notes, seconds, keys, seen = {}, [], [], {}, [], set()
        key = engine_key(self.model, {})  # reads all weights: once for all targets
        for target in targets:
            start = time.perf_counter()
            refitted, note = self._refitted(target)
            if note:
                notes.append(note)
            if refitted is not None:
                plans[target], seconds[target] = refitted, round(time.perf_counter() - start, 3)
                continue
            try:
                entry = self._built_here(target, key, notes)
            except BuildError as error:
                failed.append(f"{target}: {error}")
                continue
            plans[target] = entry.read("plan")
            seconds[target] = round(entry.seconds, 3)
            keys.append(entry.key)
            seen.add(entry.status)
        status = "hit" if seen == {"hit"} else "miss" if "miss" in seen else "off"
        return Plans(plans, failed, notes, seconds, keys, status)

    def _built_here(self, target: str, key: Mapping[str, Any], notes: list[str]) -> Entry:
        """To be refitted where that can be; a plan that can't is better than none."""
        if refits_here(target):
            try:
                return self._built(target, key, refit=True)
            except BuildError as error:
                notes.append(f"{target}: can't be built to be refitted: {error}")
        return self._built(target, key, refit=False)

    def _built(self, target: str, key: Mapping[str, Any], *, refit: bool) -> Entry:
        sizes = {**batch_profile().sizes, **_other_sizes(self.model, self.samples)}
        options = BuildOptions(profiles=(Profile(sizes),), refit=refit)
        made = recipe(self.library, target, options) | {"precision": self.precision, "islands": sorted(self.islands)}

        def write(folder: Path) -> None:
            (folder / "plan").write_bytes(build(self.model, [target], options, library=self.library)[target])

        return self.cache.get_or_build("engine", {**key, "recipe": made}, write, label=f"tensorrt {target}")

    def _refitted(self, target: str) -> tuple[bytes | None, str]:
        """(the plan of the bundle before with the new weights, a note); (None, "") where nothing is to be."""
        entry = (self.options.reuse or {}).get(self.tower.signature)
        if entry is None or entry["precision"] != self.precision or not refits_here(target):
            return None, ""
        paths = {one["role"]: self.options.reuse_files.get(one["file"]) for one in entry["files"]}
        plan, before = paths.get(f"plan:{target}"), paths.get("fp16_onnx" if self.precision == "fp16" else "onnx")
        if plan is None or before is None:
            return None, f"{target}: built: the bundle before has no plan to refit"
        rows = min(_PROBE_ROWS, self.samples.rows(self.tower))
        try:
            feeds = self.samples.take(self.tower, rows)
            data = refit_plan(
                plan.read_bytes(),
                onnx.load(str(before)),
                self.model,
                self.inputs,
                self.outputs,
                feeds,
                self.library,
                label=f"plan for {target}",
            )
        except TfctrError as error:
            return None, f"{target}: built, as it can't be refitted: {error}"
        return data, f"{target}: refitted, and as the referee on {rows} rows"


def _other_sizes(model: onnx.ModelProto, samples: BoundarySamples) -> dict[str, Range]:
    """Ranges of open sizes other than the rows: tuned for what the samples have."""
    found = {}
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param and dim.dim_param not in ("N", "U"):
                seen = max(1, samples.feeds[value.name].shape[axis])
                found[dim.dim_param] = Range(1, seen, max(512, 2 * seen))
    return found
