"""What one running call of a TensorRT engine has for itself: a CUDA stream, execution contexts, buffers and recorded
CUDA graphs.

All inputs lie in one page-locked buffer and one of the device, at aligned offsets, and so do the outputs behind them:
a call is one copy up, one enqueue, one copy down. Once recorded, the three are one launch. A graph stays valid only as
long as its context is left alone, which is why each recorded set of shapes has a context of its own; all others share
one, which is told its shapes anew.

Not yet run on a GPU.
"""

from __future__ import annotations

import ctypes
import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tfctr.engines.tensorrt_cuda import CudaError
from tfctr.engines.tensorrt_plan import Plan, PlanTensor, Profile, within
from tfctr.errors import InputError

_log = logging.getLogger("tfctr")
ALIGNMENT = 256  # bytes; what CUDA's own allocations have, and TensorRT asks for no more
Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Slot:
    """Where a tensor lies in a buffer. offset, size: bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    size: int


def place(tensors: Iterable[PlanTensor], shapes: Shapes, first: int = 0) -> tuple[dict[str, Slot], int]:
    """Slots of ``tensors`` from byte ``first`` on, each aligned; and the first byte after them, aligned."""
    slots, at = {}, first
    for one in tensors:
        size = int(np.prod(shapes[one.name], dtype=np.int64)) * one.dtype.itemsize
        slots[one.name] = Slot(one.dtype, shapes[one.name], at, size)
        at += -(-size // ALIGNMENT) * ALIGNMENT
    return slots, at


class Run:
    """A plan ready to run for one set of input shapes. Not thread-safe; its lane is one call's.

    inputs, outputs: name -> array over the page-locked buffer: fill, :meth:`run`, read.
    """

    def __init__(self, plan: Plan, stream: int, shapes: Shapes, graphs: bool):
        self._plan, self._gpu, self._stream = plan, plan.gpu, stream
        self._pinned = self._device = self._size = self._recorded = 0
        self._context: Any = None
        self._profile: Profile | None = None
        self._shapes: Shapes | None = None
        self._wants_graph = graphs
        self.not_recorded = ""
        try:
            self.bind(shapes)
        except BaseException:
            self.close()
            raise

    def bind(self, shapes: Shapes) -> None:
        """Takes inputs of ``shapes`` from here on; not for a run that is recorded. Buffers only grow.

        Raises InputError, naming the input, where the plan does not take them.
        """
        if shapes == self._shapes:
            return
        plan = self._plan
        profile = plan.profile_for(shapes)
        if profile is None:
            raise InputError(f"{plan.label}: {misfit(plan, shapes)}")
        self._shapes = None
        if self._context is None:
            self._context = plan.new_context(profile, self._stream)
        elif profile is not self._profile:
            plan.set_profile(self._context, profile, self._stream)
        self._profile = profile
        results = self._set_shapes(shapes)
        slots, self._up_bytes = place(plan.inputs, shapes)
        self._first_down = self._up_bytes
        found, end = place(plan.outputs, results, self._first_down)
        self._down_bytes = end - self._first_down
        self._reserve(end)
        mark = plan.mark()
        for name, slot in (slots | found).items():
            if not self._context.set_tensor_address(name, self._device + slot.offset):
                raise plan.error(f"does not take the address of {name!r}", mark)
        self.inputs = {name: self._array(slot) for name, slot in slots.items()}
        self.outputs = {name: self._array(slot) for name, slot in found.items()}
        self._shapes = dict(shapes)

    @property
    def recorded(self) -> bool:
        return bool(self._recorded)

    def run(self) -> None:
        """Runs what ``inputs`` holds; ``outputs`` are there when it returns. The first run is the warm-up that TensorRT
        asks for before it is recorded."""
        if self._recorded:
            self._gpu.launch(self._recorded, self._stream)
            self._gpu.wait(self._stream)
            return
        self._enqueue()
        self._gpu.wait(self._stream)
        if self._wants_graph:
            self._wants_graph = False
            self._record()

    def close(self) -> None:
        self._forget_recorded()
        self._context = None
        self._free()

    def _reserve(self, size: int) -> None:
        if size <= self._size:
            return
        self._free()
        self._pinned = self._gpu.pinned_memory(max(size, ALIGNMENT))
        self._device = self._gpu.device_memory(max(size, ALIGNMENT))
        self._size = size

    def _free(self) -> None:
        self.inputs = self.outputs = {}
        device, pinned, self._device, self._pinned, self._size = self._device, self._pinned, 0, 0, 0
        if device:
            self._gpu.free_device(device)
        if pinned:
            self._gpu.free_pinned(pinned)

    def _enqueue(self) -> None:
        gpu, mark = self._gpu, self._plan.mark()
        gpu.to_device(self._device, self._pinned, self._up_bytes, self._stream)
        if not self._context.execute_async_v3(self._stream):
            raise self._plan.error("does not run the plan", mark)
        gpu.to_host(self._pinned + self._first_down, self._device + self._first_down, self._down_bytes, self._stream)

    def _record(self) -> None:
        """Records the three steps. A plan that can't be recorded goes on without, said once."""
        capturable = getattr(self._context, "is_stream_capturable", None)
        if capturable is not None and not capturable(self._stream):
            self._give_up("TensorRT says that this plan can't be recorded")
            return
        self._gpu.begin_capture(self._stream)
        failed = ""
        try:
            self._enqueue()
        except Exception as error:  # of any kind: the recording must be ended, and the plan runs without it
            failed = str(error)
        try:
            self._recorded = self._gpu.end_capture(self._stream)
        except CudaError as error:
            failed = failed or str(error)
        if failed or not self._recorded:
            self._forget_recorded()
            self._give_up(failed or "nothing was recorded")

    def _give_up(self, reason: str) -> None:
        self.not_recorded = reason
        _log.warning("%s: no CUDA graph, each call is enqueued: %s", self._plan.label, reason)

    def _forget_recorded(self) -> None:
        if self._recorded:
            self._gpu.free_recorded(self._recorded)
            self._recorded = 0

    def _set_shapes(self, shapes: Shapes) -> dict[str, tuple[int, ...]]:
        """Shapes of the outputs."""
        plan, mark = self._plan, self._plan.mark()
        for name, shape in shapes.items():
            if not self._context.set_input_shape(name, shape):
                raise plan.error(f"does not take {name!r} of shape {list(shape)}", mark)
        missing = self._context.infer_shapes()
        if missing:
            raise plan.error(f"does not know the sizes of {', '.join(missing)}", mark)
        found = {one.name: tuple(self._context.get_tensor_shape(one.name)) for one in plan.outputs}
        for name, shape in found.items():
            if min(shape, default=0) < 0:
                raise plan.error(f"has an output {name!r} whose sizes depend on values", mark)
        return found

    def _array(self, slot: Slot) -> np.ndarray:
        if slot.size == 0:
            return np.zeros(slot.shape, slot.dtype)
        memory: Any = (ctypes.c_char * slot.size).from_address(self._pinned + slot.offset)
        return np.frombuffer(memory, slot.dtype).reshape(slot.shape)


