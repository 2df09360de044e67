"""An engine that was made for one tower, judged: what a provider hands back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from export.reasons import CannotExport
from export.referee import ATOL, RTOL
from graph_opt.gate import GateResult
from tfctr.engines.spec import EngineTensor

Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    """files: (role, name, contents) of what goes into the bundle. inputs, outputs, options: of the engine. engine: its
    name and version. gate: of the accuracy gate, None in fp32. parity: of the engine against TensorFlow on
    ``judged_on``. versus: whether it is faster than TensorFlow (``Tuned.versus_tensorflow``); empty where that was not
    measured. steps: every attempt in order. key, cache, seconds: of the compile cache. fallback: provider of a machine
    that this one does not run on.
    """

    provider: str
    precision: str
    files: tuple[tuple[str, str, bytes], ...]
    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    options: Mapping[str, Any]
    engine: Mapping[str, str]
    parity: Mapping[str, Any]
    judged_on: str
    fallback: str = "tensorflow"
    isa: str = ""
    gate: GateResult | None = None
    buckets: tuple[Mapping[str, Any], ...] = ()
    targets: tuple[str, ...] = ()
    islands: tuple[Mapping[str, str], ...] = ()
    clamp: float | None = None
    steps: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    versus: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    timing: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    key: str = ""
    cache: str = "off"
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)


class NotUsable(CannotExport):
    """A provider that can't run a tower, or not well enough; the message is the reason."""


def worst_difference(got: Arrays, want: Arrays, what: str) -> float:
    """The largest |a - b| of float outputs; raises NotUsable where an output is beyond 1e-5 + 1e-5 |b|, or of another
    dtype or shape, or an integer differs.
    """
    worst = 0.0
    for name, value in want.items():
        found = got[name]
        if found.shape != value.shape or found.dtype != value.dtype:
            raise NotUsable(
                f"{what}: output {name} is {found.dtype}{list(found.shape)}, in TensorFlow "
                f"{value.dtype}{list(value.shape)}"
            )
        if value.dtype.kind != "f":
            if not np.array_equal(found, value):
                raise NotUsable(f"{what}: {int((found != value).sum())} of {value.size} values of output {name} differ")
            continue
        same = (found == value) | (np.isnan(found) & np.isnan(value))
        with np.errstate(invalid="ignore"):  # infinities of one sign are the same
            difference = np.where(same, 0.0, np.abs(found.astype(np.float64) - value))
        bad = ~(same | (difference <= ATOL + RTOL * np.abs(value.astype(np.float64))))
        if bad.any():
            nans = int((np.isnan(found) != np.isnan(value)).sum())
            largest = np.max(difference[bad & ~np.isnan(difference)], initial=0.0)
            by = f"{nans} are NaN on one side only" if nans else f"by up to {largest:.3g}"
            raise NotUsable(
                f"{what}: {int(bad.sum())} of {value.size} numbers of output {name} differ from TensorFlow's, {by}"
            )
        worst = max(worst, float(np.max(difference, initial=0.0)))
    return worst


def step(what: str, gate: GateResult | None = None, added: Mapping[str, str] | None = None) -> dict[str, Any]:
    """One attempt for the report."""
    return {"what": what, "added": dict(added or {}), "gate": gate.to_json() if gate else None}
