"""What the manifest says of one form's tower (docs/bundle_format.md, ``dense``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from export.dense.built import Built
from export.dense.choose import Choice
from export.dense.options import TENSORFLOW, DenseOptions
from export.dense.tower import ExportedTower
from export.tower import TowerTensor
from tfctr.engines.isa import cpu_isa


def dense_entry(
    options: DenseOptions,
    *,
    exported: ExportedTower | None = None,
    choice: Choice | None = None,
    reason: str = "",
    form: str | None = None,
    files: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The entry as far as the pass knows it. form: the signature with the engine; None: the tower stays where it is."""
    built = choice.built if choice is not None and form is not None else None
    entry: dict[str, Any] = {
        "provider": built.provider if built else TENSORFLOW,
        "precision": built.precision if built else "fp32",
        "asked": {"provider": options.dense, "precision": options.precision},
        "form": form if built else None,
        "packed": None,
        "fallback": built.fallback if built else TENSORFLOW,
        "fallback_precision": "fp32",
        "engine": dict(built.engine) if built else {},
        "files": [dict(file) for file in files],
        "isa": cpu_isa(),
        "threads": options.threads,
        "reason": reason or (choice.reason if choice else ""),
        "considered": dict(choice.considered) if choice else {},
    }
    entry |= _of_tower(exported) | _of_engine(built)
    tried = choice.tried if choice is not None and built is None else None
    if tried is not None:
        entry |= {"steps": [dict(one) for one in tried.steps], "versus_tensorflow": dict(tried.versus)}
        built = tried  # its key and how it was come by
    entry["key"] = {"tower": exported.key if exported else "", "engine": built.key if built else ""}
    entry["cache"] = {"tower": exported.cache if exported else "off", "engine": built.cache if built else "off"}
    return entry


def _of_tower(exported: ExportedTower | None) -> dict[str, Any]:
    if exported is None:
        return {"inputs": [], "outputs": [], "nodes": {}, "left_outside": [], "export": {}}
    report = exported.report
    return {
        "inputs": [_tensor(one) for one in exported.tower.inputs],
        "outputs": [_tensor(one) for one in exported.tower.outputs],
        "nodes": {"tower": len(exported.tower.nodes), "onnx": report["onnx"]["nodes"]},
        "left_outside": list(exported.tower.left_outside),
        "export": {"difference": report["difference"], "notes": report["notes"], "seconds": dict(exported.seconds)},
    }


def _of_engine(built: Built | None) -> dict[str, Any]:
    if built is None:
        return {
            "options": {}, "buckets": [], "targets": [], "accuracy": None, "parity": {}, "islands": [], "clamp": None,
            "notes": [], "steps": [], "timing": {}, "versus_tensorflow": {},
        }  # fmt: skip
    accuracy = {**built.gate.to_json(), "judged_on": built.judged_on} if built.gate else None
    return {
        "options": dict(built.options),
        "buckets": [dict(one) for one in built.buckets],
        "targets": list(built.targets),
        "accuracy": accuracy,
        "parity": {**built.parity, "judged_on": built.judged_on} if built.parity else {},
        "islands": [dict(one) for one in built.islands],
        "clamp": built.clamp,
        "notes": list(built.notes),
        "steps": [dict(one) for one in built.steps],
        "timing": {**built.timing, "seconds": dict(built.seconds)},
        "versus_tensorflow": dict(built.versus),
    }


def _tensor(one: TowerTensor) -> dict[str, Any]:
    return {"name": one.name, "dtype": one.dtype, "shape": list(one.shape), "side": one.side}
