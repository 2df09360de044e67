"""What must hold of a model before anything is built from it."""

from __future__ import annotations

import numpy as np
import onnx
from tensorflow.python.framework import tensor_util

from export.reasons import CannotExport
from export.tower import Tower

# Ops of ONNX's own domain that ONNX Runtime, OpenVINO, TensorRT and our FP16 evaluator know. tf2onnx passes unknown ops
# through and still returns a model, so what is not here is refused.
KNOWN_OPS = frozenset(
    {
        "Abs", "Add", "And", "ArgMax", "ArgMin", "Cast", "Ceil", "Clip", "Concat", "ConstantOfShape", "Conv", "Cos",
        "Div", "Elu", "Equal", "Erf", "Exp", "Expand", "Floor", "Gather", "GatherElements", "GatherND", "Gemm",
        "Greater", "GreaterOrEqual", "HardSigmoid", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Log",
        "LogSoftmax", "MatMul", "Max", "Mean", "Min", "Mod", "Mul", "Neg", "Not", "OneHot", "Or", "PRelu",
        "Pad", "Pow", "Range", "Reciprocal", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
        "ReduceSum", "ReduceSumSquare", "ReduceLogSumExp", "Relu", "Reshape", "Round", "Selu", "Shape",
        "Sigmoid", "Sign", "Sin", "Slice", "Softmax", "Softplus", "Softsign", "Split", "Sqrt", "Squeeze", "Sub",
        "Sum", "Tan", "Tanh", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor", "CumSum",
        "Einsum",
    }
)  # fmt: skip


def check_weights(tower: Tower) -> None:
    """CannotExport naming the first constant that holds NaN, or infinities that are not one mask value.

    One infinite number alone is what models put on padded positions, and is left.
    """
    for node in tower.graph_def.node:
        if node.op != "Const":
            continue
        values = tensor_util.MakeNdarray(node.attr["value"].tensor)
        if not np.issubdtype(values.dtype, np.floating):
            continue
        bad = int(np.isnan(values).sum())
        if bad:
            raise CannotExport(f"weight {node.name} has {bad} NaN among its {values.size} numbers")
        bad = int(np.isinf(values).sum())
        if bad and values.size > 1:
            raise CannotExport(f"weight {node.name} has {bad} infinite among its {values.size} numbers")


def check_ops(model: onnx.ModelProto, origins: dict[str, str] | None = None) -> None:
    """CannotExport naming op and node where an engine would not know one. origins: node -> name in the model."""
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type not in KNOWN_OPS:
            where = (origins or {}).get(node.name, node.name)
            raise CannotExport(
                f"op {node.op_type} (node {where}) has no ONNX translation that every engine knows", node=where
            )


def check_model(model: onnx.ModelProto) -> None:
    """CannotExport with what ``onnx.checker`` says, shapes inferred strictly."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # its errors have no common base
        raise CannotExport(f"onnx.checker refuses it: {' '.join(str(error).split())[:300]}") from error