class Lane:
    """A stream and the runs made on it. graphs: whether anything is recorded."""

    def __init__(self, plan: Plan, *, graphs: bool = True):
        self._plan, self._gpu, self._graphs = plan, plan.gpu, graphs
        self._gpu.use()
        self._stream = self._gpu.new_stream()
        self._recorded: dict[tuple[tuple[str, tuple[int, ...]], ...], Run] = {}
        self._other: Run | None = None

    def run_for(self, shapes: Shapes, usual: bool) -> Run:
        """The run of these input shapes. usual: they come again and again, so that they are worth a context and a
        recorded graph of their own. On the calling thread."""
        self._gpu.use()
        if not usual:
            if self._other is None:
                self._other = Run(self._plan, self._stream, shapes, graphs=False)
            self._other.bind(shapes)
            return self._other
        key = tuple(sorted(shapes.items()))
        if key not in self._recorded:
            self._recorded[key] = Run(self._plan, self._stream, shapes, self._graphs)
        return self._recorded[key]

    def runs(self) -> list[Run]:
        return [*self._recorded.values(), *([self._other] if self._other else [])]

    def close(self) -> None:
        self._gpu.use()
        for run in self.runs():
            run.close()
        self._recorded, self._other = {}, None
        if self._stream:
            self._gpu.end_stream(self._stream)
            self._stream = 0


def misfit(plan: Plan, shapes: Shapes) -> str:
    """Which input is outside the ranges of all profiles."""
    for name, shape in shapes.items():
        ranges = [profile.ranges[name] for profile in plan.profiles]
        if not any(within(shape, *limits) for limits in ranges):
            told = "; ".join(f"{list(low)} to {list(high)}" for low, high in ranges)
            return f"input {name!r} has the shape {list(shape)}; the plan takes {told}"
    return f"no profile of the plan takes inputs of these shapes together: {dict(shapes)}"
