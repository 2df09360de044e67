"""Rules of the parts of sparse and ragged features, of shapes, and of fused lookups."""

from __future__ import annotations

from collections.abc import Mapping

from graph_opt.item import FusedGroup
from graph_opt.lookup_spec import LookupSpec
from graph_opt.rows.dims import ONE, ROWS, Dim, Dims, number, of_tensor, product
from graph_opt.rows.elementwise import combine
from graph_opt.rows.kinds import Kind, count, row
from graph_opt.rows.site import Mixes, Site, rule


@rule("Shape", "Size", "Rank", "ShapeN")
def _shape(site: Site) -> list[Kind]:
    return [_shape_of(site, k) for k in range(len(site.kinds))]


def _shape_of(site: Site, index: int) -> Kind:
    kind = site.kinds[index]
    if site.node.op == "Rank":
        return count(None, (), by_rows=False)
    if kind.name == "row" and kind.dims is not None:
        if site.node.op == "Size":
            return count((product(kind.dims),), (), by_rows=True)
        return count(kind.dims, (number(len(kind.dims)),), by_rows=True)
    if kind.fixed or kind.dual:
        return count(None, None, by_rows=not kind.fixed)
    if kind.name == "splits" and site.node.op == "Size":
        raise Mixes("it counts the row splits")
    raise Mixes("it reads the size of something whose rows are not known")


@rule("Sub")
def _row_lengths(site: Site) -> Kind:
    """splits[1:] - splits[:-1] are the lengths of the rows; everything else is plain subtraction."""
    a, b = site.kinds
    if a.name == "limits" or b.name == "limits":
        site.require(
            (a.name, a.op, b.name, b.op) == ("limits", "upper", "limits", "lower") and a.feature == b.feature,
            "it computes with row splits",
        )
        return row((ROWS,), site.sources)
    return combine(site, [0, 1])


@rule("Cast", "Identity", "IdentityN", "Snapshot", "StopGradient")
def _passing(site: Site) -> list[Kind]:
    return site.kinds


def lookup_kinds(site: Site, group: FusedGroup) -> list[Kind]:
    """Kinds of a fused lookup's outputs: rows where every lookup and copy in the output has clean streams."""
    by_name = argument_kinds(site, group)
    found = []
    for number_, output in enumerate(group.outputs):
        sources: frozenset[str] = frozenset()
        dims: Dims | None = (ROWS, number(output.columns)) if output.form == "rows" else None
        reason = ""
        for spec, place in group.lookups:
            if place.output != number_:
                continue
            sources = sources.union(*(by_name[t].sources for t in spec.sources()))
            reason = reason or lookup_reason(spec, by_name)
            if dims is None:
                ids = by_name[spec.ids].dims
                dims = None if ids is None else (*ids, number(output.columns))
        for copy, place in group.copies:
            if place.output == number_:
                sources |= by_name[copy.source].sources
                reason = reason or copy_reason(by_name[copy.source], copy.name)
        if reason or dims is None:
            kind = Kind(
                "opaque", op=site.node.op, node=site.node.name, reason=reason or "rank unknown", sources=sources
            )
        else:
            kind = row(dims, sources)
        found.append(kind)
    return found


def argument_kinds(site: Site, group: FusedGroup) -> Mapping[str, Kind]:
    """Kind of each tensor that the group's specs name (specs may hold other names than the node's inputs do)."""
    first = len(site.kinds) - len(group.bind)
    return {tensor: site.kinds[first + int(place.removeprefix("arg:"))] for tensor, place in group.bind.items()}


def copy_reason(kind: Kind, name: str) -> str:
    """Why a copied input has no rows, "" where it has."""
    return "" if kind.has_rows and kind.rank == 2 else f"the copied input {name} has no rows"


def lookup_reason(spec: LookupSpec, kinds: Mapping[str, Kind]) -> str:
    """Why the rows of this lookup's result are not known to be the batch's, "" where they are."""
    ids = kinds[spec.ids]
    if spec.form == "dense":
        return _dense_reason(spec, kinds)
    if spec.form == "segments":
        return "its rows are segment ids"
    parts = [kinds[t] for t in (spec.ids, spec.weights, spec.mask) if t is not None]
    rows = kinds[spec.rows or ""]
    if any(k.name != "values" or k.feature != ids.feature for k in parts):
        return "its ids or weights are not one per value of the feature"
    if rows.feature != ids.feature or rows.name != ("indices" if spec.form == "sparse" else "splits"):
        return "its rows are not those of the feature"
    if spec.form == "sparse":
        shape = kinds[spec.shape] if spec.shape is not None else None
        if spec.empty == "short" or shape is None or shape.name != "dshape" or shape.feature != ids.feature:
            return "its number of rows is not the feature's"
        if rows.rank != 2 or rows.dims is None or rows.dims[1] != number(2):
            return "its indices have more than two columns"
    return ""


def _dense_reason(spec: LookupSpec, kinds: Mapping[str, Kind]) -> str:
    ids = kinds[spec.ids]
    if not ids.has_rows or ids.dims is None:
        return "its ids have no rows"
    for tensor in (spec.weights, spec.mask):
        if tensor is not None and not kinds[tensor].has_rows:
            return "its weights or mask have no rows"
    if spec.ids_per_row is not None:
        return "" if product(ids.dims[1:]) == number(spec.ids_per_row) else "it puts several rows into one"
    if spec.combiner == "none":
        return ""
    return "" if product(ids.dims[1:-1]) == ONE and len(ids.dims) > 1 else "it reduces within rows"


def stream_kinds(feature: str, sparse_rank: int) -> dict[str, Kind]:
    """Kinds of the parts of a feature: roles ``values``, ``indices``, ``dense_shape``, ``row_splits``."""
    sources = frozenset({feature})
    inner = tuple(Dim(symbols=(f"{feature}#{axis}",)) for axis in range(1, sparse_rank))
    shape = Kind("dshape", sources, (number(sparse_rank),), (ROWS, *inner), True, feature)
    indices = of_tensor(f"{feature}/indices", [None, sparse_rank])
    return {
        "values": Kind("values", sources, of_tensor(f"{feature}/values", [None]), feature=feature),
        "indices": Kind("indices", sources, indices, feature=feature),
        "dense_shape": shape,
        "row_splits": Kind("splits", sources, of_tensor(f"{feature}/row_splits", [None]), feature=feature),
    }
