"""TensorFlow ops that tf2onnx translates wrongly or not at all.

Given to tf2onnx per conversion: registering them would depend on what was imported first, since tf2onnx registers its
own when ``tf2onnx.onnx_opset`` is imported, and the last one wins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# (graph, node, node name, arguments), as tf2onnx calls a handler; both objects are tf2onnx's.
Handler = Callable[[Any, Any, str, list[Any]], None]


def erfc(graph: Any, node: Any, name: str, _: list[Any]) -> None:
    """Erfc(x) -> 1 - Erf(x). tf2onnx leaves the node as it is, and ONNX has no such op."""
    dtype = graph.get_dtype(node.output[0])
    shape, outputs, source = graph.get_shape(node.output[0]), node.output, node.input[0]
    graph.remove_node(name)
    erf = graph.make_node("Erf", [source], dtypes=[dtype], shapes=[shape])
    one = graph.make_const(f"{name}/one", np.array(1, _numpy_dtype(dtype)))
    graph.make_node("Sub", [one.output[0], erf.output[0]], name=name, outputs=outputs, dtypes=[dtype], shapes=[shape])


def select(graph: Any, node: Any, name: str, _: list[Any]) -> None:
    """Select and SelectV2 -> Where. tf2onnx makes x * cast(c) + y * cast(!c), which is NaN where the value that is not
    chosen is infinite or NaN (in FP16: where it is a mask of -2^32).
    """
    condition, chosen = graph.get_shape(node.input[0]), graph.get_shape(node.input[1])
    if node.type == "Select" and condition is not None and len(condition) == 1:
        # The old op takes a vector of conditions, one per row.
        if chosen is None:
            raise ValueError(f"Select {name}: the rank of its values is not known")
        if len(chosen) > 1:
            rows = graph.make_const(f"{name}/rows", np.array([-1] + [1] * (len(chosen) - 1), np.int64))
            per_row = graph.make_node("Reshape", [node.input[0], rows.output[0]])
            graph.replace_input(node, node.input[0], per_row.output[0], 0)
    node.type = "Where"


def _numpy_dtype(onnx_dtype: int) -> Any:
    from onnx import helper

    return helper.tensor_dtype_to_np_dtype(onnx_dtype)


HANDLERS: dict[str, tuple[Handler, list[Any]]] = {
    "Erfc": (erfc, []),
    "Select": (select, []),
    "SelectV2": (select, []),
}
