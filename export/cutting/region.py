"""Which nodes make the tower: the dense side of a form, less what an engine can't take.

A node that can't be taken leaves with everything before it or with everything after it, whichever costs less weight;
so do matrix products that a lookup needs (the lookup runs between them and the rest). What remains has no way out and
back in.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from export.cutting.rows import FormRows
from export.cutting.supply import Supplies
from export.cutting.takeable import DTYPES, NARROWING, reason_against
from export.reasons import CannotExport
from graph_opt.item import GraphItem
from graph_opt.placement.sides import CONTRACTIONS, find_sides
from graph_opt.recognise.facts import Facts
from graph_opt.view import node_of

# How the reason begins where there is nothing that could be cut out.
NO_TOWER = "it has no dense tower"


@dataclasses.dataclass(frozen=True)
class Region:
    """nodes: of the tower that compute with inputs, producers first. inputs: tensors they read from outside, in the
    order of their first use (what ``Supplies`` gives is not among them). outputs: their tensors that are read outside,
    or are outputs. left: node -> why it stayed outside.
    """

    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    left: dict[str, str]


def find_region(
    item: GraphItem, signature: str, facts: Facts, rows: FormRows, avoid: Mapping[str, str] | None = None
) -> tuple[Region, Supplies]:
    """See the module docstring. Raises CannotExport where nothing with a matrix product is left."""
    return _Finder(item, signature, facts, rows, avoid or {}).run()


class _Finder:
    def __init__(self, item: GraphItem, signature: str, facts: Facts, rows: FormRows, avoid: Mapping[str, str]) -> None:
        self.view, self.facts, self.rows, self.avoid = facts.view, facts, rows, avoid
        self.fetches = item.fetches(signature)
        one_form = dataclasses.replace(item, optimise=(signature,), split={})
        self.sides = find_sides(one_form, facts)
        self.inside = set(self.sides.dense())
        self.order = [name for name in self.sides.needed if name in self.inside]
        self.supplies = Supplies(facts, rows, self.sides)
        self.left: dict[str, str] = {}

    def run(self) -> tuple[Region, Supplies]:
        if not any(self._is_product(name) for name in self.order):
            raise CannotExport(f"{NO_TOWER}: no matrix product is computed from its inputs")
        against = {name: reason_against(self.view.node(name), self.facts, self.avoid) for name in self.order}
        while (problem := self._problem(against)) is not None:
            self._drop(*problem)
        self._trim(against)
        self._leave_checks()
        if not any(self._is_product(name) for name in self.inside):
            raise CannotExport(f"nothing to gain: no matrix product can leave TensorFlow ({self._why()})")
        nodes = tuple(name for name in self.order if name in self.inside)
        inputs = dict.fromkeys(t for name in nodes for t in self.view.inputs(name) if self._crosses(t))
        return Region(nodes, tuple(inputs), self._outputs(nodes), dict(self.left)), self.supplies

    def _problem(self, against: Mapping[str, str]) -> tuple[str, str] | None:
        """The first node that keeps what is inside from being a tower, and why."""
        for name in self.order:
            if name in self.inside and against[name]:
                return name, against[name]
        reads = {t for name in self.inside for t in self.view.inputs(name) if self._crosses(t)}
        for name in self.order:
            if name in self.inside and (why := self._boundary_reason(name, reads)):
                return name, why
        return self._way_back()

    def _crosses(self, tensor: str) -> bool:
        """Whether it is read from outside, and not made of constants and sizes."""
        return node_of(tensor) not in self.inside and not self.supplies.has(tensor)

    def _boundary_reason(self, name: str, reads: set[str]) -> str:
        for tensor in self.view.inputs(name):
            if node_of(tensor) in self.inside:
                continue
            if self.supplies.has(tensor):
                if why := self.supplies.reason_against(tensor, self.inside, reads):
                    return why
                continue
            dtype = self.facts.dtype(tensor)
            if dtype not in DTYPES:
                return f"it reads {tensor}, which is {dtype.name}"
            if node_of(tensor) not in self.sides.depends:
                return f"it reads {tensor}, whose value can change"
            if (why := self.rows.reason_against(tensor)) and not self._sets_the_rows(tensor, reads):
                return f"it reads {tensor}: {why}"
        return ""

    def _sets_the_rows(self, tensor: str, reads: set[str]) -> bool:
        """Whether nothing else that is read has rows: then a row is whatever this tensor has one of."""
        shape = self.facts.shape(tensor)
        others = (other for other in reads if other != tensor)
        alone = all(self.rows.kind(other).name == "shared" for other in others)
        open_rows = shape is not None and len(shape) > 0 and shape[0] is None
        return alone and open_rows and self.rows.kind(tensor).name == "opaque"

    def _trim(self, against: Mapping[str, str]) -> None:
        """Work on nothing but integers and masks from outside, entry by entry, stays where they are: ids are none of an
        engine's business, and what comes of them is smaller.
        """
        for name in self.order:
            node = self.view.node(name)
            if name not in self.inside or node.op not in NARROWING:
                continue
            reads = [t for t in self.view.inputs(name) if not self.supplies.has(t)]
            whole = all(node_of(t) not in self.inside and not self.facts.dtype(t).is_floating for t in reads)
            if reads and whole:
                self.inside.discard(name)
                if self._problem(against) is not None:  # what reads it can't have it as an input
                    self.inside.add(name)

    def _leave_checks(self) -> None:
        """Whole numbers and masks that are made of such alone, and of which neither floating-point numbers nor outputs
        come, stay outside: the sizes that a ``tf.debugging.assert_equal`` compares have no rows.
        """
        wanted: set[str] = set()  # with what they read
        for name in reversed(self.order):
            if name in self.inside and (name in wanted or self._deals_in_numbers(name)):
                wanted |= {name, *(node_of(t) for t in self.view.inputs(name))}
        self.inside &= wanted

    def _deals_in_numbers(self, name: str) -> bool:
        """Whether it reads or gives floating-point numbers, or gives an output of the model."""
        given = [f"{name}:{port}" for port in range(len(self.facts.tensor(f"{name}:0").op.outputs))]
        tensors = [*given, *self.view.inputs(name)]
        return any(t in self.fetches for t in given) or any(self.facts.dtype(t).is_floating for t in tensors)

    def _way_back(self) -> tuple[str, str] | None:
        """A node outside between nodes inside: what it is and whose inputs it needs."""
        after: set[str] = set()
        for name in self.sides.needed:
            if name in self.sides.free or name not in self.sides.depends:
                continue
            sources = {node_of(t) for t in self.view.inputs(name)}
            if name in self.inside:
                if sources & after:
                    between = next(iter(sorted(sources & after)))
                    return between, f"{between} is computed from the tower and read by it"
            elif sources & (after | self.inside):
                after.add(name)
        return None

    def _drop(self, name: str, why: str) -> None:
        before = (self.view.ancestors([name]) | {name}) & self.inside
        after = self._descendants(name) & self.inside
        gone = before if self._weight(before) < self._weight(after) else after
        with_it = sum(self._is_product(other) for other in gone - {name})
        self.left[name] = f"{self.view.node(name).op}: {why}" + (
            f"; {with_it} matrix product{'' if with_it == 1 else 's'} with it" if with_it else ""
        )
        self.inside -= gone

    def _descendants(self, name: str) -> set[str]:
        found = {name}
        for other in self.sides.needed:
            if other not in found and any(node_of(t) in found for t in self.view.inputs(other)):
                found.add(other)
        return found

    def _weight(self, nodes: Iterable[str]) -> tuple[int, int]:
        """Numbers in the matrices of the products, then the number of nodes."""
        names = list(nodes)
        return sum(self._matrix(name) for name in names if self._is_product(name)), len(names)

    def _matrix(self, name: str) -> int:
        sizes = [self.facts.shape(t) for t in self.view.inputs(name) if node_of(t) not in self.sides.depends]
        return max((math.prod(size) for size in sizes if size is not None and None not in size), default=1)  # type: ignore[arg-type]

    def _is_product(self, name: str) -> bool:
        return self.view.node(name).op in CONTRACTIONS and self.facts.dtype(f"{name}:0").is_floating

    def _outputs(self, nodes: Iterable[str]) -> tuple[str, ...]:
        fetched, needed = set(self.fetches), set(self.sides.needed)
        found = []
        for name in nodes:
            for port in range(len(self.facts.tensor(f"{name}:0").op.outputs)):
                tensor = f"{name}:{port}"
                read = any(
                    user.name in needed and user.name not in self.inside and not self._only_inside(user.name)
                    for user, _ in self.view.consumers(tensor)
                )
                if read or tensor in fetched:
                    found.append(tensor)
        return tuple(found)

    def _only_inside(self, name: str) -> bool:
        """Whether a node of constants and sizes is read by the tower alone."""
        if name not in self.sides.free:
            return False
        pending, seen = [name], set()
        needed = set(self.sides.needed)
        while pending:
            one = pending.pop()
            if one in seen:
                continue
            seen.add(one)
            if f"{one}:0" in self.fetches:
                return False
            for user in self.view.users(one):
                if user not in needed or user in self.inside:
                    continue
                if user not in self.sides.free:
                    return False
                pending.append(user)
        return True

    def _why(self) -> str:
        said = [f"{name}: {why}" for name, why in self.left.items()]
        return "; ".join(said[:3]) + (f" and {len(said) - 3} more" if len(said) > 3 else "")
