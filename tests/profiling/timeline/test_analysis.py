"""Sums of timelines: hand-made ones with known answers, and what must hold for any."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiling.timeline import made
from tfctr.profiling.timeline.analysis import analyse, typical_steps
from tfctr.profiling.timeline.attribution import attribute
from tfctr.profiling.timeline.critical_path import critical_path
from tfctr.profiling.timeline.events import Event, Step, Tags, Timeline
from tfctr.profiling.timeline.roles import DENSE, LOOKUP, OTHER, OVERHEAD, TRANSFER, role_of_nodes

OPS = ("MatMul", "ResourceGather", "Unique", "Cast", "TfctrFusedLookup", "StringToHashBucketFast", "NoOp", "_Arg")


def test_a_stock_step_with_known_answers() -> None:
    a = analyse(made.stock())
    assert a.step_ns == 1000 and a.untraced_ns == a.call_ns == 800
    assert a.recording_cost == pytest.approx(0.25)
    assert {str(s.key): (s.time_ns, s.calls) for s in a.by_role} == {
        "lookup": (200, 4), "dense": (200, 1), "transfer": (0, 0), "overhead": (600, 0), "other": (0, 0)
    }  # fmt: skip
    assert {str(s.key): s.time_ns for s in a.by_op} == {
        "ResourceGather": 120, "Unique": 80, "MatMul": 200, "overhead": 600
    }  # fmt: skip
    assert {s.key: s.time_ns for s in a.by_feature} == {("f0",): 100, ("f1",): 100, (): 200, "overhead": 600}
    assert a.features == ("f0", "f1")
    o = a.overhead
    assert (o.before_ns, o.between_ns, o.after_ns, o.share) == (110, 10 + 10 + 10 + 20, 440, 0.6)
    assert a.spread is not None
    assert (a.spread.first_ns, a.spread.last_ns, a.spread.stretches, a.spread.ops) == (110, 340, 1, 4)
    assert [link.event.name for link in a.path.links] == ["f0/Unique", "f0/Gather", "tower/MatMul"]
    assert a.path.total_ns == 300


def test_a_fused_step_keeps_its_group_and_its_pass() -> None:
    a = analyse(made.bundle())
    assert {s.key: s.time_ns for s in a.by_feature} == {("f0", "f1"): 80, (): 220, "overhead": 100}
    assert {s.key: s.time_ns for s in a.by_pass} == {
        ("pack_inputs", ""): 20, ("fuse_lookups", "2 lookups"): 80, ("", ""): 200, "overhead": 100
    }  # fmt: skip
    assert a.roles["unpack"] == OTHER  # it hands in everything: no part of the lookups, whatever its tags
    assert a.path.total_ns == 300


def test_two_threads_at_once_have_half_of_the_moment_each() -> None:
    events = [made.op("a", "MatMul", 0, 80), made.op("b", "ResourceGather", 40, 100, lane=2)]
    a = analyse(made.timeline(events, (0, 100)))
    assert {str(s.key): s.time_ns for s in a.by_op if s.time_ns} == {"MatMul": 60, "ResourceGather": 40}


def test_time_inside_a_called_function_is_counted_once() -> None:
    events = [made.op("call", "PartitionedCall", 10, 90), made.op("inner", "MatMul", 20, 70)]
    a = analyse(made.timeline(events, (0, 100)))
    assert {str(s.key): s.time_ns for s in a.by_op} == {"MatMul": 50, "PartitionedCall": 30, "overhead": 20}


def test_lookups_between_dense_work_are_stretches() -> None:
    kinds = ("ResourceGather", "MatMul", "ResourceGather", "ResourceGather", "MatMul", "Const", "ResourceGather")
    events = [made.op(f"n{k}", kind, 10 * k, 10 * k + 8) for k, kind in enumerate(kinds)]
    a = analyse(made.timeline(events, (0, 100)))
    assert a.spread is not None
    assert (a.spread.stretches, a.spread.ops) == (3, 4)
    assert a.spread.share == pytest.approx(0.68)


def test_a_constant_does_not_part_two_lookups() -> None:
    kinds = ("ResourceGather", "Const", "ResourceGather")
    events = [made.op(f"n{k}", kind, 10 * k, 10 * k + 8) for k, kind in enumerate(kinds)]
    a = analyse(made.timeline(events, (0, 100)))
    assert a.spread is not None and a.spread.stretches == 1


def test_roles_follow_the_graph_where_nothing_is_tagged() -> None:
    names = {
        "ids": "_Arg", "split": "StringSplitV2", "hash": "StringToHashBucketFast", "gather": "ResourceGather",
        "mul": "Mul", "price": "Log", "tower": "MatMul", "out": "Add", "send": "_Send",
    }  # fmt: skip
    edges = {
        "split": ("ids",), "hash": ("split:1",), "gather": ("hash",), "mul": ("gather",), "price": ("price_in",),
        "tower": ("mul", "price"), "out": ("tower", "^gather"), "send": ("out",),
    }  # fmt: skip
    events = [made.op(name, kind, 10 * k, 10 * k + 5) for k, (name, kind) in enumerate(names.items())]
    assert role_of_nodes(made.timeline(events, (0, 100), edges=edges)) == {
        "ids": OTHER, "split": LOOKUP, "hash": LOOKUP, "gather": LOOKUP, "mul": DENSE, "price": OTHER, "tower": DENSE,
        "out": DENSE, "send": TRANSFER,
    }  # fmt: skip


def test_the_middle_half_of_the_steps_counts() -> None:
    spans, now = [], 0
    for length in (100, 100, 100, 100, 100, 100, 9000, 50):
        spans.append((now, now + length))
        now += length
    a = analyse(made.timeline([], *spans))  # no events at all: nothing to choose by
    assert a.typical == 4 and a.step_ns == 100 and a.slowest_ns == 9000 and a.fastest_ns == 50
    assert a.drawn is not None and a.drawn.duration_ns == 100
    assert [len(typical_steps([Step(index=k, start_ns=0, end_ns=9) for k in range(n)])) for n in (0, 1, 2, 3, 4)] == [
        0, 1, 2, 3, 2
    ]  # fmt: skip


def test_steps_whose_events_were_left_out_do_not_count() -> None:
    events = [made.op("a", "MatMul", 200 + 100 * k, 250 + 100 * k, step=k) for k in range(2, 6)]
    spans = [(0, 7), (100, 108), (400, 500), (500, 600), (600, 700), (700, 800)]
    a = analyse(made.timeline(events, *spans))
    assert (a.ops, a.step_ns, a.fastest_ns) == (1, 100, 100)


def test_an_empty_profile_gives_zeros() -> None:
    a = analyse(made.timeline([]))
    assert a.drawn is None and a.step_ns == 0 and a.spread is None and a.path.total_ns == 0
    assert sum(share.share for share in a.by_role) == 0


def test_a_loop_is_one_node_and_its_way_back_no_edge() -> None:
    events = [
        made.op("enter", "Enter", 0, 5),
        *(made.op("merge", "Merge", 10 + 20 * k, 15 + 20 * k) for k in range(3)),
        *(made.op("body", "MatMul", 15 + 20 * k, 30 + 20 * k) for k in range(3)),
        made.op("exit", "Exit", 80, 85),
    ]
    edges = {"merge": ("enter", "next"), "body": ("merge",), "next": ("body",), "exit": ("merge",)}
    path = critical_path(Step(index=0, start_ns=0, end_ns=100), events, edges)
    assert [(link.event.name, link.duration_ns) for link in path.links] == [("body", 45)]  # all three times


def test_the_path_goes_through_nodes_that_did_not_run() -> None:
    events = [made.op("a", "MatMul", 0, 30), made.op("b", "MatMul", 30, 40), made.op("c", "Relu", 50, 60)]
    edges = {"c": ("id:0", "b"), "id": ("^group",), "group": ("a", "group")}
    path = critical_path(Step(index=0, start_ns=0, end_ns=100), events, edges)
    assert [link.event.name for link in path.links] == ["a", "c"]


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Any events on two lanes (overlapping, nested, beyond the step), any graph over their nodes."""
    events: list[Event] = []
    steps = []
    for step in range(draw(st.integers(1, 4))):
        begin, length = step * 10_000, draw(st.integers(1, 1000))
        steps.append((begin, begin + length))
        for _ in range(draw(st.integers(0, 12))):
            start = begin + draw(st.integers(-20, 1000))
            events.append(
                Event(
                    name=draw(st.sampled_from("abcdefgh")),
                    op=draw(st.sampled_from(OPS)),
                    lane=draw(st.integers(1, 2)),
                    start_ns=max(0, start),
                    duration_ns=draw(st.integers(0, 500)),
                    step=step,
                    kind=draw(st.sampled_from(("op", "op", "op", "kernel", "layer", "overhead"))),
                    tags=draw(
                        st.sampled_from((Tags(), Tags(features=("f",)), Tags(features=("f", "g"), tables=("t",))))
                    ),
                )
            )
    edges = {
        name: tuple(draw(st.lists(st.sampled_from(["a", "b:1", "^c", "d", "e", "f", "x", "y"]), max_size=3)))
        for name in "abcdefghxy"
    }
    return made.timeline(events, *steps, edges=edges)


