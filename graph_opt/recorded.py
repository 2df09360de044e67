"""Sparse and ragged features that the source model's writer recorded, in terms of graph tensors."""

from __future__ import annotations

from graph_opt.item import GraphItem
from graph_opt.view import canonical
from tfctr.bundle import input_features


def recorded_features(item: GraphItem, signature: str) -> list[dict[str, str]]:
    """As ``Streams.features``: role -> graph tensor of each feature whose parts ``signature`` has as plain inputs.

    Raises:
      CorruptFileError: the model's record does not parse.
      VersionError: it is of a newer format.
    """
    if item.source_path is None or not item.source_path.is_dir():
        return []
    inputs = item.signatures[signature].inputs
    found = []
    for feature in input_features.read(item.source_path).get(signature, ()):
        if all(name in inputs for name in feature["parts"].values()):
            found.append({role: canonical(inputs[name].name) for role, name in feature["parts"].items()})
    return found
