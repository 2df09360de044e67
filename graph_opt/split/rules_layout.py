"""Splitting rules of operations that join, slice, reshape and reduce."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graph_opt.rows.dims import ONE, Dim, Dims, product
from graph_opt.split.site import SplitSite, rule
from graph_opt.split.views import Segment, View, full_view, mixed_view, sum_view, user_view
from graph_opt.split.worlds import ITEM, USER


@rule("ConcatV2")
def _concat(site: SplitSite) -> View | None:
    """User parts side by side, item parts side by side; where they lie in the whole is remembered."""
    count = len(site.names) - 1
    value = site.const(count)
    rank = site.kind(0).rank
    if value is None or rank is None:
        return None
    axis = int(value) % rank
    parts: dict[str, list[str]] = {USER: [], ITEM: []}
    segments: list[Segment] = []
    for k in range(count):
        view = _along_axis(site, k, axis)
        if view is None:
            return None
        if view.user:
            parts[USER].append(view.user)
        if view.full:
            parts[ITEM].append(view.full)
        segments += view.segments
    if not all(parts.values()):
        return None  # user rows lie along other axes: they have been repeated
    user, full = (site.build.concat(parts[world], axis) for world in (USER, ITEM))
    return mixed_view(user, full, axis, segments, site.past)


def _along_axis(site: SplitSite, index: int, axis: int) -> View | None:
    """Input ``index`` as a view with segments along ``axis``."""
    view = site.views[index]
    dim = site.dims(index)[axis]
    if not dim.known:
        return None
    if view.form == "mixed" and (view.axis == axis or view.all_sum):
        return View("mixed", view.user, view.full, axis, view.segments if view.axis == axis else _sum_of(dim))
    if view.form in ("user", "dual"):
        return View("mixed", user=site.worlds.user(site.names[index]), segments=(Segment(dim.coef, "user"),))
    return View("mixed", full=site.worlds.full(site.names[index], site.node), segments=(Segment(dim.coef, "item"),))


def _sum_of(dim: Dim) -> tuple[Segment, ...]:
    return (Segment(dim.coef, "both"),)


@rule("Pack")
def _pack(site: SplitSite) -> View | None:
    axis = site.node.attr["axis"].i % len(site.out.dims or (0,))
    if not any(v.form in ("user", "dual") for v in site.views):
        return None  # all have item rows already
    parts: dict[str, list[str]] = {USER: [], ITEM: []}
    segments = []
    for k, view in enumerate(site.views):
        side = USER if view.form in ("user", "dual") else ITEM
        parts[side].append(site.other(k, side))
        segments.append(Segment(1, side))
    user, full = (site.build.pack(parts[world], axis) for world in (USER, ITEM))
    return mixed_view(user, full, axis, segments, site.past)


@rule("Sum", "Mean", "Max", "Min", "Prod", "All", "Any")
def _reduce(site: SplitSite) -> View | None:
    view = site.views[0]
    value = site.const(1)
    if view.form != "mixed" or value is None:
        return None
    if site.node.op == "Mean" and not site.facts.dtype(site.names[0]).is_floating:
        return None  # rounds, so it is not linear
    rank = len(site.dims(0))
    axes = {int(a) % rank for a in value.reshape(-1)}
    keep = site.node.attr["keep_dims"].b
    linear = site.node.op in ("Sum", "Mean")
    if view.axis in axes and not view.all_sum:
        return _over_segments(site, view) if linear else None
    if view.sums and not linear:
        return None
    axis = view.axis if keep else view.axis - sum(a < view.axis for a in axes)
    if view.all_sum:
        dims = site.out.dims or (ONE,)
        made = site.both(0, lambda t, world: site.copy(world, [t, site.names[1]]), 1, view.segments)
        return sum_view(made.user, made.full, len(dims) - 1, dims[-1].coef, site.past)
    return site.both(0, lambda t, world: site.copy(world, [t, site.names[1]]), axis, view.segments)


def _over_segments(site: SplitSite, view: View) -> View:
    """The sum over both sides' entries (of a mean: the sum of each side, divided by the number of all)."""

    def part(tensor: str, world: str) -> str:
        made = site.copy(world, [tensor, site.names[1]])
        if site.node.op != "Mean":
            return made
        share = np.asarray(len(view.columns(world)) / view.width)
        dtype = site.facts.dtype(site.names[0]).as_numpy_dtype
        return site.build.binary("Mul", made, site.build.constant(share, dtype))

    dims = site.out.dims or (ONE,)
    return sum_view(part(view.user, USER), part(view.full, ITEM), len(dims) - 1, dims[-1].coef, site.past)


