"""Recording: a model's steps under TensorFlow's profiler, one traced run beside them, and a Timeline of both."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from tfctr.errors import TfctrError, UsageError
from tfctr.profiling.timeline.building import About, build
from tfctr.profiling.timeline.events import Timeline
from tfctr.profiling.timeline.processor_wait import ProcessorWait
from tfctr.profiling.timeline.run_metadata import run_graph
from tfctr.profiling.timeline.xplane import Profiler, read_steps, step_mark

WARMUP = 5
MOST_OPS = 200_000  # that are recorded, of all steps: reading so many back takes some gigabytes
Arrays = Mapping[str, Any]
Progress = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject(About):
    """What is recorded. call: one step, as service does it. traced: the same with RunMetadata of that run, partition
    graphs included."""

    call: Callable[[Arrays], object]
    traced: Callable[[Arrays], config_pb2.RunMetadata]


@dataclasses.dataclass(frozen=True)
class Recording:
    """timeline, and the profiler's own file (XSpace) for TensorBoard."""

    timeline: Timeline
    xspace: bytes


@dataclasses.dataclass
class Timed:
    """Steps that nothing recorded. ns: of each; failure: why the one after them was the last; waiting: as
    ``Timeline.waiting_threads``."""

    ns: list[int] = dataclasses.field(default_factory=list)
    failure: str | None = None
    waiting: float | None = None


def time_steps(
    subjects: Sequence[Subject], batches: Sequence[Arrays], steps: int, progress: Progress = lambda *_: None
) -> list[Timed]:
    """Warms all up, then times their steps in turn, so that a machine that drifts drifts for all alike. Where there are
    several, each timed step comes right after an untimed one of the same: the other has emptied the caches, which it
    does not do while steps are recorded, nor in service.

    Raises as ``record``.
    """
    title = " and ".join(subject.title for subject in subjects)
    if steps < 1:
        raise UsageError(f"{title}: steps is {steps}, expected at least 1")
    timed = [Timed() for _ in subjects]
    with Profiler(title):  # nobody else's profile may slow them
        for subject in subjects:
            for _ in range(WARMUP):
                subject.call(batches[0])
        with _no_collection(), ProcessorWait() as wait:
            for step in range(steps):
                for subject, one in zip(subjects, timed, strict=True):
                    if one.failure is None and len(subjects) > 1:
                        one.failure = _failure(subject, batches, step, steps)
                    if one.failure is None:
                        begin = time.perf_counter_ns()
                        one.failure = _failure(subject, batches, step, steps)
                        if one.failure is None:
                            one.ns.append(time.perf_counter_ns() - begin)
                progress("time", step + 1, steps)
    for one in timed:
        one.waiting = wait.threads
    return timed


def record(
    subject: Subject,
    batches: Sequence[Arrays],
    rows: int,
    steps: int = 50,
    progress: Progress = lambda *_: None,
    timed: Timed | None = None,
) -> Recording:
    """Warms up, times ``steps`` steps untraced, then runs one with RunMetadata, then the same under the profiler.

    batches: inputs of the steps, taken in turn; of ``rows`` rows each. timed: of ``time_steps`` with these batches and
    steps, where that was done before. A step that fails ends the recording, which then says so (``Timeline.complete``).
    All steps are timed, and as many recorded as have ``MOST_OPS`` operations; a note says where these are fewer.

    Raises:
      UsageError: steps is below 1; another profile is being taken in this process.
      TfctrError, tf.errors.OpError: of the very first call, before anything was recorded.
    """
    timed = timed or time_steps([subject], batches, steps, progress)[0]
    with Profiler(subject.title) as profiler:
        graph = run_graph(subject.traced(batches[0]))
        count = min(len(timed.ns), max(1, MOST_OPS // max(1, len(graph.ran))))
        if count < len(timed.ns):
            note = f"the first {count} of {len(timed.ns)} steps were recorded: at most {MOST_OPS} operations are kept"
            subject = dataclasses.replace(subject, notes=(*subject.notes, note))
        with profiler.running(), ProcessorWait() as wait:
            done, failure = _marked(subject, batches, count, steps, progress)
    seen = [step for step in read_steps(profiler.space) if step.index < done]
    timeline = build(subject, rows, graph, seen, timed.ns, timed.failure or failure, profiler.threads)
    waits = [threads for threads in (timed.waiting, wait.threads) if threads is not None]
    timeline = dataclasses.replace(timeline, waiting_threads=max(waits, default=None))
    return Recording(timeline, profiler.file)


def _marked(
    subject: Subject, batches: Sequence[Arrays], count: int, steps: int, progress: Progress
) -> tuple[int, str | None]:
    """(how many of the first ``count`` of ``steps`` were recorded, why not all)."""
    with _no_collection():
        for step in range(count):
            with step_mark(step):
                failure = _failure(subject, batches, step, steps)
            if failure is not None:
                return step, failure
            progress("record", step + 1, count)
    return count, None


def _failure(subject: Subject, batches: Sequence[Arrays], step: int, steps: int) -> str | None:
    """Runs a step; why it failed."""
    try:
        subject.call(batches[step % len(batches)])
    except (TfctrError, tf.errors.OpError) as error:
        return f"step {step} of {steps}: {one_line(error)}"
    return None


def one_line(error: Exception) -> str:
    """TensorFlow's errors have pages of graph around the line that matters."""
    text = str(getattr(error, "message", None) or error)
    text = text.removeprefix("Graph execution error:").strip()
    if text.startswith("Detected at node"):  # where Python made the node: up to its name
        text = text.partition("\nNode: ")[2].partition("\n")[2] or text
    for mark in ("\n\t [[", "\nOriginal stack trace"):
        text = text.partition(mark)[0]
    return " ".join(text.split())


class _no_collection:
    """A collection of Python's garbage would hit one step at random."""

    def __enter__(self) -> None:
        self._was_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_on:
            gc.enable()
