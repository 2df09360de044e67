"""Producers before consumers, in an order that depends on the structure alone."""

from __future__ import annotations

import onnx

from export.onnx.graph import producers, replace_nodes


def sort_nodes(model: onnx.ModelProto) -> int:
    """Orders the nodes as a walk from the outputs back finds them complete; drops what no output needs.

    The order follows the outputs and each node's inputs, never names, so equal structures get equal orders. ONNX wants
    producers first (converters do not always keep to it; ``onnx.checker`` and TensorRT do). Returns how many were
    dropped.
    """
    graph = model.graph
    made_by = producers(graph)
    order: list[onnx.NodeProto] = []
    done: set[int] = set()
    for output in graph.output:
        stack = [(output.name, False)]
        while stack:
            name, inputs_done = stack.pop()
            node = made_by.get(name)
            if node is None or id(node) in done:
                continue
            if inputs_done:
                done.add(id(node))
                order.append(node)
                continue
            stack.append((name, True))
            stack += [(source, False) for source in reversed(node.input) if source]
    dropped = len(graph.node) - len(order)
    replace_nodes(graph, order)
    used = {name for node in graph.node for name in node.input} | {one.name for one in graph.output}
    kept = onnx.GraphProto(initializer=[one for one in graph.initializer if one.name in used])
    del graph.initializer[:]
    graph.initializer.extend(kept.initializer)
    return dropped
