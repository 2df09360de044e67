"""Splitting rules of matrix products: the user's entries are multiplied once per user.

x W with x = [user entries | item entries] is x_user W_user + x_item W_item, W_user being the rows of W that meet user
entries. This is where nearly all of the gain lies.
"""

from __future__ import annotations

from graph_opt.split.flops import flops_of
from graph_opt.split.site import SplitSite, rule
from graph_opt.split.views import View, mixed_view, sum_view
from graph_opt.split.worlds import ITEM, USER


@rule("MatMul")
def _matmul(site: SplitSite) -> View | None:
    if site.views[0].form != "mixed" or site.views[1].form != "shared":
        return None
    return _contract(site, {1: 1 if site.node.attr["transpose_b"].b else 0})


@rule("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _batch_matmul(site: SplitSite) -> View | None:
    view = site.views[0]
    shape = site.facts.shape(site.names[1])
    if view.form != "mixed" or site.views[1].form != "shared" or not shape or site.node.attr["adj_x"].b:
        return None
    rank = len(site.dims(0))
    if any(size != 1 for size in shape[:-2]) or len(shape) > rank:
        return None
    if view.axis == rank - 1 or view.all_sum:
        return _contract(site, {1: len(shape) - (1 if site.node.attr["adj_y"].b else 2)})
    return _along(site, {}, view.axis)


@rule("Einsum")
def _einsum(site: SplitSite) -> View | None:
    moving = [k for k, v in enumerate(site.views) if v.form != "shared"]
    if len(moving) != 1 or site.views[moving[0]].form != "mixed":
        return None
    (index,) = moving
    view = site.views[index]
    left, _, output = site.node.attr["equation"].s.decode().replace(" ", "").partition("->")
    terms = left.split(",")
    letter = terms[index][view.axis]
    if any(term.count(letter) > 1 for term in terms):
        return None
    axes = {k: term.index(letter) for k, term in enumerate(terms) if k != index and letter in term}
    if letter in output:
        return _along(site, axes, output.index(letter), index)
    return _contract(site, axes, index)


def _contract(site: SplitSite, axes: dict[int, int], index: int = 0) -> View | None:
    """The view's axis is summed over. axes: constant input -> its axis that meets the view's."""
    made = _parts(site, axes, index)
    dims = site.out.dims
    if made is None or not dims:
        return None
    return sum_view(*made, len(dims) - 1, dims[-1].coef, site.past)


def _along(site: SplitSite, axes: dict[int, int], out_axis: int, index: int = 0) -> View | None:
    """The view's axis goes through the product as it is."""
    if site.views[index].sums and axes:
        return None
    made = _parts(site, axes, index)
    view = site.views[index]
    return None if made is None else mixed_view(*made, out_axis, view.segments, site.past)


def _parts(site: SplitSite, axes: dict[int, int], index: int) -> tuple[str, str] | None:
    view = site.views[index]
    rank = len(site.dims(index))
    if not axes and view.axis == rank - 1 and not view.all_sum and site.node.op != "Einsum":
        return None
    whole = flops_of(site.node, site.rows)
    made = []
    for world, tensor in ((USER, view.user), (ITEM, view.full)):
        columns = view.columns(world)
        inputs = [
            tensor
            if k == index
            else site.weights.take(site.names[k], columns, axes[k])
            if k in axes and not view.all_sum
            else site.other(k, world)
            for k in range(len(site.names))
        ]
        made.append(site.copy(world, inputs))
        share = 1.0 if view.all_sum or not view.width else len(columns) / view.width
        site.flops.add(world, whole * share)
    return made[0], made[1]
