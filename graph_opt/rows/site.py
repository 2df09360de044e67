"""One node as its rule sees it, and the table of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from tensorflow.core.framework import node_def_pb2

from graph_opt.recognise.facts import Facts
from graph_opt.rows.dims import ROWS, Dim, Dims, number, of_tensor
from graph_opt.rows.kinds import Kind, row


class Mixes(Exception):
    """A rule's verdict that its node mixes rows, or can't be told not to."""


Rule = Callable[["Site"], "Sequence[Kind] | Kind"]
RULES: dict[str, Rule] = {}


def rule(*ops: str) -> Callable[[Rule], Rule]:
    """Registers a function for ``ops``; it is called where at least one input depends on the batch."""

    def register(function: Rule) -> Rule:
        for op in ops:
            RULES[op] = function
        return function

    return register


class Site:
    """A node, the kinds of its inputs, and what is known of its constants and shapes."""

    def __init__(self, node: node_def_pb2.NodeDef, names: Sequence[str], kinds: Sequence[Kind], facts: Facts) -> None:
        self.node = node
        self.names = list(names)
        self.kinds = list(kinds)
        self.facts = facts

    @property
    def sources(self) -> frozenset[str]:
        return frozenset().union(*(k.sources for k in self.kinds))

    def output(self, port: int = 0) -> str:
        return f"{self.node.name}:{port}"

    def const(self, index: int) -> np.ndarray:
        """The value of an input, which must be known."""
        value = self.facts.const(self.names[index])
        if value is None:
            raise Mixes("an argument that says which axis is not constant")
        return value

    def require(self, true: bool, reason: str) -> None:
        if not true:
            raise Mixes(reason)

    def row(self, index: int = 0) -> Kind:
        """An input that must have rows on axis 0."""
        kind = self.kinds[index]
        self.require(kind.name == "row", "it reads something that has no rows")
        return kind

    def rank(self, index: int = 0) -> int:
        rank = self.kinds[index].rank
        if rank is None:
            raise Mixes("the rank is not known")
        return rank

    def not_rows(self, axes: Iterable[int], rank: int) -> list[int]:
        """Axes counted from the front; Mixes where the row axis is among them."""
        found = [int(axis) % max(rank, 1) for axis in axes]
        self.require(0 not in found, "it works across rows")
        return found

    def element_dims(self, index: int) -> list[Dim | None] | None:
        """The elements of a small integer input (a shape, multiples...) as sizes, None where they are not known."""
        kind = self.kinds[index]
        value = self.facts.const(self.names[index])
        if value is not None:
            return [number(v) for v in value.reshape(-1)]
        return list(kind.value) if kind.value is not None else None

    def made(self, port: int = 0, dims: Dims | None = None, like: Kind | None = None) -> Kind:
        """A ``row`` kind for output ``port``. dims: where they are known better than from static shapes; like: the
        input whose row axis it keeps."""
        static = self.facts.shape(self.output(port))
        if static is None and dims is None:
            raise Mixes("the rank of the result is not known")
        first = like.dims[0] if like is not None and like.dims else ROWS
        if static is None:
            assert dims is not None
            return row(dims, self.sources)
        if dims is None:
            return row(of_tensor(self.output(port), static, first), self.sources)
        merged = tuple(
            known if axis == 0 or size is None else number(size)
            for axis, (known, size) in enumerate(zip(dims, static, strict=False))
        )
        return row(merged, self.sources)
