"""Timelines made by hand, with known answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfctr.profiling.timeline.events import OVERHEAD, Event, Lane, Step, Tags, Timeline

OVERHEAD_LANE = Lane(id=0, kind="overhead", device="CPU:0", name=OVERHEAD)
THREAD = Lane(id=1, kind="thread", device="CPU:0", name="main", true_id=4711)
SECOND = Lane(id=2, kind="thread", device="CPU:0", name="worker", true_id=4712)
TRANSFERS = Lane(id=3, kind="transfers", device="", name="transfers")
LANES = (OVERHEAD_LANE, THREAD, SECOND, TRANSFERS)


def op(
    name: str,
    kind: str,
    start: int,
    end: int,
    *,
    lane: int = 1,
    step: int = 0,
    features: Sequence[str] = (),
    tables: Sequence[str] = (),
    made: str = "",
    rule: str = "",
) -> Event:
    """An operation from ``start`` to ``end`` ns."""
    tags = Tags(features=tuple(features), tables=tuple(tables), pass_name=made, rule=rule)
    return Event(name=name, op=kind, lane=lane, start_ns=start, duration_ns=end - start, step=step, tags=tags)


def timeline(
    events: Sequence[Event],
    *spans: tuple[int, int],
    form: str = "stock",
    rows: int = 256,
    edges: Mapping[str, tuple[str, ...]] | None = None,
    path: str = "models/ranker",
    **fields: object,
) -> Timeline:
    """A recording of these steps."""
    steps = tuple(Step(index=k, start_ns=start, end_ns=end) for k, (start, end) in enumerate(spans))
    return Timeline(
        title="ranker",
        path=path,
        signature="serving_default",
        rows=rows,
        form=form,
        lanes=LANES,
        events=tuple(events),
        steps=steps,
        edges=edges or {},
        **fields,  # type: ignore[arg-type]
    )


def stock(features: int = 2, **fields: object) -> Timeline:
    """One step of 1000 ns: 100 ns of feeding, per feature 40 ns of unique and 60 ns of gather with 10 ns before each,
    20 ns of wait, a matrix product of 200 ns, 50 ns of fetching; the rest of the time lies before the end.
    """
    events, edges, now = [], {}, 100
    for k in range(features):
        name, table = f"f{k}", f"t{k}"
        events.append(op(f"{name}/Unique", "Unique", now + 10, now + 50, features=[name], tables=[table]))
        events.append(op(f"{name}/Gather", "ResourceGather", now + 60, now + 120, features=[name], tables=[table]))
        edges |= {f"{name}/Gather": (f"{name}/Unique:1",), f"{name}/Unique": (f"{name}_ids",)}
        now += 120
    events.append(op("tower/MatMul", "MatMul", now + 20, now + 220))
    edges["tower/MatMul"] = ("concat",)
    edges["concat"] = tuple(f"f{k}/Gather" for k in range(features))
    end = max(1000, now + 270)
    return timeline(events, (0, end), edges=edges, untraced_ns=(800,), **fields)


def bundle(features: int = 2, **fields: object) -> Timeline:
    """One step of 400 ns: unpack 20 ns, one fused lookup of 80 ns for all features, a matrix product of 200 ns."""
    names, tables = [f"f{k}" for k in range(features)], [f"t{k}" for k in range(features)]
    events = [
        op("unpack", "TfctrUnpack", 20, 40, features=names, tables=tables, made="pack_inputs"),
        op(
            "lookups", "TfctrFusedLookup", 50, 130, features=names, tables=tables, made="fuse_lookups", rule="2 lookups"
        ),
        op("tower/MatMul", "MatMul", 150, 350),
    ]
    edges = {"lookups": ("unpack:0",), "tower/MatMul": ("lookups",)}
    return timeline(events, (0, 400), form="bundle", edges=edges, path="bundle", untraced_ns=(320,), **fields)
