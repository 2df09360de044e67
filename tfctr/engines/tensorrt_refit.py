"""New weights for a TensorRT plan without building it again (a plan built with the flag REFIT).

Nothing is believed: every weight of the plan must be given, every weight given must be one of the plan's, and the
result must give a referee's numbers on a probe batch. TensorRT's documentation says of one release that REFIT may drop
the bias of a matrix product, which is what a tower is made of; the probe batch is how that would show.

Not yet run on a GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfctr.engines.tensorrt_engine import TensorRTEngine
from tfctr.engines.tensorrt_plan import Plan, TensorRTError

_NAMED = 5


class RefitError(TensorRTError):
    """The plan can't have these weights, or computes something else with them: build it again."""


@dataclasses.dataclass(frozen=True)
class Probe:
    """A batch and what a referee says of it. inputs, outputs: arrays by name. max_difference: of any output, absolute;
    a bias that is lost makes more than rounding does, so weights of a trained model are the right ones to probe with.
    """

    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    max_difference: float = 5e-3


def refit(engine: TensorRTEngine, weights: Mapping[str, np.ndarray], probe: Probe) -> bytes:
    """Exchanges the weights of ``engine`` (calls wait) and returns the plan with them, once the probe has passed.

    weights: by their names in the ONNX model that the plan was built from, of the same shapes.

    Raises RefitError; the engine is not to be used after it, as TensorRT may have exchanged some of the weights.
    """
    with engine.stopped() as plan:
        _exchange(plan, weights)
    check(engine, probe)
    with engine.stopped() as plan:
        return plan.serialise()


def check(engine: TensorRTEngine, probe: Probe) -> float:
    """The largest difference to the referee. RefitError above the probe's limit, or where something is not finite."""
    found = engine.compute(probe.inputs)
    worst, where = 0.0, ""
    for name, wanted in probe.outputs.items():
        got = found[name].astype(np.float64)
        if not np.isfinite(got).all():
            raise RefitError(f"{engine.label}: output {name!r} is not finite on the probe batch after the refit")
        difference = float(np.abs(got - wanted).max(initial=0.0))
        if difference >= worst:
            worst, where = difference, name
    if worst > probe.max_difference:
        raise RefitError(
            f"{engine.label}: after the refit output {where!r} differs by {worst:.3g} from the referee on the probe "
            f"batch, allowed is {probe.max_difference:g} (a bias that the refit drops looks like this)"
        )
    return worst


def _exchange(plan: Plan, weights: Mapping[str, np.ndarray]) -> None:
    if not plan.refittable:
        raise RefitError(f"{plan.label}: the plan was not built to be refitted")
    plan.gpu.use()
    refitter = plan.refitter()
    known = set(refitter.get_all_weights())
    for what, names in (
        ("the plan has weights that are not given", known - set(weights)),
        ("weights given that the plan does not exchange", set(weights) - known),
    ):
        if names:
            told = ", ".join(sorted(names)[:_NAMED]) + (f" and {len(names) - _NAMED} more" * (len(names) > _NAMED))
            raise RefitError(f"{plan.label}: {what}: {told}")
    held = []  # TensorRT keeps pointers until the refit is done
    for name, value in weights.items():
        array = _as_built(plan, refitter, name, value)
        held.append(array)
        mark = plan.mark()
        if not refitter.set_named_weights(name, plan.trt.Weights(array)):
            raise RefitError(str(plan.error(f"does not take the weight {name!r}", mark)))
    missing = list(refitter.get_missing_weights())
    if missing:
        raise RefitError(f"{plan.label}: TensorRT wants more weights: {', '.join(missing[:_NAMED])}")
    mark = plan.mark()
    if not refitter.refit_cuda_engine():
        raise RefitError(str(plan.error("does not refit the plan", mark)))


def _as_built(plan: Plan, refitter: Any, name: str, value: np.ndarray) -> np.ndarray:
    """The weight in the dtype that the plan has for it. RefitError: another size, or out of range."""
    prototype = refitter.get_weights_prototype(name)
    if prototype.size != value.size:
        raise RefitError(f"{plan.label}: weight {name!r} has {value.size} numbers, the plan {prototype.size}")
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(value, dtype=plan.trt.nptype(prototype.dtype))
    if not np.isfinite(array).all():
        raise RefitError(f"{plan.label}: weight {name!r} is not finite as {array.dtype}")
    return array
