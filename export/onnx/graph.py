"""Small helpers over an ONNX graph, shared by the repairs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import numpy_helper


def constants(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    """Initializers and Constant nodes by tensor name."""
    found = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    found[node.output[0]] = numpy_helper.to_array(attribute.t)
    return found


def producers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Node by the name of each of its outputs."""
    return {output: node for node in graph.node for output in node.output if output}


def rename_tensors(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Renames tensors wherever nodes read or write them, and the graph's own inputs, outputs and initializers."""
    for node in graph.node:
        for names_of in (node.input, node.output):
            for k, name in enumerate(names_of):
                names_of[k] = names.get(name, name)
    for infos in (graph.input, graph.output, graph.initializer, graph.value_info):
        for one in infos:
            one.name = names.get(one.name, one.name)


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Makes ``nodes`` the graph's nodes, in this order."""
    kept = onnx.GraphProto(node=nodes)
    del graph.node[:]
    graph.node.extend(kept.node)


def add_constant(graph: onnx.GraphProto, name: str, array: np.ndarray) -> str:
    """Adds an initializer named ``name`` or like it; returns its name."""
    taken = {one.name for one in graph.initializer} | set(producers(graph)) | {one.name for one in graph.input}
    free, k = name, 0
    while free in taken:
        k += 1
        free = f"{name}_{k}"
    graph.initializer.append(numpy_helper.from_array(np.asarray(array), free))
    return free
