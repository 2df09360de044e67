"""Splitting rules of operations that work entry by entry."""

from __future__ import annotations

from collections.abc import Sequence

from graph_opt.rows.dims import ONE, number
from graph_opt.rows.elementwise import BINARY, UNARY
from graph_opt.split.site import SplitSite, rule
from graph_opt.split.views import View, full_view, mixed_view, sum_view
from graph_opt.split.worlds import ITEM, USER

_PASSING = ("Cast", "Identity", "IdentityN", "Snapshot", "StopGradient")
_ADDING = ("Add", "AddV2", "Sub", "AddN", "BiasAdd")


@rule(*(set(UNARY) | set(BINARY) | {"BiasAdd", "Sub", *_PASSING}))
def entries(site: SplitSite) -> Sequence[View] | View | None:
    """Unary ops, ops with constants and sums; products of both sides are left to item rows."""
    if site.node.op == "IdentityN":
        return [v.with_past("IdentityN") if v.split else _as_full(site, k) for k, v in enumerate(site.views)]
    if site.node.op in ("Identity", "Snapshot", "StopGradient"):
        return site.views[0]
    moving = [k for k, v in enumerate(site.views) if v.form not in ("shared",) and not site.kind(k).fixed]
    if len(moving) == 1:
        return _with_constants(site, moving[0])
    return _several(site, moving)


def _as_full(site: SplitSite, index: int) -> View:
    return full_view(site.worlds.full(site.names[index], site.node))


def _with_constants(site: SplitSite, index: int) -> View | None:
    """One mixed input, and constants that broadcast against it."""
    view = site.views[index]
    if view.form != "mixed" or site.kind(index).rank != site.out.rank:
        return None
    op = site.node.op
    if op == "Relu" and view.all_sum:
        return full_view(site.worlds.join(view, site.names[index], site.node, relu=True))
    if not view.sums:
        return _on_segments(site, index)
    if op in ("Neg", "Mul") or (op == "RealDiv" and index == 0):
        return _on_segments(site, index)  # linear: each part of a sum by itself
    return _add_constant(site, index) if op in _ADDING else None


def _on_segments(site: SplitSite, index: int) -> View | None:
    view = site.views[index]
    made = {}
    for world, tensor in ((USER, view.user), (ITEM, view.full)):
        inputs = []
        for k in range(len(site.names)):
            part = tensor if k == index else _part(site, k, view, world)
            if part is None:
                return None
            inputs.append(part)
        made[world] = site.copy(world, inputs)
    return mixed_view(made[USER], made[ITEM], view.axis, view.segments, site.past)


def _part(site: SplitSite, index: int, view: View, world: str) -> str | None:
    """The constant input ``index`` reduced to what the tensor of ``world`` needs of it along the view's axis."""
    rank = len(site.out.dims or ())
    dims = site.kind(index).dims
    if dims is None:
        return None
    axis = view.axis - (rank - len(dims))
    if axis < 0 or dims[axis] == ONE:
        return site.other(index, world)
    if dims[axis] != number(view.width) or site.views[index].form != "shared":
        return None
    return site.weights.take(site.names[index], view.columns(world), axis)


def _add_constant(site: SplitSite, index: int) -> View | None:
    """A constant added to a sum goes into its user part, which is the smaller one."""
    view = site.views[index]
    if not view.all_sum or len(site.names) != 2 or not _fits(site, 1 - index, index):
        return None
    inputs = [view.user if k == index else site.other(k, USER) for k in range(2)]
    full = view.full
    if site.node.op == "Sub" and index == 1:
        full = site.build.unary("Neg", full)
    return sum_view(site.copy(USER, inputs), full, view.axis, view.width, site.past)


def _fits(site: SplitSite, constant: int, index: int) -> bool:
    """Whether adding the input ``constant`` leaves the shape of input ``index`` as it is."""
    dims, wanted = site.kind(constant).dims, site.kind(index).dims
    if dims is None or wanted is None or len(dims) > len(wanted):
        return False
    return all(d in (ONE, w) for d, w in zip(reversed(dims), reversed(wanted), strict=False))


def _several(site: SplitSite, moving: Sequence[int]) -> View | None:
    """Two and more inputs with rows."""
    views = [site.views[k] for k in moving]
    if len(moving) != len(site.views):
        return None
    mixed = [v for v in views if v.form == "mixed"]
    same = len({(v.axis, v.segments) for v in mixed}) == 1 and len(mixed) == len(views)
    equal = len({site.dims(k) for k in moving}) == 1
    if same and equal and (not mixed[0].sums or site.node.op in _ADDING):
        user = site.copy(USER, [v.user for v in views])
        full = site.copy(ITEM, [v.full for v in views])
        return mixed_view(user, full, mixed[0].axis, mixed[0].segments, site.past)
    if site.node.op not in _ADDING or not equal or site.dims(moving[0]) != site.out.dims:
        return None
    if not site.facts.dtype(site.names[0]).is_floating or any(v.form == "mixed" and not v.all_sum for v in views):
        return None
    views = [_user_of_dual(site, k) if v.form == "dual" else v for k, v in zip(moving, views, strict=True)]
    user = _added(site, [v.user for v in views], USER)
    full = _added(site, [v.full for v in views], ITEM)
    dims = site.out.dims or ()
    return sum_view(user, full, len(dims) - 1, dims[-1].coef, site.past)


def _user_of_dual(site: SplitSite, index: int) -> View:
    return View("user", user=site.worlds.user(site.names[index]))


def _added(site: SplitSite, tensors: Sequence[str], world: str) -> str:
    """The sum (or difference) of the parts that one side has; "" stands for a part that it has not."""
    there = [t for t in tensors if t]
    if len(there) == len(tensors):
        return site.copy(world, there)
    if site.node.op == "Sub":
        return there[0] if tensors[0] else site.build.unary("Neg", there[0])
    total = there[0]
    for tensor in there[1:]:
        total = site.build.binary("AddV2", total, tensor)
    return total
