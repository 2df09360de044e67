"""The names and types of the CUDA driver's functions, through ctypes, against CUDA's own header. Needs no GPU."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.engines.fake_tensorrt import expected, fake_tensorrt, make_plan
from tfctr.engines.tensorrt_cuda import FUNCTIONS, CudaError, Driver, Gpu
from tfctr.engines.tensorrt_engine import Settings, TensorRTEngine
from tfctr.engines.tensorrt_plan import Plan


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    homes = [os.environ.get("CUDA_HOME", ""), *map(str, sorted(Path("/usr/local").glob("cuda*"), reverse=True))]
    header = next((Path(home, "include") for home in homes if home and Path(home, "include/cuda.h").is_file()), None)
    if header is None:
        pytest.skip("no cuda.h (CUDA_HOME, /usr/local/cuda*)")
    made = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    source = Path(__file__).with_name("native") / "driver_stub.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", f"-I{header}", str(source), "-o", str(made)], check=True)
    return ctypes.CDLL(str(made))


class Kernels:
    """Where the fake TensorRT puts its work: done at once."""

    capturing: dict = {}  # noqa: RUF012

    def enqueue(self, stream, what, work):
        work()


def test_every_function_has_the_headers_name(library):
    assert [name for name in FUNCTIONS if not hasattr(library, name)] == []


def test_a_plan_runs_over_the_stub(library):
    driver = Driver(library)
    driver.call("cuInit", 0)
    assert driver.filled("cuDriverGetVersion", ctypes.c_int) >= 12000
    gpu = Gpu(driver)
    assert (gpu.name, gpu.target) == ("Stub GPU", "sm121")
    data = make_plan(np.random.default_rng(1))
    tensors = (
        [{"name": "x", "dtype": "float32", "shape": ["N", 3]}],
        [{"name": "y", "dtype": "float32", "shape": ["N", 2]}],
    )
    engine = TensorRTEngine(Plan(fake_tensorrt(Kernels()), gpu, data, label="m"), *tensors, Settings(graphs=False))
    for rows in (1, 20, 150):
        x = np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)
        np.testing.assert_allclose(engine.compute({"x": x})["y"], expected(data, x), rtol=1e-6)
    engine.close()
    recorded = TensorRTEngine(Plan(fake_tensorrt(Kernels()), gpu, data, label="m"), *tensors)
    recorded.warm_up()
    assert recorded.describe()["recorded"] == 3
    recorded.close()


def test_errors_come_with_the_drivers_text(library):
    gpu = Gpu(Driver(library))
    with pytest.raises(CudaError, match="cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY: out of memory"):
        gpu.device_memory(1 << 34)
