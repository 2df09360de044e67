"""What TensorFlow's profiler saw: ops on the process's real threads, and kernels on the streams of GPUs.

The profiler sees the whole process and there is one at a time, so ``Profiler`` refuses a second. Ops are told apart by
TensorFlow's step ids: a ``SessionRun`` on the caller's thread has the id that ``ExecutorState::Process`` repeats on
every thread that works for it, so that what others run meanwhile is never counted.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tfctr.core import library
from tfctr.errors import UsageError
from tfctr.profiling.timeline.thread_ids import kernel_ids

STEP = "tfctr_step"
_ALL_OPS = 3  # host level: cheap ops, too, which the profiler leaves out at 2
_HOST = "/host:CPU"
_DEVICE = re.compile(r"/device:(\w+):(\d+)")
_OP = re.compile(r"([^:#]+):([A-Za-z_]\w*)")
_RUN = ("SessionRun", "ExecutorState::Process")
_ASYNC = "ExecutorState::ProcessAsync::Start"  # an op that may end later, and what it does until it returns

_taken = threading.Lock()
_holder = ""  # whose profile is being taken


class Profiler:
    """The process's one profiler, kept from others while the context is open; it runs within ``running()``. After that
    ``space`` is what it saw, ``file`` its bytes (an XSpace), ``threads`` the kernel's ids of its threads.

    title: of the profile, for whoever comes second. UsageError: another profile is being taken in this process.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.file = b""
        self.threads: dict[int, int] = {}

    @property
    def space(self) -> xplane_pb2.XSpace:
        return xplane_pb2.XSpace.FromString(self.file)

    def __enter__(self) -> Profiler:
        global _holder
        if not _taken.acquire(blocking=False):
            raise UsageError(
                f"{self.title}: a profile of {_holder} is being taken in this process; it sees one at a time"
            )
        _holder = self.title
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _taken.release()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """UsageError: somebody else uses TensorFlow's profiler in this process."""
        try:
            session = library.native().Profiler(_ALL_OPS, 1)
        except RuntimeError as error:
            raise UsageError(f"{self.title}: TensorFlow's profiler is in use in this process: {error}") from error
        try:
            yield
        finally:
            self.file = session.stop()
        numbers = [line.id for plane in self.space.planes if plane.name == _HOST for line in plane.lines]
        self.threads = kernel_ids(numbers)


def step_mark(index: int) -> Any:
    """A context that marks a step of the recording on the caller's thread."""
    return tf.profiler.experimental.Trace(f"{STEP} {index}")


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Something with a beginning and an end, in nanoseconds of the profiler's clock."""

    name: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True, slots=True)
class OpSpan:
    """A kernel of one step. track: (number of its thread, as the profiler has it, or stream; its name)."""

    node: str
    op: str
    start: int
    end: int
    track: tuple[int, str]


@dataclasses.dataclass(frozen=True)
class SeenStep:
    """One marked step: its span, TensorFlow's runs in it, the ops of those runs, and what GPUs ran meanwhile.

    kernels: (device, op span): the node is known where the driver's record names it.
    """

    index: int
    span: Span
    runs: tuple[Span, ...]
    ops: tuple[OpSpan, ...]
    kernels: tuple[tuple[str, OpSpan], ...] = ()


def read_steps(space: xplane_pb2.XSpace) -> list[SeenStep]:
    """The marked steps of a profile, in their order."""
    threads = [_Thread(plane, line) for plane in space.planes if plane.name == _HOST for line in plane.lines]
    marks = sorted(
        ((int(span.name.split()[1]), span, thread) for thread in threads for span in thread.marks),
        key=lambda mark: mark[0],
    )
    kernels = sorted(_kernels(space.planes), key=lambda kernel: kernel[1].start)
    starts = [kernel.start for _, kernel in kernels]
    by_run = _ops_by_run(threads)
    found = []
    for index, span, thread in marks:
        runs = [(number, run) for number, run in thread.runs if span.start <= run.start and run.end <= span.end]
        ops = sorted((op for number, _ in runs for op in by_run.get(number, ())), key=lambda op: (op.start, -op.end))
        meanwhile = kernels[bisect.bisect_left(starts, span.start) : bisect.bisect_right(starts, span.end)]
        found.append(SeenStep(index, span, tuple(run for _, run in runs), tuple(ops), tuple(meanwhile)))
    return found


