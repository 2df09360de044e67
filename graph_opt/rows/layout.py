"""Rules of operations that move, slice, join and reduce within rows."""

from __future__ import annotations

import numpy as np

from graph_opt.rows.dims import ONE, ROWS, Dim, Dims, number, of_tensor, reshaped
from graph_opt.rows.kinds import Kind, row
from graph_opt.rows.site import Mixes, Site, rule


@rule("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm")
def _reduce(site: Site) -> Kind:
    x = site.row()
    axes = site.not_rows(site.const(1).reshape(-1), site.rank())
    keep = site.node.attr["keep_dims"].b
    dims = [ONE if k in axes and keep else d for k, d in enumerate(x.dims or ()) if keep or k not in axes]
    return site.made(dims=tuple(dims), like=x)


@rule("ArgMax", "ArgMin", "Cumsum", "Cumprod", "ReverseV2")
def _along_axes(site: Site) -> Kind:
    site.not_rows(site.const(1).reshape(-1), site.rank())
    kept = site.node.op in ("Cumsum", "Cumprod", "ReverseV2")
    return site.made(dims=site.row().dims if kept else None, like=site.row())


@rule("TopK", "TopKV2")
def _top(site: Site) -> list[Kind]:
    site.require(site.rank() >= 2, "it works across rows")
    return [site.made(port, like=site.row()) for port in range(2)]


@rule("ConcatV2")
def _concat(site: Site) -> Kind:
    count = len(site.kinds) - 1
    rank = site.rank(0)
    (axis,) = site.not_rows(site.const(count).reshape(-1), rank)
    for k in range(count):
        site.require(site.row(k).rank == rank and _same_rows(site, k), "it joins tensors whose row axes differ")
    dims = list(site.kinds[0].dims or ())
    for k, size in enumerate(dims):
        if k != axis and not size.known:
            dims[k] = next((d for i in range(count) if (d := (site.kinds[i].dims or ())[k]).known), size)
    dims[axis] = _sum([(site.kinds[k].dims or ())[axis] for k in range(count)], site.output(), axis)
    return site.made(dims=tuple(dims), like=site.row(0))


def _sum(sizes: list[Dim], output: str, axis: int) -> Dim:
    if all(s.known for s in sizes):
        return number(sum(s.coef for s in sizes))
    return Dim(symbols=(f"{output}#{axis}",))


def _same_rows(site: Site, index: int) -> bool:
    first, other = site.kinds[0].dims, site.kinds[index].dims
    return bool(first) and bool(other) and first[0] == other[0]  # type: ignore[index]


@rule("Pack")
def _pack(site: Site) -> Kind:
    rank = site.rank(0)
    axis = site.node.attr["axis"].i % (rank + 1)
    site.require(axis != 0, "it stacks rows on rows")
    for k in range(len(site.kinds)):
        site.require(site.row(k).rank == rank and _same_rows(site, k), "it stacks tensors whose row axes differ")
    dims = list(site.kinds[0].dims or ())
    return site.made(dims=(*dims[:axis], number(len(site.kinds)), *dims[axis:]), like=site.row(0))


@rule("Unpack")
def _unpack(site: Site) -> list[Kind]:
    (axis,) = site.not_rows([site.node.attr["axis"].i], site.rank())
    dims = [d for k, d in enumerate(site.row().dims or ()) if k != axis]
    return [site.made(port, tuple(dims), like=site.row()) for port in range(site.node.attr["num"].i)]


@rule("Split", "SplitV")
def _split(site: Site) -> list[Kind]:
    data, axis_input = (1, 0) if site.node.op == "Split" else (0, 2)
    site.not_rows(site.const(axis_input).reshape(-1), site.rank(data))
    return [site.made(port, like=site.row(data)) for port in range(site.node.attr["num_split"].i)]


@rule("Slice")
def _slice(site: Site) -> Kind:
    x = site.row()
    begin, size = site.element_dims(1), site.element_dims(2)
    site.require(begin is not None and size is not None and begin[0] == Dim(0), "it takes some of the rows")
    assert size is not None and x.dims is not None
    site.require(size[0] in (Dim(-1), x.dims[0]), "it takes some of the rows")
    return site.made(like=x)


