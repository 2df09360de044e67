"""Fused lookups in two: one op for what depends on the user alone, one for the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from graph_opt.fused_node import bind_arguments, fused_node
from graph_opt.item import FusedGroup
from graph_opt.lookup_spec import CopySpec, LookupSpec, OutputSpec, Placement
from graph_opt.rows.kinds import Kind
from graph_opt.rows.streams import part_reason, parts_of
from graph_opt.split.site import SplitSite
from graph_opt.split.views import Segment, View, full_view, mixed_view, user_view
from graph_opt.split.worlds import ITEM, USER

_SOURCES = ("ids", "rows", "shape", "weights", "mask")
Part = LookupSpec | CopySpec


@dataclasses.dataclass
class _Side:
    """What goes into the op of one side. places: output of the original -> (output, its columns so far)."""

    lookups: list[tuple[LookupSpec, Placement]] = dataclasses.field(default_factory=list)
    copies: list[tuple[CopySpec, Placement]] = dataclasses.field(default_factory=list)
    outputs: list[OutputSpec] = dataclasses.field(default_factory=list)
    of: dict[int, int] = dataclasses.field(default_factory=dict)

    def add(self, part: Part, output: int, spec: OutputSpec) -> None:
        number = self.of.setdefault(output, len(self.outputs))
        if number == len(self.outputs):
            self.outputs.append(dataclasses.replace(spec, columns=0))
        place = Placement(number, self.outputs[number].columns)
        width = part.width
        self.outputs[number] = dataclasses.replace(self.outputs[number], columns=place.column + width)
        if isinstance(part, CopySpec):
            self.copies.append((part, place))
        else:
            self.lookups.append((part, place))


def split_lookups(site: SplitSite, group: FusedGroup) -> tuple[list[View], list[FusedGroup]]:
    """Views of the group's outputs, and the groups of the new ops (one or two)."""
    first = len(site.names) - len(group.bind)
    inputs = {t: site.names[first + int(place.removeprefix("arg:"))] for t, place in group.bind.items()}
    sides = {USER: _Side(), ITEM: _Side()}
    segments: list[list[Segment]] = [[] for _ in group.outputs]
    for number, output in enumerate(group.outputs):
        parts = parts_of(group, number)
        for part, world in zip(parts, worlds_of(site, number, parts, inputs), strict=True):
            sides[world].add(part, number, output)
            segments[number].append(Segment(part.width, world))
    made = {world: _node(site, world, side, inputs) for world, side in sides.items() if side.outputs}
    views = []
    for number in range(len(group.outputs)):
        tensors = {
            world: f"{made[world].node}:{side.of[number]}" if number in side.of else "" for world, side in sides.items()
        }
        views.append(_view(site, number, tensors, segments[number]))
    return views, list(made.values())


def worlds_of(site: SplitSite, number: int, parts: Sequence[Part], inputs: dict[str, str]) -> list[str]:
    """On which rows each part of an output runs.

    What stays on item rows must still say how many rows there are: where no part of it is known to have the batch's
    number, nothing is taken away from it.
    """
    kinds = {name: site.rows.kind(tensor) for name, tensor in inputs.items()}
    if site.rows.kind(f"{site.node.name}:{number}").name != "row":
        return [ITEM] * len(parts)
    clean = [not part_reason(part, kinds) for part in parts]
    worlds = [
        USER if good and _on_user_rows(site, part, inputs) else ITEM for part, good in zip(parts, clean, strict=True)
    ]
    left = [good for good, world in zip(clean, worlds, strict=True) if world == ITEM]
    return [ITEM] * len(parts) if left and not any(left) else worlds


def _sources(part: Part) -> tuple[str, ...]:
    return (part.source,) if isinstance(part, CopySpec) else part.sources()


def _on_user_rows(site: SplitSite, part: Part, inputs: dict[str, str]) -> bool:
    views = [site.worlds.view(inputs[t]) for t in _sources(part)]
    return all(v.form in ("user", "dual", "shared") for v in views) and any(v.form == "user" for v in views)


def _view(site: SplitSite, number: int, tensors: dict[str, str], segments: Sequence[Segment]) -> View:
    past = (site.node.op,)
    if not tensors[USER]:
        return full_view(tensors[ITEM])
    if not tensors[ITEM]:
        return user_view(tensors[USER], past)
    kind: Kind = site.rows.kind(f"{site.node.name}:{number}")
    return mixed_view(tensors[USER], tensors[ITEM], len(kind.dims or ()) - 1, segments, past)


def _node(site: SplitSite, world: str, side: _Side, inputs: dict[str, str]) -> FusedGroup:
    """Adds the op of one side; its specs name the tensors that it reads."""
    named = {}
    for part in [p for p, _ in side.lookups] + [p for p, _ in side.copies]:
        for tensor in _sources(part):
            named[tensor] = (
                site.worlds.user(inputs[tensor]) if world == USER else site.worlds.full(inputs[tensor], site.node)
            )
    lookups = [(_renamed(spec, named), place) for spec, place in side.lookups]
    copies = [(dataclasses.replace(copy, source=named[copy.source]), place) for copy, place in side.copies]
    arguments, bind = bind_arguments([spec for spec, _ in lookups], [copy for copy, _ in copies])
    build = site.build
    made = fused_node(
        build.view.unique_name(f"{build.prefix}{world}/{site.node.name}"),
        site.names[0],
        site.names[1:4],
        arguments,
        [build.dtype(t) for t in arguments],
        lookups,
        side.outputs,
        bind,
        copies,
    )
    for key, value in site.node.attr.items():
        if key.startswith("_"):
            made.attr[key].CopyFrom(value)
    name = build.add(made)
    return FusedGroup(
        node=name, lookups=tuple(lookups), outputs=tuple(side.outputs), bind=bind, copies=tuple(copies)
    )  # fmt: skip


def _renamed(spec: LookupSpec, named: dict[str, str]) -> LookupSpec:
    changed = {part: named[tensor] for part in _SOURCES if (tensor := getattr(spec, part)) is not None}
    return dataclasses.replace(spec, **changed)  # type: ignore[arg-type]
