"""Small ONNX towers for the tests, and the conversion that nobody should use: FP16 everywhere."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 18
TYPES = {"float": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL, "double": TensorProto.DOUBLE}


def node(op, inputs, output, name=None, **attributes):
    outputs = [output] if isinstance(output, str) else output
    return helper.make_node(op, inputs, outputs, name=name or f"{op}_{outputs[0]}", **attributes)


def value(name, *shape, kind="float"):
    return helper.make_tensor_value_info(name, TYPES[kind], list(shape))


def model(nodes, inputs, outputs, constants=None, opset=OPSET):
    """Constants: arrays by name (Python floats become FP32 scalars)."""
    held = {
        name: np.float32(array) if isinstance(array, float) else np.asarray(array)
        for name, array in (constants or {}).items()
    }
    graph = helper.make_graph(
        nodes, "tower", inputs, outputs, [numpy_helper.from_array(array, name) for name, array in held.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def weights(*shape, seed=0):
    rng = np.random.default_rng((seed, *shape))
    return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def mlp(width=16, hidden=8):
    """x [N, width] -> p [N, 1]."""
    return model(
        [
            node("MatMul", ["x", "w0"], "h"),
            node("Add", ["h", "b0"], "h1"),
            node("Relu", ["h1"], "h2"),
            node("Gemm", ["h2", "w1", "b1"], "logit"),
            node("Sigmoid", ["logit"], "p"),
        ],
        [value("x", "N", width)],
        [value("p", "N", 1)],
        {"w0": weights(width, hidden), "b0": weights(hidden), "w1": weights(hidden, 1), "b1": weights(1)},
    )


def layer_norm(eps=1e-3, width=64):
    """x [N, width], scaled up by ``gain`` in front and normalised as Keras writes it -> y [N, width]."""
    return model(
        [
            node("MatMul", ["x", "gain"], "h"),
            node("ReduceMean", ["h", "axis"], "mean", keepdims=1),
            node("Sub", ["h", "mean"], "d"),
            node("Mul", ["d", "d"], "square"),
            node("ReduceMean", ["square", "axis"], "var", keepdims=1),
            node("Add", ["var", "eps"], "var1"),
            node("Sqrt", ["var1"], "std"),
            node("Reciprocal", ["std"], "inverse"),
            node("Mul", ["inverse", "gamma"], "scale"),
            node("Mul", ["h", "scale"], "scaled"),
            node("Neg", ["mean"], "negative"),
            node("Mul", ["negative", "scale"], "shift"),
            node("Add", ["shift", "beta"], "shift1"),
            node("Add", ["scaled", "shift1"], "normal"),
            node("MatMul", ["normal", "out"], "y"),
        ],
        [value("x", "N", width)],
        [value("y", "N", width)],
        {
            "gain": np.eye(width, dtype=np.float32) * np.float32(400),
            "axis": np.array([1], np.int64),
            "eps": eps,
            "gamma": np.ones(width, np.float32),
            "beta": np.zeros(width, np.float32),
            "out": np.eye(width, dtype=np.float32),
        },
    )


def naive(source, clip=True):
    """Every float tensor FP16, a cast at each end: what a conversion without islands makes of a tower."""
    made = onnx.ModelProto()
    made.CopyFrom(source)
    graph = made.graph
    for one in graph.initializer:
        array = numpy_helper.to_array(one)
        if array.dtype == np.float32:
            with np.errstate(over="ignore"):
                half = (np.clip(array, -65504, 65504) if clip else array).astype(np.float16)
            one.CopyFrom(numpy_helper.from_array(half, one.name))
    floats = [v.name for v in graph.input if v.type.tensor_type.elem_type == TensorProto.FLOAT]
    ends = [v.name for v in graph.output if v.type.tensor_type.elem_type == TensorProto.FLOAT]
    names = {name: f"{name}_half" for name in (*floats, *ends)}
    for one in graph.node:
        one.input[:] = [names.get(n, n) for n in one.input]
        one.output[:] = [names.get(n, n) for n in one.output]
        for attribute in one.attribute:
            if one.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
            elif attribute.name == "value" and attribute.t.data_type == TensorProto.FLOAT:
                array = numpy_helper.to_array(attribute.t).astype(np.float16)
                attribute.t.CopyFrom(numpy_helper.from_array(array))
    first = [helper.make_node("Cast", [n], [names[n]], name=f"in_{n}", to=TensorProto.FLOAT16) for n in floats]
    last = [helper.make_node("Cast", [names[n]], [n], name=f"out_{n}", to=TensorProto.FLOAT) for n in ends]
    body = list(graph.node)
    del graph.node[:]
    graph.node.extend([*first, *body, *last])
    return made


def normal(*shape, seed=0, scale=1.0):
    return (np.random.default_rng((seed, *shape)).standard_normal(shape) * scale).astype(np.float32)
