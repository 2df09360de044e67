"""What one running call of a TensorRT engine has for itself: a CUDA stream, and for each set of input shapes an
execution context, buffers and, after the first run, a recorded CUDA graph.

All inputs lie in one page-locked buffer and one of the device, at aligned offsets, and so do the outputs behind them:
a call is one copy up, one enqueue, one copy down. Once recorded, the three are one launch. A graph stays valid only as
long as its context is left alone, which is why each set of shapes has a context of its own.

Not yet run on a GPU.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tfctr.engines.tensorrt_cuda import CudaError
from tfctr.engines.tensorrt_plan import Plan, PlanTensor, within
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
        self._pinned = self._device = self._recorded = 0
        self._wants_graph = graphs
        self.not_recorded = ""
        profile = plan.profile_for(shapes)
        if profile is None:
            raise InputError(f"{plan.label}: {misfit(plan, shapes)}")
        try:
            self._context = plan.new_context(profile, stream)
            results = self._set_shapes(shapes)
            slots, self._up_bytes = place(plan.inputs, shapes)
            self._first_down = self._up_bytes
            found, end = place(plan.outputs, results, self._first_down)
            self._down_bytes = end - self._first_down
            self._pinned = self._gpu.pinned_memory(max(end, ALIGNMENT))
            self._device = self._gpu.device_memory(max(end, ALIGNMENT))
            for name, slot in (slots | found).items():
                if not self._context.set_tensor_address(name, self._device + slot.offset):
                    raise plan.error(f"does not take the address of {name!r}", plan.mark())
        except BaseException:
            self.close()
            raise
        self.inputs = {name: self._array(slot) for name, slot in slots.items()}
        self.outputs = {name: self._array(slot) for name, slot in found.items()}

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
        if self._device:
            self._gpu.free_device(self._device)
        if self._pinned:
            self._gpu.free_pinned(self._pinned)
        self._device = self._pinned = 0
        self.inputs = self.outputs = {}

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
    """A stream and the runs made on it; at most ``kept`` sets of shapes, the one not used for longest goes first."""

    def __init__(self, plan: Plan, *, graphs: bool = True, kept: int = 8):
        self._plan, self._gpu = plan, plan.gpu
        self._graphs, self._kept = graphs, kept
        self._gpu.use()
        self._stream = self._gpu.new_stream()
        self._runs: collections.OrderedDict[tuple[tuple[str, tuple[int, ...]], ...], Run] = collections.OrderedDict()
        self.made = 0

    def run_for(self, shapes: Shapes) -> Run:
        """The run of these input shapes; made where it is the first such call. On the calling thread."""
        self._gpu.use()
        key = tuple(sorted(shapes.items()))
        found = self._runs.get(key)
        if found is None:
            while len(self._runs) >= self._kept:
                self._runs.popitem(last=False)[1].close()
            found = self._runs[key] = Run(self._plan, self._stream, shapes, self._graphs)
            self.made += 1
        self._runs.move_to_end(key)
        return found

    def runs(self) -> list[Run]:
        return list(self._runs.values())

    def close(self) -> None:
        self._gpu.use()
        for run in self._runs.values():
            run.close()
        self._runs.clear()
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
