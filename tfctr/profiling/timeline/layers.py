"""Layers of the engine that runs a dense tower, as the engine itself tells them: how long each took, not when."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfctr.profiling.timeline.events import Event, Lane, Timeline

ENGINE_OP = "TfctrDenseEngine"
VARIABLE = "TFCTR_ENGINE_LAYERS"  # read when an engine is opened
CALLS = 20
NOTE = (
    f"layers of the engine: of {CALLS} calls of its own with the same inputs (of the last piece, where the engine cuts "
    "the batch), those of the call that took most nearly as long as the one that is drawn; the engine tells how long "
    "each took, not when, so they are drawn one behind the other in the median step"
)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Engines that are opened meanwhile keep the times of their layers. An engine that is open already does not."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def layers_of(described: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Of ``ServingSession.describe()["dense"]``: [{name, type, kernel, us}] of the engine's last call. Empty where
    several engines ran, or one that does not tell."""
    engines = described["engines"]
    return list(engines[0].get("layers", ())) if len(engines) == 1 else []


def nearest(timeline: Timeline, calls: Sequence[Sequence[Mapping[str, Any]]]) -> Sequence[Mapping[str, Any]]:
    """Of the layers of several calls those that together took most nearly as long as the engine's op of the median
    step, under which they are drawn."""
    op = _engine_op(timeline)
    length = op.duration_ns if op else 0
    return min(calls, key=lambda call: abs(sum(int(layer["us"]) for layer in call) * 1000 - length), default=[])


def with_layers(timeline: Timeline, layers: Sequence[Mapping[str, Any]]) -> Timeline:
    """``timeline`` with the layers in a lane of their own, under the engine's op of the median step."""
    op = _engine_op(timeline)
    if op is None or not layers:
        return timeline
    lane = Lane(
        id=1 + max(lane.id for lane in timeline.lanes),
        kind="engine",
        device=timeline.lane(op.lane).device,
        name="layers of the dense engine",
    )
    events = []
    start = op.start_ns
    for layer in layers:
        duration = int(layer["us"]) * 1000
        events.append(
            Event(
                name=str(layer["name"]),
                op=" ".join(filter(None, (str(layer["type"]), str(layer["kernel"])))),
                lane=lane.id,
                start_ns=start,
                duration_ns=duration,
                step=op.step,
                kind="layer",
                tags=op.tags,
                self_ns=duration,
            )
        )
        start += duration
    return dataclasses.replace(
        timeline,
        lanes=(*timeline.lanes, lane),
        events=(*timeline.events, *events),
        notes=(*timeline.notes, NOTE),
    )


def _engine_op(timeline: Timeline) -> Event | None:
    """The engine's op of the median step; None where there are none or several."""
    step = timeline.median_step()
    ops = [e for e in timeline.of_step(step.index) if e.op == ENGINE_OP and e.kind == "op"] if step else []
    return ops[0] if len(ops) == 1 else None
