"""Which nodes an engine can take: a list of reasons against the others."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework import dtypes

from export.onnx.handlers import HANDLERS
from graph_opt.functionals import FUNCTIONALS
from graph_opt.placement.control import TF1_CONTROL
from graph_opt.placement.sides import JOINS
from graph_opt.recognise.facts import Facts, has_effect
from graph_opt.verify import output_dtypes

# What may cross the boundary or be computed with inside.
DTYPES = frozenset(dtypes.as_dtype(name) for name in ("float32", "int32", "int64", "bool"))
# Entry by entry.
NARROWING = frozenset(
    {
        "Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd", "LogicalOr", "LogicalNot",
        "Cast", "FloorMod", "FloorDiv", "Add", "AddV2", "Sub", "Mul", "Maximum", "Minimum",
    }
)  # fmt: skip
# tf2onnx has translations that no engine of ours could run, or whose numbers are not those of serving.
_NEVER = frozenset(
    {
        "RandomUniform", "RandomStandardNormal", "RandomUniformInt", "StatelessRandomUniform", "Multinomial",
        "StringJoin", "StringToNumber", "Unique", "Where", "NonMaxSuppressionV5", "Bucketize", "SparseToDense",
        "SegmentSum", "CheckNumerics", "PyFunc", "Loop", "Scan",
    }
)  # fmt: skip
# Translations by rewriting patterns, which no registry lists; and ops that mean nothing in a frozen graph.
_BESIDE = frozenset({"Const", "NoOp", "Placeholder", "Identity", "IdentityN", "StopGradient", "PreventGradient"})


@functools.cache
def translated_ops() -> frozenset[str]:
    """TensorFlow ops with a translation to the ONNX ops of opset 18."""
    import tf2onnx.onnx_opset  # noqa: F401 - registers tf2onnx's handlers
    from tf2onnx.handler import tf_op

    from export.onnx.convert import OPSET

    known: set[str] = set()
    for version in tf_op.get_opsets()[""][: OPSET + 1]:
        known |= set(version)
    return frozenset((known | set(HANDLERS) | _BESIDE | JOINS) - _NEVER)


def reason_against(node: node_def_pb2.NodeDef, facts: Facts, avoid: Mapping[str, str]) -> str:
    """Why ``node`` can't be in a tower; "" where it can. avoid: nodes that are to stay outside, and why."""
    if node.name in avoid:
        return avoid[node.name]
    if node.op in FUNCTIONALS or node.op in TF1_CONTROL:
        return "control flow"
    if node.op not in translated_ops():
        return "no ONNX translation"
    if has_effect(node):
        return "it has an effect or a state"
    for dtype in [facts.dtype(tensor) for tensor in facts.view.inputs(node)] + [
        dtypes.as_dtype(number) for number in output_dtypes(node)
    ]:
        if dtype not in DTYPES:
            return f"{dtype.name} (engines take {', '.join(sorted(d.name for d in DTYPES))})"
    return ""
