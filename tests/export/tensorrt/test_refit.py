"""Refitting plans over fakes of CUDA and TensorRT: what is exchanged, what is checked, what is refused."""

import json

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from export.fp16.convert import Fp16Options, to_fp16
from export.fp16.half_eval import evaluate
from export.tensorrt import build as building
from export.tensorrt.library import Library
from export.tensorrt.options import BuildOptions
from export.tensorrt.refit import refit_plan, refits_here
from tests.engines.fake_builder import fake_library
from tests.engines.fake_cuda import FakeDriver
from tests.export.fp16.graphs import mlp
from tfctr.engines import tensorrt_cuda
from tfctr.engines.spec import EngineTensor
from tfctr.engines.tensorrt_engine import TensorRTEngine
from tfctr.engines.tensorrt_plan import Plan
from tfctr.engines.tensorrt_refit import RefitError
from tfctr.errors import VersionError


@pytest.fixture
def library(monkeypatch):
    """A machine with a GPU (fakes); builds with REFIT stay in this process, where the fakes are."""
    driver = FakeDriver((8, 9))
    monkeypatch.setattr(tensorrt_cuda, "open_library", lambda: driver)
    tensorrt_cuda.driver.cache_clear()
    tensorrt_cuda.gpu.cache_clear()
    monkeypatch.setattr(building, "_build_apart", building._build_here)
    yield Library(fake_library(driver), "tensorrt_rtx", "1.7.1.116", ("sm86", "sm89"))
    tensorrt_cuda.driver.cache_clear()
    tensorrt_cuda.gpu.cache_clear()


def half(model):
    return to_fp16(model, Fp16Options(clamped=("x",))).model


def changed(model, change):
    """A copy whose float weights are ``change(name, value)``."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    for one in made.graph.initializer:
        value = numpy_helper.to_array(one)
        if value.dtype.kind == "f" and value.ndim:
            one.CopyFrom(numpy_helper.from_array(np.asarray(change(one.name, value), value.dtype), one.name))
    return made


def tensors(model):
    fixed = {one.name for one in model.graph.initializer}

    def described(values):
        return [
            EngineTensor(
                v.name,
                "float32",
                tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in v.type.tensor_type.shape.dim),
            )
            for v in values
            if v.name not in fixed
        ]

    return described(model.graph.input), described(model.graph.output)


OLD = half(mlp())
NEW = changed(OLD, lambda name, value: value * 0.5 + 0.1)
FEEDS = {"x": np.random.default_rng(4).normal(size=(40, 32)).astype(np.float32)}
FEEDS = {"x": FEEDS["x"][:, : OLD.graph.input[0].type.tensor_type.shape.dim[1].dim_value]}


def built(library, refit=True):
    return building.build(OLD, ["sm89"], BuildOptions(refit=refit), library=library)["sm89"]


def test_a_plan_gets_new_weights_without_a_build(library):
    inputs, outputs = tensors(OLD)
    data = refit_plan(built(library), OLD, NEW, inputs, outputs, FEEDS, library)
    plan = Plan(library.module, tensorrt_cuda.gpu(), data, label="again")
    shapes = [[{"name": t.name, "dtype": t.dtype, "shape": t.shape} for t in side] for side in (inputs, outputs)]
    engine = TensorRTEngine(plan, *shapes)
    got, want = engine.compute(FEEDS), evaluate(NEW, FEEDS)
    for one in outputs:
        np.testing.assert_allclose(got[one.name], want[one.name], atol=5e-3)
        assert np.abs(evaluate(OLD, FEEDS)[one.name] - want[one.name]).max() > 2e-2
    engine.close()
    assert library.module.driver.live() == {"memory": 0, "streams": 0, "graphs": 0}


def test_a_dropped_bias_is_found(library):
    plan = json.loads(built(library))
    bias = next(name for name in plan["weights"] if len(plan["weights"][name]) > 1 and name.startswith("b"))
    data = json.dumps({**plan, "loses": [bias]}).encode()
    with pytest.raises(RefitError, match="differs by .* from the referee on the probe batch"):
        refit_plan(data, OLD, NEW, *tensors(OLD), FEEDS, library)
    assert library.module.driver.live() == {"memory": 0, "streams": 0, "graphs": 0}


def test_a_weight_that_the_plan_does_not_exchange_must_be_as_before(library):
    plan = json.loads(built(library))
    bias = next(name for name in plan["weights"] if name.startswith("b"))
    del plan["weights"][bias]
    data = json.dumps(plan).encode()
    with pytest.raises(RefitError, match=f"'{bias}' has another value now, and the plan does not exchange it"):
        refit_plan(data, OLD, NEW, *tensors(OLD), FEEDS, library)
    same = changed(NEW, lambda name, value: value)
    old = {one.name: one for one in OLD.graph.initializer}
    next(one for one in same.graph.initializer if one.name == bias).CopyFrom(old[bias])
    assert refit_plan(data, OLD, same, *tensors(OLD), FEEDS, library)


def test_plans_that_can_not_be_refitted_are_refused(library):
    with pytest.raises(RefitError, match="was not built to be refitted"):
        refit_plan(built(library, refit=False), OLD, NEW, *tensors(OLD), FEEDS, library)
    other = Library(library.module, "tensorrt_rtx", "1.8.0.1", ("sm89",))
    with pytest.raises(VersionError, match="built by tensorrt_rtx 1.8.0.1, installed is 1.7.1.116"):
        refit_plan(built(library), OLD, NEW, *tensors(OLD), FEEDS, other)


def test_the_machine_must_have_the_plans_gpu(library, monkeypatch):
    assert refits_here("sm89")
    assert not refits_here("sm86")

    def none():
        raise tensorrt_cuda.CudaError("no NVIDIA driver here")

    monkeypatch.setattr(tensorrt_cuda, "open_library", none)
    tensorrt_cuda.driver.cache_clear()
    tensorrt_cuda.gpu.cache_clear()
    assert not refits_here("sm89")
