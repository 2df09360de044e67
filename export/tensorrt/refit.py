"""New weights for a plan of the same structure, on a machine with its GPU: without a build, checked before it is used.

The plan must be built with ``BuildOptions(refit=True)``. Weights that the plan does not exchange must be those of
before. Not yet run on a GPU; tested over fakes of CUDA and TensorRT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from export.fp16.half_eval import evaluate
from export.tensorrt.library import Library
from tfctr.engines import tensorrt_cuda
from tfctr.engines.spec import EngineTensor
from tfctr.engines.tensorrt_engine import TensorRTEngine
from tfctr.engines.tensorrt_plan import Plan
from tfctr.engines.tensorrt_refit import Probe, RefitError, refit

MAX_DIFFERENCE = 5e-3  # of any output on the probe batch: the accuracy gate's limit of FP16


def refits_here(target: str) -> bool:
    """Whether this machine has the GPU that refitting a plan for ``target`` takes."""
    try:
        return tensorrt_cuda.gpu().target == target
    except tensorrt_cuda.CudaError:
        return False


def refit_plan(
    plan: bytes,
    before: onnx.ModelProto,
    model: onnx.ModelProto,
    inputs: Sequence[EngineTensor],
    outputs: Sequence[EngineTensor],
    feeds: Mapping[str, np.ndarray],
    library: Library,
    *,
    label: str = "plan",
    max_difference: float = MAX_DIFFERENCE,
) -> bytes:
    """``plan`` of the model ``before`` with the weights of ``model``.

    feeds: the probe batch, rows of real samples; its referee is the NumPy evaluator of FP16, over ``model``.

    Raises RefitError: the plan can't have these weights or computes something else with them; build it. VersionError,
    CudaError and TensorRTError as ``Plan``.
    """
    engine_plan = Plan(library.module, tensorrt_cuda.gpu(), plan, label=label, built=library.version)
    engine = TensorRTEngine(engine_plan, _described(inputs), _described(outputs))
    try:
        weights = _exchanged(engine_plan, before, model)
        found = evaluate(model, dict(feeds))
        wanted = {one.name: np.asarray(found[one.name]) for one in outputs}
        return refit(engine, weights, Probe(feeds, wanted, max_difference))
    finally:
        engine.close()


def _exchanged(plan: Plan, before: onnx.ModelProto, model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """The weights of ``model`` that the plan exchanges. RefitError where another one is not as it was."""
    if not plan.refittable:
        raise RefitError(f"{plan.label}: the plan was not built to be refitted")
    plan.gpu.use()
    known = set(plan.refitter().get_all_weights())
    old = {one.name: one for one in before.graph.initializer}
    found = {}
    for one in model.graph.initializer:
        if one.name in known:
            found[one.name] = numpy_helper.to_array(one)
        elif one.name not in old or not _same(old[one.name], one):
            raise RefitError(f"{plan.label}: {one.name!r} has another value now, and the plan does not exchange it")
    return found


def _same(a: onnx.TensorProto, b: onnx.TensorProto) -> bool:
    left, right = numpy_helper.to_array(a), numpy_helper.to_array(b)
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def _described(tensors: Sequence[EngineTensor]) -> list[dict[str, object]]:
    return [{"name": one.name, "dtype": one.dtype, "shape": list(one.shape)} for one in tensors]
