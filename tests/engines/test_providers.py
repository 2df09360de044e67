"""Which providers run here and why not: each reason is one line. And TensorRT behind the native library."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import threading

import numpy as np
import pytest

from tests.engines.fake_cuda import ILLEGAL_ADDRESS, NO_DEVICE, OUT_OF_MEMORY, FakeDriver
from tests.engines.fake_tensorrt import expected, fake_tensorrt, make_plan
from tfctr.engines import isa, native, openvino_library, providers, tensorrt_cuda
from tfctr.engines.spec import EngineFile, EngineSpec, EngineTensor
from tfctr.errors import InputError, InternalError, TfctrError, UsageError, VersionError

PLANS = {"engine": {"name": "tensorrt_rtx", "version": "1.7.1.116"}, "files": [{"role": "onnx"}, {"role": "plan:sm89"}]}


def use_driver(monkeypatch, driver):
    """The machine's CUDA driver is ``driver``; None: there is none."""

    def open_library():
        if driver is None:
            raise tensorrt_cuda.CudaError("no NVIDIA driver here: libcuda.so.1: cannot open shared object file")
        return driver

    monkeypatch.setattr(tensorrt_cuda, "open_library", open_library)
    tensorrt_cuda.driver.cache_clear()
    tensorrt_cuda.gpu.cache_clear()


@pytest.fixture
def machine(monkeypatch):
    """A machine with a GPU of generation 8.9 and tensorrt_rtx 1.7.1.116."""
    driver = FakeDriver((8, 9))
    use_driver(monkeypatch, driver)
    trt = fake_tensorrt(driver)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", trt)
    without(monkeypatch, "tensorrt")
    versions(monkeypatch, {"tensorrt-rtx-cu13": "1.7.1.116"})
    yield trt
    tensorrt_cuda.driver.cache_clear()
    tensorrt_cuda.gpu.cache_clear()


