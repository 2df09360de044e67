"""Everything that crosses between the devices in one direction crosses as one packed tensor.

Every transfer to a GPU has a fixed cost, however small it is. Lookup results, masks, dense inputs and (in a
split form) the users' tensors become one tensor of 32-bit words; the batch size is read off its shape. Outputs come
back as one tensor as well. What can't be packed crosses by itself, and the report says why.
"""

from __future__ import annotations

from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.placement.crossings import Crossings
from graph_opt.placement.devices import device_map
from graph_opt.placement.merging import Merger, Plan, plan_to_dense, plan_to_sparse, settle
from graph_opt.placement.reasons import REASONS as APART_REASONS
from graph_opt.placement.rows import RowsOfForms
from graph_opt.placement.waits import move_waits
from graph_opt.recognise.facts import Facts
from graph_opt.report import PassOutcome, Refused
from graph_opt.view import GraphView

APART = "crosses by itself: {reason}"
OPTIONS = ("--device-map sparse=DEVICE,dense=DEVICE: the two devices; without it nothing crosses",)
REASONS = {
    "no_map": "no devices were given (--device-map sparse=DEVICE,dense=DEVICE)",
    "one_device": "sparse and dense are one device ({device}): nothing crosses",
    "nothing_there": "nothing is on {device}: place_devices put nothing there",
    "nothing": "nothing crosses between the devices",
    "alone": "crosses alone: there is nothing to pack it with",
    "control": "waits for {node} on the other device, and nothing that crosses can wait in its place",
    **{f"apart_{key}": APART.format(reason=text) for key, text in APART_REASONS.items()},
}
EXAMPLE = """\
before  rows, mask, dense: three tensors from /device:CPU:0 to /device:GPU:0
after   TfctrPackRows(rows, mask, dense) @ CPU -> one tensor -> slices, reshapes and bitcasts @ GPU
"""


def merge_transfers(item: GraphItem, options: ConvertOptions) -> PassOutcome:
    """See the module docstring. ``details["transfers"]``: one entry per group of tensors that cross together."""
    devices = device_map(options.device_map)
    if devices is None:
        return _refuse(REASONS["no_map"])
    if devices.one_device:
        return _refuse(REASONS["one_device"].format(device=devices.sparse))
    view = GraphView(item.graph_def)
    crossings = Crossings(item, view, devices.sparse, devices.dense)
    if devices.dense not in crossings.device.values():
        return _refuse(REASONS["nothing_there"].format(device=devices.dense))
    facts = Facts(view)
    rows = RowsOfForms(item, facts)
    plans = [plan_to_dense(group, rows, facts) for group in crossings.to_dense()]
    plans += [plan_to_sparse(group, rows, facts, crossings) for group in crossings.to_sparse()]
    settle(plans)
    if not plans:
        return _refuse(REASONS["nothing"])
    merger = Merger(view, crossings)
    merged = sum(merger.apply(plan) for plan in plans)
    moved, left = move_waits(item, view, crossings)
    return PassOutcome(
        fired=merged + moved,
        refused=(*_left(plans), *(_waits(source, name) for source, name in left)),
        notes=tuple(_note(plan) for plan in plans if plan.packs),
        details={"transfers": [plan.describe() for plan in plans], "waits_left": [list(pair) for pair in left]},
    )


def _refuse(reason: str) -> PassOutcome:
    return PassOutcome(refused=(Refused(what="transfers", reason=reason),))


def _left(plans: list[Plan]) -> list[Refused]:
    found = []
    for plan in plans:
        found += [
            Refused(what=f"tensor {tensor}", reason=APART.format(reason=reason), nodes=(tensor,))
            for tensor, reason in plan.apart.items()
        ]
    alone = [part.tensor for plan in plans if not plan.packs for part in plan.parts]
    if alone:
        more = f" and {len(alone) - 1} more" if len(alone) > 1 else ""
        found.append(Refused(what=f"tensor {alone[0]}{more}", reason=REASONS["alone"], nodes=tuple(alone)))
    return found


def _waits(source: str, name: str) -> Refused:
    return Refused(
        what=f"node {name}",
        reason=REASONS["control"].format(node=source),
        nodes=(name, source),
    )


def _note(plan: Plan) -> str:
    count = len(plan.parts)
    where = "dense" if plan.to_dense else "sparse"
    return f"{count} tensors cross to the {where} device as one ({', '.join(sorted(plan.group.signatures))})"
