"""The tower of a form as ONNX: from the compile cache where the model has not changed, else exported and judged."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx

from export.attempt import Attempt, attempt_export
from export.cache import CompileCache, tower_key
from export.cut import check_texts, cut_tower
from export.onnx.convert import OPSET
from export.onnx.exporter import EXPORTER_VERSION
from export.reasons import CannotExport
from export.referee import Feeds
from export.tower import Tower
from graph_opt.item import GraphItem
from graph_opt.recognise.facts import Facts

ONNX_FILE, REPORT_FILE = "tower.onnx", "export.json"
Samples = Callable[[Tower], Sequence[Feeds]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportedTower:
    """tower: of the model as it is now. data: the ONNX model's bytes. report: as ``Attempt.as_dict``. key: of the
    cache. cache: "hit", "miss" or "off". seconds: of the cut, and of the rest (export and comparison, or reading).
    """

    tower: Tower
    data: bytes
    report: Mapping[str, Any]
    key: str
    cache: str
    seconds: Mapping[str, float]

    @property
    def model(self) -> onnx.ModelProto:
        """A copy of its own."""
        return onnx.load_from_string(self.data)


def exported_tower(item: GraphItem, form: str, facts: Facts, cache: CompileCache, samples: Samples) -> ExportedTower:
    """Raises CannotExport with the reason for which the tower of ``form`` stays on TensorFlow; nothing is kept then."""
    start = time.perf_counter()
    tower = cut_tower(item, form, facts=facts)
    check_texts(item, tower, facts)
    cut = time.perf_counter() - start

    def build(folder: Path) -> None:
        attempt = attempt_export(item, form, samples=samples, facts=facts)
        _write(attempt, folder)

    entry = cache.get_or_build("tower", tower_key(tower, recipe(tower)), build, label=form)
    data, report = entry.read(ONNX_FILE), json.loads(entry.read(REPORT_FILE))
    kept = _as_kept(item, tower, facts, report)
    if kept is None:
        # Of a model whose nodes have other names: what had to stay outside of it is not told by the key.
        attempt = attempt_export(item, form, samples=samples, facts=facts)
        if attempt.tower is None or attempt.onnx is None:
            raise CannotExport(attempt.reason)
        data, report = attempt.onnx.bytes(), _report(attempt)
        return ExportedTower(
            tower=attempt.tower,
            data=data,
            report=report,
            key=entry.key,
            cache="off",
            seconds=_seconds(cut, start),
        )
    return ExportedTower(
        tower=kept, data=data, report=report, key=entry.key, cache=entry.status, seconds=_seconds(cut, start)
    )


def recipe(tower: Tower) -> dict[str, Any]:
    """What decides about the ONNX model beside the tower's graph."""
    return {
        "exporter": EXPORTER_VERSION,
        "opset": OPSET,
        "tf2onnx": metadata.version("tf2onnx"),
        "onnx": metadata.version("onnx"),
        "inputs": [[one.name, one.dtype, list(one.shape), one.side, list(one.dims)] for one in tower.inputs],
        "outputs": [[one.name, one.dtype, list(one.shape)] for one in tower.outputs],
    }


def _write(attempt: Attempt, folder: Path) -> None:
    if attempt.onnx is None:
        raise CannotExport(attempt.reason, node=attempt.failed_at)
    (folder / ONNX_FILE).write_bytes(attempt.onnx.bytes())
    (folder / REPORT_FILE).write_text(json.dumps(_report(attempt)), encoding="utf-8")


def _report(attempt: Attempt) -> dict[str, Any]:
    return {**attempt.as_dict(), "avoided": dict(attempt.avoided)}


def _as_kept(item: GraphItem, tower: Tower, facts: Facts, report: Mapping[str, Any]) -> Tower | None:
    """The tower that the kept model was made from; None where this model's can't be cut in the same way."""
    avoided = report["avoided"]
    if avoided and not set(avoided) <= tower.nodes:
        return None
    cut = cut_tower(item, tower.signature, avoid=avoided, facts=facts) if avoided else tower
    names = [[entry["name"] for entry in report[side]] for side in ("inputs", "outputs")]
    return cut if names == [[one.name for one in side] for side in (cut.inputs, cut.outputs)] else None


def _seconds(cut: float, start: float) -> dict[str, float]:
    return {"cut": round(cut, 3), "export": round(time.perf_counter() - start - cut, 3)}