@settings(max_examples=80, deadline=None)
@given(timelines())
def test_what_holds_for_any_timeline(timeline: Timeline) -> None:
    a = analyse(timeline)
    for shares in (a.by_role, a.by_op, a.by_feature, a.by_pass):
        assert sum(share.share for share in shares) == pytest.approx(1)
        assert sum(share.time_ns for share in shares) == pytest.approx(a.step_ns)
        assert all(share.time_ns >= 0 for share in shares)
    assert a.drawn is not None
    assert 0 <= a.path.total_ns <= a.drawn.duration_ns
    ends = [link.event.end_ns for link in a.path.links]
    assert len({link.event.name for link in a.path.links}) == len(ends)
    assert a.spread is None or 0 <= a.spread.share <= 1
    o = a.overhead
    assert o.before_ns + o.between_ns + o.after_ns == pytest.approx(o.total_ns)
    assert o.total_ns == pytest.approx(a.role(OVERHEAD).time_ns)


@settings(max_examples=40, deadline=None)
@given(timelines())
def test_a_step_is_its_events_and_its_idle_time(timeline: Timeline) -> None:
    for step in timeline.steps:
        part = attribute(step, timeline.of_step(step.index))
        assert sum(part.event_ns) + part.idle_ns == pytest.approx(step.duration_ns)
        for event, own in zip(part.events, part.event_ns, strict=True):
            assert 0 <= own <= event.duration_ns
