"""An ONNX tower as the FP16 pass reads it: sorted, every tensor typed, constants as arrays, makers and readers."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper

from tfctr.errors import InputError, UsageError

Array = npt.NDArray[Any]
FLOAT, FLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16
_OTHER_FLOATS = {TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}

# Operations that hand values on as they are: whatever precision comes in can go out.
MOVERS = frozenset(
    {
        "Concat",
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Pad",
        "Reshape",
        "ScatterElements",
        "ScatterND",
        "Slice",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Trilu",
        "Unsqueeze",
        "Where",
    }
)
ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Neg", "Abs", "Clip", "Relu"})
# Where the work is, and where FP16 pays.
HEAVY = frozenset({"MatMul", "Gemm", "Einsum", "Conv"})


@dataclasses.dataclass(frozen=True)
class Graph:
    """``nodes`` in topological order with unique names; node numbers below are places in it.

    constants: initializers and Constant nodes by name. types: elem_type of every tensor. producer: number of the node
    that makes a tensor. readers: numbers of the nodes that read it.
    """

    model: onnx.ModelProto
    nodes: tuple[onnx.NodeProto, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: dict[str, Array]
    types: dict[str, int]
    producer: dict[str, int]
    readers: dict[str, list[int]]

    def is_float(self, tensor: str) -> bool:
        return bool(tensor) and self.types[tensor] == FLOAT

    def float_inputs(self, k: int) -> list[str]:
        return [name for name in self.nodes[k].input if self.is_float(name)]

    def float_outputs(self, k: int) -> list[str]:
        return [name for name in self.nodes[k].output if self.is_float(name)]

    def maker(self, tensor: str) -> onnx.NodeProto | None:
        k = self.producer.get(tensor)
        return None if k is None else self.nodes[k]

    def as_model(self) -> onnx.ModelProto:
        """The tower in this order and with these names, constants as initializers."""
        source = self.model
        inputs = [value for value in source.graph.input if value.name in self.inputs]
        graph = onnx.helper.make_graph(self.nodes, source.graph.name or "tower", inputs, source.graph.output)
        graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in self.constants.items())
        return onnx.helper.make_model(graph, opset_imports=list(source.opset_import), ir_version=source.ir_version)


def read_graph(model: onnx.ModelProto) -> Graph:
    """Raises UsageError: another float type than FP32, a subgraph, a cycle, a tensor without a type (each named)."""
    nodes, constants = _constants_apart(model)
    inputs = tuple(value.name for value in model.graph.input if value.name not in constants)
    nodes = _named(_sorted(nodes, {*inputs, *constants}))
    types = _types(model, nodes, constants)
    producer = {name: k for k, node in enumerate(nodes) for name in node.output if name}
    readers: dict[str, list[int]] = {}
    for k, node in enumerate(nodes):
        for name in dict.fromkeys(node.input):
            if name:
                readers.setdefault(name, []).append(k)
    outputs = tuple(value.name for value in model.graph.output)
    return Graph(model, tuple(nodes), inputs, outputs, constants, types, producer, readers)


def check_weights(model: onnx.ModelProto) -> None:
    """Raises InputError naming the weights that are NaN or infinite, with how many values of each are.

    One infinite number alone is what models put on padded positions, and is left.
    """
    _, constants = _constants_apart(model)
    bad = []
    for name, value in constants.items():
        if value.dtype.kind != "f":
            continue
        nans, infinite = int(np.isnan(value).sum()), int(np.isinf(value).sum())
        infinite = infinite if value.size > 1 else 0
        if nans or infinite:
            what = " and ".join(f"{count} {kind}" for count, kind in ((nans, "NaN"), (infinite, "infinite")) if count)
            bad.append(f"{name!r} has {what} of {value.size} values")
    if bad:
        more = f" (and {len(bad) - 3} more weights)" if len(bad) > 3 else ""
        raise InputError(f"the tower's weight {'; '.join(bad[:3])}{more}: no engine is built from it")


def _constants_apart(model: onnx.ModelProto) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes = []
    for node in model.graph.node:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            value = onnx.helper.get_attribute_value(node.attribute[0])
            kind = node.attribute[0].name
            array = numpy_helper.to_array(value) if kind == "value" else None
            if kind in ("value_float", "value_floats"):
                array = np.asarray(value, np.float32)
            elif kind in ("value_int", "value_ints"):
                array = np.asarray(value, np.int64)
            if array is None:
                raise UsageError(f"node {node.name!r}: a Constant of {kind} is no tower's")
            constants[node.output[0]] = array
        else:
            nodes.append(node)
    return nodes, constants


def _sorted(nodes: Sequence[onnx.NodeProto], known: set[str]) -> list[onnx.NodeProto]:
    """In topological order, otherwise as they come: a node goes as soon as its inputs are there."""
    made_by = {name: k for k, node in enumerate(nodes) for name in node.output if name}
    waiting = [0] * len(nodes)
    waiters: list[list[int]] = [[] for _ in nodes]
    for k, node in enumerate(nodes):
        if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
            raise UsageError(f"node {node.name!r} ({node.op_type}) holds a subgraph; a tower has none")
        for name in dict.fromkeys(node.input):
            if name in made_by:
                waiting[k] += 1
                waiters[made_by[name]].append(k)
            elif name and name not in known:
                raise UsageError(f"node {node.name!r} ({node.op_type}) reads {name!r}, which nothing makes")
    ready = [k for k, count in enumerate(waiting) if not count]
    order = []
    while ready:
        k = heapq.heappop(ready)
        order.append(nodes[k])
        for later in waiters[k]:
            waiting[later] -= 1
            if not waiting[later]:
                heapq.heappush(ready, later)
    if len(order) != len(nodes):
        raise UsageError("the tower's nodes form a cycle")
    return order


def _named(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Copies with unique names: islands are named by them."""
    taken: set[str] = set()
    found = []
    for k, node in enumerate(nodes):
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        if not copy.name or copy.name in taken:
            base = copy.name or copy.op_type
            copy.name = next(
                n for n in (f"{base}_{k}", *(f"{base}_{k}_{j}" for j in range(len(nodes)))) if n not in taken
            )
        taken.add(copy.name)
        found.append(copy)
    return found


def _types(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], constants: dict[str, Array]) -> dict[str, int]:
    graph = onnx.helper.make_graph(nodes, "types", model.graph.input, model.graph.output)
    # Types need no values; shapes of small constants help Reshape and the like along.
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    typed = onnx.helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=model.ir_version)
    try:
        inferred = onnx.shape_inference.infer_shapes(typed, check_type=True, strict_mode=True).graph
    except onnx.shape_inference.InferenceError as error:
        raise UsageError(f"the tower's types do not fit: {' '.join(str(error).split())}") from error
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {t.name: t.data_type for t in graph.initializer}
    for node in nodes:
        for name in node.output:
            if name and not types.get(name):
                raise UsageError(f"no type is known for {name!r}, which {node.name!r} ({node.op_type}) makes")
    for name, kind in types.items():
        if kind in _OTHER_FLOATS:
            raise UsageError(f"tensor {name!r} is {TensorProto.DataType.Name(kind)}; expected an FP32 tower")
    return types
