"""The canonical form of an ONNX model."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import numpy_helper

from export.cache.canonical import Canonical, Node, canonicalise
from export.cache.values import STRUCTURAL_INPUTS, array_digest, digest_bytes, is_weight, value_text
from tfctr.errors import InternalError

_MISSING = "(none)"
_NO_NODE = Node(name=_MISSING, op="no input")


class _Reader:
    """Nodes by name: an operation is named after its first output, a constant after its tensor."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._tensors = {one.name: one for one in graph.initializer}
        self._nodes: dict[str, onnx.NodeProto] = {}
        self.sources: dict[str, tuple[str, int]] = {}
        for node in graph.node:
            constant = _constant_of(node)
            if constant is not None:
                self._tensors[node.output[0]] = constant
                continue
            key = next(output for output in node.output if output)
            self._nodes[key] = node
            for port, output in enumerate(node.output):
                if output:
                    self.sources[output] = (key, port)
        self._structural = {
            node.input[k]
            for node in graph.node
            for op, k in STRUCTURAL_INPUTS
            if op == node.op_type and k < len(node.input)
        }

    def source(self, tensor: str) -> tuple[str, int]:
        return self.sources.get(tensor, (tensor or _MISSING, 0))

    def read(self, name: str) -> Node:
        if name == _MISSING:
            return _NO_NODE
        if name in self._tensors:
            return _constant(name, self._tensors[name], structural=name in self._structural)
        if name not in self._nodes:
            raise InternalError(f"the ONNX model reads {name!r}, which nothing makes")
        node = self._nodes[name]
        fields = {f"attribute {one.name}": _attribute(one) for one in node.attribute}
        if node.domain:
            fields["domain"] = node.domain
        fields["outputs"] = repr([bool(output) for output in node.output])
        return Node(
            name=node.name or name,
            op=node.op_type,
            inputs=tuple(self.source(tensor) for tensor in (*node.input, *_read_inside(node))),
            fields=fields,
        )


def _read_inside(node: onnx.NodeProto) -> list[str]:
    """Tensors that the graphs of an If, Loop or Scan read from around them."""
    found: list[str] = []
    for attribute in node.attribute:
        for graph in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
            made = {one.name for one in (*graph.input, *graph.initializer)}
            made |= {name for inner in graph.node for name in inner.output}
            read = [name for inner in graph.node for name in (*inner.input, *_read_inside(inner))]
            read += [one.name for one in graph.output]
            found += [name for name in read if name and name not in made]
    return list(dict.fromkeys(found))


def canonical_model(model: onnx.ModelProto) -> Canonical:
    """Without weights in its structure (see ``values.is_weight``); they are hashed beside it."""
    graph = model.graph
    if graph.sparse_initializer:
        raise InternalError("the ONNX model has sparse constants")
    reader = _Reader(graph)
    constants = {one.name for one in graph.initializer}
    inputs = [one for one in graph.input if one.name not in constants]
    return canonicalise(
        reader.read,
        {one.name: number for number, one in enumerate(inputs)},
        [reader.source(one.name) for one in graph.output],
        ([_interface(one) for one in inputs], [_interface(one) for one in graph.output]),
        extra=_extra(model),
    )


def _extra(model: onnx.ModelProto) -> str:
    opsets = sorted((one.domain, one.version) for one in model.opset_import)
    functions = [digest_bytes(one.SerializeToString(deterministic=True)) for one in model.functions]
    return f"ir {model.ir_version} opsets {opsets}" + (f" functions {sorted(functions)}" if functions else "")


def _interface(one: onnx.ValueInfoProto) -> str:
    tensor = one.type.tensor_type
    if not one.type.HasField("tensor_type"):
        return f"{one.name} #{digest_bytes(one.type.SerializeToString(deterministic=True))}"
    dtype = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    if not tensor.HasField("shape"):
        return f"{one.name} {dtype}[any]"
    dims = [str(d.dim_value) if d.HasField("dim_value") else repr(d.dim_param) for d in tensor.shape.dim]
    return f"{one.name} {dtype}[{', '.join(dims)}]"


def _constant_of(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """The value of a Constant node that holds one tensor."""
    if node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].name == "value":
        return node.attribute[0].t
    return None


def _constant(name: str, tensor: onnx.TensorProto, *, structural: bool) -> Node:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise InternalError(f"the constant {name!r} of the ONNX model lies in a file of its own")
    shape = list(tensor.dims)
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    if structural or not is_weight(dtype, len(shape)):
        return Node(name=name, op="Const", fields={"value": value_text(numpy_helper.to_array(tensor))})
    raw = tensor.raw_data
    digest = digest_bytes(raw) if raw else array_digest(numpy_helper.to_array(tensor))
    size = math.prod(shape) * dtype.itemsize
    kind = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
    return Node(name=name, op="Const", fields={"value": f"weight {kind}{shape}"}, weight=digest, weight_bytes=size)


def _attribute(attribute: onnx.AttributeProto) -> str:
    """Short ones as they are: they stand in messages."""
    bare = onnx.AttributeProto()
    bare.CopyFrom(attribute)
    bare.name = bare.doc_string = ""
    data = bare.SerializeToString(deterministic=True)
    text = " ".join(str(onnx.helper.printable_attribute(attribute)).split())
    return f"{text} #{data.hex()}" if len(data) <= 64 else f"{text[:60]}... #{digest_bytes(data)}"