def without(monkeypatch, *names):
    """Packages that are not installed."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, package=None: None if name in names else real(name, package)
    )


def versions(monkeypatch, known):
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: known.get(name) or real(name))


def test_tensorflow_always_runs():
    assert providers.why_not("tensorflow") == ""
    providers.load("tensorflow")


def test_an_unknown_provider_is_refused():
    with pytest.raises(UsageError, match="no provider 'onnx'; there is: tensorflow, openvino, tensorrt"):
        providers.why_not("onnx")


def test_openvino_runs_here():
    assert providers.why_not("openvino") == ""
    providers.load("openvino")
    assert "openvino" in native.engine_providers()


def test_openvino_is_not_installed(monkeypatch):
    without(monkeypatch, "openvino")
    assert providers.why_not("openvino").startswith("the package openvino is not installed (pip install")


def test_openvino_of_another_version_names_both(monkeypatch):
    versions(monkeypatch, {"openvino": "2025.1.0"})
    why = providers.why_not("openvino")
    assert "is built against OpenVINO 2026.4.1" in why
    assert "2025.1.0 is installed" in why
    monkeypatch.setattr(openvino_library, "_loaded", [])
    with pytest.raises(VersionError, match="2025.1.0 is installed"):
        providers.load("openvino")


def test_the_library_for_openvino_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(openvino_library, "LIBRARY", tmp_path / "libtfctr_openvino.so")
    assert "has no libtfctr_openvino.so" in providers.why_not("openvino")
    monkeypatch.setattr(openvino_library, "_loaded", [])
    with pytest.raises(InternalError, match="has no libtfctr_openvino.so"):
        providers.load("openvino")


@pytest.mark.parametrize(
    ("cpu", "runs"), [("avx2", False), ("avx512", False), ("avx512_bf16", True), ("amx_bf16", True)]
)
def test_bf16_is_never_assumed(monkeypatch, cpu, runs):
    monkeypatch.setattr(isa, "cpu_isa", lambda: cpu)
    why = providers.why_not("openvino", {"precision": "bf16"})
    assert why == ("" if runs else f"bf16 needs a CPU with avx512_bf16 or amx_bf16; this one has {cpu}")
    assert providers.why_not("openvino", {"precision": "fp32"}) == ""


def test_tensorrt_is_not_installed(monkeypatch):
    without(monkeypatch, "tensorrt", "tensorrt_rtx")
    assert providers.why_not("tensorrt") == "the package tensorrt is not installed: pip install tensorrt"
    why = providers.why_not("tensorrt", PLANS)
    assert why == "the package tensorrt_rtx is not installed: pip install tensorrt-rtx-cu13==1.7.1.116"


def test_no_driver(monkeypatch, machine):
    use_driver(monkeypatch, None)
    assert providers.why_not("tensorrt", PLANS) == (
        "no NVIDIA driver here: libcuda.so.1: cannot open shared object file"
    )


def test_a_driver_without_a_gpu_is_told_in_cudas_words(monkeypatch, machine):
    driver = FakeDriver()
    driver.fail["cuInit"] = NO_DEVICE
    use_driver(monkeypatch, driver)
    assert providers.why_not("tensorrt", PLANS) == "cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"


def test_plans_of_another_version_name_both(machine):
    other = {**PLANS, "engine": {"name": "tensorrt_rtx", "version": "1.6.0.1"}}
    assert providers.why_not("tensorrt", other) == (
        "its plans are built by tensorrt_rtx 1.6.0.1, installed is 1.7.1.116; convert again, or install that version"
    )


def test_no_plan_for_this_gpu_names_those_there_are(monkeypatch, machine):
    assert providers.why_not("tensorrt", PLANS) == ""
    use_driver(monkeypatch, FakeDriver((12, 0)))
    why = providers.why_not("tensorrt", {**PLANS, "files": [{"role": "plan:sm86"}, {"role": "plan:sm89"}]})
    assert why == "no plan for this GPU (Fake GPU, sm120); the bundle has plans for sm86, sm89"


def test_load_says_why_not(monkeypatch, machine):
    use_driver(monkeypatch, None)
    with pytest.raises(UsageError, match="provider tensorrt: no NVIDIA driver here"):
        providers.load("tensorrt", PLANS)


def spec(path, roles=("plan:sm89",), **more):
    return EngineSpec(
        **{
            "provider": "tensorrt",
            "precision": "fp16",
            "inputs": (EngineTensor("x", "float32", ("N", 3)),),
            "outputs": (EngineTensor("y", "float32", ("N", 2)),),
            "files": tuple(EngineFile(role, path) for role in roles),
            "label": "serving_default",
            **more,
        }
    )


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "sm89.plan"
    path.write_bytes(make_plan(np.random.default_rng(1)))
    return path


def test_the_native_library_runs_a_plan_through_python(machine, plan):
    providers.load("tensorrt")
    assert "tensorrt" in native.engine_providers()
    with native.open_engine(spec(plan)) as engine, native.open_engine(spec(plan, label="other")) as other:
        for rows in (1, 20, 150):
            x = np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)
            np.testing.assert_allclose(engine.run({"x": x})["y"], expected(plan.read_bytes(), x), rtol=1e-6)
        assert other.run({"x": np.zeros((0, 3), np.float32)})["y"].shape == (0, 2)
        told = engine.describe()
        assert (told["provider"], told["precision"], told["target"]) == ("tensorrt", "fp16", "sm89")
        assert (told["calls"], told["split"]) == (3, 1)
        with pytest.raises(InputError, match="serving_default.*'x'"):
            engine.run({"x": np.zeros((2, 4), np.float32)})
    assert machine.calls.count(("deserialise",)) == 1  # two users of one engine
    assert machine.driver.live() == {"memory": 0, "streams": 0, "graphs": 0}


def test_many_threads_through_the_native_library(machine, plan):
    providers.load("tensorrt")
    failed = []
    with native.open_engine(spec(plan, options={"tensorrt": {"contexts": 3}})) as engine:

        def work(seed):
            mine = np.random.default_rng(seed)
            for _ in range(10):
                x = mine.normal(size=(int(mine.integers(1, 100)), 3)).astype(np.float32)
                if not np.allclose(engine.run({"x": x})["y"], expected(plan.read_bytes(), x), rtol=1e-6):
                    failed.append(seed)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        told = engine.describe()
    assert failed == []
    assert told["calls"] == 160
    assert 1 <= told["lanes"] <= 3
    assert machine.driver.live() == {"memory": 0, "streams": 0, "graphs": 0}


def test_errors_name_the_engine_the_provider_and_cudas_text(machine, plan):
    providers.load("tensorrt")
    x = np.zeros((2, 3), np.float32)
    with native.open_engine(spec(plan)) as engine:
        machine.driver.fail["cuStreamSynchronize"] = ILLEGAL_ADDRESS
        text = "cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access"
        with pytest.raises(TfctrError, match=f"serving_default.*tensorrt.*{text}"):
            engine.run({"x": x})
        machine.driver.fail.clear()
        engine.run({"x": x})


def test_an_engine_that_does_not_fit_the_gpu_leaves_nothing_behind(machine, plan):
    providers.load("tensorrt")
    machine.driver.fail["cuMemHostAlloc"] = OUT_OF_MEMORY
    with pytest.raises(TfctrError, match="serving_default.*tensorrt.*cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY"):
        native.open_engine(spec(plan))
    machine.driver.fail.clear()
    assert machine.driver.live() == {"memory": 0, "streams": 0, "graphs": 0}
    native.open_engine(spec(plan)).close()


def test_no_plan_for_the_gpu_when_an_engine_is_opened(machine, plan):
    providers.load("tensorrt")
    with pytest.raises(TfctrError, match="no plan for this GPU .Fake GPU, sm89.; there are plans for: sm120, sm86"):
        native.open_engine(spec(plan, ("plan:sm120", "plan:sm86")))


def test_a_plan_that_another_version_built(machine, plan):
    providers.load("tensorrt")
    options = {"tensorrt": {"library": "tensorrt_rtx", "version": "1.6.0.1"}}
    with pytest.raises(TfctrError, match="VersionError: .*built by tensorrt_rtx 1.6.0.1, installed is 1.7.1.116"):
        native.open_engine(spec(plan, options=options))
