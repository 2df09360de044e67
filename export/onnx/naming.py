"""Names that say the same in every export: inputs and outputs from the signature, everything else by position.

tf2onnx names einsum parts after the address of a Python object and numbers others by counters that never start again,
so that two exports of one model differ; it loses the names of the outputs and calls the rows ``unk__12``. Caches hash
the model, and TensorRT writes the names of nodes into its plans, so the names here depend on the structure alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import tensorflow as tf

from export.onnx.graph import producers, rename_tensors
from export.onnx.ordering import sort_nodes
from export.tower import Tower, TowerTensor

ROWS, USER_ROWS = "N", "U"
PRODUCER = "tfctr"


def name_canonically(model: onnx.ModelProto, tower: Tower) -> dict[str, str]:
    """Orders and renames the whole model (see the module docstring); drops what no output needs.

    Inputs and outputs take the tower's names, dtypes, shapes and order; an input that the translation no longer needs
    stays an input. Nodes are ``MatMul_0``, ``MatMul_1``...; inner tensors ``t/...``, constants ``c/0``, ``c/1``...
    Returns canonical node name -> the name it had (for people; it differs from export to export).
    """
    graph = model.graph
    _order_outputs(graph, tower)
    sort_nodes(model)
    merge_constants(graph)
    names = {one.tensor: one.name for one in tower.inputs}
    made_by = producers(graph)
    copies = []
    for one in tower.outputs:
        if one.tensor in made_by and one.tensor not in names:
            names[one.tensor] = one.name
        else:  # an input handed through, a constant, or a second name of one tensor
            copies.append((one.tensor, one.name))
    origins = _name_nodes(graph, names)
    for source, name in copies:
        copy = onnx.helper.make_node("Identity", [names.get(source, source)], [name], name=f"Identity_{name}")
        origins[copy.name] = name
        graph.node.append(copy)
    rename_tensors(graph, names)
    _replace(graph.input, [_info(one) for one in tower.inputs])
    _replace(graph.output, [_info(one) for one in tower.outputs])
    _tidy(model)
    return origins


def merge_constants(graph: onnx.GraphProto) -> int:
    """Constants with equal dtype, shape and bytes become one (the first). Returns how many went."""
    kept: dict[bytes, onnx.TensorProto] = {}
    names = {}
    for one in graph.initializer:
        nameless = onnx.TensorProto()
        nameless.CopyFrom(one)
        nameless.name = nameless.doc_string = ""
        first = kept.setdefault(nameless.SerializeToString(deterministic=True), one)
        if first is not one:
            names[one.name] = first.name
    for node in graph.node:
        for k, name in enumerate(node.input):
            node.input[k] = names.get(name, name)
    _replace(graph.initializer, [one for one in graph.initializer if one.name not in names])
    return len(names)


def _order_outputs(graph: onnx.GraphProto, tower: Tower) -> None:
    """The graph's outputs in the tower's order: node order follows it."""
    _replace(graph.output, [onnx.helper.make_tensor_value_info(one.tensor, 1, None) for one in tower.outputs])


def _name_nodes(graph: onnx.GraphProto, names: dict[str, str]) -> dict[str, str]:
    """Adds the new names of inner tensors and constants to ``names``, by the order of nodes."""
    counted: Counter[str] = Counter()
    constants = {one.name for one in graph.initializer}
    origins = {}
    for node in graph.node:
        for source in node.input:
            if source in constants and source not in names:
                names[source] = f"c/{counted['c/']}"
                counted["c/"] += 1
        name = f"{node.op_type}_{counted[node.op_type]}"
        counted[node.op_type] += 1
        origins[name], node.name = node.name, name
        for k, output in enumerate(node.output):
            if output:
                names.setdefault(output, f"t/{name}" + (f"/{k}" if k else ""))
    for one in graph.output:  # constants that are outputs
        if one.name in constants and one.name not in names:
            names[one.name] = f"c/{counted['c/']}"
            counted["c/"] += 1
    return origins


def _info(one: TowerTensor) -> onnx.ValueInfoProto:
    dtype = onnx.helper.np_dtype_to_tensor_dtype(_numpy(one.dtype))
    return onnx.helper.make_tensor_value_info(one.name, dtype, dimensions(one))


def dimensions(one: TowerTensor) -> list[int | str]:
    """Sizes, with names for those that are not known: ``N`` rows, ``U`` user rows, ``name_1``... inside."""
    rows = USER_ROWS if one.side == "user" else ROWS
    names = one.dims or tuple(f"{one.name}_{axis}" for axis in range(len(one.shape)))
    return [
        size if size is not None else rows if axis == 0 else names[axis] or f"{one.name}_{axis}"
        for axis, size in enumerate(one.shape)
    ]


def _numpy(dtype: str) -> np.dtype:
    return np.dtype(tf.as_dtype(dtype).as_numpy_dtype)


def _tidy(model: onnx.ModelProto) -> None:
    """Removes whatever else differs between exports or says nothing."""
    graph = model.graph
    for node in graph.node:
        node.doc_string = ""
        _replace(node.attribute, sorted(node.attribute, key=lambda a: a.name))
    order = {name: k for k, name in enumerate(dict.fromkeys(i for node in graph.node for i in node.input))}
    _replace(graph.initializer, sorted(graph.initializer, key=lambda one: order.get(one.name, len(order))))
    for one in graph.initializer:
        one.doc_string = ""
    graph.name, graph.doc_string, model.doc_string = "tower", "", ""
    model.producer_name, model.producer_version, model.domain, model.model_version = PRODUCER, "", "", 0
    del graph.value_info[:]
    del model.metadata_props[:]
    domains = {node.domain for node in graph.node}
    _replace(model.opset_import, [one for one in model.opset_import if one.domain == "" or one.domain in domains])


def _replace(field: Any, values: Iterable[Any]) -> None:
    copies = []
    for value in values:
        copies.append(type(value)())
        copies[-1].CopyFrom(value)
    del field[:]
    field.extend(copies)
