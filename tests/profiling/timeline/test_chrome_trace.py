"""The trace file: valid in Perfetto's eyes, with true ids, tags, and transfers that have no duration."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

import pytest

from tests.profiling.timeline.perfetto import check_trace
from tfctr.profiling.timeline.chrome_trace import trace_events, write_trace
from tfctr.profiling.timeline.events import OVERHEAD, Event, Lane, Step, Tags, Timeline

TAGS = Tags(features=("user", 'odd "name"\n'), pass_name="fuse_lookups", rule="2 lookups in one op", tables=("t",))
LANES = (
    Lane(id=0, kind="thread", device="CPU:0", name="tf_Compute", true_id=4711),
    Lane(id=1, kind="stream", device="GPU:0", name="Stream #13", true_id=13),
    Lane(id=2, kind="overhead", device="CPU:0", name=OVERHEAD),
    Lane(id=3, kind="transfers", device="", name="transfers"),
)
TIMELINE = Timeline(
    title="bundle",
    path="b",
    signature="serving_default",
    rows=4,
    lanes=LANES,
    events=(
        Event(name="a/lookup", op="TfctrFusedLookup", lane=0, start_ns=100, duration_ns=1503, step=0, tags=TAGS),
        Event(name="a/inner", op="Mul", lane=0, start_ns=200, duration_ns=0, step=0),
        Event(name="a/MatMul", op="MatMul", lane=1, start_ns=300, duration_ns=5, step=0, kind="kernel"),
        Event(name=OVERHEAD, op="feed", lane=2, start_ns=0, duration_ns=100, step=0, kind="overhead"),
        Event(name="x:0", op="CPU:0 to GPU:0", lane=3, start_ns=1603, duration_ns=0, step=0, kind="transfer", bytes=64),
        Event(name="s:0", op="CPU:0 to GPU:0", lane=3, start_ns=1603, duration_ns=0, step=0, kind="transfer"),
    ),
    steps=(Step(index=0, start_ns=0, end_ns=2000),),
)


def written(*timelines: Timeline) -> dict[str, Any]:
    file = io.StringIO()
    write_trace(file, timelines)
    return json.loads(file.getvalue())


def test_a_trace_is_valid_and_keeps_what_it_was_told() -> None:
    trace = written(TIMELINE)
    check_trace(trace)
    by_name = {event["name"]: event for event in trace["traceEvents"] if event["ph"] != "M"}
    lookup = by_name["a/lookup"]
    assert (lookup["ts"], lookup["dur"], lookup["tid"]) == (0.1, 1.503, 4711)
    assert lookup["args"] == {
        "step": 0,
        "op": "TfctrFusedLookup",
        "features": list(TAGS.features),
        "tables": ["t"],
        "pass": "fuse_lookups",
        "rule": "2 lookups in one op",
    }
    assert by_name["a/MatMul"]["tid"] == 13 and by_name["a/MatMul"]["pid"] != lookup["pid"]
    assert by_name["x:0"]["ph"] == "i" and by_name["x:0"]["args"]["bytes"] == 64
    assert by_name["s:0"]["args"]["bytes"] == "unknown"
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] in ("process_name", "thread_name")}
    assert {"CPU:0", "GPU:0", "tf_Compute", "Stream #13", OVERHEAD, "transfers", "steps"} <= names


def test_two_timelines_share_a_file_and_no_lane() -> None:
    other = dataclasses.replace(TIMELINE, title="stock TensorFlow")
    trace = written(TIMELINE, other)
    check_trace(trace)
    pids = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert sorted(name.split(":")[0] for name in pids.values()) == ["bundle"] * 3 + ["stock TensorFlow"] * 3
    assert [told["title"] for told in trace["otherData"]["timelines"]] == ["bundle", "stock TensorFlow"]


def test_an_empty_profile_is_a_valid_trace() -> None:
    empty = Timeline(title="nothing", path="p", signature="s", rows=0, complete=False, error="it failed")
    trace = written(empty)
    check_trace(trace)
    assert trace["otherData"]["timelines"][0]["error"] == "it failed"
    assert not [e for e in trace_events(empty) if e["ph"] != "M"]


@pytest.mark.parametrize(
    "broken",
    [
        {"ts": -1.0},
        {"dur": float("nan")},
        {"dur": None},
        {"ph": "B"},
        {"tid": "7"},
        {"name": ""},
        {"ts": 0.5, "dur": 3.0},
    ],
)
def test_the_check_can_fail(broken: dict[str, Any]) -> None:
    trace = written(TIMELINE)
    wrong = next(event for event in trace["traceEvents"] if event["name"] == "a/inner")
    wrong.update(broken)
    with pytest.raises(AssertionError):
        check_trace(trace)


def test_the_check_wants_names() -> None:
    trace = written(TIMELINE)
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e["ph"] != "M"]
    with pytest.raises(AssertionError, match="no name"):
        check_trace(trace)
