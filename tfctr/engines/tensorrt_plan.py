"""A TensorRT plan on the GPU: deserialised once per process, asked what it takes, and shared by all that run it.

Works with ``tensorrt`` and ``tensorrt_rtx``, whose Python bindings have the same names. Not yet run on a GPU.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfctr.engines import tensorrt_log
from tfctr.engines.tensorrt_cuda import Gpu
from tfctr.errors import CorruptFileError, TfctrError, VersionError

_OTHER_VERSION = "not compatible with this version"  # of TensorRT's log, which goes on with both versions


class TensorRTError(TfctrError):
    """TensorRT refuses something: names what, and quotes its log."""


@dataclasses.dataclass(frozen=True)
class PlanTensor:
    """An input or output. shape: -1 for open sizes."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Profile:
    """Sizes that one set of kernels takes. ranges: input -> (smallest shape, largest shape). best: input -> the shape
    that the kernels were chosen for."""

    number: int
    ranges: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    best: Mapping[str, tuple[int, ...]]

    def holds(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether inputs of ``shapes`` are within the ranges."""
        return all(within(shape, *self.ranges[name]) for name, shape in shapes.items())


def within(shape: tuple[int, ...], low: tuple[int, ...], high: tuple[int, ...]) -> bool:
    """Whether every size is from ``low`` to ``high``."""
    return len(shape) == len(low) and all(a <= size <= b for a, size, b in zip(low, shape, high, strict=True))


class Plan:
    """trt: the module that runs it. data: the serialised plan. built: version of the module that built it, "" where it
    is not known. label: for messages.

    Raises:
      VersionError: another version of TensorRT built it; names both.
      CorruptFileError: it is no plan, or a damaged one.
      TensorRTError, CudaError: anything else that keeps it from the GPU.
    """

    def __init__(self, trt: Any, gpu: Gpu, data: bytes, *, label: str, built: str = ""):
        self.trt, self.gpu, self.label = trt, gpu, label
        self.version = str(trt.__version__)
        self.library = str(getattr(trt, "__name__", "tensorrt"))
        if built and built != self.version:
            raise VersionError(
                f"{label}: the plan is built by {self.library} {built}, installed is {self.version}: convert again"
            )
        self._logger = tensorrt_log.logger(trt)
        self._lock = threading.Lock()  # making contexts and refitting take turns
        gpu.use()
        self._runtime = trt.Runtime(self._logger)
        self._engine: Any = self._deserialise(data)
        self.inputs, self.outputs = self._tensors()
        self.profiles = tuple(self._profile(number) for number in range(self._engine.num_optimization_profiles))

    @property
    def refittable(self) -> bool:
        return bool(self._engine.refittable)

    @property
    def lock(self) -> threading.Lock:
        """Held while weights are exchanged or contexts are made."""
        return self._lock

    def new_context(self, profile: Profile, stream: int) -> Any:
        """An execution context of its own, set to ``profile``."""
        mark = self.mark()
        with self._lock:
            context = self._engine.create_execution_context(*self._context_arguments())
        if context is None:
            raise self.error("makes no execution context", mark)
        self.set_profile(context, profile, stream)
        return context

    def set_profile(self, context: Any, profile: Profile, stream: int) -> None:
        mark = self.mark()
        if not context.set_optimization_profile_async(profile.number, stream):
            raise self.error(f"does not take profile {profile.number}", mark)

    def profile_for(self, shapes: Mapping[str, tuple[int, ...]]) -> Profile | None:
        """The profile with the fewest rows above those of ``shapes``; None where none holds them."""
        holding = [profile for profile in self.profiles if profile.holds(shapes)]
        return min(holding, key=_largest, default=None)

    def refitter(self) -> Any:
        return self.trt.Refitter(self._engine, self._logger)

    def serialise(self) -> bytes:
        """The plan as it is now, after a refit."""
        mark = self.mark()
        data = self._engine.serialize()
        if data is None:
            raise self.error("does not serialise the plan", mark)
        return bytes(data)

    def mark(self) -> int:
        return int(self._logger.record.mark())

    def error(self, what: str, mark: int) -> TensorRTError:
        """An error that quotes what TensorRT said since ``mark``."""
        return TensorRTError(f"{self.label}: {self.library} {self.version} {what}: {self._logger.record.quote(mark)}")

    def close(self) -> None:
        """Gives the GPU's memory back once no context is left."""
        self._engine = None
        self._runtime = None

    def _deserialise(self, data: bytes) -> Any:
        mark = self.mark()
        engine = self._runtime.deserialize_cuda_engine(data)
        if engine is not None:
            return engine
        wrong = self._diagnosis(data)
        error = self.error(f"can't load the plan{wrong}", mark)
        if "VERSION_MISMATCH" in wrong or _OTHER_VERSION in str(error):
            raise VersionError(f"{error}: convert again")
        if "MALFORMED_ENGINE" in wrong:
            raise CorruptFileError(str(error))
        raise error

    def _diagnosis(self, data: bytes) -> str:
        """What TensorRT-RTX finds wrong with a plan, by its names; "" where the library can't say."""
        validity = getattr(self._runtime, "get_engine_validity", None)
        if validity is None:
            return ""
        found = validity(data)[1]
        known = self.trt.EngineInvalidityDiagnostics.__members__
        named = [name for name, one in known.items() if int(found) & int(one)]
        return f" ({', '.join(named)})" if named else ""

    def _tensors(self) -> tuple[tuple[PlanTensor, ...], tuple[PlanTensor, ...]]:
        engine, trt = self._engine, self.trt
        found: dict[Any, list[PlanTensor]] = {trt.TensorIOMode.INPUT: [], trt.TensorIOMode.OUTPUT: []}
        for number in range(engine.num_io_tensors):
            name = engine.get_tensor_name(number)
            try:
                dtype = np.dtype(trt.nptype(engine.get_tensor_dtype(name)))
            except TypeError as error:
                raise TensorRTError(f"{self.label}: tensor {name!r} of the plan has no NumPy type: {error}") from error
            tensor = PlanTensor(str(name), dtype, tuple(engine.get_tensor_shape(name)))
            found[engine.get_tensor_mode(name)].append(tensor)
        return tuple(found[trt.TensorIOMode.INPUT]), tuple(found[trt.TensorIOMode.OUTPUT])

    def _profile(self, number: int) -> Profile:
        ranges, best = {}, {}
        for one in self.inputs:
            least, usual, most = self._engine.get_tensor_profile_shape(one.name, number)
            ranges[one.name] = (tuple(least), tuple(most))
            best[one.name] = tuple(usual)
        return Profile(number, ranges, best)

    def _context_arguments(self) -> tuple[Any, ...]:
        """TensorRT-RTX compiles kernels for the sizes at hand, by default while it runs with slower ones; a recorded
        graph would keep those for ever, so it is told to compile first."""
        strategy = getattr(self.trt, "DynamicShapesKernelSpecializationStrategy", None)
        if strategy is None:
            return ()
        config = self._engine.create_runtime_config()
        config.dynamic_shapes_kernel_specialization_strategy = strategy.EAGER
        return (config,)


def _largest(profile: Profile) -> int:
    return max((int(np.prod(most, dtype=np.int64)) for _, most in profile.ranges.values()), default=0)
