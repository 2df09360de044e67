"""Session settings for several executors over one model in one process: own threads, and on a GPU an own stream each.

A TensorFlow session on a GPU has one compute stream per device, and all sessions of a process share the streams of a
device. Executors run beside each other only where each has a virtual device of its own: a slice of one GPU's memory
with its own streams. The model asks for ``/GPU:0``; each executor sends that to its own device when it loads the model.

    options = ExecutorOptions(executors=2, gpu_memory_mb_per_executor=4096, stream_priorities=(-1, 0))
    sessions = [tfctr.ServingSession("bundle", **setup.arguments()) for setup in executor_setups(options)]

What TensorFlow 2.21 asks for (its GPU device factory): the virtual devices are made when the process first uses the
GPU and never change, so every session of the process must have the same ones; the memory of each is fixed; priorities
are given for all devices or for none, inside the range of the GPU (0 is the lowest, negative ones go first; usually
-5 to 0); ``per_process_gpu_memory_fraction`` can't be set as well. ``stream_merge_options`` put the copies to, from
and within the device on the compute stream, which saves the waits between streams at the batches of inference.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tensorflow.core.protobuf import config_pb2

from tfctr.errors import UsageError

MAX_EXECUTORS = 64
DEVICE_TYPES = ("GPU", "CPU")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """executors: sessions over the model. intra_op_threads: of each, for one request's kernels. dense_device_type:
    where the dense part runs: "GPU", or "CPU" (logical CPU devices: the same wiring where there is no GPU).
    gpu: number of the GPU that they share. gpu_memory_mb_per_executor: MB of it that each gets; needed for two and more
    executors on a GPU. stream_priorities: one per executor, 0 or below, the lowest number goes first; None: all alike.
    """

    executors: int = 1
    intra_op_threads: int = 1
    dense_device_type: str = "GPU"
    gpu: int = 0
    gpu_memory_mb_per_executor: float | None = None
    stream_priorities: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutorSetup:
    """One executor: how its session is made. number: from 0. device_map: where nodes go that ask for the dense
    device (or, on a GPU, for none)."""

    number: int
    intra_op_threads: int
    config: config_pb2.ConfigProto
    device_map: dict[str, str]

    def arguments(self) -> dict[str, Any]:
        """For :class:`tfctr.ServingSession`."""
        return {"intra_op_threads": self.intra_op_threads, "config": self.config, "device_map": self.device_map}


def executor_setups(options: ExecutorOptions) -> tuple[ExecutorSetup, ...]:
    """One setup per executor; UsageError, naming the option, where options do not fit together."""
    _check(options)
    return tuple(
        ExecutorSetup(
            number=number,
            intra_op_threads=options.intra_op_threads,
            config=session_config(options),
            device_map=_device_map(options, number),
        )
        for number in range(options.executors)
    )


def session_config(options: ExecutorOptions) -> config_pb2.ConfigProto:
    """The part of the config that all executors of the process share."""
    config = config_pb2.ConfigProto()
    gpu = config.gpu_options
    merge = gpu.experimental.stream_merge_options
    merge.merge_host_to_device_stream = True
    merge.merge_device_to_host_stream = True
    merge.merge_device_to_device_stream = True
    if options.dense_device_type == "CPU":
        config.device_count["CPU"] = options.executors + 1  # /CPU:0 is the sparse side of all
        return config
    gpu.visible_device_list = str(options.gpu)
    if options.gpu_memory_mb_per_executor is not None:
        virtual = gpu.experimental.virtual_devices.add()
        virtual.memory_limit_mb.extend([options.gpu_memory_mb_per_executor] * options.executors)
        virtual.priority.extend(options.stream_priorities or ())
    return config


def _device_map(options: ExecutorOptions, number: int) -> dict[str, str]:
    if options.dense_device_type == "CPU":
        return {"/CPU:1": f"/CPU:{number + 1}"}
    if options.executors == 1:
        return {}
    # Left to itself TensorFlow puts nodes that ask for no device on the first GPU, whichever executor runs them.
    own = f"/GPU:{number}"
    return {"/GPU:0": own, "": own}


def _check(options: ExecutorOptions) -> None:
    if not 1 <= options.executors <= MAX_EXECUTORS:
        raise UsageError(f"executors is {options.executors}, expected 1 to {MAX_EXECUTORS}")
    if options.intra_op_threads < 1:
        raise UsageError(f"intra_op_threads is {options.intra_op_threads}, expected 1 or more")
    if options.dense_device_type not in DEVICE_TYPES:
        raise UsageError(f"dense_device_type is {options.dense_device_type!r}, expected {' or '.join(DEVICE_TYPES)}")
    memory, priorities = options.gpu_memory_mb_per_executor, options.stream_priorities
    if options.dense_device_type == "CPU":
        for name, value in (("gpu_memory_mb_per_executor", memory), ("stream_priorities", priorities)):
            if value is not None:
                raise UsageError(f"{name} is {value}, but dense_device_type is CPU, which has neither")
        return
    if options.gpu < 0:
        raise UsageError(f"gpu is {options.gpu}, expected the number of a GPU, from 0")
    if memory is None:
        needing = "several executors" if options.executors > 1 else "stream_priorities" if priorities else ""
        if needing:
            raise UsageError(f"{needing}: need gpu_memory_mb_per_executor, as virtual devices have fixed sizes")
        return
    if not 0 < memory < float("inf"):
        raise UsageError(f"gpu_memory_mb_per_executor is {memory}, expected more than 0 MB")
    if priorities is None:
        return
    if len(priorities) != options.executors:
        raise UsageError(
            f"{len(priorities)} stream_priorities for {options.executors} executors, expected one for each"
        )
    wrong = [one for one in priorities if one > 0]
    if wrong:
        raise UsageError(
            f"stream_priorities: {wrong[0]} is above 0, which is the lowest priority; negative ones go first"
        )
