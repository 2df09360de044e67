"""The cut: from a signature of a GraphItem to its dense tower, or to the reason for which it stays on TensorFlow.

The tower lies between the results of the lookups (fused ones and gathers left alone), the dense inputs of the model,
``row_to_user`` in a split form, and the signature's outputs. Strings, resources, states, control flow, preprocessing
of ids and the parsing of inputs stay outside. The graph is not changed.
"""

from __future__ import annotations

from collections.abc import Mapping

from export.cutting.build import TowerGraph, shape_of, tower_tensors
from export.cutting.naming import Names, input_name, output_name
from export.cutting.region import NO_TOWER, find_region
from export.cutting.rows import FormRows
from export.reasons import CannotExport
from export.tower import Tower, TowerTensor
from graph_opt.item import GraphItem
from graph_opt.recognise.facts import Facts
from graph_opt.view import GraphView, canonical

# Numbers to text.
_TEXTS = frozenset({"AsString", "StringFormat"})

__all__ = ["NO_TOWER", "CannotExport", "check_texts", "cut_tower"]


def cut_tower(
    item: GraphItem, signature: str, *, avoid: Mapping[str, str] | None = None, facts: Facts | None = None
) -> Tower:
    """The tower of one form: ``signature`` is one of ``item.optimise``, or the split form of one.

    avoid: nodes that are to stay outside, and why (an export failed at them). facts: of ``item.graph_def``, where there
    are some already. Raises CannotExport with the reason where there is nothing to cut out, or nothing to gain.
    """
    facts = facts or Facts(GraphView(item.graph_def))
    rows = FormRows(item, facts, signature)
    region, supplies = find_region(item, signature, facts, rows, avoid)
    names = Names()
    split = next((form for form in item.split.values() if form.signature == signature), None)
    row_to_user = canonical(item.signatures[signature].inputs[split.row_to_user].name) if split else ""
    # Outputs first: where both want a name, it is the output's.
    outputs = {t: names.give(output_name(item, signature, facts, t)) for t in region.outputs}
    outputs = dict(sorted(outputs.items(), key=lambda entry: entry[1]))
    inputs = {t: names.give(input_name(item, signature, facts, t, rows.kind(t).sources)) for t in region.inputs}
    given = tower_tensors(item, facts, rows, region.inputs, inputs, row_to_user)
    graph = TowerGraph(item, facts, rows, region, supplies)
    graph_def = graph.run(given)
    return Tower(
        signature=signature,
        graph_def=graph_def,
        inputs=given,
        outputs=tuple(
            TowerTensor(
                name=name,
                tensor=graph.tensors.get(tensor, tensor),
                source=tensor,
                dtype=facts.dtype(tensor).name,
                shape=_output_shape(facts, rows, tensor),
            )
            for tensor, name in outputs.items()
        ),
        nodes=frozenset(graph.nodes),
        left_outside=tuple(f"{name}: {why}" for name, why in sorted(region.left.items())),
    )


def check_texts(item: GraphItem, tower: Tower, facts: Facts) -> None:
    """CannotExport where numbers of the tower are written as text: an engine's would never be equal, as every rounding
    shows there.
    """
    needed = facts.view.ancestors(item.fetches(tower.signature))
    pending = [one.source for one in tower.outputs]
    seen = set(pending)
    while pending:
        tensor = pending.pop()
        if not facts.dtype(tensor).is_floating:
            continue
        for user, _ in facts.view.consumers(tensor):
            if user.name not in needed:
                continue
            if user.op in _TEXTS:
                raise CannotExport(f"{user.name} ({user.op}) writes its numbers as text: every rounding shows there")
            ports = range(len(facts.tensor(f"{user.name}:0").op.outputs))
            found = {f"{user.name}:{port}" for port in ports} - seen
            seen |= found
            pending += found


def _output_shape(facts: Facts, rows: FormRows, tensor: str) -> tuple[int | None, ...]:
    shape = shape_of(facts, rows, tensor)
    if facts.shape(tensor) is None and rows.kind(tensor).dims is None:
        raise CannotExport(f"the rank of its output {tensor} is not known")
    return shape