@rule("StridedSlice")
def _strided_slice(site: Site) -> Kind:
    """Row slices leave the first axis alone: ``x[:, ...]`` or ``x[..., k]``."""
    attr = site.node.attr
    first = site.kinds[0]
    if first.name == "splits":
        return _lengths_side(site, first)
    x = site.row()
    if attr["ellipsis_mask"].i & 1:
        terms = len(site.const(1).reshape(-1)) - 1
        made = bin(attr["new_axis_mask"].i >> 1).count("1")
        site.require(site.rank() > terms - made, "it takes some of the rows")
        return site.made(like=x)
    whole = attr["begin_mask"].i & 1 and attr["end_mask"].i & 1
    if not whole and not (attr["begin_mask"].i & 1):
        begin = site.facts.const(site.names[1])
        whole = bool(begin is not None and begin.reshape(-1)[0] == 0 and attr["end_mask"].i & 1)
    if not whole:
        end = site.element_dims(2)
        begin = site.facts.const(site.names[1])
        starts = attr["begin_mask"].i & 1 or (begin is not None and begin.reshape(-1)[0] == 0)
        whole = bool(starts and end and x.dims and end[0] == x.dims[0])
    strides = site.const(3).reshape(-1)
    taken = (attr["new_axis_mask"].i | attr["shrink_axis_mask"].i) & 1
    site.require(bool(whole) and not taken and strides[0] == 1, "it takes some of the rows")
    return site.made(like=x)


def _lengths_side(site: Site, splits: Kind) -> Kind:
    """splits[1:] and splits[:-1], whose difference is the number of values of each row."""
    attr = site.node.attr
    begin, end = site.const(1).reshape(-1), site.const(2).reshape(-1)
    upper = len(begin) == 1 and begin[0] == 1 and attr["end_mask"].i == 1 and not attr["begin_mask"].i
    lower = len(begin) == 1 and end[0] == -1 and not attr["end_mask"].i and (attr["begin_mask"].i == 1 or not begin[0])
    site.require((upper or lower) and not attr["shrink_axis_mask"].i, "it takes some of the rows")
    return Kind("limits", sources=splits.sources, feature=splits.feature, op="upper" if upper else "lower")


@rule("ExpandDims")
def _expand(site: Site) -> Kind:
    x = site.row()
    rank = site.rank()
    axis = int(site.const(1).reshape(-1)[0]) % (rank + 1)
    site.require(axis != 0, "it puts an axis before the rows")
    dims = list(x.dims or ())
    return site.made(dims=(*dims[:axis], ONE, *dims[axis:]), like=x)


@rule("Squeeze")
def _squeeze(site: Site) -> Kind:
    x = site.row()
    axes = list(site.node.attr["squeeze_dims"].list.i)
    site.require(bool(axes), "it drops whichever axes have size 1, the rows of one-row batches too")
    axes = site.not_rows(axes, site.rank())
    return site.made(dims=tuple(d for k, d in enumerate(x.dims or ()) if k not in axes), like=x)


@rule("Reshape")
def _reshape(site: Site) -> Kind:
    x = site.kinds[0]
    site.require(x.dims is not None, "the rank is not known")
    assert x.dims is not None
    target = site.element_dims(1)
    if target is None:
        raise Mixes("the new shape is not known")
    dims = reshaped(x.dims, target)
    if x.name == "values":
        site.require(len(target) == 1 and (target[0] == Dim(-1)), "it reshapes the values of a feature")
        return x
    site.row()
    if dims is None and x.has_rows and target[0] in (ROWS, x.dims[0]):
        # Axis 0 stays as it is, so what happens behind it happens within rows.
        rest = of_tensor(site.output(), [None] * len(target))
        dims = (ROWS, *(rest[k] if t is None or t == Dim(-1) else t for k, t in enumerate(target) if k))
    site.require(dims is not None and len(dims) > 0, "it is not known to keep rows")
    assert dims is not None
    keeps = dims[0].over(ROWS) is not None and dims[0].rows == 1
    site.require(keeps and all(d.rows == 0 for d in dims[1:]), "it puts several rows into one")
    return row(_static(site, dims), site.sources)


def _static(site: Site, dims: Dims) -> Dims:
    static = site.facts.shape(site.output())
    if static is None or len(static) != len(dims):
        return dims
    return (dims[0], *(d if s is None else number(s) for d, s in zip(dims[1:], static[1:], strict=True)))


@rule("Transpose")
def _transpose(site: Site) -> Kind:
    x = site.row()
    order = [int(k) for k in site.const(1).reshape(-1)]
    site.require(bool(order) and order[0] == 0, "it moves the row axis")
    return site.made(dims=tuple((x.dims or ())[k] for k in order), like=x)


