"""The Chrome trace of timelines, as Perfetto and chrome://tracing open it.

One process for each device with one thread for each lane, which keeps its true id; steps, "executor and feed" and
transfers have a process of their own. A transfer is an instant: nobody measured how long it took.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import IO, Any

from tfctr.profiling.timeline.events import Event, Lane, Timeline

_RUN = "steps"  # the process of what belongs to no device
_STEPS_TID = 1
_KINDS = ("thread", "stream", "engine", "device", "overhead", "transfers")  # in the order of the picture


def write_trace(file: IO[str], timelines: Sequence[Timeline]) -> None:
    """Writes the traces of ``timelines``, each beginning at 0, into one file; events one a line."""
    file.write('{"displayTimeUnit": "ns",\n"otherData": ')
    json.dump({"timelines": [_told(one) for one in timelines]}, file, allow_nan=False)
    file.write(',\n"traceEvents": [\n')
    separator = ""
    for number, timeline in enumerate(timelines):
        prefix = f"{timeline.title}: " if len(timelines) > 1 else ""
        for event in _events(timeline, prefix, 1 + 1000 * number):
            file.write(separator + json.dumps(event, separators=(",", ":"), allow_nan=False))
            separator = ",\n"
    file.write("\n]}\n")


def trace_events(timeline: Timeline) -> list[dict[str, Any]]:
    """The trace events of one timeline."""
    return list(_events(timeline, "", 1))


def _told(timeline: Timeline) -> dict[str, Any]:
    return {
        "title": timeline.title,
        "path": timeline.path,
        "signature": timeline.signature,
        "rows": timeline.rows,
        "threads": timeline.threads,
        "complete": timeline.complete,
        "error": timeline.error,
        "notes": list(timeline.notes),
        "machine": dict(timeline.machine),
    }


def _events(timeline: Timeline, prefix: str, first_pid: int) -> Iterator[dict[str, Any]]:
    devices = sorted({lane.device for lane in timeline.lanes if lane.kind not in ("overhead", "transfers")})
    pids = {device: first_pid + 1 + k for k, device in enumerate(devices)}
    places = {lane.id: _place(lane, pids, first_pid) for lane in timeline.lanes}
    yield _named("process_name", first_pid, 0, prefix + _RUN)
    yield _named("thread_name", first_pid, _STEPS_TID, "steps")
    for device, pid in pids.items():
        yield _named("process_name", pid, 0, prefix + device)
    for order, lane in enumerate(sorted(timeline.lanes, key=lambda lane: (_KINDS.index(lane.kind), lane.true_id))):
        pid, tid = places[lane.id]
        yield _named("thread_name", pid, tid, lane.name or lane.kind)
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": order + 2}}
    for step in timeline.steps:
        yield _slice(f"step {step.index}", "step", step.start_ns, step.duration_ns, (first_pid, _STEPS_TID), {})
    for event in timeline.events:
        yield _traced(event, places[event.lane])


def _place(lane: Lane, pids: dict[str, int], first_pid: int) -> tuple[int, int]:
    """(pid, tid) of a lane; a device's own lanes without a true id come behind all that have one."""
    if lane.kind in ("overhead", "transfers"):
        return first_pid, 2 + _KINDS.index(lane.kind)
    return pids[lane.device], lane.true_id or (1 << 30) + lane.id


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(
    name: str, category: str, start_ns: int, duration_ns: int, place: tuple[int, int], args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": start_ns / 1000,
        "dur": duration_ns / 1000,
        "pid": place[0],
        "tid": place[1],
        "args": args,
    }


def _traced(event: Event, place: tuple[int, int]) -> dict[str, Any]:
    args: dict[str, Any] = {"step": event.step}
    if event.op:
        args["op"] = event.op
    tags = event.tags
    for key, value in (("features", list(tags.features)), ("tables", list(tags.tables))):
        if value:
            args[key] = value
    for key, text in (("pass", tags.pass_name), ("rule", tags.rule)):
        if text:
            args[key] = text
    if event.kind != "transfer":
        return _slice(event.name, event.kind, event.start_ns, event.duration_ns, place, args)
    args["bytes"] = event.bytes if event.bytes is not None else "unknown"
    instant = {"ph": "i", "s": "t", "name": event.name, "cat": "transfer", "ts": event.start_ns / 1000}
    return {**instant, "pid": place[0], "tid": place[1], "args": args}
