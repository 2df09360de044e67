"""A Timeline out of what was seen: lanes, events with their tags, the time in which no op ran, transfers."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfctr.engines.isa import cpu_isa
from tfctr.profiling.timeline.events import NO_TAGS, OVERHEAD, Event, Lane, Step, Tags, Timeline
from tfctr.profiling.timeline.provenance import Provenance
from tfctr.profiling.timeline.run_metadata import RunGraph, node_of
from tfctr.profiling.timeline.xplane import OpSpan, SeenStep, Span
from tfctr.version import __version__

MAX_OPS = 100_000  # a trace with more is too large to look at
_HOST = "CPU:0"
FEED, EXECUTOR, FETCH = "feed", "executor", "fetch"  # ``op`` of the overhead lane's events


@dataclasses.dataclass(frozen=True, kw_only=True)
class About:
    """What was recorded, as in ``Timeline``. notes: what a reader must know about it."""

    title: str
    path: str
    signature: str
    form: str
    threads: int
    provenance: Provenance
    notes: tuple[str, ...] = ()


def build(
    about: About,
    rows: int,
    graph: RunGraph,
    seen: Sequence[SeenStep],
    untraced_ns: Sequence[int] = (),
    error: str | None = None,
    threads: Mapping[int, int] | None = None,
) -> Timeline:
    """seen: the steps, each of the graph ``graph``; one that failed is not among them. threads: the profiler's numbers
    of threads -> their true ids."""
    shown, notes = _within_limit(seen)
    maker = _Maker(graph, about.provenance.tags(graph), seen[0].span.start if seen else 0, threads)
    for step in shown:
        maker.add(step)
    notes += maker.notes()
    return Timeline(
        title=about.title,
        path=about.path,
        signature=about.signature,
        form=about.form,
        rows=rows,
        threads=about.threads,
        lanes=tuple(maker.lanes.values()),
        events=tuple(maker.events),
        steps=tuple(maker.step(one) for one in shown),
        untraced_ns=tuple(untraced_ns),
        edges=graph.edges(),
        op_names=tuple(sorted(set(graph.ran))),
        feature_names=about.provenance.feature_names,
        transfers=graph.counts(),
        memory_peak_bytes=graph.memory_peak_bytes,
        complete=error is None,
        error=error,
        notes=(*about.notes, *notes),
        machine=machine(),
    )


def _within_limit(seen: Sequence[SeenStep]) -> tuple[Sequence[SeenStep], list[str]]:
    total = 0
    for count, step in enumerate(seen):
        total += len(step.ops) + len(step.kernels)
        if total > MAX_OPS and count:
            return seen[:count], [
                f"only the first {count} of {len(seen)} recorded steps are kept: more events are too many to show"
            ]
    return seen, []


class _Maker:
    """Collects lanes and events. origin: the profiler's time that becomes 0. threads: the profiler's number of a thread
    -> its true id."""

    def __init__(
        self, graph: RunGraph, tags: dict[str, Tags], origin: int, threads: Mapping[int, int] | None = None
    ) -> None:
        self.graph, self.tags, self.origin, self.threads = graph, tags, origin, threads or {}
        self.unknown: set[str] = set()  # threads whose true id is not known
        self.held: set[str] = set()  # nodes without a kernel
        self.readers: dict[str, list[str]] = {}
        for reader, sources in graph.edges().items():
            for source in sources:
                self.readers.setdefault(source, []).append(reader)
        self.lanes: dict[tuple[str, str, str, int], Lane] = {}
        self.events: list[Event] = []

    def step(self, seen: SeenStep) -> Step:
        return Step(index=seen.index, start_ns=seen.span.start - self.origin, end_ns=seen.span.end - self.origin)

    def lane(self, kind: str, device: str, name: str, true_id: int = 0) -> int:
        key = (kind, device, name, true_id)
        if key not in self.lanes:
            self.lanes[key] = Lane(id=len(self.lanes), kind=kind, device=device, name=name, true_id=true_id)
        return self.lanes[key].id

    def add(self, seen: SeenStep) -> None:
        ended: dict[str, int] = {}
        first: dict[str, OpSpan] = {}
        for op, own in with_self_time(seen.ops):
            self._event(op, self._thread(op), seen.index, "op", own)
            ended[op.node] = op.end
            first.setdefault(op.node, op)
        self._without_kernels(seen, first)
        for device, kernel in seen.kernels:
            lane = self.lane("stream", device, kernel.track[1], kernel.track[0])
            self._event(kernel, lane, seen.index, "kernel", kernel.end - kernel.start)
        self._overhead(seen)
        self._transfers(seen, ended)

    def _event(self, op: OpSpan, lane: int, step: int, kind: str, own: int) -> None:
        self.events.append(
            Event(
                name=op.node,
                op=op.op,
                lane=lane,
                start_ns=op.start - self.origin,
                duration_ns=op.end - op.start,
                step=step,
                kind=kind,
                tags=self.tags.get(op.node, NO_TAGS),
                self_ns=own,
            )
        )

    def _thread(self, op: OpSpan) -> int:
        device = self.graph.device.get(op.node, _HOST)
        number, name = op.track
        true_id = self.threads.get(number, 0)
        name = name.removesuffix(f"/{number}") or "thread"
        if not true_id:
            name = f"{name}, the profiler's number {number}"
            self.unknown.add(name)
        return self.lane("thread", device, name, true_id)

    def _without_kernels(self, seen: SeenStep, first: Mapping[str, OpSpan]) -> None:
        """Nodes that ran though no kernel did: the executor has their values (constants, handles of variables). They
        stand where the first op that reads them begins, and take no time."""
        if not first:
            return
        begin = min(first.values(), key=lambda op: op.start)
        for name in self.graph.ran:
            if name in first:
                continue
            self.held.add(name)
            readers = [first[reader] for reader in self.readers.get(name, ()) if reader in first]
            reader = min(readers, key=lambda op: op.start, default=begin)
            node = self.graph.nodes.get(name)
            op = OpSpan(name, node.op if node is not None else "", reader.start, reader.start, reader.track)
            self._event(op, self._thread(op), seen.index, "op", 0)

    def notes(self) -> list[str]:
        found = []
        if self.held:
            ops = sorted({self.graph.nodes[name].op for name in self.held if name in self.graph.nodes})
            found.append(
                f"{len(self.held)} nodes have no duration: the executor runs no kernel for them ({', '.join(ops)})"
            )
        if self.unknown:
            found.append(f"threads whose id the kernel no longer tells: {', '.join(sorted(self.unknown))}")
        return found

    def _overhead(self, seen: SeenStep) -> None:
        lane = self.lane("overhead", _HOST, OVERHEAD)
        for what, start, end in overhead(seen.span, seen.runs, seen.ops):
            self.events.append(
                Event(
                    name=OVERHEAD,
                    op=what,
                    lane=lane,
                    start_ns=start - self.origin,
                    duration_ns=end - start,
                    step=seen.index,
                    kind="overhead",
                    self_ns=end - start,
                )
            )

    def _transfers(self, seen: SeenStep, ended: dict[str, int]) -> None:
        """Instants at the end of the op whose result crosses; the step's beginning, where that is a fed tensor."""
        for one in self.graph.transfers:
            if one.control:
                continue
            node = node_of(one.tensor)
            lane = self.lane("transfers", "", "transfers")
            self.events.append(
                Event(
                    name=one.tensor,
                    op=f"{one.source} to {one.target}",
                    lane=lane,
                    start_ns=ended.get(node, seen.span.start) - self.origin,
                    duration_ns=0,
                    step=seen.index,
                    kind="transfer",
                    tags=self.tags.get(node, NO_TAGS),
                    bytes=one.bytes,
                )
            )


