"""Control edges that make the dense tower wait for the embedding ops.

TensorFlow starts whatever is ready, in no useful order: a bottom tower over dense inputs, or the part of the tower that
needs one lookup only, may run before other lookups have begun. With the lookups first, the sparse part of a request is
done as early as can be, and a tower on another device gets all it needs at once. A lookup that needs a result of the
dense tower stays behind it.
"""

from __future__ import annotations

from tensorflow.core.framework import node_def_pb2

from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.placement.control import regions
from graph_opt.placement.sides import DENSE, Sides, find_sides, signature_sets
from graph_opt.recognise.facts import Facts
from graph_opt.report import PassOutcome, Refused
from graph_opt.view import GraphView, node_of

_FEW_EDGES = 16
REASONS = {
    "no_lookups": "the model has no embedding op that could go first",
    "no_dense": "the model has no dense part that could wait",
    "waits": "it waits for every lookup already",
    "two_stage": "needs {node}, a result of the dense tower: it stays behind it",
    "control_flow": "it is inside TF1 control flow, where waiting for something outside is not allowed",
    "other_signature": "it does not wait for {lookup}, which signature {signature} does not need",
}
EXAMPLE = """\
before  dense -> bottom tower;  ids -> TfctrFusedLookup -> concat -> top tower
after   dense -> bottom tower (^TfctrFusedLookup);  ids -> TfctrFusedLookup -> concat -> top tower
"""


def lookups_first(item: GraphItem, options: ConvertOptions) -> PassOutcome:
    """See the module docstring. ``details["lookups_first"]``: the lookups, the nodes that wait, two-stage lookups."""
    del options
    view = GraphView(item.graph_def)
    sides = find_sides(item, Facts(view))
    if not sides.lookups:
        return _refuse("embedding layer", REASONS["no_lookups"])
    if not sides.dense():
        return _refuse("dense tower", REASONS["no_dense"])
    refused = [
        Refused(
            what=f"lookup {name}",
            reason=REASONS["two_stage"].format(node=dense),
            nodes=(name,),
        )
        for name, dense in sides.two_stage.items()
    ]
    first = _last_of(view, [name for name in sides.lookups if name not in sides.two_stage])
    held, left = _hold(item, view, sides, first)
    refused += left
    if not held and not left:
        refused.append(Refused(what="dense tower", reason=REASONS["waits"]))
    return PassOutcome(
        fired=len(held),
        refused=tuple(refused),
        notes=(f"{len(held)} operations that start the dense tower wait for {len(first)} lookup ops",) if held else (),
        details={
            "lookups_first": {"lookups": list(first), "held": sorted(held), "two_stage": dict(sides.two_stage)}
        },
    )  # fmt: skip


def _refuse(what: str, reason: str) -> PassOutcome:
    return PassOutcome(refused=(Refused(what=what, reason=reason),))


def _last_of(view: GraphView, lookups: list[str]) -> list[str]:
    """The lookups that no other of them needs: who waits for these waits for all."""
    needed: set[str] = set()
    for name in lookups:
        needed |= view.ancestors([name]) - {name}
    return [name for name in lookups if name not in needed]


def _hold(
    item: GraphItem, view: GraphView, sides: Sides, first: list[str]
) -> tuple[dict[str, list[str]], list[Refused]]:
    """Adds the control edges: node -> lookups that it waits for now, and what could not be held."""
    by_signature = signature_sets(item, view)
    inside = {n for region in regions(view, list(view)) for n in region}
    held: dict[str, list[str]] = {}
    able: dict[str, tuple[str, ...]] = {}
    left: dict[tuple[str, tuple[str, ...]], list[str]] = {}  # (reason, lookup) -> nodes
    above = {lookup: view.ancestors([lookup]) for lookup in first}  # checks of the ids, which the lookup waits for
    for name in _starts(view, sides):
        before = view.ancestors([name])
        missing = [
            n for n in first if n not in before and name not in above[n] and by_signature[n] & by_signature[name]
        ]
        if missing and name in inside:
            left.setdefault((REASONS["control_flow"], ()), []).append(name)
            continue
        waits = [lookup for lookup in missing if by_signature[name] <= by_signature[lookup]]
        if len(waits) < len(missing):
            other = next(lookup for lookup in missing if lookup not in waits)
            users = ", ".join(sorted(by_signature[name] - by_signature[other]))
            reason = REASONS["other_signature"].format(lookup=other, signature=users)
            left.setdefault((reason, (other,)), []).append(name)
        if waits:
            held[name] = waits
            able[name] = tuple(n for n in first if name not in above[n] and by_signature[name] <= by_signature[n])
    _add_waits(view, held, able)
    return held, [_left(names, reason, lookup) for (reason, lookup), names in left.items()]


def _left(names: list[str], reason: str, lookup: tuple[str, ...]) -> Refused:
    """One refusal for all nodes that have the same reason."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return Refused(what=f"node {names[0]}{more}", reason=reason, nodes=(*names, *lookup))


def _add_waits(view: GraphView, held: dict[str, list[str]], able: dict[str, tuple[str, ...]]) -> None:
    """Each start waits for its lookups; where that is many edges, for one node that waits for all it may wait for.

    able: lookups that each start may wait for, those included that it needs anyway.
    """
    few = sum(len(waits) for waits in held.values()) <= _FEW_EDGES
    barriers: dict[tuple[str, ...], str] = {}
    for name, waits in held.items():
        if not few and able[name] not in barriers:
            node = node_def_pb2.NodeDef(name=view.unique_name("tfctr/lookups_done"), op="NoOp")
            node.input.extend(f"^{lookup}" for lookup in able[name])
            barriers[able[name]] = view.add(node).name
        sources = waits if few else [barriers[able[name]]]
        view.set_inputs(name, [*view.node(name).input, *(f"^{source}" for source in sources)])


def _starts(view: GraphView, sides: Sides) -> list[str]:
    """Dense nodes that read nothing dense: whatever else is dense comes after one of them."""
    found = []
    for name in sides.dense():
        sources = {node_of(t) for t in view.inputs(name)}
        if name in sides.depends and not any(sides.side.get(s) == DENSE and s in sides.depends for s in sources):
            found.append(name)
    return found
