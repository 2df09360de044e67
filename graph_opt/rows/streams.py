"""Rules of the parts of sparse and ragged features, of shapes, and of fused lookups."""

from __future__ import annotations

from collections.abc import Mapping

from graph_opt.fused_node import FUSED_OP
from graph_opt.item import FusedGroup
from graph_opt.lookup_spec import CopySpec, LookupSpec, Placement
from graph_opt.rows.dims import ONE, ROWS, Dim, Dims, number, of_tensor, product
from graph_opt.rows.elementwise import combine
from graph_opt.rows.kinds import Kind, count, opaque, row
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


@rule("RaggedTensorToSparse")
def _ragged_to_sparse(site: Site) -> list[Kind]:
    """A ragged feature as a sparse one, for lookups alone: the width of its dense shape is the longest row's."""
    *splits, values = site.kinds
    site.require(len(splits) == 1, "its values lie on more than one axis")
    same = splits[0].name == "splits" and values.name == "values" and splits[0].feature == values.feature
    site.require(same, "it reads values and row splits of different features")
    readers = {node.op for node, _ in site.facts.view.consumers(site.output(2))}
    site.require(readers <= {FUSED_OP}, "its dense shape, which depends on the longest row, is read")
    made = stream_kinds(values.feature, sparse_rank=2)
    return [made["indices"], values, made["dense_shape"]]


@rule("Cast", "Identity", "IdentityN", "Snapshot", "StopGradient")
def _passing(site: Site) -> list[Kind]:
    return site.kinds


def lookup_kinds(site: Site, group: FusedGroup) -> list[Kind]:
    """Kinds of a fused lookup's outputs.

    The op itself makes sure that all parts of an output have equally many rows: one that is known to have the batch's
    says so for all. Where another part mixes rows, the output counts as computed from a feature of its own.
    """
    by_name = argument_kinds(site, group)
    return [_output_kind(site, group, number_, by_name) for number_ in range(len(group.outputs))]


def _output_kind(site: Site, group: FusedGroup, number_: int, by_name: Mapping[str, Kind]) -> Kind:
    output = group.outputs[number_]
    dims: Dims | None = (ROWS, number(output.columns)) if output.form == "rows" else None
    sources: frozenset[str] = frozenset()
    reasons = []
    for part in parts_of(group, number_):
        names = (part.source,) if isinstance(part, CopySpec) else part.sources()
        sources = sources.union(*(by_name[t].sources for t in names))
        reasons.append(part_reason(part, by_name))
        if dims is None and isinstance(part, LookupSpec):
            ids = by_name[part.ids].dims
            dims = None if ids is None else (*ids, number(output.columns))
    if all(reasons) or dims is None:
        reason = next((r for r in reasons if r), "the rank of its ids is not known")
        return opaque(site.node.op, site.node.name, reason, sources)
    return row(dims, sources | {f"{site.node.name}:{number_}"} if any(reasons) else sources)


def parts_of(group: FusedGroup, output: int) -> list[LookupSpec | CopySpec]:
    """Lookups and copies of one output, left to right."""
    parts: list[tuple[LookupSpec | CopySpec, Placement]] = [*group.lookups, *group.copies]
    found = [(place.column, part) for part, place in parts if place.output == output]
    return [part for _, part in sorted(found, key=lambda entry: entry[0])]


def part_reason(part: LookupSpec | CopySpec, kinds: Mapping[str, Kind]) -> str:
    """Why the rows of one part are not known to be the batch's, "" where they are."""
    if isinstance(part, CopySpec):
        return copy_reason(kinds[part.source], part.name)
    return lookup_reason(part, kinds)


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
