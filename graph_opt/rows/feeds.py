"""Kinds of a signature's inputs, from what its features are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from graph_opt.describe import pair_unused
from graph_opt.item import GraphItem
from graph_opt.recognise.facts import Facts
from graph_opt.recorded import recorded_features
from graph_opt.rows.dims import ROWS, of_tensor
from graph_opt.rows.kinds import Kind, opaque, row, shared
from graph_opt.rows.streams import stream_kinds
from graph_opt.signature_info import signature_info
from graph_opt.streams import Streams
from graph_opt.view import canonical


@dataclasses.dataclass(frozen=True)
class Feeds:
    """The inputs of one signature.

    kinds: of each fed tensor. inputs: feature -> names of its inputs, weights with the values they belong to. tensors:
    input name -> fed tensor. static: inputs whose number of rows is fixed by the model. features: as in a manifest.
    """

    kinds: dict[str, Kind]
    inputs: dict[str, tuple[str, ...]]
    tensors: dict[str, str]
    static: tuple[str, ...]
    features: list[dict[str, Any]]


def feed_kinds(item: GraphItem, name: str, facts: Facts) -> Feeds:
    """See :class:`Feeds`."""
    view = facts.view
    tensors_fed = item.feeds(name)
    streams = Streams(view, tensors_fed, [spec for group in item.groups for spec, _ in group.lookups])
    pair_unused(view, tensors_fed, streams)
    info = signature_info(item.signatures[name], [*recorded_features(item, name), *streams.features()])
    tensors = {entry["name"]: canonical(entry["tensor"]) for entry in info["inputs"]}
    names = {tensor: name for name, tensor in tensors.items()}
    kinds: dict[str, Kind] = {}
    inputs: dict[str, tuple[str, ...]] = {}
    of_values: dict[str, str] = {}
    static: list[str] = []
    for feature in info["features"]:
        if feature["kind"] in ("sparse", "ragged"):
            _add_stream(feature, tensors, kinds, facts)
            of_values[tensors[feature["parts"]["values"]]] = feature["name"]
            inputs[feature["name"]] = tuple(feature["parts"].values())
    shapes = {canonical(entry["tensor"]): entry["shape"] for entry in info["inputs"]}
    aligned = {t: of_values[v] for t, v in streams.aligned().items() if v in of_values and t in names}
    for feature in info["features"]:
        if feature["name"] in inputs:
            continue
        for part in feature["parts"].values():
            tensor = tensors[part]
            if tensor in aligned:
                owner = aligned[tensor]
                kinds[tensor] = Kind("values", frozenset({owner}), feature=owner, dims=of_tensor(tensor, [None]))
                inputs[owner] = (*inputs[owner], part)
                continue
            shape = facts.shape(tensor)
            shape = shapes[tensor] if shape is None else shape  # placeholders of scalars do not keep theirs
            kinds[tensor] = _dense(tensor, feature["name"], shape)
            inputs[feature["name"]] = (*inputs.get(feature["name"], ()), part)
            if shape and shape[0] not in (None, -1):
                static.append(part)
    return Feeds(kinds, inputs, tensors, tuple(static), info["features"])


def _add_stream(feature: dict[str, Any], tensors: dict[str, str], kinds: dict[str, Kind], facts: Facts) -> None:
    parts = feature["parts"]
    rank = 2
    if feature["kind"] == "sparse":
        shape = facts.shape(tensors[parts["indices"]])
        rank = shape[1] if shape and len(shape) == 2 and shape[1] else 0
    made = stream_kinds(feature["name"], rank)
    plain = set(parts) <= {"values", "indices", "dense_shape", "row_splits"} and rank == 2
    for role, part in parts.items():
        if plain:
            kinds[tensors[part]] = made[role]
        else:
            reason = "its values lie on more than one axis" if rank else "the rank of its indices is not known"
            sources = frozenset({feature["name"]})
            kinds[tensors[part]] = opaque("Placeholder", tensors[part], reason, sources)


def _dense(tensor: str, feature: str, shape: Sequence[int | None] | None) -> Kind:
    sources = frozenset({feature})
    if shape is None:
        return opaque("Placeholder", tensor, "the rank of the input is not known", sources)
    if not shape:
        return shared(())  # one value for the whole request
    return row(of_tensor(tensor, [None if size == -1 else size for size in shape], ROWS), sources)
