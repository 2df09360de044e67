"""Squeeze and Unsqueeze with an empty list of axes, which tf2onnx leaves behind where it takes an einsum apart.

The converter means "none", and so ONNX Runtime reads an Unsqueeze; a Squeeze it reads as "all of size 1", and OpenVINO
reads both otherwise (its import fails). The nodes go; the referee's batch of one row shows whether none was meant.
"""

from __future__ import annotations

import onnx

from export.onnx.graph import constants, rename_tensors, replace_nodes


def drop_empty_axes(model: onnx.ModelProto) -> int:
    """Removes them; their readers read what they read. Returns how many there were."""
    graph = model.graph
    values = constants(graph)
    gone = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type in ("Squeeze", "Unsqueeze") and len(node.input) > 1 and _is_empty(values.get(node.input[1]))
    }
    dropped = len(gone)
    outputs = {one.name for one in graph.output}
    kept = []
    for node in graph.node:
        if node.output and node.output[0] in gone:
            if node.output[0] not in outputs:
                continue
            # The name of an output has to stay.
            source = _origin(gone.pop(node.output[0]), gone)
            node = onnx.helper.make_node("Identity", [source], [node.output[0]], name=node.name)
        kept.append(node)
    replace_nodes(graph, kept)
    rename_tensors(graph, {name: _origin(name, gone) for name in gone})
    return dropped


def _is_empty(value: object) -> bool:
    return value is not None and getattr(value, "size", 1) == 0


def _origin(name: str, sources: dict[str, str]) -> str:
    while name in sources:
        name = sources[name]
    return name
