"""Runs an ONNX tower in NumPy and rounds every result to the type that its graph says: the judge of FP16 towers.

A node with FP16 inputs computes in FP32 on their exact values and rounds its result to FP16 once, so a MatMul, Gemm,
Einsum, Softmax or reduction accumulates in FP32; between two nodes nothing is kept wider than the graph says. That is
what a strongly typed engine may do at its worst, save for one that also accumulates in FP16. A CPU runtime can't judge
FP16: ONNX Runtime removes pairs of casts and computes between them in FP32, so that an overflow never shows.

The operations are onnx's own reference implementations, called with FP32 arrays; those written here are the ones that
are slow there. FP32 graphs run too; then the numbers are ONNX Runtime's up to the order of summation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from export.fp16.graph import MOVERS
from tfctr.errors import InputError, UsageError

Array = npt.NDArray[Any]
Operation = Callable[..., Any]

HALF_MAX = 65504.0
_F16, _F32 = np.dtype(np.float16), np.dtype(np.float32)


class HalfEvaluator:
    """A loaded model. Not thread-safe; holds one FP32 copy of its FP16 weights.

    Raises UsageError: a node whose operation onnx has no reference implementation for (named), or with a subgraph.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.inputs = {value.name: value for value in model.graph.input}
        self.outputs = tuple(value.name for value in model.graph.output)
        self.nodes: tuple[onnx.NodeProto, ...] = tuple(model.graph.node)
        self._constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        for name in self._constants:
            self.inputs.pop(name, None)
        # FP32 values of FP16 constants: widened once, not per run.
        self._widened = {name: _widen(value) for name, value in self._constants.items() if value.dtype == _F16}
        self._operations = [_operation(node, model) for node in self.nodes]
        self._last_use = _last_uses(self.nodes)

    def run(
        self, feeds: Mapping[str, Array], watch: Callable[[str, Array], None] | None = None, keep: Collection[str] = ()
    ) -> dict[str, Array]:
        """The outputs by name; ``feeds``: an array per input. watch: called with each tensor a node makes, by name.

        keep: names of tensors to return with the outputs. Raises InputError: a missing input, or a node that fails.
        """
        values = self._start(feeds)
        wanted = {*self.outputs, *keep}
        with np.errstate(all="ignore"):
            for k, node in enumerate(self.nodes):
                for name, value in zip(node.output, self._compute(k, values), strict=False):
                    if name:
                        values[name] = value
                        if watch is not None:
                            watch(name, value)
                for name in self._last_use[k]:
                    if name not in wanted:
                        values.pop(name, None)
        return {name: values[name] for name in wanted}

    def run_all(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Every tensor by name, inputs and constants too."""
        values = self._start(feeds)
        with np.errstate(all="ignore"):
            for k, node in enumerate(self.nodes):
                values.update({n: v for n, v in zip(node.output, self._compute(k, values), strict=False) if n})
        return values

    def run_with_half_node(self, values: Mapping[str, Array], half: int) -> dict[str, Array]:
        """The outputs of an FP32 model if node ``half`` alone ran in FP16; ``values``: what ``run_all`` returned.

        Only what depends on that node is computed again.
        """
        changed: dict[str, Array] = {}
        with np.errstate(all="ignore"):
            for k in range(half, len(self.nodes)):
                node = self.nodes[k]
                if k != half and not any(name in changed for name in node.input):
                    continue
                if k == half:
                    given = {n: _through_half(values[n], n in self._constants) for n in node.input if n}
                    results = [_through_half(v) for v in self._compute(k, given)]
                else:
                    results = self._compute(k, {n: changed.get(n, values[n]) for n in node.input if n})
                changed.update({n: v for n, v in zip(node.output, results, strict=False) if n})
        return {name: changed.get(name, values[name]) for name in self.outputs}

    def _start(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        missing = [name for name in self.inputs if name not in feeds]
        if missing:
            raise InputError(f"the tower's input {missing[0]!r} is missing; given: {', '.join(feeds) or 'nothing'}")
        return {**self._constants, **{name: np.asarray(feeds[name]) for name in self.inputs}}

    def _compute(self, k: int, values: Mapping[str, Array]) -> list[Array]:
        node = self.nodes[k]
        inputs = [values[name] if name else None for name in node.input]
        # What only moves values does so in FP16, at half the bytes.
        half = node.op_type not in MOVERS and any(value is not None and value.dtype == _F16 for value in inputs)
        if half:
            inputs = [
                self._widened[name] if name in self._widened else None if value is None else _widen(value)
                for name, value in zip(node.input, inputs, strict=True)
            ]
        try:
            found = self._operations[k](*inputs)
        except (ValueError, IndexError, TypeError, RuntimeError) as error:
            shapes = ", ".join("-" if value is None else f"{value.dtype}{list(value.shape)}" for value in inputs)
            raise InputError(f"node {node.name!r} ({node.op_type}) of {shapes}: {error}") from error
        results = [_single(np.asarray(value)) for value in (found if isinstance(found, tuple | list) else [found])]
        # Cast says its type itself. Further results of LayerNormalization are FP32 statistics.
        if half and node.op_type != "Cast":
            rounded = 1 if node.op_type == "LayerNormalization" else len(results)
            results = [_narrow(value) if j < rounded else value for j, value in enumerate(results)]
        return results


def evaluate(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """``HalfEvaluator(model).run(feeds)``."""
    return HalfEvaluator(model).run(feeds)


def _widen(value: Array) -> Array:
    return value.astype(np.float32) if value.dtype == _F16 else value


def _single(value: Array) -> Array:
    """Some reference operations return float64 for scalars; a tower has none."""
    return value.astype(np.float32) if value.dtype == np.float64 else value


def _narrow(value: Array) -> Array:
    return value.astype(np.float16) if value.dtype == _F32 else value


def _through_half(value: Array, constant: bool = False) -> Array:
    """FP32 values rounded to what FP16 holds; constants are clipped first, as the conversion does."""
    if value.dtype != _F32:
        return value
    return (np.clip(value, -HALF_MAX, HALF_MAX) if constant else value).astype(np.float16).astype(np.float32)


def _last_uses(nodes: Sequence[onnx.NodeProto]) -> list[list[str]]:
    """Per node, the tensors that no later node reads."""
    last: dict[str, int] = {}
    for k, node in enumerate(nodes):
        last.update(dict.fromkeys((*node.input, *node.output), k))
    found: list[list[str]] = [[] for _ in nodes]
    for name, k in last.items():
        found[k].append(name)
    return found


def _operation(node: onnx.NodeProto, model: onnx.ModelProto) -> Operation:
    if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
        raise UsageError(f"node {node.name!r} ({node.op_type}) holds a subgraph; towers have none")
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    own = OWN_OPERATIONS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if own is not None:
        return functools.partial(own, attributes)
    # Of its own inputs and outputs a graph of one node: the reference evaluator's public form, at the model's opset.
    names = [f"i{k}" if name else "" for k, name in enumerate(node.input)]
    results = [f"o{k}" if name else "" for k, name in enumerate(node.output)]
    single = onnx.NodeProto()
    single.CopyFrom(node)
    del single.input[:], single.output[:]
    single.input.extend(names)
    single.output.extend(results)
    unknown = onnx.TypeProto()
    graph = onnx.helper.make_graph(
        [single],
        "one",
        [onnx.helper.make_value_info(name, unknown) for name in names if name],
        [onnx.helper.make_value_info(name, unknown) for name in results if name],
    )
    one = onnx.helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=model.ir_version)
    try:
        evaluator = ReferenceEvaluator(one)
    except (NotImplementedError, RuntimeError, ValueError, TypeError) as error:
        where = f"{node.domain}." if node.domain else ""
        raise UsageError(
            f"node {node.name!r}: the FP16 evaluator does not know the operation {where}{node.op_type}"
        ) from error

    def call(*inputs: Array | None) -> list[Array]:
        return list(evaluator.run(None, {n: v for n, v in zip(names, inputs, strict=True) if n}))

    return call


def _einsum(attributes: Mapping[str, Any], *operands: Array) -> Array:
    return np.einsum(attributes["equation"].decode(), *operands, optimize=True)


def _erf(_: Mapping[str, Any], x: Array) -> Array:
    """Cubic Hermite interpolation of a table of math.erf: within 1e-12, and 50 times as fast as one call a value."""
    table, slopes = _erf_table()
    place = (np.clip(np.nan_to_num(x.astype(np.float64), nan=0.0), -_ERF_END, _ERF_END) + _ERF_END) / _ERF_STEP
    low = np.minimum(place.astype(np.int64), len(table) - 2)
    t = place - low
    a, b = table[low], table[low + 1]
    found = (
        a * (1 + 2 * t) * (1 - t) ** 2
        + b * t * t * (3 - 2 * t)
        + _ERF_STEP * (slopes[low] * t * (1 - t) ** 2 - slopes[low + 1] * t * t * (1 - t))
    )
    return np.where(np.isnan(x), x, found.astype(x.dtype))


_ERF_END, _ERF_STEP = 6.0, 1.0 / 512


@functools.cache
def _erf_table() -> tuple[Array, Array]:
    at = np.arange(-_ERF_END, _ERF_END + _ERF_STEP, _ERF_STEP)
    return np.array([math.erf(v) for v in at]), 2 / math.sqrt(math.pi) * np.exp(-at * at)


def _cast(attributes: Mapping[str, Any], x: Array) -> Array:
    return x.astype(onnx.helper.tensor_dtype_to_np_dtype(attributes["to"]))


def _one_hot(attributes: Mapping[str, Any], at: Array, depth: Array, values: Array) -> Array:
    """The reference takes a scalar depth only; ONNX allows one number in a list too."""
    axis = attributes.get("axis", -1)
    size = int(depth.reshape(-1)[0])
    place = np.expand_dims(np.where(at < 0, at + size, at), axis)
    wanted = np.arange(size).reshape([-1 if k == axis % place.ndim else 1 for k in range(place.ndim)])
    return np.where(place == wanted, values[1], values[0])


OWN_OPERATIONS: Mapping[str, Operation] = {
    "Cast": _cast,
    "Einsum": _einsum,
    "Erf": _erf,
    "OneHot": _one_hot,
}