@rule("Reshape")
def _reshape(site: SplitSite) -> View | None:
    view = site.views[0]
    source, target = site.kind(0).dims, site.out.dims
    if view.form != "mixed" or source is None or target is None:
        return None
    if view.all_sum:
        parts = [_reshaped(site, t, world, None, 0) for world, t in ((USER, view.user), (ITEM, view.full))]
        if not all(parts):
            return None
        return sum_view(parts[0] or "", parts[1] or "", len(target) - 1, target[-1].coef, site.past)
    moved = _moved_axis(source, target, view)
    if moved is None:
        return None
    axis, segments = moved
    width = {w: sum(s.width for s in segments if s.side in (w, "both")) for w in (USER, ITEM)}
    made = [_reshaped(site, t, world, axis, width[world]) for world, t in ((USER, view.user), (ITEM, view.full))]
    return mixed_view(made[0], made[1], axis, segments, site.past) if made[0] and made[1] else None


def _moved_axis(source: Dims, target: Dims, view: View) -> tuple[int, list[Segment]] | None:
    """The axis of the result that the view's segments lie on, where one keeps them whole."""
    before = product(source[: view.axis])
    inner = product(source[view.axis + 1 :])
    for axis in range(len(target)):
        if product(target[:axis]) != before:
            continue
        unit = product(target[axis + 1 :])
        if not unit.known or not inner.known or unit.coef == 0 or axis == 0:
            continue
        widths = [s.width * inner.coef for s in view.segments]
        if all(w % unit.coef == 0 for w in widths):
            return axis, [Segment(w // unit.coef, s.side) for w, s in zip(widths, view.segments, strict=True)]
    return None


def _reshaped(site: SplitSite, tensor: str, world: str, axis: int | None, width: int) -> str | None:
    """One side's tensor in the new shape, of which ``axis`` is only ``width`` long."""
    dims = site.out.dims or ()
    sizes: list[int | None] = [width if k == axis else dim.coef if dim.known else None for k, dim in enumerate(dims)]
    if sizes.count(None) == 1:
        return site.build.reshape(tensor, site.build.constant([-1 if s is None else s for s in sizes]))
    if site.views[1].form not in ("dual", "shared"):
        return None
    shape = site.other(1, world)
    if axis is not None:
        dtype = site.facts.dtype(site.names[1]).as_numpy_dtype
        parts = [site.build.slice(shape, 1, 0, 0, axis)] if axis else []
        parts.append(site.build.constant([width], dtype))
        if axis + 1 < len(dims):
            parts.append(site.build.slice(shape, 1, 0, axis + 1, -1))
        shape = site.build.concat(parts, 0)
    return site.build.reshape(tensor, shape)


@rule("ExpandDims", "Squeeze", "Transpose")
def _move(site: SplitSite) -> View | None:
    view = site.views[0]
    if view.form != "mixed":
        return None
    rank = len(site.dims(0))
    axis: int | None
    if site.node.op == "Squeeze":
        axes = [a % rank for a in site.node.attr["squeeze_dims"].list.i]
        axis = None if view.axis in axes and not view.all_sum else view.axis - sum(a < view.axis for a in axes)
    else:
        value = site.const(1)
        if value is None:
            return None
        if site.node.op == "ExpandDims":
            place = int(value.reshape(-1)[0]) % (rank + 1)
            axis = view.axis + (place <= view.axis)
        else:
            axis = [int(k) for k in value].index(view.axis)
    if axis is None:
        return None
    dims = site.out.dims or (ONE,)
    made = site.both(0, lambda t, world: site.copy(world, [t, *site.names[1:]]), axis, view.segments)
    if view.all_sum:
        return sum_view(made.user, made.full, len(dims) - 1, dims[-1].coef, site.past)
    return made


@rule("Tile")
def _tile(site: SplitSite) -> View | None:
    view = site.views[0]
    times = site.rows.kind(site.names[1])
    value = site.const(1)
    if view.form != "mixed" or (value is None and not view.all_sum):
        return None
    if value is not None and int(value[view.axis]) != 1 and not view.all_sum:
        return None
    if not times.fixed:
        return None
    made = site.both(0, lambda t, world: site.copy(world, [t, site.other(1, world)]), view.axis, view.segments)
    if view.all_sum:
        dims = site.out.dims or (ONE,)
        return sum_view(made.user, made.full, len(dims) - 1, dims[-1].coef, site.past)
    return made


@rule("Split", "SplitV", "Unpack")
def _split(site: SplitSite) -> Sequence[View] | None:
    data, axis_input = (1, 0) if site.node.op == "Split" else (0, 2)
    view = site.views[data]
    rank = len(site.dims(data))
    if view.form != "mixed":
        return None
    if site.node.op == "Unpack":
        axis, count = site.node.attr["axis"].i % rank, site.node.attr["num"].i
        sizes = [1] * count
    else:
        value = site.const(axis_input)
        if value is None:
            return None
        axis, count = int(value) % rank, site.node.attr["num_split"].i
        known = [self_dims[axis] for k in range(count) if (self_dims := site.rows.kind(f"{site.node.name}:{k}").dims)]
        if len(known) != count or not all(d.known for d in known):
            return None
        sizes = [d.coef for d in known]
    if axis != view.axis or view.all_sum:
        return None
    found, start = [], 0
    for size in sizes:
        if not size:
            return None
        piece = _taken(site, view, rank, start, size)
        found.append(_unpacked(site, piece, axis) if site.node.op == "Unpack" else piece)
        start += size
    return found


def _unpacked(site: SplitSite, view: View, axis: int) -> View:
    """A view of width 1 without its axis."""

    def squeeze(tensor: str) -> str:
        return site.build.op("Squeeze", [tensor], T=("type", site.build.dtype(tensor)), squeeze_dims=[axis])

    if view.form == "user":
        return user_view(squeeze(view.user), view.past)
    if view.form == "full":
        return full_view(squeeze(view.full))
    dims = site.out.dims or (ONE,)
    return sum_view(squeeze(view.user), squeeze(view.full), len(dims) - 1, dims[-1].coef, view.past)


def _taken(site: SplitSite, view: View, rank: int, start: int, size: int) -> View:
    """Entries [start, start + size) along the view's axis."""
    segments: list[Segment] = []
    first: dict[str, int] = {}
    width = {USER: 0, ITEM: 0}
    seen = {USER: 0, ITEM: 0}
    place = 0
    for segment in view.segments:
        low, high = max(start, place), min(start + size, place + segment.width)
        if low < high:
            segments.append(Segment(high - low, segment.side))
        for world in (USER, ITEM):
            if segment.side in (world, "both"):
                if low < high:
                    first.setdefault(world, seen[world] + low - place)
                    width[world] += high - low
                seen[world] += segment.width
        place += segment.width
    tensors = {USER: view.user, ITEM: view.full}
    made = {
        world: site.build.slice(tensors[world], rank, view.axis, first[world], width[world]) if world in first else ""
        for world in (USER, ITEM)
    }
    return mixed_view(made[USER], made[ITEM], view.axis, segments, site.past)


@rule("StridedSlice", "Slice")
def _slice(site: SplitSite) -> View | None:
    """A range of the view's axis; slices of other axes are taken of both sides."""
    view = site.views[0]
    rank = len(site.dims(0))
    begin, end = site.const(1), site.const(2)
    if view.form != "mixed" or begin is None or end is None or len(begin) != rank:
        return None
    attr = site.node.attr
    if site.node.op == "Slice":
        others = all(begin[k] == 0 and end[k] == -1 for k in range(rank) if k != view.axis)
        size = int(end[view.axis]) if int(end[view.axis]) >= 0 else view.width - int(begin[view.axis])
        fits = others and size > 0 and not view.all_sum
        return _taken(site, view, rank, int(begin[view.axis]), size) if fits else None
    masks = [attr[m].i for m in ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")]
    steps = site.const(3)
    if any(masks) or steps is None or any(int(s) != 1 for s in steps) or view.all_sum:
        return None
    for k in range(rank):
        if k != view.axis and not (attr["begin_mask"].i >> k & 1 and attr["end_mask"].i >> k & 1):
            return None
    low = 0 if attr["begin_mask"].i >> view.axis & 1 else int(begin[view.axis])
    high = view.width if attr["end_mask"].i >> view.axis & 1 else int(end[view.axis])
    low, high = (v + view.width if v < 0 else min(v, view.width) for v in (low, high))
    return _taken(site, view, rank, low, high - low) if low < high else None
