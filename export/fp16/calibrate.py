"""The largest activations of a tower on samples: what comes near FP16's largest number stays FP32, by name."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from export.fp16.graph import Array, Graph
from export.fp16.half_eval import HalfEvaluator
from export.fp16.islands import HALF_MAX
from tfctr.errors import InputError, UsageError

# Samples are few: what they reach may be this many times smaller than what traffic will.
DEFAULT_MARGIN = 8.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """peaks: tensor -> largest |value| in FP32, of every float tensor a node makes and every float input; infinite
    where a value is, NaN where one is. limit: 65504 / margin. risky: node -> why it can't run in FP16.
    """

    batches: int
    margin: float
    limit: float
    peaks: Mapping[str, float]
    risky: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Peaks that are no numbers are written as text, so that any JSON reader takes them."""
        top = sorted(self.peaks.items(), key=lambda item: (-_order(item[1]), item[0]))[:20]
        return {
            "batches": self.batches,
            "margin": self.margin,
            "limit": self.limit,
            "largest": {name: peak if math.isfinite(peak) else str(peak) for name, peak in top},
            "risky": dict(self.risky),
        }


def calibrate(graph: Graph, batches: Sequence[Mapping[str, Array]], margin: float = DEFAULT_MARGIN) -> Calibration:
    """Runs ``graph`` in FP32 on every batch (arrays by input name, clamped by the caller where they will be).

    Raises InputError: no batch. UsageError: a margin below 1.
    """
    if not batches:
        raise InputError("no sample batches to calibrate FP16 with")
    if not margin >= 1:
        raise UsageError(f"overflow margin {margin}: expected 1 or more")
    peaks: dict[str, float] = {}

    sizes: dict[str, int] = {}

    def watch(name: str, value: Array) -> None:
        sizes[name] = value.size
        if value.dtype == np.float32:
            peaks[name] = _larger(peaks.get(name, 0.0), float(np.abs(value).max(initial=0.0)))

    evaluator = HalfEvaluator(graph.as_model())
    sums: dict[str, int] = {}
    for batch in batches:
        for name in graph.inputs:
            watch(name, np.asarray(batch[name]) if name in batch else np.zeros(0))
        evaluator.run(batch, watch)
        sums |= _summed(graph, sizes)
    limit = HALF_MAX / margin
    return Calibration(
        batches=len(batches), margin=margin, limit=limit, peaks=peaks, risky=_risky(graph, peaks, sums, limit)
    )


def _risky(graph: Graph, peaks: Mapping[str, float], sums: Mapping[str, int], limit: float) -> dict[str, str]:
    """Makers and readers of tensors beyond the limit: such a tensor may not exist in FP16 at all."""
    found: dict[str, str] = {}
    for name, peak in peaks.items():
        if peak <= limit:
            continue
        why = f"|{name}| reaches {peak:.3g} on the samples, over {limit:.3g}"
        made = [graph.producer[name]] if name in graph.producer else []
        for k in (*made, *graph.readers.get(name, [])):
            if graph.float_inputs(k) or graph.float_outputs(k):
                found.setdefault(graph.nodes[k].name, why)
    for name, count in sums.items():
        k = graph.producer[name]
        if peaks.get(name, 0.0) * count > limit:
            found.setdefault(graph.nodes[k].name, f"the sum behind the mean {name} may reach {peaks[name] * count:.3g}")
    return found


def _summed(graph: Graph, sizes: Mapping[str, int]) -> dict[str, int]:
    """Per output of a ReduceMean, how many values one mean is of."""
    means = [node for node in graph.nodes if node.op_type == "ReduceMean" and sizes.get(node.output[0])]
    return {node.output[0]: sizes.get(node.input[0], 0) // sizes[node.output[0]] for node in means}


def _larger(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


def _order(peak: float) -> float:
    return math.inf if math.isnan(peak) else peak
