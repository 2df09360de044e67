"""Tables kept in several variables: ids dealt out to the parts, rows put together again."""

from __future__ import annotations

import dataclasses

from graph_opt.lookup_spec import Step
from graph_opt.recognise.engine import NodeDef, Walk, handles
from graph_opt.recognise.values import Found, PerValue, Split, Value


@handles("DynamicPartition")
def partition(walk: Walk, node: NodeDef, inputs: list[Value]) -> list[Value | None] | None:
    data, assigned = inputs
    parts = node.attr["num_partitions"].i
    whole = _dealt_ids(walk, assigned.tensor)
    if whole is None:
        return None
    modulo = isinstance(assigned, PerValue) and any(s.kind == "mod" and s.args == (str(parts),) for s in assigned.steps)
    strategy = "mod" if modulo else "div"
    positions = all(leaf.startswith("shape:") for leaf in walk.facts.leaves(data.tensor))
    split = Split("", 0, parts, strategy, assigned.tensor, None if positions else whole)
    return [dataclasses.replace(split, index=k) for k in range(parts)]


def _dealt_ids(walk: Walk, assigned: str) -> PerValue | None:
    """The ids that part numbers are computed from: the longest common beginning of all chains in their cone."""
    pending, seen, chains = [assigned], set(), []
    while pending:
        tensor = walk.facts.root(pending.pop())
        if tensor in seen:
            continue
        seen.add(tensor)
        value = walk.value(tensor)
        if isinstance(value, PerValue) and walk.facts.leaves(value.base) <= {value.base, f"shape:{value.base}"}:
            chains.append(value)
        elif walk.const(tensor) is None and walk.facts.leaves(tensor):
            base = value.base if isinstance(value, PerValue) else tensor
            pending += walk.view.inputs(walk.view.producer(base))
    if not chains or len({(c.base, c.tokens) for c in chains}) != 1:
        return None
    steps = _common_beginning([c.steps for c in chains])
    if len(chains) == 1:  # assigned itself is a chain: its last mod or divide does the dealing
        while steps and steps[-1].kind == "cast":
            steps = steps[:-1]
        steps = steps[:-1]
    cuts = tuple(c for c in chains[0].cuts if c.steps <= len(steps))
    return dataclasses.replace(chains[0], steps=tuple(steps), cuts=cuts)


def _common_beginning(chains: list[tuple[Step, ...]]) -> tuple[Step, ...]:
    length = 0
    while all(len(c) > length and c[length] == chains[0][length] for c in chains):
        length += 1
    return chains[0][:length]


@handles("ParallelDynamicStitch", "DynamicStitch")
def stitch(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    parts = node.attr["N"].i
    positions = [p for p in inputs[:parts] if isinstance(p, Split) and p.of is None]
    rows = [r for r in inputs[parts:] if isinstance(r, Found)]
    splits = [r.ids for r in rows if isinstance(r.ids, Split)]
    order = list(range(parts))
    if [p.index for p in positions] != order or [s.index for s in splits] != order or len(rows) != parts:
        return None
    first, whole = rows[0], splits[0].of
    assigned = {s.assigned for s in (*positions, *splits)}
    if len(assigned) != 1 or whole is None or len({r.max_norm for r in rows}) != 1 or any(r.pooled for r in rows):
        return None
    trace = tuple(t for r in rows for t in r.trace)
    tables = tuple(t for r in rows for t in r.tables)
    gathers = tuple(g for r in rows for g in r.gathers)
    return dataclasses.replace(
        first, tables=tables, gathers=gathers, ids=whole, strategy=splits[0].strategy, trace=trace
    )
