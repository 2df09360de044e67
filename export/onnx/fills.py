"""Tensors of one number, made to the size of the batch, become that number where broadcasting does the rest.

``tf.zeros_like(x)`` beside a mask is written as Shape and ConstantOfShape: the only shape arithmetic that many towers
keep, for a number that an engine would spread anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from export.onnx.graph import add_constant, constants, replace_nodes
from export.onnx.ordering import sort_nodes
from export.onnx.probing import run_probes
from export.reasons import CannotExport
from export.tower import Tower

# Read their inputs entry by entry, spreading what is smaller.
_SPREAD = frozenset({"Where", "Add", "Sub", "Mul", "Div", "Max", "Min", "And", "Or", "Equal", "Greater", "Less", "Pow"})
_FOLDED_ELEMENTS = 16


def drop_fills(model: onnx.ModelProto, tower: Tower) -> int:
    """Returns how many went. Each is tried alone: all outputs must stay the same, shapes and bits, at every probe."""
    fills = [node for node in model.graph.node if node.op_type == "ConstantOfShape" and _is_spread(model, node)]
    if not fills:
        return 0
    outputs = [one.name for one in model.graph.output]
    before = run_probes(model, tower, outputs)
    dropped = 0
    for name in [node.output[0] for node in fills]:
        trial = onnx.ModelProto()
        trial.CopyFrom(model)
        _replace(trial.graph, name)
        try:
            same = _same(before, run_probes(trial, tower, outputs))
        except CannotExport:
            same = False  # it does not fit without its size
        if same:
            model.CopyFrom(trial)
            dropped += 1
    if dropped:
        _fold_small(model)
        sort_nodes(model)
    return dropped


def _is_spread(model: onnx.ModelProto, fill: onnx.NodeProto) -> bool:
    readers = [node for node in model.graph.node if fill.output[0] in node.input]
    fetched = any(one.name == fill.output[0] for one in model.graph.output)
    return bool(readers) and not fetched and all(node.op_type in _SPREAD for node in readers)


def _replace(graph: onnx.GraphProto, output: str) -> None:
    fill = next(node for node in graph.node if output in node.output)
    value = next(
        (onnx.numpy_helper.to_array(a.t) for a in fill.attribute if a.name == "value"), np.zeros(1, np.float32)
    )
    number = add_constant(graph, f"{fill.name}/number", value.reshape(()))
    for node in graph.node:
        for k, name in enumerate(node.input):
            if name == output:
                node.input[k] = number
    replace_nodes(graph, [node for node in graph.node if output not in node.output])


def _same(before: Sequence[dict[str, np.ndarray]], after: Sequence[dict[str, np.ndarray]]) -> bool:
    return all(
        a[name].shape == b[name].shape and a[name].tobytes() == b[name].tobytes()
        for a, b in zip(before, after, strict=True)
        for name in a
    )


def _fold_small(model: onnx.ModelProto) -> None:
    """Work on small constants alone is done now: a number times a number."""
    from onnx.reference import ReferenceEvaluator

    graph = model.graph
    sort_nodes(model)
    values = constants(graph)
    kept = []
    for node in graph.node:
        reads = [values.get(name) for name in node.input]
        small = all(value is not None and value.size <= _FOLDED_ELEMENTS for value in reads)
        if node.op_type in _SPREAD and small and node.output[0] not in {one.name for one in graph.output}:
            alone = onnx.helper.make_graph(
                [node],
                "alone",
                [],
                [onnx.ValueInfoProto(name=node.output[0])],
                [onnx.numpy_helper.from_array(values[name], name) for name in dict.fromkeys(node.input)],
            )
            made = onnx.helper.make_model(alone, opset_imports=model.opset_import, ir_version=model.ir_version)
            (value,) = ReferenceEvaluator(made).run(None, {})
            values[node.output[0]] = np.asarray(value)
            graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), node.output[0]))
        else:
            kept.append(node)
    replace_nodes(graph, kept)
