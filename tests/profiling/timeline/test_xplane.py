"""Reading XPlanes: true thread ids, ops of one run only, kernels on their streams."""

from __future__ import annotations

import threading

import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tfctr.errors import UsageError
from tfctr.profiling.timeline.xplane import STEP, Profiler, read_steps


def plane(space: xplane_pb2.XSpace, name: str) -> xplane_pb2.XPlane:
    made = space.planes.add(name=name)
    made.stat_metadata[1].name = "id"
    for number, text in enumerate(("tf_op", "name", "kernel_type", "recv/_1"), 2):
        made.stat_metadata[number].name = text
    return made


def line(
    made: xplane_pb2.XPlane, number: int, name: str, *events: tuple[str, int, int], **ids: int | str
) -> xplane_pb2.XLine:
    """events: (name, start, duration) in nanoseconds; ids: stats "id" (or "tf_op", a text) by event name."""
    added = made.lines.add(id=number, name=name, timestamp_ns=1000)
    for what, start, duration in events:
        key = next((k for k, m in made.event_metadata.items() if m.name == what), len(made.event_metadata) + 1)
        made.event_metadata[key].name = what
        event = added.events.add(metadata_id=key, offset_ps=start * 1000, duration_ps=duration * 1000)
        if what.endswith("ProcessAsync::Start"):
            event.stats.add(metadata_id=3, ref_value=5)
            event.stats.add(metadata_id=4, str_value="_Recv")
        stat = ids.get(what.replace("::", "__"))
        if isinstance(stat, str):
            event.stats.add(metadata_id=2, str_value=stat)
        elif stat is not None:
            event.stats.add(metadata_id=1, int64_value=stat)
    return added


def two_runs() -> xplane_pb2.XSpace:
    """Run 7 is ours; run 8, of another thread, uses the same pool threads meanwhile."""
    space = xplane_pb2.XSpace()
    host = plane(space, "/host:CPU")
    line(host, 100, "python", (f"{STEP} 0", 0, 100), ("SessionRun", 10, 80), SessionRun=7)
    line(host, 200, "server", ("SessionRun", 5, 90), SessionRun=8)
    line(
        host,
        300,
        "tf_Compute",
        ("ExecutorState::Process", 20, 30),
        ("a/MatMul:MatMul", 21, 5),
        ("b:PartitionedCall", 30, 15),
        ("b/inner:Mul", 31, 4),
        ("not an op", 22, 1),
        ("ExecutorState::ProcessAsync::Start", 46, 2),
        ExecutorState__Process=7,
    )
    line(host, 301, "tf_Compute", ("ExecutorState::Process", 20, 30), ("c:Add", 25, 5), ExecutorState__Process=8)
    line(host, 302, "tf_Compute", ("a/late:Add", 60, 5))  # no run says whose it is
    gpu = plane(space, "/device:GPU:0")
    line(gpu, 13, "Stream #13(Compute)", ("kernel_f32", 40, 9), ("unknown", 200, 1), kernel_f32="a/MatMul:MatMul")
    line(gpu, 1, "TensorFlow Ops", ("a/MatMul", 40, 9))
    return space


def test_ops_of_other_runs_stay_out() -> None:
    (step,) = read_steps(two_runs())
    assert [(op.node, op.op, op.start, op.end - op.start, op.track) for op in step.ops] == [
        ("a/MatMul", "MatMul", 1021, 5, (300, "tf_Compute")),
        ("b", "PartitionedCall", 1030, 15, (300, "tf_Compute")),
        ("b/inner", "Mul", 1031, 4, (300, "tf_Compute")),
        ("recv/_1", "_Recv", 1046, 2, (300, "tf_Compute")),
    ]
    assert (step.span.start, step.span.end) == (1000, 1100)
    assert [(run.start, run.end) for run in step.runs] == [(1010, 1090)]


def test_kernels_have_their_stream_and_their_node() -> None:
    (step,) = read_steps(two_runs())
    assert [(device, k.node, k.op, k.track) for device, k in step.kernels] == [
        ("GPU:0", "a/MatMul", "MatMul", (13, "Stream #13(Compute)"))
    ]


def test_an_empty_profile_has_no_steps() -> None:
    assert read_steps(xplane_pb2.XSpace()) == []


def test_a_second_profile_is_refused_by_name_and_the_first_goes_on() -> None:
    refused: list[str] = []

    def second() -> None:
        try:
            with Profiler("the other"):
                raise AssertionError("two profiles at once")
        except UsageError as error:
            refused.append(str(error))

    with Profiler("the first") as first, first.running():
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert refused == ["the other: a profile of the first is being taken in this process; it sees one at a time"]
    assert first.file and first.space.planes
    with Profiler("the other") as again, again.running():  # it is free once the first has ended
        pass
    assert again.file


def test_a_profile_of_somebody_else_is_not_disturbed(tmp_path) -> None:
    tf.profiler.experimental.start(str(tmp_path))
    try:
        with pytest.raises(UsageError, match="mine: TensorFlow's profiler is in use"):
            run_once()
    finally:
        tf.profiler.experimental.stop()
    run_once()


def run_once() -> None:
    with Profiler("mine") as profiler, profiler.running():
        pass


def test_the_profiler_is_free_after_an_error() -> None:
    with pytest.raises(RuntimeError, match="inside"), Profiler("mine") as profiler, profiler.running():
        raise RuntimeError("inside")
    run_once()
