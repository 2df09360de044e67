"""What a timeline is, as plain data: lanes, events on them, steps; and its JSON form. No TensorFlow here.

Times are nanoseconds since the beginning of the recording. Names of events are names of graph nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tfctr.errors import CorruptFileError

FORMAT = 1
# thread: of the process, its true_id is the kernel's thread id (gettid). stream: of a GPU, as the driver numbers it.
# device: ops of a device whose thread is not known. transfers, overhead, engine: true_id is 0.
LANE_KINDS = ("thread", "stream", "device", "transfers", "overhead", "engine")
# op: a node's kernel on the host. kernel: what a GPU ran for a node. transfer: an instant, its duration is 0 because
# nobody measured one. overhead: time of a step in which no op ran. layer: of an engine, inside its op.
EVENT_KINDS = ("op", "kernel", "transfer", "overhead", "layer")
OVERHEAD = "executor and feed"  # name of the overhead lane and of its events


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lane:
    """One row of the picture. device: "CPU:0", "GPU:0"; name: for people."""

    id: int
    kind: str
    device: str
    name: str
    true_id: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tags:
    """Where a node comes from. features: that it works for. pass_name, rule: what made it, "" for a node of the model
    as it was. tables: that it reads."""

    features: tuple[str, ...] = ()
    pass_name: str = ""
    rule: str = ""
    tables: tuple[str, ...] = ()

    @property
    def embedding(self) -> bool:
        """Whether the node is part of an embedding lookup: it reads a table."""
        return bool(self.tables)


NO_TAGS = Tags()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """One node that ran, one tensor that crossed, or a stretch without any.

    self_ns: duration without the events inside it on the same lane (the body of a function call): these may be summed.
    bytes: of a transfer, None where the run does not tell.
    """

    name: str
    op: str
    lane: int
    start_ns: int
    duration_ns: int
    step: int
    kind: str = "op"
    tags: Tags = NO_TAGS
    bytes: int | None = None
    self_ns: int = 0

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One call, from before its inputs are handed over until its outputs are there."""

    index: int
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransferCount:
    """What crosses from one device to another in one step. transfers: tensors, without strings; waits: control edges;
    bytes: of those whose size is known; unknown: how many have none."""

    source: str
    target: str
    transfers: int = 0
    strings: int = 0
    waits: int = 0
    bytes: int = 0
    unknown: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timeline:
    """A recording.

    title: for people. path, signature, rows: of the model and the batch. threads: intra-op. form: "stock", "bundle".
    untraced_ns: durations of steps of the same inputs that nothing recorded: what the model really takes; steps here
    are slower by what recording costs.
    edges: node -> its inputs, of all nodes of the graph that ran (after grappler); op_names: every node of it that runs
    an op. feature_names: all features of the signature, used or not. transfers: per step.
    memory_peak_bytes: most that all steps' allocators held at once, None where they do not tell.
    complete: False where a step failed; error: with this. notes: what a reader must know, in sentences.
    machine: cpu, cores, isa, tensorflow, tfctr. waiting_threads: how many threads of the process had work and waited
    for a processor while this was timed or recorded, on average (the larger of both); None where nobody tells.
    """

    title: str
    path: str
    signature: str
    rows: int
    threads: int = 1
    form: str = "stock"
    lanes: tuple[Lane, ...] = ()
    events: tuple[Event, ...] = ()
    steps: tuple[Step, ...] = ()
    untraced_ns: tuple[int, ...] = ()
    edges: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    op_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    transfers: tuple[TransferCount, ...] = ()
    memory_peak_bytes: int | None = None
    complete: bool = True
    error: str | None = None
    notes: tuple[str, ...] = ()
    machine: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    waiting_threads: float | None = None

    def lane(self, number: int) -> Lane:
        return next(lane for lane in self.lanes if lane.id == number)

    def of_step(self, index: int) -> tuple[Event, ...]:
        """Events of one step, by their start."""
        return tuple(sorted((e for e in self.events if e.step == index), key=lambda e: (e.start_ns, -e.duration_ns)))

    def median_step(self) -> Step | None:
        """The step of median duration (the lower one of two); None of an empty profile."""
        ordered = sorted(self.steps, key=lambda step: (step.duration_ns, step.index))
        return ordered[(len(ordered) - 1) // 2] if ordered else None

    def to_json(self) -> dict[str, Any]:
        """JSON-able data; events as rows of numbers over tables of texts, as there are many."""
        plain = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name not in _PACKED
        }
        return {"format": FORMAT, **plain, **_pack(self)}


_PACKED = ("lanes", "events", "steps", "edges", "op_names", "transfers")


def from_json(data: Mapping[str, Any]) -> Timeline:
    """The Timeline that ``to_json`` wrote. CorruptFileError: it did not."""
    try:
        if data["format"] != FORMAT:
            raise CorruptFileError(f"a timeline of format {data['format']!r}; this tfctr reads {FORMAT}")
        return _unpack(data)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CorruptFileError(f"not a timeline of tfctr: {type(error).__name__}: {error}") from error


class _Table:
    """Values by number, each once."""

    def __init__(self) -> None:
        self.values: dict[Any, int] = {}

    def __call__(self, value: Any) -> int:
        return self.values.setdefault(value, len(self.values))


def _pack(timeline: Timeline) -> dict[str, Any]:
    texts, tags = _Table(), _Table()
    rows = [
        [
            texts(e.name),
            texts(e.op),
            e.lane,
            e.start_ns,
            e.duration_ns,
            e.step,
            EVENT_KINDS.index(e.kind),
            tags(e.tags),
            e.bytes,
            e.self_ns,
        ]
        for e in timeline.events
    ]
    edges = [[texts(node), [texts(name) for name in inputs]] for node, inputs in timeline.edges.items()]
    names = [texts(name) for name in timeline.op_names]
    return {
        "lanes": [dataclasses.asdict(lane) for lane in timeline.lanes],
        "steps": [dataclasses.asdict(step) for step in timeline.steps],
        "transfers": [dataclasses.asdict(count) for count in timeline.transfers],
        "texts": list(texts.values),
        "tags": [dataclasses.asdict(one) for one in tags.values],
        "events": rows,
        "edges": edges,
        "op_names": names,
    }


def _unpack(data: Mapping[str, Any]) -> Timeline:
    texts: Sequence[str] = data["texts"]
    tags = [
        Tags(
            features=tuple(one["features"]),
            pass_name=one["pass_name"],
            rule=one["rule"],
            tables=tuple(one["tables"]),
        )
        for one in data["tags"]
    ]
    events = tuple(
        Event(
            name=texts[name],
            op=texts[op],
            lane=lane,
            start_ns=start,
            duration_ns=duration,
            step=step,
            kind=EVENT_KINDS[kind],
            tags=tags[tag],
            bytes=size,
            self_ns=own,
        )
        for name, op, lane, start, duration, step, kind, tag, size, own in data["events"]
    )
    plain = {field.name: data[field.name] for field in dataclasses.fields(Timeline) if field.name not in _PACKED}
    plain |= {name: tuple(plain[name]) for name in ("untraced_ns", "feature_names", "notes")}
    return Timeline(
        lanes=tuple(Lane(**one) for one in data["lanes"]),
        steps=tuple(Step(**one) for one in data["steps"]),
        transfers=tuple(TransferCount(**one) for one in data["transfers"]),
        events=events,
        edges={texts[node]: tuple(texts[name] for name in inputs) for node, inputs in data["edges"]},
        op_names=tuple(texts[name] for name in data["op_names"]),
        **plain,
    )
