"""Options of a session group: how many executors, where they run, how requests are queued and put together."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Literal

from tensorflow.core.protobuf import config_pb2

from tfctr.errors import UsageError
from tfctr.serving.executor_config import MAX_EXECUTORS, ExecutorSetup

MAX_THREADS = 1024  # the memory of TensorFlow's pools grows with the square of it
ROUTING = ("least_loaded", "round_robin")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchingOptions:
    """Requests that run together. max_batch_rows: of one run; requests with more rows are split into several runs and
    their answers joined. max_delay_us: how long a request may wait for others, and only while others are in flight: one
    that is alone runs at once.
    """

    max_batch_rows: int = 1024
    max_delay_us: int = 0

    def __post_init__(self) -> None:
        if self.max_batch_rows < 1:
            raise UsageError(f"max_batch_rows is {self.max_batch_rows}, expected 1 or more")
        if self.max_delay_us < 0:
            raise UsageError(f"max_delay_us is {self.max_delay_us}, expected 0 or more")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupOptions:
    """A group of executors over one version of a model.

    executors: each runs one batch at a time, on its own thread. intra_op_threads: threads of each for the kernels of
    one run. cpu_sets: per executor the CPUs of its thread; () for any. routing: "least_loaded" (of the idle executors
    the one with the least work done lately) or "round_robin". queue_limit: requests that may wait; one more is
    refused. batching: None: every request runs by itself. signatures: those to serve; None: all. setups: config and
    devices of each executor (``executor_config.executor_setups``), for several on one GPU. warm_up: False: executors
    start cold. metrics: False: nothing is counted. max_request_rows: a request that has more rows, or claims to, is
    refused; 0: any. model_name: what errors of requests call the model; "": by its path. The others: see
    :class:`tfctr.ServingSession`; features: for the signature named there.
    """

    executors: int = 1
    intra_op_threads: int = 1
    cpu_sets: tuple[tuple[int, ...], ...] = ()
    routing: Literal["least_loaded", "round_robin"] = "least_loaded"
    queue_limit: int = 1000
    batching: BatchingOptions | None = None
    signatures: tuple[str, ...] | None = None
    tags: tuple[str, ...] = ("serve",)
    op_libraries: tuple[str, ...] = ()
    features: Mapping[str, tuple[Mapping[str, Any], ...]] | None = None
    user_features: tuple[str, ...] = ()
    config: config_pb2.ConfigProto | None = None
    device_map: Mapping[str, str] | None = None
    setups: tuple[ExecutorSetup, ...] | None = None
    engine: str | None = None
    fallback: bool = True
    table_memory: str | None = None
    warm_up: bool = True
    metrics: bool = True
    max_request_rows: int = 0
    model_name: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.executors <= MAX_EXECUTORS:
            raise UsageError(f"executors is {self.executors}, expected 1 to {MAX_EXECUTORS}")
        if not 1 <= self.intra_op_threads <= MAX_THREADS:
            raise UsageError(f"intra_op_threads is {self.intra_op_threads}, expected 1 to {MAX_THREADS}")
        if self.routing not in ROUTING:
            raise UsageError(f"routing is {self.routing!r}, expected {' or '.join(ROUTING)}")
        if self.queue_limit < 1:
            raise UsageError(f"queue_limit is {self.queue_limit}, expected 1 or more")
        if self.max_request_rows < 0:
            raise UsageError(f"max_request_rows is {self.max_request_rows}, expected 0 or more")
        for name, given in (("cpu_sets", self.cpu_sets), ("setups", self.setups or ())):
            if given and len(given) != self.executors:
                raise UsageError(f"{len(given)} {name} for {self.executors} executors, expected one for each")
        here = os.sched_getaffinity(0)
        missing = sorted({cpu for one in self.cpu_sets for cpu in one} - here)
        if missing:
            raise UsageError(f"cpu_sets names CPU {missing[0]}, this process may use {sorted(here)}")

    @property
    def max_rows(self) -> int:
        """Rows of one run; 0: no limit."""
        return self.batching.max_batch_rows if self.batching else 0

    def native(self) -> dict[str, Any]:
        """For ``_native.Group``."""
        batching = self.batching
        return {
            "routing": self.routing,
            "cpu_sets": [list(one) for one in self.cpu_sets],
            "queue_limit": self.queue_limit,
            "max_request_rows": self.max_request_rows,
            "batching": None if batching is None else dataclasses.asdict(batching),
            "runner_nice": 0,
            "metrics": self.metrics,
        }
