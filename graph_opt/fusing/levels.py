"""Which lookups depend on the results of others, so that no op is fused with what it needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from graph_opt.candidates import Candidate
from graph_opt.lookup_spec import LookupSpec
from graph_opt.view import GraphView, node_of


@dataclasses.dataclass(frozen=True)
class Member:
    """A proven lookup. ``depth``: how many lookups lie one after the other above it. ``signatures``: those that need
    it.
    """

    candidate: Candidate
    spec: LookupSpec
    depth: int
    signatures: frozenset[str]

    @property
    def output(self) -> str:
        return self.candidate.output


@dataclasses.dataclass(frozen=True)
class Levels:
    """``of_node``: length of the longest chain of lookups at or above each node. ``depth``: the same above each
    lookup.
    """

    of_node: Mapping[str, int]
    depth: Sequence[int]

    def of_tensor(self, tensor: str) -> int:
        return self.of_node[node_of(tensor)]


def find_levels(view: GraphView, lookups: Sequence[tuple[Candidate, LookupSpec]]) -> Levels:
    """Levels of all nodes and lookups.

    A lookup waits for its sources and for the control inputs of its interior nodes. A control edge from an interior
    node
    counts as a use of the lookup, since it will come from the fused op. ValueError where these edges make a cycle.
    """
    by_output = {node_of(c.output): k for k, (c, _) in enumerate(lookups)}
    insides: dict[str, list[int]] = {}
    sources: list[set[str]] = []
    waits: list[set[str]] = []
    for k, (candidate, spec) in enumerate(lookups):
        for name in candidate.nodes:
            insides.setdefault(name, []).append(k)
        controls = {c for n in candidate.nodes if n in view for c in view.control_inputs(n)}
        sources.append({node_of(t) for t in spec.sources()})
        waits.append(controls - candidate.nodes)
    depth = [0] * len(lookups)
    order = view.topological()
    for _ in range(len(lookups) + 2):
        level: dict[str, int] = {}
        for node in order:
            if node.name in by_output:
                level[node.name] = depth[by_output[node.name]] + 1
                continue
            data = [level.get(node_of(t), 0) for t in view.inputs(node)]
            control = [_control_level(c, level, depth, insides) for c in view.control_inputs(node)]
            level[node.name] = max([0, *data, *control])
        found = [
            # A source stays a node even where it lies inside another lookup, so only its own level counts.
            max(
                [
                    0,
                    *(level.get(n, 0) for n in sources[k]),
                    *(_control_level(n, level, depth, insides) for n in waits[k]),
                ]
            )
            for k in range(len(lookups))
        ]
        if found == depth:
            return Levels(level, depth)
        depth = found
    raise ValueError("the lookups wait for each other in a cycle of control edges")


def _control_level(
    name: str, level: Mapping[str, int], depth: Sequence[int], insides: Mapping[str, Iterable[int]]
) -> int:
    return max([level.get(name, 0), *(depth[k] + 1 for k in insides.get(name, ()))])