@rule("Tile")
def _tile(site: Site) -> Kind:
    times = site.element_dims(1)
    if site.kinds[0].name != "row":
        return repeated(site)
    x = site.row()
    site.require(times is not None and times[0] == ONE, "it repeats rows")
    assert times is not None and x.dims is not None
    fresh = of_tensor(site.output(), [None] * len(times), x.dims[0])
    dims = [fresh[k] if t is None else d * t for k, (d, t) in enumerate(zip(x.dims, times, strict=True))]
    return site.made(dims=tuple(dims), like=x)


def repeated(site: Site) -> Kind:
    """A constant tiled to one row per row of the batch."""
    times = site.element_dims(1)
    shape = site.facts.shape(site.names[0])
    site.require(site.kinds[0].fixed and shape is not None and bool(shape) and shape[0] == 1, "it repeats rows")
    site.require(times is not None and times[0] == ROWS, "the number of repeats is not the number of rows")
    return site.made()


@rule("Fill", "BroadcastTo")
def _fill(site: Site) -> Kind:
    to, value = (0, 1) if site.node.op == "Fill" else (1, 0)
    target = site.element_dims(to)
    site.require(target is not None and len(target) > 0, "the new shape is not known")
    assert target is not None
    rank = len(target)
    if site.kinds[value].name == "row":
        site.require(site.rank(value) == rank and target[0] == (site.kinds[value].dims or ())[0], "it repeats rows")
        like: Kind | None = site.kinds[value]
    else:
        shape = site.facts.shape(site.names[value])
        fits = shape is not None and (len(shape) < rank or shape[0] == 1)
        site.require(site.kinds[value].fixed and fits and target[0] == ROWS, "the new shape is not one of rows")
        like = None
    fresh = of_tensor(site.output(), [None] * rank, ROWS)
    dims = tuple(fresh[k] if d is None else d for k, d in enumerate(target))
    return site.made(dims=dims, like=like)


@rule("Pad", "PadV2", "MirrorPad")
def _pad(site: Site) -> Kind:
    site.require(not np.any(site.const(1)[0]), "it adds rows")
    site.require(all(k.fixed for k in site.kinds[1:]), "the padding depends on the batch")
    return site.made(like=site.row())


@rule("GatherV2", "ResourceGather")
def _gather(site: Site) -> Kind:
    params, indices = site.kinds[0], site.kinds[1]
    batch_dims = site.node.attr["batch_dims"].i
    axis = int(site.const(2)) if site.node.op == "GatherV2" else 0
    if params.fixed and indices.name in ("row", "values"):
        site.require(axis == 0 and batch_dims == 0, "it gathers on another axis than the table's rows")
        if indices.name == "values":
            return Kind("values", sources=indices.sources, feature=indices.feature)
        tail = _table_shape(site)
        site.require(tail is not None, "the rank of the table is not known")
        dims = (indices.dims or ()) + of_tensor(site.names[0], tail or [])[1:]
        return site.made(dims=dims, like=indices)
    x = site.row()
    rank = site.rank()
    axis %= rank
    site.require(axis != 0, "it picks rows of the batch")
    if indices.fixed:
        site.require(batch_dims == 0, "it picks rows of the batch")
    else:
        site.require(batch_dims % rank >= 1 and site.row(1).dims is not None, "it picks rows of the batch")
    return site.made(like=x)


def _table_shape(site: Site) -> list[int | None] | None:
    """Of the tensor that is gathered from; of a variable's handle (itself a scalar) what its node says."""
    if site.node.op == "GatherV2":
        return site.facts.shape(site.names[0])
    handle = site.facts.view.producer(site.names[0])
    shape = handle.attr["shape"].shape
    if handle.op != "VarHandleOp" or shape.unknown_rank:
        return None
    return [None if dim.size < 0 else dim.size for dim in shape.dim]


@rule("TfctrHashLookup")
def _hash_lookup(site: Site) -> Kind:
    keys = site.kinds[1]
    site.require(keys.name in ("row", "values"), "its keys are no rows")
    if keys.name == "values":
        return Kind("values", sources=keys.sources, feature=keys.feature)
    site.require(keys.dims is not None, "the rank of its keys is not known")
    return site.made(dims=(*(keys.dims or ()), number(site.node.attr["dim"].i)), like=keys)


@rule("OneHot")
def _one_hot(site: Site) -> Kind:
    site.require(all(k.fixed for k in site.kinds[1:]), "its depth depends on the batch")
    axis = site.node.attr["axis"].i
    site.require(axis != 0 and site.rank() >= 1, "it puts an axis before the rows")
    return site.made(like=site.row())