class _Thread:
    """One host thread's events, sorted into kinds."""

    def __init__(self, plane: Any, line: Any) -> None:
        self.track = (int(line.id), str(line.name or line.display_name))
        self.marks: list[Span] = []
        self.runs: list[tuple[int, Span]] = []  # step id, SessionRun
        self.work: list[tuple[int, Span]] = []  # step id, ExecutorState::Process
        self.ops: list[tuple[str, str, int, int]] = []
        names = {number: data.name for number, data in plane.event_metadata.items()}
        stats = {number: data.name for number, data in plane.stat_metadata.items()}
        ids = {number for number, name in stats.items() if name == "id"}
        for event in line.events:
            name = names.get(event.metadata_id, "")
            start = line.timestamp_ns + event.offset_ps // 1000
            end = start + event.duration_ps // 1000
            if name.startswith(STEP):
                self.marks.append(Span(name, start, end))
            elif name in _RUN:
                (self.runs if name == _RUN[0] else self.work).append((_step_id(event, ids), Span(name, start, end)))
            elif name == _ASYNC:
                told = {stats.get(stat.metadata_id): _text(stat, stats) for stat in event.stats}
                self.ops.append((told.get("name", ""), told.get("kernel_type", ""), start, end))
            elif match := _OP.fullmatch(name):
                self.ops.append((match[1], match[2], start, end))


def _text(stat: Any, names: Mapping[int, str]) -> str:
    return str(stat.str_value or names.get(stat.ref_value, ""))


def _step_id(event: Any, ids: set[int]) -> int:
    for stat in event.stats:
        if stat.metadata_id in ids:
            kind = stat.WhichOneof("value")
            return int(getattr(stat, kind)) if kind else -1
    return -1


def _ops_by_run(threads: Iterable[_Thread]) -> dict[int, list[OpSpan]]:
    """TensorFlow's step id -> its ops on any thread: those inside the innermost work of that step around them."""
    found: dict[int, list[OpSpan]] = {}
    for thread in threads:
        work = sorted(thread.work, key=lambda one: one[1].start)
        open_: list[tuple[int, Span]] = []
        position = 0
        for node, op, start, end in sorted(thread.ops, key=lambda one: one[2]):
            while position < len(work) and work[position][1].start <= start:
                open_.append(work[position])
                position += 1
            while open_ and open_[-1][1].end < end:
                open_.pop()
            if open_:
                found.setdefault(open_[-1][0], []).append(OpSpan(node, op, start, end, thread.track))
    return found


def _kernels(planes: Sequence[Any]) -> Iterator[tuple[str, OpSpan]]:
    """What GPUs ran, by stream; the driver's record names the op where it can ("node:Op")."""
    for plane in planes:
        device = _DEVICE.search(plane.name)
        if not device:
            continue
        names = {number: data.name for number, data in plane.event_metadata.items()}
        known = {number for number, data in plane.stat_metadata.items() if data.name in ("tf_op", "name", "tf_op_name")}
        texts = {number: data.name for number, data in plane.stat_metadata.items()}
        for line in plane.lines:
            if not line.name.startswith("Stream"):
                continue  # lines that the profiler derives from the streams
            for event in line.events:
                start = line.timestamp_ns + event.offset_ps // 1000
                node, op = _node_of_kernel(event, known, texts) or (names.get(event.metadata_id, ""), "")
                track = (int(line.id), str(line.name))
                kernel = OpSpan(node, op, start, start + event.duration_ps // 1000, track)
                yield f"{device[1]}:{device[2]}", kernel


def _node_of_kernel(event: Any, known: set[int], texts: dict[int, str]) -> tuple[str, str] | None:
    for stat in event.stats:
        if stat.metadata_id in known:
            match = _OP.fullmatch(_text(stat, texts))
            if match:
                return match[1], match[2]
    return None
