"""What a splitting rule gets: the node, how its inputs are held, and the means to make parts of the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from tensorflow.core.framework import node_def_pb2

from graph_opt.recognise.facts import Facts
from graph_opt.rows.analysis import RowFacts
from graph_opt.rows.dims import Dims
from graph_opt.rows.kinds import Kind
from graph_opt.split.builder import Builder
from graph_opt.split.flops import Flops
from graph_opt.split.views import Segment, View, joined_past, mixed_view
from graph_opt.split.weights import Weights
from graph_opt.split.worlds import ITEM, USER, Worlds

# A rule returns the views of the node's outputs, or None: then the node runs on item rows, as it was.
Rule = Callable[["SplitSite"], "Sequence[View] | View | None"]
RULES: dict[str, Rule] = {}


def rule(*ops: str) -> Callable[[Rule], Rule]:
    """Registers a function for ``ops``; it is called where some input still has user rows and others have item rows."""

    def register(function: Rule) -> Rule:
        for op in ops:
            RULES[op] = function
        return function

    return register


class SplitSite:
    """One node while the split form is made."""

    def __init__(
        self, node: node_def_pb2.NodeDef, rows: RowFacts, worlds: Worlds, weights: Weights, flops: Flops
    ) -> None:
        self.node = node
        self.rows = rows
        self.worlds = worlds
        self.weights = weights
        self.flops = flops
        self.names = worlds.build.view.inputs(node)
        self.views = [worlds.view(t) for t in self.names]

    @property
    def build(self) -> Builder:
        return self.worlds.build

    @property
    def facts(self) -> Facts:
        return self.rows.facts

    @property
    def out(self) -> Kind:
        """Kind of the first output."""
        return self.rows.kind(self.node.name)

    @property
    def past(self) -> tuple[str, ...]:
        past = joined_past(self.views)
        return past if self.node.op in past else (*past, self.node.op)

    def kind(self, index: int) -> Kind:
        return self.rows.kind(self.names[index])

    def dims(self, index: int) -> Dims:
        return self.kind(index).dims or ()

    def const(self, index: int) -> npt.NDArray[np.generic] | None:
        return self.facts.const(self.names[index])

    def copy(self, world: str, inputs: Sequence[str]) -> str:
        """The node over other inputs, on the rows of ``world``; its first output."""
        return f"{self.build.copy(self.node, world, inputs)}:0"

    def other(self, index: int, world: str) -> str:
        """An input that is no mixed view, for the rows of ``world``."""
        return self.worlds.user(self.names[index]) if world == USER else self.worlds.full(self.names[index], self.node)

    def both(self, index: int, change: Callable[[str, str], str], axis: int, segments: Sequence[Segment]) -> View:
        """A mixed view whose two tensors are ``change(tensor, world)`` of those of mixed input ``index``."""
        view = self.views[index]
        return mixed_view(change(view.user, USER), change(view.full, ITEM), axis, segments, self.past)
