"""Values of shape arithmetic with the number of rows left open: what ``count`` tensors hold, as far as it is known."""

from __future__ import annotations

import numpy as np
from tensorflow.core.framework import node_def_pb2

from graph_opt.rows.dims import Dim, Dims, number, product
from graph_opt.rows.kinds import Kind, count
from graph_opt.rows.site import Site

Elements = list[Dim | None]


def sizes(site: Site, port: int) -> Kind:
    """Kind of an operation that reads nothing but counts and constants."""
    by_rows = any(k.name in ("count", "dshape") and k.by_rows for k in site.kinds)
    static = site.facts.shape(site.output(port))
    dims: Dims | None = None
    if static is not None:
        dims = tuple(
            Dim(symbols=(f"{site.output(port)}#{k}",)) if s is None else number(s) for k, s in enumerate(static)
        )
    value = None
    if port == 0 and (static is None or len(static) <= 1):
        try:
            value = _value(site)
        except (IndexError, ValueError, TypeError):
            value = None
    return count(None if value is None else tuple(value), dims, by_rows)


def _value(site: Site) -> Elements | None:
    op, node = site.node.op, site.node
    if op in ("Identity", "Cast", "Snapshot", "Reshape", "Squeeze", "ExpandDims", "StopGradient"):
        return _elements(site, 0)
    if op == "Pack":
        return _joined(site, len(site.kinds))
    if op == "ConcatV2":
        return _joined(site, len(site.kinds) - 1)
    if op == "Prod":
        data = _elements(site, 0)
        return None if data is None or None in data else [product(d for d in data if d is not None)]
    if op == "Mul":
        return _times(site)
    if op in ("FloorDiv", "RealDiv"):
        return _over(site)
    if op in ("GatherV2", "Gather"):
        data, picked = _elements(site, 0), site.facts.const(site.names[1])
        return None if data is None or picked is None else [data[int(k)] for k in picked.reshape(-1)]
    if op in ("Slice", "StridedSlice"):
        return _sliced(site, node)
    return None


def _elements(site: Site, index: int) -> Elements | None:
    return site.element_dims(index)


def _joined(site: Site, inputs: int) -> Elements | None:
    found: Elements = []
    for k in range(inputs):
        part = _elements(site, k)
        if part is None:
            size = site.facts.shape(site.names[k])
            if size is None or None in size:
                return None
            part = [None] * int(np.prod([s or 0 for s in size]))
        found += part
    return found


def _times(site: Site) -> Elements | None:
    a, b = _elements(site, 0), _elements(site, 1)
    if a is None or b is None:
        return None
    size = max(len(a), len(b))
    pairs = zip(a * (size // len(a)), b * (size // len(b)), strict=True)
    return [None if x is None or y is None else x * y for x, y in pairs]


def _over(site: Site) -> Elements | None:
    a, b = _elements(site, 0), _elements(site, 1)
    if a is None or b is None or len(a) != len(b):
        return None
    return [None if x is None or y is None else x.over(y) for x, y in zip(a, b, strict=True)]


def _sliced(site: Site, node: node_def_pb2.NodeDef) -> Elements | None:
    data = _elements(site, 0)
    begin, second = site.facts.const(site.names[1]), site.facts.const(site.names[2])
    if data is None or begin is None or second is None or begin.size != 1:
        return None
    first, last = int(begin.item()), int(second.item())
    if node.op == "Slice":
        return data[first:] if last == -1 else data[first : first + last]
    if node.attr["shrink_axis_mask"].i == 1:
        return [data[first]]
    if node.attr["new_axis_mask"].i or node.attr["ellipsis_mask"].i:
        return None
    step = site.facts.const(site.names[3])
    low = None if node.attr["begin_mask"].i & 1 else first
    high = None if node.attr["end_mask"].i & 1 else last
    return data[low : high : int(step.item()) if step is not None else 1]
