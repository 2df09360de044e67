"""What an artefact was made from: readable keys of both levels, and digests of structures without weights."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

    from export.cache.canonical import Canonical
    from export.tower import Tower

# Packages whose versions can change an export. NumPy and ONNX Runtime fold constants and shapes.
_EXPORT_TOOLS = ("tensorflow", "tf2onnx", "onnx", "onnxruntime", "numpy")


def tower_key(tower: Tower, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Of the tower level: the frozen tower with its weights, what exports it, and ``recipe``.

    recipe: everything else that the artefacts depend on, JSON-able: precision, clamp, limits, a digest of the samples
    that calibrate. Names of nodes are no part of it.
    """
    from export.onnx.convert import OPSET
    from export.onnx.exporter import EXPORTER_VERSION

    return {
        **_graph(canonical_tower(tower)),
        "exporter": {"version": EXPORTER_VERSION, "opset": OPSET},
        "tools": dict(_versions(_EXPORT_TOOLS)),
        "recipe": dict(recipe),
    }


def engine_key(model: onnx.ModelProto, recipe: Mapping[str, Any], *, refittable: bool = False) -> dict[str, Any]:
    """Of the engine level: the ONNX model and ``recipe``, which says what compiles it, for what, and how.

    recipe: ``export.tensorrt.options.recipe`` or OpenVINO's (name, exact version, precision, ISA, threads, buckets,
    options). refittable: the engine takes new weights without a build: their values are no part of the key then, but
    the names are by which they are found.
    """
    canonical = canonical_model(model)
    graph = _graph(canonical)
    if refittable:
        graph["graph"] = canonical.structure(named=True)
        graph["weights"] = "any of these shapes"
    return {**graph, "refittable": refittable, "recipe": dict(recipe)}


def tower_structure(tower: Tower) -> str:
    """SHA-256 of the tower without its weights: the same as long as only weights change."""
    return canonical_tower(tower).structure()


def model_structure(model: onnx.ModelProto) -> str:
    """SHA-256 of the model without its weights. Equal weights are one constant of an exported model: where two become
    equal, or differ after they were equal, the structure changes.
    """
    return canonical_model(model).structure()


def canonical_tower(tower: Tower) -> Canonical:
    """The tower without names, for ``export.cache.canonical.difference``."""
    from export.cache import tower_graph

    return tower_graph.canonical_tower(tower)


def canonical_model(model: onnx.ModelProto) -> Canonical:
    """The model without names, for ``export.cache.canonical.difference``."""
    from export.cache import onnx_graph

    return onnx_graph.canonical_model(model)


def _graph(canonical: Canonical) -> dict[str, Any]:
    return {
        "graph": canonical.structure(),
        "weights": canonical.weights(),
        "inputs": list(canonical.inputs),
        "outputs": list(canonical.outputs),
        "nodes": len(canonical.steps),
        "weight_bytes": canonical.weight_bytes,
    }


@functools.cache
def _versions(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    found = []
    for name in names:
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            found.append((name, "not installed"))
    return tuple(found)
