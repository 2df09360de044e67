"""A `SessionGroup` that is profiled: what its files say, and what goes wrong around the process that writes them."""

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.serving.profiles import usual_priority
from tests.serving.test_bundle_session import Model, request_
from tfctr.errors import UnavailableError, UsageError
from tfctr.profiling.timeline.events import OVERHEAD
from tfctr.serving.profiles import folder, trace_files, writer

WAIT = 120
writers_have_their_turn = usual_priority.writers_have_their_turn


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    where = tmp_path_factory.mktemp("profiled")
    module = Model()
    tf.saved_model.save(module, str(where / "model"), signatures=module.serve)
    tfctr.convert(str(where / "model"), str(where / "bundle"))
    return where / "bundle"


@pytest.fixture(scope="module")
def group(bundle):
    with tfctr.SessionGroup(bundle, tfctr.GroupOptions(executors=2)) as made:
        yield made


def ask_until(group, done, what=None):
    """Requests until ``done()``; a request is answered whatever profiling does."""
    end = time.monotonic() + WAIT
    while not done():
        assert time.monotonic() < end, what or group.profile()
        assert len(group.predict(request_(4))["score"]) == 4
        time.sleep(0.05)  # who writes has the lowest priority


@pytest.fixture(scope="module")
def sampled(group):
    """(head, about, trace) of one request, as the sampler hands them on, and the timeline of it."""
    from tfctr.serving.profiles import sampler

    native = group.version.group
    native.trace_start(1)
    group.predict(request_(4))
    assert native.trace_prepare() == []
    group.predict(request_(4))
    trace = native.trace_take()
    native.trace_stop()
    one = sampler.Sampler("m", lambda: [], None)
    head = one._head(3, group.version, trace, sampler.SamplerOptions(every=1, folder=group.version.folder))
    about = sampler.about_signature(group.version, trace["signature"])
    json.dumps([head, about])
    return head, about, trace, trace_files.timeline_of(head, trace["metadata"], trace["graphs"], about)


def test_a_timeline_of_one_request(sampled):
    _, _, trace, timeline = sampled
    (step,) = timeline.steps
    assert trace["run_ns"] <= step.duration_ns <= trace["run_ns"] + 1_000_000
    ops = [event for event in timeline.events if event.kind == "op"]
    assert {event.name for event in ops} == set(timeline.op_names) and len(ops) > 3
    assert all(event.duration_ns >= 0 and step.start_ns <= event.start_ns <= step.end_ns for event in ops)
    idle = sum(event.duration_ns for event in timeline.events if event.name == OVERHEAD)
    assert abs(sum(event.self_ns for event in ops) + idle - step.duration_ns) <= 0.05 * step.duration_ns
    lanes = {timeline.lane(event.lane) for event in ops}
    assert [(lane.kind, lane.true_id) for lane in lanes] == [("thread", trace["thread"])]
    fused = [event for event in ops if event.op == "TfctrFusedLookup"]
    assert fused and fused[0].tags.pass_name == "fuse_lookups" and fused[0].tags.features and fused[0].tags.tables
    assert timeline.edges[fused[0].name] and timeline.rows == 4 and timeline.form == "bundle"
    assert "m version 3" in timeline.title and any("executor" in note for note in timeline.notes)


def test_a_timeline_without_its_graph(sampled):
    head, about, trace, whole = sampled
    timeline = trace_files.timeline_of(head, trace["metadata"], b"", about)
    assert set(timeline.op_names) == set(whole.op_names) and not timeline.edges and not timeline.transfers
    assert any("not known" in note for note in timeline.notes)


def test_files_of_a_trace(sampled, tmp_path):
    head, _, _, timeline = sampled
    head = head | {"folder": str(tmp_path), "max_bytes": 10**8}
    path = trace_files.write(head, timeline)
    assert path.name.endswith(f"-v3-e{head['executor']}{folder.TRACE}")
    trace = json.loads(gzip.decompress(path.read_bytes()))
    assert trace["otherData"]["served"]["model"] == "m" and len(trace["otherData"]["served"]["requests"]) == 1
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert slices and all(event["ts"] >= 0 and event["dur"] >= 0 for event in slices)
    assert trace_files.write_page(head, timeline) == ""
    assert "m version 3" in (tmp_path / folder.PAGE).read_text()
    (tmp_path / "file").write_text("")
    assert "Error" in trace_files.write_page(head | {"folder": str(tmp_path / "file")}, timeline)


