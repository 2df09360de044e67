"""``to_onnx``: the steps from a tower to a checked ONNX model, in order."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import onnx

from export.onnx.checks import check_model, check_ops, check_weights
from export.onnx.constants import gather_constants
from export.onnx.convert import OPSET, convert
from export.onnx.empty_axes import drop_empty_axes
from export.onnx.fills import drop_fills
from export.onnx.fold_shapes import fold_shapes
from export.onnx.naming import name_canonically
from export.tower import Tower

# Raised with every change that can change the model of an unchanged tower: caches of exports hold it.
EXPORTER_VERSION = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnnxTower:
    """A tower as ONNX (fp32, opset 18), checked, with canonical names: equal towers give equal bytes.

    notes: for people, what was changed on the way. report: JSON-able. origins: node of the model -> the name it had
    before it was named by its position.
    """

    model: onnx.ModelProto
    notes: tuple[str, ...]
    report: dict[str, Any]
    origins: dict[str, str]

    def bytes(self) -> bytes:
        """The model as it goes into a file."""
        return self.model.SerializeToString(deterministic=True)


def to_onnx(tower: Tower) -> OnnxTower:
    """Translates, repairs and checks. Raises CannotExport with the reason for which the tower can't leave TensorFlow.

    The numbers are not compared here: see ``export.referee``.
    """
    start = time.perf_counter()
    check_weights(tower)
    model = convert(tower)
    check_ops(model)
    translated = len(model.graph.node)
    gather_constants(model)
    dropped = drop_empty_axes(model)
    folded, left = fold_shapes(model, tower)
    fills = drop_fills(model, tower)
    left = [what for what in left if any(what.endswith(f" {node.name}") for node in model.graph.node)]
    origins = name_canonically(model, tower)
    check_model(model)
    check_ops(model, origins)
    nodes = len(model.graph.node)
    notes = [f"{translated} nodes from tf2onnx, {nodes} after folding {folded} shapes"]
    if dropped:
        notes.append(f"{dropped} Squeeze or Unsqueeze without axes removed")
    if fills:
        notes.append(f"{fills} tensors of one number became that number")
    if left:
        notes.append(f"{len(left)} shapes depend on more than the rows and stay computed: {', '.join(left[:5])}")
    report = {
        "opset": OPSET,
        "nodes_translated": translated,
        "nodes": nodes,
        "empty_axes_dropped": dropped,
        "shapes_folded": folded,
        "shapes_left": left,
        "fills_dropped": fills,
        "bytes": model.ByteSize(),
        "seconds": round(time.perf_counter() - start, 3),
    }
    return OnnxTower(model=model, notes=tuple(notes), report=report, origins=origins)
