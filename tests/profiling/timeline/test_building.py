"""Putting timelines together: self times, and the time in which no op ran."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tfctr.profiling.timeline.building import EXECUTOR, FEED, FETCH, op_of_label, overhead, with_self_time
from tfctr.profiling.timeline.xplane import OpSpan, Span


def op(name: str, start: int, end: int, track: int = 1) -> OpSpan:
    return OpSpan(name, "Op", start, end, (track, "thread"))


def test_the_body_of_a_call_is_not_counted_twice() -> None:
    ops = [op("call", 0, 100), op("body", 10, 40), op("deep", 15, 20), op("body2", 40, 60), op("elsewhere", 10, 90, 2)]
    assert {one.node: own for one, own in with_self_time(ops)} == {
        "call": 50, "body": 25, "deep": 5, "body2": 20, "elsewhere": 80,
    }  # fmt: skip


def test_overhead_is_before_inside_and_behind_the_run() -> None:
    span, run = Span("step", 0, 100), Span("run", 10, 90)
    found = overhead(span, [run], [op("a", 20, 40), op("b", 30, 60, 2), op("c", 60, 70)])
    assert found == [(FEED, 0, 10), (EXECUTOR, 10, 20), (EXECUTOR, 70, 90), (FETCH, 90, 100)]


def test_a_step_without_ops_is_all_overhead() -> None:
    assert overhead(Span("step", 0, 10), [], []) == [(FEED, 0, 10)]


spans = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50)), max_size=30)


@given(spans)
def test_overhead_and_ops_cover_a_step_exactly(found: list[tuple[int, int]]) -> None:
    ops = [op(str(k), start, min(start + length, 1000)) for k, (start, length) in enumerate(found)]
    idle = overhead(Span("step", 0, 1000), [Span("run", 100, 900)], ops)
    busy = {t for one in ops for t in range(one.start, one.end)}
    quiet = [t for _, start, end in idle for t in range(start, end)]
    assert sorted(quiet) == sorted(set(range(1000)) - busy)


def test_ops_are_read_from_labels() -> None:
    assert op_of_label("a/b = MatMul(x, y)") == "MatMul"
    assert op_of_label("a/b") == ""
