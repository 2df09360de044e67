"""FP32 tower and samples -> an FP16 tower that passes the accuracy gate, or FP32 with the reason.

1. The FP32 reference runs on the samples. Where a clamp is on, it clamps too: the gate judges rounding, not the clamp.
   What the clamp itself does (the share of rows that reach beyond it, the largest change of a score) is reported.
2. Islands by structure and by calibration; FP16 is run by ``half_eval`` and judged by ``graph_opt.gate``.
3. Over a limit: each node alone is run in FP16 on a few rows, and those that cost most become islands too, in up to
   three steps, each with less error left.
4. Still over, or no matrix product left in FP16: the tower stays FP32, without a clamp.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from export.fp16.calibrate import DEFAULT_MARGIN, Calibration, calibrate
from export.fp16.convert import DEFAULT_CLAMP, Fp16Model, Fp16Options, check_clamped, to_fp16
from export.fp16.graph import MOVERS, Array, check_weights, read_graph
from export.fp16.half_eval import HalfEvaluator
from export.fp16.islands import MASK_SIZE, IslandFinder
from graph_opt.gate import ENGINE_LIMITS, GateLimits, GateResult, judge
from tfctr.errors import InputError

Batch = Mapping[str, Array]

# The error that may be left after each step, as a share of the limits.
_SHARES = (0.5, 0.25, 0.1)
_SENSITIVITY_ROWS = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class NarrowOptions:
    """clamp, clamped, islands: see ``Fp16Options``. limits: of the gate. margin: samples may reach 65504 / margin."""

    clamp: float | None = DEFAULT_CLAMP
    clamped: tuple[str, ...] = ()
    islands: Mapping[str, str] = dataclasses.field(default_factory=dict)
    limits: GateLimits = ENGINE_LIMITS["fp16"]
    margin: float = DEFAULT_MARGIN


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One attempt. added: node -> why it stays FP32, on top of the step before. gate: None for FP32."""

    what: str
    added: Mapping[str, str]
    gate: GateResult | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "added": dict(self.added),
            "gate": self.gate.to_json() if self.gate else None,
            "seconds": round(self.seconds, 3),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClampNote:
    """What the clamp does to the samples. rows_beyond: input -> share of its rows (0 to 1) with a value beyond it.
    max_dp: the largest change of a score that the clamp alone makes. masks: inputs named as embeddings that are not
    clamped, because they hold mask values.
    """

    clamp: float | None
    rows_beyond: Mapping[str, float]
    max_dp: float
    masks: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        if self.clamp is None:
            return "no clamp"
        worst = max(self.rows_beyond.values(), default=0.0)
        if not worst:
            found = f"embeddings are clamped to +-{self.clamp:g}; no sample reaches it"
        else:
            found = (
                f"embeddings are clamped to +-{self.clamp:g}, in the FP32 reference too; up to {worst:.2%} of an "
                f"input's rows reach beyond, which changes a score by up to {self.max_dp:.2g}"
            )
        return found + (f"; not clamped, as they hold masks: {', '.join(self.masks)}" if self.masks else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Narrowed:
    """precision: "fp16" or "fp32". model: of that precision. fp16: what was converted, where precision is fp16.
    gate: of the FP16 tower that passed. steps: all attempts in order. text: one line for people.
    """

    model: onnx.ModelProto
    precision: str
    fp16: Fp16Model | None
    gate: GateResult | None
    clamp: ClampNote
    calibration: Calibration
    steps: tuple[Step, ...]

    @property
    def text(self) -> str:
        if self.fp16 is None or self.gate is None:
            tried = [s for s in self.steps if s.gate is not None]
            last = f": {tried[-1].gate.text}" if tried and tried[-1].gate is not None else ""
            return f"FP32: {self.steps[-1].what}{last}"
        weights = self.fp16.weights
        return (
            f"FP16, {len(self.fp16.islands)} of {len(self.fp16.model.graph.node)} nodes in FP32, "
            f"{self.fp16.casts} casts; {self.gate.text}; {self.clamp.text}"
            + (f"; {weights.text}" if weights.clipped or weights.vanished else "")
        )

    def to_json(self) -> dict[str, Any]:
        """All but the models."""
        return {
            "precision": self.precision,
            "text": self.text,
            "fp16": self.fp16.to_json() if self.fp16 else None,
            "gate": self.gate.to_json() if self.gate else None,
            "clamp": {**dataclasses.asdict(self.clamp), "text": self.clamp.text},
            "calibration": self.calibration.to_json(),
            "steps": [step.to_json() for step in self.steps],
        }


def narrow_tower(
    model: onnx.ModelProto,
    batches: Batch | Sequence[Batch],
    options: NarrowOptions | None = None,
    *,
    labels: npt.ArrayLike | None = None,
    label_output: str | None = None,
) -> Narrowed:
    """See the module docstring. batches: arrays by input name, one batch or several. labels: [rows of all batches].

    Raises InputError: no samples, a missing input, NaN or infinite weights (named). UsageError: as ``to_fp16``.
    """
    options = options or NarrowOptions()
    given = [batches] if isinstance(batches, Mapping) else list(batches)
    if not any(np.asarray(value).size for batch in given for value in batch.values()):
        raise InputError("no samples: FP16 can't be judged without rows to run")
    check_weights(model)
    return _Narrowing(model, given, options, labels, label_output).run()


class _Narrowing:
    """The state of one ``narrow_tower``."""

    def __init__(
        self,
        model: onnx.ModelProto,
        batches: Sequence[Batch],
        options: NarrowOptions,
        labels: npt.ArrayLike | None,
        label_output: str | None,
    ) -> None:
        self.model, self.options = model, options
        self.labels, self.label_output = labels, label_output
        self.graph = read_graph(model)
        check_clamped(self.graph, options.clamped)
        self.wide = HalfEvaluator(self.graph.as_model())
        self.masks = tuple(name for name in options.clamped if _peak(batches, name) > MASK_SIZE)
        self.clamped = tuple(name for name in options.clamped if name not in self.masks)
        self.batches = [self._clamp(batch) for batch in batches]
        self.reference = run_batches(self.wide, self.batches)
        self.clamp = self._clamp_note(batches)
        self.calibration = calibrate(self.graph, self.batches, options.margin)
        self.islands = dict(options.islands)
        self.steps: list[Step] = []

    def run(self) -> Narrowed:
        known = {self.graph.nodes[k].name for k in IslandFinder(self.graph, self.islands).reasons}
        risky = {name: why for name, why in self.calibration.risky.items() if name not in known}
        found = self._attempt("FP16 with islands by structure and calibration" if risky else "FP16", risky)
        scores: dict[str, float] | None = None
        for share in _SHARES:
            if found is None or self._passed:
                break
            if scores is None:
                scores = self._sensitivity()
            costly = _costliest(scores, share, self.islands)
            if costly:
                found = self._attempt(f"{len(costly)} more FP32 islands", costly)
        if found is not None and self._passed:
            return self._result("fp16", found)
        why = "no matrix product is left in FP16" if found is None else "FP16 does not pass the accuracy gate"
        self.steps.append(Step(what=why, added={}, gate=None, seconds=0.0))
        return self._result("fp32", None)

    @property
    def _passed(self) -> bool:
        gate = self.steps[-1].gate
        return gate is not None and gate.passed

    def _attempt(self, what: str, added: Mapping[str, str]) -> Fp16Model | None:
        """The FP16 model with ``added`` islands, judged; None where no matrix product would run in FP16."""
        start = time.perf_counter()
        self.islands = {**self.islands, **added}
        narrow = to_fp16(
            self.graph.as_model(),
            Fp16Options(clamp=self.options.clamp, clamped=self.clamped, islands=self.islands),
        )
        if not narrow.heavy:
            return None
        outputs = run_batches(HalfEvaluator(narrow.model), self.batches)
        gate = judge(self.reference, outputs, self.labels, self.options.limits, label_output=self.label_output)
        self.steps.append(Step(what=what, added=dict(added), gate=gate, seconds=time.perf_counter() - start))
        return narrow

    def _sensitivity(self) -> dict[str, float]:
        """Node -> how much of a limit it uses up when it alone runs in FP16; infinite where that gives no number."""
        values = self.wide.run_all(self._few_rows())
        reference = {name: values[name] for name in self.graph.outputs}
        stays = IslandFinder(self.graph, self.islands).reasons
        limits, scores = self.options.limits, {}
        for k, node in enumerate(self.graph.nodes):
            if k in stays or node.op_type in MOVERS or not self.graph.float_outputs(k):
                continue
            gate = judge(reference, self.wide.run_with_half_node(values, k), None, limits)
            lost = any("NaN or infinite" in line for line in gate.failed)
            parts = (_share(gate.worst_dp, limits.max_dp), _share(abs(gate.worst_bias), limits.max_bias))
            scores[node.name] = math.inf if lost else max(parts)
        return scores

    def _few_rows(self) -> Batch:
        """The first rows of the first batch; inputs of other rows (users) stay whole."""
        batch = self.batches[0]
        first = {v.name: v.type.tensor_type.shape.dim[:1] for v in self.model.graph.input}
        names = {name: dims[0].dim_param for name, dims in first.items() if dims and dims[0].dim_param}
        main = "N" if "N" in names.values() else next(iter(names.values()), "")
        return {
            name: value[:_SENSITIVITY_ROWS] if names.get(name) == main and main else value
            for name, value in batch.items()
        }

    def _clamp(self, batch: Batch) -> Batch:
        limit = self.options.clamp
        if limit is None:
            return batch
        return {
            name: np.clip(value, np.float32(-limit), np.float32(limit)) if name in self.clamped else value
            for name, value in batch.items()
        }

    def _clamp_note(self, batches: Sequence[Batch]) -> ClampNote:
        limit = self.options.clamp
        if limit is None:
            return ClampNote(clamp=None, rows_beyond={}, max_dp=0.0)
        beyond = {name: _rows_beyond(batches, name, limit) for name in self.clamped}
        change = 0.0
        if any(beyond.values()):
            free = run_batches(self.wide, batches)
            change = judge(free, self.reference, None, self.options.limits).worst_dp
        return ClampNote(clamp=limit, rows_beyond=beyond, max_dp=change, masks=self.masks)

    def _result(self, precision: str, fp16: Fp16Model | None) -> Narrowed:
        return Narrowed(
            model=self.model if fp16 is None else fp16.model,
            precision=precision,
            fp16=fp16,
            gate=None if fp16 is None else self.steps[-1].gate,
            clamp=self.clamp if fp16 is not None else dataclasses.replace(self.clamp, clamp=None),
            calibration=self.calibration,
            steps=tuple(self.steps),
        )


def run_batches(evaluator: HalfEvaluator, batches: Sequence[Batch]) -> dict[str, Array]:
    """The outputs of all batches, joined along the rows."""
    found = [evaluator.run(batch) for batch in batches]
    return {name: np.concatenate([np.atleast_1d(one[name]) for one in found]) for name in evaluator.outputs}


def _costliest(scores: Mapping[str, float], share: float, islands: Mapping[str, str]) -> dict[str, str]:
    """The fewest nodes without which the rest, errors adding up as independent ones do, stays below ``share``."""
    ordered = sorted(((s, n) for n, s in scores.items() if n not in islands), key=lambda pair: (-pair[0], pair[1]))
    rest = sum(score**2 for score, _ in ordered if math.isfinite(score))
    added = {}
    for score, name in ordered:
        if math.isfinite(score):
            if math.sqrt(max(rest, 0.0)) <= share:
                break
            rest -= score**2
        added[name] = f"in FP16 it alone uses {score:.0%} of a limit" if math.isfinite(score) else "overflows in FP16"
    return added


def _share(value: float, limit: float) -> float:
    return value / limit if limit else (0.0 if not value else math.inf)


def _peak(batches: Sequence[Batch], name: str) -> float:
    return max((float(np.abs(b[name]).max(initial=0.0)) for b in batches if name in b), default=0.0)


def _rows_beyond(batches: Sequence[Batch], name: str, limit: float) -> float:
    peaks = [np.abs(np.atleast_1d(batch[name])) for batch in batches]
    rows = np.concatenate([peak.max(axis=tuple(range(1, peak.ndim)), initial=0.0) for peak in peaks])
    return float(np.mean(rows > limit)) if rows.size else 0.0
