"""Names of a tower's inputs and outputs: from the signature and the features, safe for every engine, unique."""

from __future__ import annotations

import re
from collections.abc import Iterable

from graph_opt.fused_node import FUSED_OP
from graph_opt.item import GraphItem
from graph_opt.recognise.facts import Facts
from graph_opt.view import canonical, node_of, port_of

# Ops behind which an output is still the same number.
_SAME = frozenset({"Identity", "IdentityN", "StopGradient", "Reshape", "Squeeze", "ExpandDims", "Cast"})


class Names:
    """Gives each tensor a name of letters, digits and underscores, no two the same."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def give(self, wanted: str) -> str:
        """``wanted`` as far as it may be, or with a number behind it."""
        base = re.sub(r"[^A-Za-z0-9_]+", "_", wanted).strip("_") or "tensor"
        base = f"_{base}" if base[0].isdigit() else base
        name, k = base, 0
        while name in self._taken:
            k += 1
            name = f"{base}_{k}"
        self._taken.add(name)
        return name


def input_name(item: GraphItem, signature: str, facts: Facts, tensor: str, sources: Iterable[str]) -> str:
    """What to call an input of a tower: the signature's input, the feature it is the lookup of, "embeddings" for a
    fused lookup of several, else its node.
    """
    for name, info in sorted(item.signatures[signature].inputs.items()):
        if canonical(info.name) == canonical(tensor):
            return name
    features = sorted(sources)
    if len(features) == 1:
        return features[0]
    if facts.view.node(tensor).op == FUSED_OP:
        return "embeddings"
    port = port_of(tensor)
    return node_of(tensor).rsplit("/", maxsplit=1)[-1] + (f"_{port}" if port else "")


def output_name(item: GraphItem, signature: str, facts: Facts, tensor: str) -> str:
    """The signature's output that is this tensor, or it reshaped or cast; else its node's name."""
    for name, info in sorted(item.signatures[signature].outputs.items()):
        source = canonical(info.name)
        while source != tensor and facts.view.node(source).op in _SAME:
            node = facts.view.node(source)
            source = facts.view.inputs(node)[port_of(source) if node.op == "IdentityN" else 0]
        if source == tensor:
            return name
    port = port_of(tensor)
    return node_of(tensor).rsplit("/", maxsplit=1)[-1] + (f"_{port}" if port else "")
