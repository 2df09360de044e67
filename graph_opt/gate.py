"""The accuracy gate: whether a cheaper form of a model (narrow tables, half precision) gives scores that are as good.

``judge`` compares a candidate's outputs with a reference's on the same rows, output by output:

    max |dp|      the largest difference of a probability
    mean bias     the mean difference (candidate minus reference): scores that all move one way
    AUC delta     how well the scores order labelled rows, candidate minus reference; judged where labels are given

p: an output whose reference values all lie in [0, 1] is a probability; any other float output is read as a logit, and
its sigmoid is compared. Integers, booleans and strings must be equal. A value that is NaN or infinite on one side only
fails; so does nothing to judge. Pure NumPy: no graph, no session.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tfctr.errors import UsageError
from tfctr.profiling.auc import auc, labelled_output

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GateLimits:
    """The largest |dp|, |mean bias| and |AUC delta| that pass; a value equal to its limit passes."""

    max_dp: float
    max_bias: float
    max_auc_delta: float

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not math.isfinite(value) or value < 0:
                raise UsageError(f"{field.name} {value}: expected a number of 0 or more")

    def __add__(self, other: GateLimits) -> GateLimits:
        """What two changes may move the outputs together, one after the other, each within its own limits."""
        return GateLimits(
            max_dp=self.max_dp + other.max_dp,
            max_bias=self.max_bias + other.max_bias,
            max_auc_delta=self.max_auc_delta + other.max_auc_delta,
        )


DEFAULT_LIMITS: Mapping[str, GateLimits] = {
    "fp16": GateLimits(max_dp=1e-3, max_bias=1e-4, max_auc_delta=1e-4),
    "bf16": GateLimits(max_dp=1e-3, max_bias=1e-4, max_auc_delta=1e-4),
    "int8": GateLimits(max_dp=5e-3, max_bias=1e-3, max_auc_delta=1e-4),
}

# Of a dense tower that computes in half precision, where the above are of tables that are stored in it.
ENGINE_LIMITS: Mapping[str, GateLimits] = {
    "fp16": GateLimits(max_dp=5e-3, max_bias=1e-3, max_auc_delta=1e-4),
    "bf16": GateLimits(max_dp=2e-2, max_bias=1e-3, max_auc_delta=1e-4),
}


def limits_for(
    dtype: str, max_dp: float | None = None, max_bias: float | None = None, max_auc_delta: float | None = None
) -> GateLimits:
    """The limits of tables in ``dtype`` ("fp16", "bf16", "int8"), with those given in place of the defaults.

    Raises UsageError: an unknown dtype, or a limit that is negative or no number.
    """
    return _limits(DEFAULT_LIMITS, dtype, max_dp, max_bias, max_auc_delta)


def engine_limits(
    precision: str, max_dp: float | None = None, max_bias: float | None = None, max_auc_delta: float | None = None
) -> GateLimits:
    """The limits of a dense tower in ``precision`` ("fp16", "bf16"); otherwise as ``limits_for``."""
    return _limits(ENGINE_LIMITS, precision, max_dp, max_bias, max_auc_delta)


def _limits(
    defaults: Mapping[str, GateLimits],
    dtype: str,
    max_dp: float | None,
    max_bias: float | None,
    max_auc_delta: float | None,
) -> GateLimits:
    if dtype not in defaults:
        raise UsageError(f"no accuracy limits for {dtype!r}; known: {', '.join(defaults)}")
    given = {"max_dp": max_dp, "max_bias": max_bias, "max_auc_delta": max_auc_delta}
    return dataclasses.replace(defaults[dtype], **{k: v for k, v in given.items() if v is not None})


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputVerdict:
    """One output. read_as: "probability", "logit" (its sigmoid was compared) or "exact" (integers, strings).

    max_dp, bias: of the elements that are finite on both sides. auc_delta: None with the reason in ``auc_reason``.
    failed: what is over its limit or differs; empty where it passed.
    """

    output: str
    read_as: str
    values: int
    max_dp: float = 0.0
    bias: float = 0.0
    auc_reference: float | None = None
    auc_delta: float | None = None
    auc_reason: str = ""
    failed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class GateResult:
    """What ``judge`` found. rows: of the batch that was judged. failed: one line per thing that is wrong."""

    passed: bool
    rows: int
    limits: GateLimits
    outputs: tuple[OutputVerdict, ...] = ()
    failed: tuple[str, ...] = ()

    @property
    def worst_dp(self) -> float:
        return max((o.max_dp for o in self.outputs), default=0.0)

    @property
    def worst_bias(self) -> float:
        """The mean bias that is farthest from 0, with its sign."""
        return max((o.bias for o in self.outputs), key=abs, default=0.0)

    @property
    def worst_auc_delta(self) -> float | None:
        found = [o.auc_delta for o in self.outputs if o.auc_delta is not None]
        return max(found, key=abs) if found else None

    @property
    def text(self) -> str:
        """One line for people."""
        if not self.passed:
            return f"failed on {self.rows} rows: {'; '.join(self.failed)}"
        delta = self.worst_auc_delta
        if delta is None:
            reasons = dict.fromkeys(o.auc_reason for o in self.outputs if o.auc_reason)
            about_auc = f"AUC not judged ({'; '.join(reasons) or 'no scores'})"
        else:
            about_auc = f"AUC {delta:+.2g} (limit {self.limits.max_auc_delta:g})"
        logits = [o.output for o in self.outputs if o.read_as == "logit"]
        return (
            f"passed on {self.rows} rows: max |dp| {self.worst_dp:.2g} (limit {self.limits.max_dp:g}), "
            f"mean bias {self.worst_bias:+.2g} (limit {self.limits.max_bias:g}), {about_auc}"
            + (f"; read as logits: {', '.join(logits)}" if logits else "")
        )

    def to_json(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self),
            "max_dp": self.worst_dp,
            "bias": self.worst_bias,
            "auc_delta": self.worst_auc_delta,
            "text": self.text,
        }


def judge(
    reference: Mapping[str, Any],
    candidate: Mapping[str, Any],
    labels: npt.ArrayLike | None,
    limits: GateLimits,
    *,
    label_output: str | None = None,
    rows: int | None = None,
) -> GateResult:
    """Judges ``candidate``'s outputs (arrays by name) by ``reference``'s.

    labels: [B], of the output ``label_output`` (None: the only one with one number per row); None: AUC is not judged.
    rows: how many were run, for the report (default: the longest first axis). Raises InputError: ``label_output`` is
    no output with one number per row.
    """
    want = {name: np.asarray(value) for name, value in reference.items()}
    got = {name: np.asarray(value) for name, value in candidate.items()}
    counted = max((value.shape[0] for value in want.values() if value.ndim), default=0) if rows is None else rows
    verdicts = [
        _judge_output(name, value, got[name], limits)
        if name in got
        else OutputVerdict(output=name, read_as="exact", values=value.size, failed=("the candidate lacks it",))
        for name, value in want.items()
    ]
    verdicts = _with_auc(verdicts, want, got, labels, limits, label_output)
    failed = [f"output {v.output!r}: {what}" for v in verdicts for what in v.failed]
    failed += [f"output {name!r}: only the candidate has it" for name in got if name not in want]
    if not any(v.values for v in verdicts):
        failed.append("there are no values to judge")
    return GateResult(
        passed=not failed, rows=counted, limits=limits, outputs=tuple(verdicts), failed=tuple(dict.fromkeys(failed))
    )


def _judge_output(name: str, want: Array, got: Array, limits: GateLimits) -> OutputVerdict:
    exact = not _is_float(want)
    read_as = "exact" if exact else "probability" if _within_unit(want) else "logit"

    def verdict(**fields: Any) -> OutputVerdict:
        return OutputVerdict(output=name, read_as=read_as, values=want.size, **fields)

    if got.shape != want.shape:
        return verdict(failed=(f"shape {list(got.shape)}, expected {list(want.shape)}",))
    if got.dtype.kind != want.dtype.kind and not {got.dtype.kind, want.dtype.kind} <= set("OSU"):
        return verdict(failed=(f"dtype {got.dtype}, expected {want.dtype}",))
    if exact:
        different = int(np.sum(got != want))
        return verdict(failed=(f"{different} of {want.size} values differ",) if different else ())
    a, b = _wide(got), _wide(want)
    finite_a, finite_b = np.isfinite(a), np.isfinite(b)
    both = finite_a & finite_b
    failed = []
    lost = int(np.sum(finite_b & ~finite_a))
    if lost:
        failed.append(f"{lost} of {want.size} values are NaN or infinite where the reference is finite")
    odd = int(np.sum(~finite_b & ~((a == b) | (np.isnan(a) & np.isnan(b)))))
    if odd:
        failed.append(f"{odd} of {want.size} values differ where the reference is NaN or infinite")
    difference = _probability(a[both], read_as) - _probability(b[both], read_as)
    max_dp = float(np.abs(difference).max(initial=0.0))
    bias = float(difference.mean()) if difference.size else 0.0
    if max_dp > limits.max_dp:
        failed.append(f"max |dp| {max_dp:.3g} is over {limits.max_dp:g}")
    if abs(bias) > limits.max_bias:
        failed.append(f"mean bias {bias:+.3g} is over {limits.max_bias:g}")
    return verdict(max_dp=max_dp, bias=bias, failed=tuple(failed))


def _with_auc(
    verdicts: list[OutputVerdict],
    want: Mapping[str, Array],
    got: Mapping[str, Array],
    labels: npt.ArrayLike | None,
    limits: GateLimits,
    label_output: str | None,
) -> list[OutputVerdict]:
    """The verdicts with the AUC of the output that the labels belong to, or the reason why there is none."""
    scores = {name: value for name, value in want.items() if _is_float(value)}
    if labels is None:
        return [_no_auc(v, "no labels") for v in verdicts]
    given = np.asarray(labels, np.float64).reshape(-1)
    shaped = {name: _wide(value) for name, value in scores.items()}
    target = labelled_output(shaped, len(given), label_output)
    if target is None:
        return [_no_auc(v, f"{len(given)} labels belong to no one output") for v in verdicts]
    return [
        _judge_auc(v, given, want[target], got.get(target), limits)
        if v.output == target
        else _no_auc(v, f"the labels are those of output {target!r}")
        for v in verdicts
    ]


def _judge_auc(
    verdict: OutputVerdict, labels: Array, want: Array, got: Array | None, limits: GateLimits
) -> OutputVerdict:
    if got is None or got.shape != want.shape or not _is_float(got):
        return _no_auc(verdict, "the outputs do not compare")
    a, b = _wide(got), _wide(want)
    if np.isnan(a).any() or np.isnan(b).any():
        return _no_auc(verdict, "scores are NaN")
    reference, candidate = auc(labels, b), auc(labels, a)
    if reference is None or candidate is None:
        return _no_auc(verdict, "the labels are all of one class")
    delta = candidate - reference
    failed = verdict.failed
    if abs(delta) > limits.max_auc_delta:
        failed = (*failed, f"AUC changes by {delta:+.3g}, over {limits.max_auc_delta:g}")
    return dataclasses.replace(verdict, auc_reference=reference, auc_delta=delta, failed=failed)


def _no_auc(verdict: OutputVerdict, reason: str) -> OutputVerdict:
    return verdict if verdict.read_as == "exact" else dataclasses.replace(verdict, auc_reason=reason)


def _is_float(value: Array) -> bool:
    return value.dtype.kind == "f" or value.dtype.name == "bfloat16"


def _wide(value: Array) -> Array:
    return value.astype(np.float64)


def _within_unit(want: Array) -> bool:
    values = _wide(want)
    finite = values[np.isfinite(values)]
    return bool(np.all((finite >= 0) & (finite <= 1))) and finite.size == np.sum(~np.isnan(values))


def _probability(values: Array, read_as: str) -> Array:
    if read_as == "probability":
        return values
    # The sigmoid by tanh: it can't overflow.
    return 0.5 * (1.0 + np.tanh(0.5 * values))