def with_self_time(ops: Iterable[OpSpan]) -> list[tuple[OpSpan, int]]:
    """Each op with its time less that of the ops inside it on its thread (a called function's body)."""
    ordered = sorted(ops, key=lambda op: (op.track, op.start, -op.end))
    own = [op.end - op.start for op in ordered]
    open_: list[int] = []
    for k, op in enumerate(ordered):
        while open_ and (ordered[open_[-1]].track != op.track or ordered[open_[-1]].end < op.end):
            open_.pop()
        if open_:
            own[open_[-1]] -= op.end - op.start
        open_.append(k)
    return [(op, max(0, time)) for op, time in zip(ordered, own, strict=True)]


def overhead(span: Span, runs: Sequence[Span], ops: Iterable[OpSpan]) -> list[tuple[str, int, int]]:
    """(what, start, end) of each stretch of a step in which no op ran on any thread: before TensorFlow's run
    (feed), in it (executor), behind it (fetch)."""
    cuts = sorted({edge for run in runs for edge in (run.start, run.end)})
    first = min((run.start for run in runs), default=span.end)
    last = max((run.end for run in runs), default=span.end)
    found = []
    for start, end in _gaps(span, ops):
        edges = [start, *(cut for cut in cuts if start < cut < end), end]
        for low, high in itertools.pairwise(edges):
            what = FEED if high <= first else FETCH if low >= last else EXECUTOR
            found.append((what, low, high))
    return found


def _gaps(span: Span, ops: Iterable[OpSpan]) -> list[tuple[int, int]]:
    found = []
    reached = span.start
    for op in sorted(ops, key=lambda op: op.start):
        if op.start > reached:
            found.append((reached, min(op.start, span.end)))
        reached = max(reached, op.end)
    if reached < span.end:
        found.append((reached, span.end))
    return found


def op_of_label(label: str) -> str:
    """The op of a step stats' label: "name = Op(inputs)"."""
    return label.partition(" = ")[2].partition("(")[0].strip()


@functools.cache
def machine() -> dict[str, Any]:
    """Where the recording was made."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "isa": cpu_isa(),
        "tensorflow": tf.__version__,
        "tfctr": __version__,
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Processor", "cpu model"):
            return value.strip()
    return "unknown"
