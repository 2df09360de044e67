"""Layers of an engine: in a lane of their own, under its op of the median step."""

from __future__ import annotations

import dataclasses
import os

from tests.core.dense_testing import write_tower
from tests.profiling.timeline.perfetto import check_trace
from tests.profiling.timeline.test_chrome_trace import TIMELINE
from tfctr.engines.native import open_engine
from tfctr.profiling.timeline import layers
from tfctr.profiling.timeline.chrome_trace import trace_events
from tfctr.profiling.timeline.events import Event, Step

TOLD = [
    {"name": "dense_1", "type": "FullyConnected", "kernel": "brgemm_avx2_f32", "us": 7},
    {"name": "relu", "type": "Relu", "kernel": "", "us": 0},
    {"name": "dense_2", "type": "FullyConnected", "kernel": "brgemm_avx2_f32", "us": 5},
]
ENGINE = Event(name="engine", op=layers.ENGINE_OP, lane=0, start_ns=4_000, duration_ns=20_000, step=1)
TWO_STEPS = dataclasses.replace(
    TIMELINE,
    events=(*TIMELINE.events, ENGINE),
    steps=(Step(index=0, start_ns=0, end_ns=3_000), Step(index=1, start_ns=3_000, end_ns=30_000)),
)


def test_layers_lie_one_behind_the_other_and_say_so() -> None:
    timeline = dataclasses.replace(TWO_STEPS, steps=TWO_STEPS.steps[1:])
    made = layers.with_layers(timeline, TOLD)
    found = [event for event in made.events if event.kind == "layer"]
    assert [(e.name, e.op, e.start_ns, e.duration_ns) for e in found] == [
        ("dense_1", "FullyConnected brgemm_avx2_f32", 4_000, 7_000),
        ("relu", "Relu", 11_000, 0),
        ("dense_2", "FullyConnected brgemm_avx2_f32", 11_000, 5_000),
    ]
    assert {made.lane(e.lane).kind for e in found} == {"engine"}
    assert layers.NOTE in made.notes
    check_trace({"displayTimeUnit": "ns", "traceEvents": trace_events(made)})


def test_no_layers_are_made_up() -> None:
    assert layers.with_layers(TWO_STEPS, TOLD) is TWO_STEPS  # the engine's op is not in the median step
    assert layers.with_layers(dataclasses.replace(TWO_STEPS, steps=()), TOLD).events == TWO_STEPS.events
    assert layers.with_layers(TWO_STEPS, []) is TWO_STEPS
    assert layers.layers_of({"engines": []}) == layers.layers_of({"engines": [{}]}) == []
    assert layers.layers_of({"engines": [{"layers": TOLD}, {"layers": TOLD}]}) == []
    assert layers.layers_of({"engines": [{"layers": TOLD}]}) == TOLD


def test_the_call_that_is_like_the_drawn_one_is_taken() -> None:
    timeline = dataclasses.replace(TWO_STEPS, steps=TWO_STEPS.steps[1:])  # the engine's op takes 20 us
    calls = [[{"name": "a", "us": us}, {"name": "b", "us": 1}] for us in (90, 3, 17)]
    assert layers.nearest(timeline, calls) == calls[2]
    assert layers.nearest(timeline, []) == []


def test_an_engine_tells_its_layers(tmp_path) -> None:
    tower = write_tower(tmp_path / "small.onnx")
    with layers.kept(), open_engine(tower.spec()) as engine:
        engine.run(tower.feeds(3))
        told = layers.layers_of({"engines": [engine.describe()]})
    assert any(one["type"] == "FullyConnected" for one in told)
    assert all(one["name"] and one["us"] >= 0 for one in told)
    with open_engine(tower.spec()) as engine:
        engine.run(tower.feeds(3))
        assert "layers" not in engine.describe()


def test_the_variable_is_set_meanwhile_only(monkeypatch) -> None:
    monkeypatch.delenv(layers.VARIABLE, raising=False)
    with layers.kept():
        assert os.environ[layers.VARIABLE] == "1"
        with layers.kept():
            pass
        assert os.environ[layers.VARIABLE] == "1"
    assert layers.VARIABLE not in os.environ
