"""Groups and output blocks: which lookups go into which op, and which concats disappear into it.

One group per (signatures that need it, level, table dtype, output form). Within a group every output tensor is a block
of columns: a folded concat (or a run of its inputs), or one lookup. Blocks of one op may differ in their rows;
lookups of one block have equally many, which the op checks as the concat did.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from graph_opt.fused_node import output_form
from graph_opt.fusing.levels import Levels, Member
from graph_opt.lookup_spec import CopySpec
from graph_opt.placement.sides import CONTRACTIONS
from graph_opt.recognise.facts import Facts
from graph_opt.view import GraphView, canonical, node_of

GroupKey = tuple[frozenset[str], int, str, str]
_AXIS_OPS = ("ConcatV2",)


@dataclasses.dataclass(frozen=True)
class Block:
    """One output tensor of a group.

    parts: lookups and copied inputs, left to right. concat: the node that the block replaces, "" where it replaces the
    output of its one lookup. first, count: the inputs of the concat that it stands for; ``whole``: all of them.
    cast: DataType that every input was cast to before the concat, so that one cast of the block does; 0: none.
    """

    parts: tuple[Member | CopySpec, ...]
    concat: str = ""
    first: int = 0
    count: int = 0
    whole: bool = False
    cast: int = 0

    @property
    def members(self) -> list[Member]:
        return [p for p in self.parts if isinstance(p, Member)]

    @property
    def columns(self) -> int:
        return sum(p.spec.width if isinstance(p, Member) else p.width for p in self.parts)


@dataclasses.dataclass(frozen=True)
class _Slot:
    """One input of a concat: what a block may take in (None: nothing), and the DataType it is cast to (0: none)."""

    part: Member | CopySpec | None
    cast: int = 0


def group_key(member: Member) -> GroupKey:
    return (member.signatures, member.depth, member.spec.table_dtype, output_form(member.spec))


class Planner:
    """Plans one graph. ``keep``: nodes that are fed, fetched or otherwise must not go."""

    def __init__(self, view: GraphView, facts: Facts, levels: Levels, keep: set[str]) -> None:
        self._view = view
        self._facts = facts
        self._levels = levels
        self._keep = keep

    def plan(self, members: Sequence[Member]) -> dict[GroupKey, list[Block]]:
        """Blocks by group, in graph order."""
        by_output = {m.output: m for m in members}
        groups: dict[GroupKey, list[Block]] = {}
        placed: set[str] = set()
        for node in self._view.topological():
            if node.op in _AXIS_OPS:
                for block in self._fold(node.name, by_output):
                    groups.setdefault(group_key(block.members[0]), []).append(block)
                    placed |= {m.output for m in block.members}
        for member in members:
            if member.output not in placed:
                groups.setdefault(group_key(member), []).append(Block((member,)))
        return groups

    def _fold(self, concat: str, by_output: dict[str, Member]) -> list[Block]:
        inputs = self._view.inputs(concat)
        axis = self._facts.const(inputs[-1])
        rank = self._facts.rank(canonical(concat))
        if axis is None or rank is None:
            return []
        position = int(axis) % rank
        found: list[_Slot] = []
        for tensor in inputs[:-1]:
            source, cast = self._behind_cast(tensor)
            member = self._member_behind(source, by_output)
            if member is not None and self._foldable(member, position, rank):
                found.append(_Slot(member, cast))
            else:
                found.append(_Slot(self._copy(tensor) if rank == 2 and position == 1 else None))
        return self._runs(concat, found)

    def _behind_cast(self, tensor: str) -> tuple[str, int]:
        """What a Cast that nobody else uses reads, and the DataType it casts to; else the tensor itself and 0."""
        node = self._view.producer(tensor)
        if (
            node.op != "Cast"
            or node.attr["Truncate"].b
            or len(self._view.data_consumers(node.name)) != 1
            or node.name in self._keep
        ):
            return tensor, 0
        return self._view.inputs(node)[0], node.attr["DstT"].type

    def _foldable(self, member: Member, axis: int, rank: int) -> bool:
        return rank == 2 and axis == 1 if output_form(member.spec) == "rows" else axis == rank - 1

    def _member_behind(self, tensor: str, by_output: dict[str, Member]) -> Member | None:
        """The lookup whose result ``tensor`` is, where nothing but this input reads it."""
        while True:
            consumers = self._view.consumers(tensor)
            if len(consumers) != 1 or node_of(tensor) in self._keep:
                return None
            if tensor in by_output:
                return by_output[tensor]
            node = self._view.producer(tensor)
            if node.op == "Reshape":
                source = self._view.inputs(node)[0]
                member = by_output.get(source)
                if member is None or not self._reshapes_nothing(node.name, member):
                    return None
            elif node.op != "Identity":
                return None
            tensor = self._view.inputs(node)[0]

    def _reshapes_nothing(self, node: str, member: Member) -> bool:
        """True for Reshape(rows [R, D], [-1, D])."""
        shape = self._facts.const(self._view.inputs(node)[1])
        return output_form(member.spec) == "rows" and shape is not None and shape.tolist() == [-1, member.spec.width]

    def _copy(self, tensor: str) -> CopySpec | None:
        """A float32 matrix of static width that is no lookup, to be copied beside the lookups."""
        shape = self._facts.shape(tensor)
        if self._facts.dtype(tensor).name != "float32" or shape is None or len(shape) != 2 or not shape[1]:
            return None
        if any(self._view.node(name).op in CONTRACTIONS for name in self._view.ancestors([tensor])):
            return None  # a result of the dense tower: the lookups would have to wait for it
        return CopySpec(name=node_of(tensor), source=tensor, width=shape[1])

    def _runs(self, concat: str, found: Sequence[_Slot]) -> list[Block]:
        """Runs of neighbours that one group can hold: all inputs, or at least two lookups and what lies between."""
        blocks: list[Block] = []
        start = 0
        while start < len(found):
            if not isinstance(found[start].part, Member) and not self._leads(found, start):
                start += 1
                continue
            first = next(slot for slot in found[start:] if isinstance(slot.part, Member))
            end = start
            while end < len(found) and self._fits(found[end], first):
                end += 1
            block = self._block(concat, found, start, end)
            if block is not None:
                blocks.append(block)
            start = max(end, start + 1)
        return blocks

    def _leads(self, found: Sequence[_Slot], start: int) -> bool:
        """True at the first input when it is a copy that a lookup follows: the run may take in the whole concat."""
        if start != 0 or found[0].part is None:
            return False
        following = next((s.part for s in found if s.part is None or isinstance(s.part, Member)), None)
        return isinstance(following, Member)

    def _fits(self, slot: _Slot, first: _Slot) -> bool:
        """True when ``slot`` can stand in one block with the lookup ``first``."""
        assert isinstance(first.part, Member)
        key = group_key(first.part)
        if isinstance(slot.part, Member):
            return group_key(slot.part) == key and slot.cast == first.cast
        if slot.part is None or key[2] != "float32" or key[3] != "rows" or first.cast:
            return False
        return self._levels.of_tensor(slot.part.source) <= key[1]

    def _block(self, concat: str, found: Sequence[_Slot], start: int, end: int) -> Block | None:
        whole = start == 0 and end == len(found)
        if not whole:
            while start < end and not isinstance(found[start].part, Member):
                start += 1
            while start < end and not isinstance(found[end - 1].part, Member):
                end -= 1
        parts = tuple(slot.part for slot in found[start:end] if slot.part is not None)
        members = sum(isinstance(p, Member) for p in parts)
        if len(parts) != end - start or members < (1 if whole else 2):
            return None
        return Block(parts, concat, start, end - start, whole, found[start].cast if members == len(parts) else 0)
