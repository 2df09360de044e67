"""Values of small integer tensors computed from shapes and constants, as far as static shapes are known.

``tf.get_static_value`` stops at the first slice; this goes on through the arithmetic that layers do on shapes
(``shape(x)[-1]``, ``cast(shape(table)[0], int64)``). Unknown dimensions are None inside vectors and never leave them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from tensorflow.core.framework import node_def_pb2

if TYPE_CHECKING:
    from graph_opt.recognise.facts import Facts

_MAX_ELEMENTS = 4096
_BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "Add": np.add, "AddV2": np.add, "Sub": np.subtract, "Mul": np.multiply, "FloorDiv": np.floor_divide,
    "FloorMod": np.mod, "Maximum": np.maximum, "Minimum": np.minimum,
}  # fmt: skip
_REDUCTIONS: dict[str, Callable[..., Any]] = {"Prod": np.prod, "Sum": np.sum, "Max": np.max, "Min": np.min}
_MOVES = frozenset(
    {"Reshape", "Squeeze", "ExpandDims", "Pack", "ConcatV2", "StridedSlice", "Slice", "GatherV2", "Fill", "Range"}
)
_FOLDED = frozenset(_BINARY) | frozenset(_REDUCTIONS) | _MOVES | {"Cast"}


def fold(facts: Facts, tensor: str) -> np.ndarray | None:
    """The value of ``tensor``, None where it is not known."""
    dtype = facts.dtype(tensor)
    if not dtype.is_integer and not dtype.is_floating:
        return None
    value = _partial(facts, tensor, 0)
    if value is None or any(v is None for v in value.reshape(-1)):
        return None
    return value.astype(dtype.as_numpy_dtype)


def _partial(facts: Facts, tensor: str, depth: int) -> np.ndarray | None:
    """As an object array of int or float, with None for unknown dimensions; None where nothing is known."""
    tensor = facts.root(tensor)
    node = facts.view.get(tensor)
    if node is None or depth > 24:
        return None
    if node.op == "Const":
        value = facts.const(tensor)
        return None if value is None or value.size > _MAX_ELEMENTS or value.dtype == object else value.astype(object)
    if node.op == "Shape":
        shape = facts.shape(facts.view.inputs(node)[0])
        return None if shape is None else np.array(shape, dtype=object)
    if node.op not in _FOLDED:
        return None
    inputs = [_partial(facts, i, depth + 1) for i in facts.view.inputs(node)]
    if any(i is None for i in inputs):
        return None
    try:
        found = _apply(facts, node, [i for i in inputs if i is not None])
        return None if found is None else np.asarray(found, dtype=object)
    except (TypeError, ValueError, IndexError):
        return None  # an unknown dimension was needed


def _apply(facts: Facts, node: node_def_pb2.NodeDef, inputs: list[np.ndarray]) -> np.ndarray | None:
    if node.op in _BINARY:
        return np.asarray(_BINARY[node.op](inputs[0], inputs[1]), dtype=object)
    if node.op in _REDUCTIONS:
        if inputs[0].ndim > 1:
            return None
        return np.asarray(_REDUCTIONS[node.op](inputs[0]), dtype=object)
    if node.op == "Cast":
        target = facts.dtype(f"{node.name}:0")
        whole = int if target.is_integer else float
        return np.array([v if v is None else whole(v) for v in inputs[0].reshape(-1)], object).reshape(inputs[0].shape)
    if node.op == "Pack":
        return np.stack(inputs, axis=node.attr["axis"].i)
    if node.op == "ConcatV2":
        return np.concatenate(inputs[:-1], axis=int(inputs[-1]))
    if node.op in ("Reshape", "Squeeze", "ExpandDims"):
        shape = facts.shape(f"{node.name}:0")
        return None if shape is None or None in shape else inputs[0].reshape([int(d or 0) for d in shape])
    if node.op == "GatherV2":
        return np.take(inputs[0], inputs[1].astype(np.int64), axis=int(inputs[2]))
    if node.op == "Range":
        found = np.arange(*(i.item() for i in inputs))
        return None if found.size > _MAX_ELEMENTS else found.astype(object)
    if node.op == "Fill":
        return np.full(inputs[0].astype(np.int64), inputs[1].item(), dtype=object)
    return _sliced(node, inputs)


def _sliced(node: node_def_pb2.NodeDef, inputs: list[np.ndarray]) -> np.ndarray | None:
    """Slices of vectors, which is what shape arithmetic needs."""
    data = inputs[0]
    if data.ndim != 1 or inputs[1].size != 1:
        return None
    begin, end = int(inputs[1].item()), int(inputs[2].item())
    if node.op == "Slice":
        return data[begin : None if end == -1 else begin + end]
    if node.attr["shrink_axis_mask"].i == 1:
        return np.asarray(data[begin], dtype=object)
    if node.attr["new_axis_mask"].i or node.attr["ellipsis_mask"].i:
        return None
    first = None if node.attr["begin_mask"].i & 1 else begin
    last = None if node.attr["end_mask"].i & 1 else end
    return data[first : last : int(inputs[3].item())]
