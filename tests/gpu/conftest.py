"""What the machine has for tests on a GPU; tests are skipped by the name of what it lacks. Run by ``make test-gpu``.

``make test`` hides GPUs (tests/conftest.py), so there all of them are skipped but those that need none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from export.fp16.convert import Fp16Options, to_fp16
from export.tensorrt.build import build
from export.tensorrt.library import Library, installed, load
from export.tensorrt.options import BuildOptions
from tests.export.onnx.exports import exported
from tfctr.engines import native, providers, tensorrt_cuda
from tfctr.engines.spec import EngineFile, EngineSpec, EngineTensor

CLAMPED = {"din": ("history", "target")}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refitting first: a release of TensorRT that drops biases must be known before anything else."""
    items.sort(key=lambda item: "test_refit" not in item.nodeid)


@pytest.fixture(scope="session")
def gpu() -> tensorrt_cuda.Gpu:
    """The machine's GPU."""
    try:
        return tensorrt_cuda.gpu()
    except tensorrt_cuda.CudaError as error:
        pytest.skip(f"no GPU: {error}")


@pytest.fixture(scope="session")
def library(gpu: tensorrt_cuda.Gpu) -> Library:
    """The TensorRT that builds plans for it."""
    if installed() is None:
        pytest.skip("neither tensorrt nor tensorrt_rtx is installed (requirements-gpu.txt)")
    found = load()
    if gpu.target not in found.targets:
        pytest.skip(f"{found.label} does not build for {gpu.target} ({gpu.name})")
    return found


@dataclasses.dataclass(frozen=True)
class Machine:
    """Builds and opens engines for the GPU."""

    gpu: tensorrt_cuda.Gpu
    library: Library
    folder: Path

    def plan(self, model: onnx.ModelProto, options: BuildOptions | None = None) -> bytes:
        return build(model, [self.gpu.target], options, library=self.library)[self.gpu.target]

    def spec(self, model: onnx.ModelProto, plan: bytes, name: str, **more: Any) -> EngineSpec:
        path = self.folder / f"{name}.plan"
        path.write_bytes(plan)
        fixed = {one.name for one in model.graph.initializer}
        return EngineSpec(
            provider="tensorrt",
            precision="fp32",
            inputs=tuple(_tensor(one) for one in model.graph.input if one.name not in fixed),
            outputs=tuple(_tensor(one) for one in model.graph.output),
            files=(EngineFile(f"plan:{self.gpu.target}", path),),
            options={"tensorrt": {"library": self.library.name, "version": self.library.version, **more}},
            label=name,
        )

    def open(self, model: onnx.ModelProto, name: str, **more: Any) -> native.Engine:
        """An engine for ``model``; more: options of the provider."""
        providers.load("tensorrt")
        return native.open_engine(self.spec(model, self.plan(model), name, **more))


@pytest.fixture(scope="session")
def machine(gpu: tensorrt_cuda.Gpu, library: Library, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(gpu, library, tmp_path_factory.mktemp("plans"))


@pytest.fixture(scope="session")
def half() -> Callable[[str], onnx.ModelProto]:
    """One of the five towers in strongly typed FP16, as bundles have it."""

    def made(name: str) -> onnx.ModelProto:
        clamped: Sequence[str] = CLAMPED.get(name, ("embeddings",))
        return to_fp16(exported(name).model, Fp16Options(clamped=tuple(clamped))).model

    return made


def run_onnx(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """ONNX Runtime in FP32: the third opinion."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, feeds), strict=True))


def _tensor(value: onnx.ValueInfoProto) -> EngineTensor:
    tensor = value.type.tensor_type
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return EngineTensor(
        value.name, dtype, tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim)
    )
