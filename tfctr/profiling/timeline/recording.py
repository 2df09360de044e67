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
from tfctr.profiling.timeline.run_metadata import run_graph
from tfctr.profiling.timeline.xplane import Profiler, read_steps, step_mark

WARMUP = 5
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


def record(
    subject: Subject,
    batches: Sequence[Arrays],
    rows: int,
    steps: int = 50,
    progress: Progress = lambda *_: None,
) -> Recording:
    """Warms up, times ``steps`` steps untraced, then the same steps under the profiler, then one with RunMetadata.

    batches: inputs of the steps, taken in turn; of ``rows`` rows each. A step that fails ends the recording, which then
    says so (``Timeline.complete``).

    Raises:
      UsageError: steps is below 1; another profile is being taken in this process.
      TfctrError, tf.errors.OpError: of the very first call, before anything was recorded.
    """
    if steps < 1:
        raise UsageError(f"{subject.title}: steps is {steps}, expected at least 1")
    failures: list[str] = []
    with Profiler(subject.title) as profiler:
        for _ in range(WARMUP):
            subject.call(batches[0])
        untraced = _untraced(subject, batches, steps, failures, progress)
        with profiler.running():
            done = _marked(subject, batches, len(untraced), failures, progress)
        graph = run_graph(subject.traced(batches[0]))
    seen = [step for step in read_steps(profiler.space) if step.index < done]
    error = failures[0] if failures else None
    timeline = build(subject, rows, graph, seen, untraced, error, profiler.threads)
    return Recording(timeline, profiler.file)


def _untraced(
    subject: Subject, batches: Sequence[Arrays], steps: int, failures: list[str], progress: Progress
) -> list[int]:
    times = []
    with _no_collection():
        for step in range(steps):
            begin = time.perf_counter_ns()
            if not _tried(subject, batches, step, steps, failures):
                break
            times.append(time.perf_counter_ns() - begin)
            progress("time", step + 1, steps)
    return times


def _marked(subject: Subject, batches: Sequence[Arrays], steps: int, failures: list[str], progress: Progress) -> int:
    """How many of ``steps`` were recorded."""
    with _no_collection():
        for step in range(steps):
            with step_mark(step):
                done = _tried(subject, batches, step, steps, failures)
            if not done:
                return step
            progress("record", step + 1, steps)
    return steps


def _tried(subject: Subject, batches: Sequence[Arrays], step: int, steps: int, failures: list[str]) -> bool:
    """Whether the step went well; why not is added to ``failures``."""
    try:
        subject.call(batches[step % len(batches)])
    except (TfctrError, tf.errors.OpError) as error:
        failures.append(f"step {step} of {steps}: {one_line(error)}")
        return False
    return True


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
