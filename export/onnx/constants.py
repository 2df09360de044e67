"""Constant nodes as initializers, so that what follows finds every constant in one place."""

from __future__ import annotations

import onnx

from export.onnx.graph import constants, replace_nodes


def gather_constants(model: onnx.ModelProto) -> int:
    """Moves the values of Constant nodes to the initializers. Returns how many."""
    graph = model.graph
    values = constants(graph)
    moved = [node for node in graph.node if node.op_type == "Constant" and node.output[0] in values]
    for node in moved:
        graph.initializer.append(onnx.numpy_helper.from_array(values[node.output[0]], node.output[0]))
    gone = {node.output[0] for node in moved}
    replace_nodes(graph, [node for node in graph.node if not (node.op_type == "Constant" and node.output[0] in gone)])
    return len(moved)
