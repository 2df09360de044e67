"""Device strings: the embedding layer on the sparse device, the dense tower on the dense one (``--device-map``).

Lookups, what only they need, strings, resources and inputs are sparse; the tower is dense; constants get a copy on each
side that reads them, so none crosses; shape arithmetic is done where it is needed. Devices that the model sets itself
stay, and are reported, unless ``--force-placement``.
"""

from __future__ import annotations

from typing import Any

from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.placement.devices import DeviceMap, device_map
from graph_opt.placement.sides import DENSE, SPARSE, Sides, find_sides
from graph_opt.placement.spread import kept_in_bodies, spread, without_kernel
from graph_opt.recognise.facts import Facts
from graph_opt.report import PassOutcome, Refused
from graph_opt.view import GraphView

OPTIONS = (
    "--device-map sparse=DEVICE,dense=DEVICE: the two devices; without it nothing is placed",
    "--force-placement: devices that the model sets are replaced too",
)
REASONS = {
    "no_map": "no devices were given (--device-map sparse=DEVICE,dense=DEVICE)",
    "one_device": "sparse and dense are one device ({device}): there is nothing to part",
    "no_dense": "the model has no dense part: everything stays where it is",
    "no_lookups": "the model has no embedding op: all that computes with inputs goes to the dense device",
    "kept": "the model puts it on {device}; --force-placement would move it",
    "in_function": "the model puts it on {device}, in a function",
    "no_kernel": "TensorFlow has no {type} kernel of {op} for its types; it stays on the sparse device",
}
EXAMPLE = """\
before  ids -> TfctrFusedLookup -> ConcatV2(rows, dense) -> MatMul -> Sigmoid
after   ids -> TfctrFusedLookup @ /device:CPU:0;  ConcatV2, MatMul, Sigmoid @ /device:GPU:0
"""


def place_devices(item: GraphItem, options: ConvertOptions) -> PassOutcome:
    """See the module docstring. ``details["placement"]``: devices, nodes per side, what was kept, what can't run."""
    devices = device_map(options.device_map)
    if devices is None:
        return _refuse("placement", REASONS["no_map"])
    if devices.one_device:
        return _refuse("placement", REASONS["one_device"].format(device=devices.sparse))
    view = GraphView(item.graph_def)
    facts = Facts(view)
    everywhere = find_sides(item, facts)
    apart = without_kernel(view, everywhere.dense(), devices.dense_type)
    sides = find_sides(item, facts, apart) if apart else everywhere
    if not sides.dense():
        return _refuse("dense tower", REASONS["no_dense"])
    done = spread(item, view, sides, devices, options.force_placement, apart)
    bodies = kept_in_bodies(item, options.force_placement)
    return PassOutcome(
        fired=done.placed + len(done.copies),
        refused=_left(view, sides, apart, devices, done.kept, bodies),
        notes=_notes(sides, done.copies),
        details={"placement": _details(view, sides, devices, done.copies, done.kept, apart)},
    )


def _refuse(what: str, reason: str) -> PassOutcome:
    return PassOutcome(refused=(Refused(what=what, reason=reason),))


def _left(
    view: GraphView,
    sides: Sides,
    apart: frozenset[str],
    devices: DeviceMap,
    kept: dict[str, str],
    bodies: list[tuple[str, str]],
) -> tuple[Refused, ...]:
    found = []
    if not sides.lookups:
        found.append(Refused(what="embedding layer", reason=REASONS["no_lookups"]))
    for name, device in sorted(kept.items()):
        reason = REASONS["kept"].format(device=device)
        found.append(Refused(what=f"node {name}", reason=reason, nodes=(name,)))
    for name, device in bodies:
        found.append(Refused(what=f"node {name}", reason=REASONS["in_function"].format(device=device)))
    for name in sorted(apart):
        op = view.node(name).op
        reason = REASONS["no_kernel"].format(type=devices.dense_type, op=op)
        found.append(Refused(what=f"node {name}", reason=reason, nodes=(name,)))
    return tuple(found)


def _notes(sides: Sides, copies: tuple[str, ...]) -> tuple[str, ...]:
    count = sum(side == SPARSE for side in sides.side.values())
    notes = [f"{count} operations on the sparse device, {len(sides.dense())} on the dense one"]
    if copies:
        notes.append(f"{len(copies)} constants and pieces of shape arithmetic are on both")
    return (*notes, *sides.why.values())


def _details(
    view: GraphView,
    sides: Sides,
    devices: DeviceMap,
    copies: tuple[str, ...],
    kept: dict[str, str],
    apart: frozenset[str],
) -> dict[str, Any]:
    return {
        "sparse": devices.sparse,
        "dense": devices.dense,
        "nodes": {side: sum(s == side for s in sides.side.values()) for side in (SPARSE, DENSE)},
        "on_both": list(copies),
        "kept": kept,
        "control_flow": list(sides.why.values()),
        "no_kernel": {name: view.node(name).op for name in sorted(apart)},
    }
