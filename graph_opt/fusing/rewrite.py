"""Editing the graph: one fused node per group in place of the subgraphs of its lookups."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from tensorflow.core.framework import node_def_pb2

from graph_opt.fused_node import FUSED_OP, bind_arguments, empty_constants, fused_node, output_form
from graph_opt.fusing.levels import Member
from graph_opt.fusing.plan import Block
from graph_opt.fusing.shared import first_of_each
from graph_opt.item import FusedGroup, GraphItem
from graph_opt.lookup_spec import CopySpec, LookupSpec, OutputSpec, Placement
from graph_opt.recognise.facts import Facts
from graph_opt.store_files import store_node
from graph_opt.view import GraphView, canonical, node_of, port_of
from tfctr.bundle.naming import RULE_ATTR

RULE = b"fuse_lookups"
EMPTY_PREFIX = "tfctr/"


@dataclasses.dataclass
class _Replaced:
    """A group's node, and the interior nodes of its lookups."""

    node: str
    inside: set[str]


class Rewriter:
    """Applies planned groups to ``view`` (the view of ``item.graph_def``)."""

    def __init__(self, item: GraphItem, view: GraphView, facts: Facts) -> None:
        self._item = item
        self._view = view
        self._facts = facts
        self._replaced: list[_Replaced] = []
        self._renamed: dict[str, str] = {}

    def apply(self, blocks: Sequence[Block]) -> FusedGroup:
        """Adds one fused node for ``blocks`` and makes their consumers read it. Call :meth:`finish` after the last
        group.
        """
        lookups: list[tuple[LookupSpec, Placement]] = []
        copies: list[tuple[CopySpec, Placement]] = []
        repeats: list[tuple[str, Placement]] = []
        outputs: list[OutputSpec] = []
        firsts = first_of_each(blocks)
        output_of: dict[int, int] = {}
        for number, block in enumerate(blocks):
            first = firsts[number]
            output_of[number] = output_of.get(first, len(outputs))
            column = 0
            for part in block.parts:
                place = Placement(output_of[number], column)
                if first != number:  # the same columns as those of an earlier block: one output serves both
                    if isinstance(part, Member):
                        repeats.append((part.spec.name, place))
                    column += part.spec.width if isinstance(part, Member) else part.width
                elif isinstance(part, Member):
                    lookups.append((self._current(part.spec), place))
                    column += part.spec.width
                else:
                    source = self._renamed.get(part.source, part.source)
                    copies.append((dataclasses.replace(part, source=source), place))
                    column += part.width
            if first != number:
                continue
            spec = block.members[0].spec
            outputs.append(OutputSpec(form=output_form(spec), columns=column, dtype=spec.table_dtype))
        members = [m for block in blocks for m in block.members]
        name = self._new_name(members)
        arguments, bind = bind_arguments([spec for spec, _ in lookups], [copy for copy, _ in copies])
        types = [self._dtype(t) for t in arguments]
        empty = self._empty_constants()
        store = store_node(self._item, self._view)
        node = fused_node(name, store, empty, arguments, types, lookups, outputs, bind, copies)
        node.attr[RULE_ATTR].s = RULE
        self._view.add(node)
        for number, block in enumerate(blocks):
            self._redirect(block, f"{name}:{output_of[number]}")
        self._replaced.append(_Replaced(name, {n for m in members for n in m.candidate.nodes}))
        group = FusedGroup(
            node=name, lookups=tuple(lookups), outputs=tuple(outputs), bind=bind, copies=tuple(copies),
            repeats=tuple(repeats),
        )  # fmt: skip
        self._item.groups.append(group)
        return group

    def finish(self) -> None:
        """Moves control edges off the interior nodes that are no longer needed. Unused nodes are left to pruning."""
        inside = {n for r in self._replaced for n in r.inside if n in self._view}
        needed = self._needed(inside)
        for replaced in self._replaced:
            gone = {n for n in replaced.inside if n in self._view and n not in needed}
            waits_for: dict[str, None] = {}
            for name in gone:
                for control in self._view.control_inputs(name):
                    if control not in inside or control in needed:
                        waits_for[control] = None
                self._view.replace_control(name, replaced.node)
            fused = self._view.node(replaced.node)
            known = set(self._view.control_inputs(fused))
            added = [f"^{c}" for c in waits_for if c not in known and c != replaced.node]
            if added:
                self._view.set_inputs(replaced.node, [*fused.input, *added])

    def _needed(self, inside: set[str]) -> set[str]:
        """Nodes that something still reads, control edges from inside the lookups left aside."""
        pending = list(self._item.keep())
        seen: set[str] = set()
        while pending:
            name = pending.pop()
            if name in seen or name not in self._view:
                continue
            seen.add(name)
            pending += [node_of(t) for t in self._view.inputs(name)]
            pending += [c for c in self._view.control_inputs(name) if c not in inside]
        return seen

    def _redirect(self, block: Block, tensor: str) -> None:
        if block.cast:
            tensor = self._cast(block, tensor)
        if not block.concat:
            self._replace_output(block.members[0].output, tensor)
        elif block.whole:
            self._replace_output(canonical(block.concat), tensor)
        else:
            # The run's inputs give way to one; marked inputs keep the positions of other runs valid until the end.
            node = self._view.node(block.concat)
            inputs = list(node.input)
            first = next(k for k, i in enumerate(inputs) if self._reads(i, block.parts[0], block))
            self._view.set_inputs(block.concat, [*inputs[:first], tensor, *inputs[first + block.count :]])
            node.attr["N"].i -= block.count - 1

    def _cast(self, block: Block, tensor: str) -> str:
        node = node_def_pb2.NodeDef(
            name=self._view.unique_name(f"{block.concat}/tfctr_cast"), op="Cast", input=[tensor]
        )
        node.attr["SrcT"].type = self._dtype(tensor)
        node.attr["DstT"].type = block.cast
        node.attr["Truncate"].b = False
        return self._view.add(node).name

    def _reads(self, data_input: str, part: Member | CopySpec, block: Block) -> bool:
        wanted = part.output if isinstance(part, Member) else part.source
        tensor = canonical(data_input)
        while tensor != wanted and self._view.producer(tensor).op in ("Identity", "Reshape", "Cast"):
            tensor = self._view.inputs(self._view.producer(tensor))[0]
        return tensor == wanted

    def _replace_output(self, old: str, new: str) -> None:
        """Consumers of ``old`` read ``new``; a node that the signatures name stays, as an Identity."""
        self._view.replace_tensor(old, new)
        self._renamed[old] = new
        if old not in self._item.fetches():
            return
        name = node_of(old)
        if port_of(old) != 0:
            raise ValueError(f"output {old!r} of a signature is not the first output of its node")
        kept = self._view.node(name)
        controls = [i for i in kept.input if i.startswith("^")]
        dtype = self._facts.dtype(old).as_datatype_enum
        kept.op = "Identity"
        for key in list(kept.attr):
            del kept.attr[key]
        kept.attr["T"].type = dtype
        self._view.set_inputs(name, [new, *controls])

    def _current(self, spec: LookupSpec) -> LookupSpec:
        """The spec with the present names of sources that are results of groups already rewritten."""
        changed = {
            part: self._renamed[tensor]
            for part in ("ids", "rows", "shape", "weights", "mask")
            if (tensor := getattr(spec, part)) in self._renamed
        }
        return dataclasses.replace(spec, **changed)  # type: ignore[arg-type]

    def _dtype(self, tensor: str) -> int:
        """DataType number of a graph tensor, results of fused nodes included."""
        node = self._view.producer(tensor)
        if node.op == FUSED_OP:
            return int(node.attr["Tout"].list.type[port_of(tensor)])
        return int(self._facts.dtype(tensor).as_datatype_enum)

    def _empty_constants(self) -> list[str]:
        made = empty_constants(EMPTY_PREFIX)
        for node in made:
            if node.name not in self._view:
                self._view.add(node)
        return [node.name for node in made]

    def _new_name(self, members: Iterable[Member]) -> str:
        scope = _common_scope([node_of(m.output) for m in members])
        return self._view.unique_name("/".join([*scope, "tfctr", f"lookup_{len(self._item.groups)}"]))


def _common_scope(names: Sequence[str]) -> list[str]:
    """The name scopes that all nodes share."""
    parts = [name.split("/")[:-1] for name in names]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return shared


def merged_specs(members: Sequence[Member], merged: Mapping[tuple[tuple[str, ...], str], int]) -> list[Member]:
    """Members of partitioned tables with the index of the merged file."""
    result = []
    for member in members:
        candidate = member.candidate
        if candidate.parts:
            spec = dataclasses.replace(member.spec, table=merged[candidate.parts, candidate.strategy])
            member = dataclasses.replace(member, spec=spec)
        result.append(member)
    return result
