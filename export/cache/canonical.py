"""A graph without its names: nodes numbered as a walk from the outputs meets them, each with a digest of what it is.

Two graphs are equal here when they compute the same by the same steps: names, the order of nodes in the file, and nodes
that no output needs make no difference; an operation, attribute, edge, shape, dtype or constant does. Sharing counts:
a node read twice is not the same as two nodes that compute the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfctr.errors import InternalError

# (number of the step, output); the number of an input of the graph is below 0.
Edge = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Node:
    """One operation as read from a graph. inputs: (node, output) by name. fields: what else it is, by a name for
    people ("attribute axis"), as text or digest. weight: SHA-256 of a weight's bytes, "" for everything else.
    """

    name: str
    op: str
    inputs: tuple[tuple[str, int], ...] = ()
    waits_for: tuple[str, ...] = ()
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    weight: str = ""
    weight_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Step:
    """A node in its place. name: as it was in the graph, for people; no part of any digest."""

    name: str
    op: str
    inputs: tuple[Edge, ...]
    waits_for: tuple[int, ...]
    fields: Mapping[str, str]
    weight: str

    def text(self) -> str:
        """All but name and weight."""
        return repr((self.op, self.inputs, self.waits_for, sorted(self.fields.items())))


@dataclasses.dataclass(frozen=True)
class Canonical:
    """inputs, outputs: what they are, in order, as texts. sources: the edge that each output is. extra: what is said of
    the whole graph (opsets).
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sources: tuple[Edge, ...]
    steps: tuple[Step, ...]
    extra: str = ""
    weight_bytes: int = 0

    def structure(self, *, named: bool = False) -> str:
        """SHA-256 of everything but weights. named: of names too, for who finds things by name."""
        digest = hashlib.sha256()
        for text in (repr(self.inputs), repr(self.outputs), repr(self.sources), self.extra):
            _add(digest, text)
        for step in self.steps:
            _add(digest, step.text())
            if named:
                _add(digest, step.name)
        return digest.hexdigest()

    def weights(self) -> str:
        """SHA-256 of the weights, in the order in which they are met."""
        digest = hashlib.sha256()
        for step in self.steps:
            if step.weight:
                _add(digest, step.weight)
        return digest.hexdigest()


def _add(digest: Any, text: str) -> None:
    data = text.encode()
    digest.update(len(data).to_bytes(8, "little"))
    digest.update(data)


def canonicalise(
    node: Callable[[str], Node],
    inputs: Mapping[str, int],
    outputs: Sequence[tuple[str, int]],
    described: tuple[Sequence[str], Sequence[str]],
    extra: str = "",
) -> Canonical:
    """Walks from ``outputs`` back. node: reads one by name, asked once each. inputs: number of each input by name.

    described: inputs and outputs as texts.
    """
    numbers = {name: -1 - number for name, number in inputs.items()}
    read: dict[str, Node] = {}
    steps: list[Step] = []
    opened: set[str] = set()
    stack = [(name, False) for name, _ in reversed(outputs)]
    while stack:
        name, ready = stack.pop()
        if name in numbers:
            continue
        one = read.get(name)
        if one is None:
            one = read[name] = node(name)
        if not ready:
            if name in opened:  # what it reads reads it
                raise InternalError(f"the graph goes in a circle at {one.name}")
            opened.add(name)
            stack.append((name, True))
            stack += [(source, False) for source in reversed((*(n for n, _ in one.inputs), *one.waits_for))]
            continue
        numbers[name] = len(steps)
        steps.append(
            Step(
                name=one.name,
                op=one.op,
                inputs=tuple((numbers[source], port) for source, port in one.inputs),
                waits_for=tuple(sorted(numbers[source] for source in one.waits_for)),
                fields=one.fields,
                weight=one.weight,
            )
        )
    return Canonical(
        inputs=tuple(described[0]),
        outputs=tuple(described[1]),
        sources=tuple((numbers[name], port) for name, port in outputs),
        steps=tuple(steps),
        extra=extra,
        weight_bytes=sum(one.weight_bytes for one in read.values()),
    )


def difference(before: Canonical, after: Canonical) -> str:
    """The first thing in which two structures differ, for people; "" where they are the same. Weights don't count."""
    for what, a, b in (("input", before.inputs, after.inputs), ("output", before.outputs, after.outputs)):
        for old, new in zip(a, b, strict=False):
            if old != new:
                return f"{what}: {old} is now {new}"
        if len(a) != len(b):
            more = (a if len(a) > len(b) else b)[min(len(a), len(b))]
            return f"{what} {more} is {'gone' if len(a) > len(b) else 'new'}"
    for one, other in zip(before.steps, after.steps, strict=False):
        if one.text() != other.text():
            return f"{other.name}: {_step_difference(one, other)}"
    if len(before.steps) != len(after.steps):
        return f"{len(before.steps)} nodes are now {len(after.steps)}"
    if before.sources != after.sources:
        return "an output comes from another node"
    return f"{before.extra} is now {after.extra}" if before.extra != after.extra else ""


def _step_difference(old: Step, new: Step) -> str:
    if old.op != new.op:
        return f"a {old.op} ({old.name}) is now a {new.op}"
    for name in sorted({*old.fields, *new.fields}):
        a, b = (fields.get(name, "not there") for fields in (old.fields, new.fields))
        if a != b:
            return f"{name} of the {new.op} differs: {a} is now {b}"
    return f"the {new.op} reads other nodes than before"
