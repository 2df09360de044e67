"""What a tower reads besides its inputs: constants, tables that are weights, and sizes that follow from the rows."""

from __future__ import annotations

from collections.abc import Collection

from export.cutting.rows import FormRows
from graph_opt.placement.sides import Sides
from graph_opt.recognise.facts import Facts
from graph_opt.view import node_of

TABLE_OP = "TfctrTable"
_SHAPES = frozenset({"Shape", "ShapeN", "Size"})


class Supplies:
    """Tells what can be had without an input, and how: its nodes come along, or a size is computed anew.

    Anew where the model takes it from something outside, as from the ids of a feature: there is no need to hand the ids
    in for that.
    """

    def __init__(self, facts: Facts, rows: FormRows, sides: Sides) -> None:
        self._facts, self._rows, self._sides = facts, rows, sides

    def has(self, tensor: str) -> bool:
        """Whether ``tensor`` is no input of a tower."""
        name = node_of(tensor)
        if name in self._sides.free or self._facts.view.node(name).op == TABLE_OP:
            return True
        return self._rows.sizes(tensor) is not None

    def reason_against(self, tensor: str, inside: Collection[str], reads: Collection[str]) -> str:
        """Why a tower of the nodes ``inside`` that reads ``reads`` can't have it; "" where it can."""
        pending, seen = [tensor], set()
        while pending:
            one = pending.pop()
            if one in seen or self.is_remade(one, inside, reads):
                continue
            seen.add(one)
            node = self._facts.view.node(one)
            if node.op == TABLE_OP or node.name in inside:
                continue
            if node.name not in self._sides.free:
                return f"it needs the shape or the value of {one}, which has no rows that it could be told from"
            if node.op not in _SHAPES:
                pending += self._facts.view.inputs(node)
            elif not self.is_at_hand(self._facts.view.inputs(node)[0], inside, reads):
                return f"it needs the shape of {self._facts.view.inputs(node)[0]}, which does not follow from the rows"
        return ""

    def is_at_hand(self, tensor: str, inside: Collection[str], reads: Collection[str]) -> bool:
        """Whether the tower has the tensor itself."""
        return node_of(tensor) in inside or tensor in reads or node_of(tensor) not in self._sides.depends

    def is_remade(self, tensor: str, inside: Collection[str], reads: Collection[str]) -> bool:
        """Whether it is a size to be computed anew: one that follows from the rows, of something outside."""
        if self._rows.sizes(tensor) is None:
            return False
        node = self._facts.view.node(tensor)
        if node.op in _SHAPES:
            return not all(self.is_at_hand(t, inside, reads) for t in self._facts.view.inputs(node))
        return node.name not in self._sides.free and node.name not in inside

    def needed_nodes(
        self, tensors: Collection[str], inside: Collection[str], reads: Collection[str]
    ) -> tuple[list[str], list[str]]:
        """(nodes that come along, sizes to compute anew) for the tensors that nodes inside read."""
        along: dict[str, None] = {}
        anew: dict[str, None] = {}
        pending = [t for t in tensors if self.has(t)]
        while pending:
            one = pending.pop()
            if self.is_remade(one, inside, reads):
                anew[one] = None
                continue
            node = self._facts.view.node(one)
            if node.name in along or node.name in inside:
                continue
            along[node.name] = None
            if node.op == TABLE_OP:
                continue
            sources = self._facts.view.inputs(node)
            pending += [t for t in sources if self.has(t)]
        return list(along), list(anew)