def test_what_a_writer_answers(sampled, tmp_path):
    """The process's loop over pipes: the graph comes once, a trace that is damaged is told, the next is written."""
    head, about, trace, _ = sampled
    head = head | {"folder": str(tmp_path), "max_bytes": 10**8}

    def message(one, metadata, graphs=b""):
        parts = (json.dumps(one).encode(), metadata, graphs)
        return writer.HEADER.pack(*map(len, parts)) + b"".join(parts)

    to_read, to_write = os.pipe()
    answers, answering = os.pipe()
    sent = message(head | {"about": about}, trace["metadata"], trace["graphs"])
    sent += message(head, b"no protobuf") + message(head | {"executor": 7}, trace["metadata"]) + b"half a head"
    feeding = os.fdopen(to_write, "wb")
    thread = threading.Thread(target=lambda: (feeding.write(sent), feeding.close()))
    thread.start()
    with os.fdopen(to_read, "rb", buffering=0) as stdin, os.fdopen(answering, "wb") as stdout:
        writer.serve(stdin, stdout, idle_seconds=5)
    thread.join()
    with os.fdopen(answers, "rb") as lines:
        first, second, third = map(json.loads, lines)
    assert first["file"].endswith(f"e{head['executor']}{folder.TRACE}") and "DecodeError" in second["error"]
    assert third["file"].endswith(f"e7{folder.TRACE}")
    assert len(list(tmp_path.glob(f"*{folder.TRACE}"))) == 2 and (tmp_path / folder.PAGE).is_file()
    one, other = (json.loads(gzip.decompress((tmp_path / name["file"]).read_bytes())) for name in (first, third))
    assert len(one["traceEvents"]) == len(other["traceEvents"]), "it remembers the graph"


def test_the_writer_steps_back():
    """Its imports at 10, its work at the lowest priority."""
    code = usual_priority.COMMAND.replace("writer.main()", "print(os.nice(0), os.nice(writer._NICER))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert [int(word) for word in done.stdout.split()] == [min(usual + 10, 19), 19]


def test_the_whole_way(bundle, tmp_path):
    """Sampling on, files appear; the writer is killed: another goes on; the kernel takes no more bytes, as on a full
    disk: told, counted, and serving goes on; off."""
    where = tmp_path / "traces"
    with tfctr.SessionGroup(bundle, tfctr.GroupOptions(executors=2)) as group:
        assert group.profile()["every"] == 0
        told = group.profile(2, folder=where)
        assert told["every"] == 2 and told["folder"] == str(where)
        ask_until(group, lambda: group.profile()["written"] >= 2)
        told = group.profile()
        assert told["error"] == "" and told["files"] >= 2 and (where / told["latest"]).is_file()
        trace = json.loads(gzip.decompress((where / told["latest"]).read_bytes()))
        assert trace["otherData"]["served"]["signature"] == "serving_default"

        os.kill(group._profile._writer.pid, signal.SIGKILL)
        before = group.profile()["written"]
        ask_until(group, lambda: group.profile()["written"] > before)

        no_more = (100, resource.prlimit(group._profile._writer.pid, resource.RLIMIT_FSIZE)[1])
        limits = resource.prlimit(group._profile._writer.pid, resource.RLIMIT_FSIZE, no_more)
        ask_until(group, lambda: group.profile()["write_failed"] > 0)
        assert "a trace was not written: OSError" in group.profile()["error"]
        resource.prlimit(group._profile._writer.pid, resource.RLIMIT_FSIZE, limits)
        before = group.profile()["written"]
        ask_until(group, lambda: group.profile()["written"] > before)
        assert group.profile()["error"] == ""

        told = group.profile(0)
        assert told["every"] == 0 and told["folder"] == str(where)
        written = told["written"]
        group.predict(request_(4))
        assert group.profile()["written"] == written and group.version.group.trace_counts()["every"] == 0
        writer_pid = group._profile._writer.pid
    assert not os.path.exists(f"/proc/{writer_pid}")
    assert not [one.name for one in where.iterdir() if one.name.startswith(".")], "no halves are left"
    with pytest.raises(UnavailableError, match="closed"):
        group.profile(1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": -1}, "every is -1"),
        ({"every": 1.5}, r"every is 1\.5"),
        ({"every": True}, "every is True"),
        ({"every": 1, "max_mb": 0}, "max_mb is 0"),
        ({"every": 1, "max_mb": float("nan")}, "max_mb is nan"),
    ],
)
def test_settings_that_are_wrong(group, options, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        group.profile(**options, folder=tmp_path)


def test_a_folder_that_can_not_be(group, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="no folder that traces can be written to"):
        group.profile(1, folder=tmp_path / "file")
    assert group.profile()["every"] == 0
    np.testing.assert_array_equal(len(group.predict(request_(2))["score"]), 2)
