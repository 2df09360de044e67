"""FP32 ONNX tower -> strongly typed FP16 tower: every tensor's precision is written in the graph, by casts.

Float inputs arrive as FP32. The embeddings among them are clipped to +-clamp, which every later use sees; other inputs
(dense features, masks) keep their values, but their FP16 copies saturate at +-65504 instead of becoming infinite. Ids,
masks of integers or booleans and ``row_to_user`` are not touched. Outputs are FP32.

A tensor has one home precision, that of the node that makes it, and at most one copy in the other: a plain MLP has two
casts, one on the way in and one before its sigmoid. Equal models give equal bytes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from export.fp16.graph import FLOAT, FLOAT16, HEAVY, Array, Graph, check_weights, read_graph
from export.fp16.islands import HALF_MAX, IslandFinder
from tfctr.errors import UsageError

# Raised with every change that can change the FP16 model of an unchanged FP32 one: caches hold it.
RECIPE_VERSION = 1
DEFAULT_CLAMP = 10.0
_SMALLEST_NORMAL = 2.0**-14


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fp16Options:
    """clamp: embeddings are clipped to +-clamp; None: not at all. clamped: names of the inputs that are embeddings.

    islands: node name -> why it stays FP32, on top of what the rules find.
    """

    clamp: float | None = DEFAULT_CLAMP
    clamped: tuple[str, ...] = ()
    islands: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.clamp is not None and not (math.isfinite(self.clamp) and 0 < self.clamp <= HALF_MAX):
            raise UsageError(f"clamp {self.clamp}: expected a number above 0 and up to {HALF_MAX:g}, or none at all")


@dataclasses.dataclass(frozen=True)
class Island:
    """A node that stays FP32, and why."""

    node: str
    operation: str
    reason: str


@dataclasses.dataclass(frozen=True)
class WeightsNote:
    """What FP16 did to the weights. of: how many values were made FP16. clipped: values beyond 65504; vanished: values
    that were not 0 and are now; subnormal: values below 6.1e-5 that lost bits.
    """

    of: int = 0
    clipped: int = 0
    vanished: int = 0
    subnormal: int = 0

    @property
    def text(self) -> str:
        parts = [
            f"{count:,} {what}"
            for count, what in (
                (self.clipped, "beyond 65504 clipped"),
                (self.vanished, "too small for FP16 are now 0"),
                (self.subnormal, "held with fewer bits"),
            )
            if count
        ]
        return f"of {self.of:,} weights {', '.join(parts)}" if parts else f"{self.of:,} weights fit"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fp16Model:
    """casts: how many change precision. clamped: the inputs that are clipped to +-clamp. heavy: how many nodes with
    matrix products run in FP16, of ``heavy_of``; 0 means that FP16 gains nothing.
    """

    model: onnx.ModelProto
    islands: tuple[Island, ...]
    casts: int
    clamp: float | None
    clamped: tuple[str, ...]
    weights: WeightsNote
    heavy: int
    heavy_of: int

    def to_json(self) -> dict[str, Any]:
        """All but the model."""
        return {
            "recipe": RECIPE_VERSION,
            "islands": [dataclasses.asdict(island) for island in self.islands],
            "casts": self.casts,
            "clamp": self.clamp,
            "clamped": list(self.clamped),
            "weights": {**dataclasses.asdict(self.weights), "text": self.weights.text},
            "heavy": {"fp16": self.heavy, "of": self.heavy_of},
        }


def to_fp16(model: onnx.ModelProto, options: Fp16Options | None = None) -> Fp16Model:
    """The strongly typed FP16 form of ``model`` (checked by onnx.checker); ``model`` itself stays as it is.

    Raises InputError: NaN or infinite weights (named). UsageError: a tower that is not FP32 or does not hang together,
    an island or clamped input that it does not have.
    """
    options = options or Fp16Options()
    check_weights(model)
    graph = read_graph(model)
    check_clamped(graph, options.clamped)
    return _Writer(graph, IslandFinder(graph, options.islands), options).written()


def check_clamped(graph: Graph, names: Collection[str]) -> None:
    """Raises UsageError: a name that is no float input of the tower."""
    for name in names:
        if name not in graph.inputs or not graph.is_float(name):
            floats = ", ".join(n for n in graph.inputs if graph.is_float(n)) or "none"
            raise UsageError(f"clamped input {name!r}: the tower's float inputs are {floats}")


class _Writer:
    """Writes the FP16 graph node by node; casts and clips go right before their first reader."""

    def __init__(self, graph: Graph, islands: IslandFinder, options: Fp16Options) -> None:
        self.graph, self.islands, self.options = graph, islands, options
        self.clamped = tuple(n for n in graph.inputs if n in options.clamped) if options.clamp is not None else ()
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}
        self.casts = 0
        self.counts = [0, 0, 0, 0]
        self._copies: dict[tuple[str, int], str] = {}
        self._taken = {*graph.types, *graph.constants}
        self._names = {node.name for node in graph.nodes}
        self._half_home = {
            name
            for k in range(len(graph.nodes))
            if k not in islands.reasons and islands.has_floats(k)
            for name in graph.float_outputs(k)
        }
        # An output keeps its name for the FP32 copy.
        self._renamed = {name: self._free(f"{name}/fp16") for name in graph.outputs if name in self._half_home}

    def written(self) -> Fp16Model:
        graph, islands = self.graph, self.islands
        heavy = [k for k, node in enumerate(graph.nodes) if node.op_type in HEAVY and islands.has_floats(k)]
        for k in range(len(graph.nodes)):
            self._write(k)
        for name in graph.outputs:
            if name in self._renamed:
                self._typed(name, FLOAT)
        return Fp16Model(
            model=self._model(),
            islands=tuple(
                Island(graph.nodes[k].name, graph.nodes[k].op_type, islands.reasons[k]) for k in sorted(islands.reasons)
            ),
            casts=self.casts,
            clamp=self.options.clamp,
            clamped=self.clamped,
            weights=WeightsNote(*self.counts),
            heavy=sum(k not in islands.reasons for k in heavy),
            heavy_of=len(heavy),
        )

    def _write(self, k: int) -> None:
        node = onnx.NodeProto()
        node.CopyFrom(self.graph.nodes[k])
        half = self.islands.has_floats(k) and k not in self.islands.reasons
        for j, name in enumerate(node.input):
            if not name:
                continue
            if not self.graph.is_float(name):
                node.input[j] = self._constant(name) if name in self.graph.constants else name
            elif self.islands.has_floats(k):
                node.input[j] = self._typed(name, FLOAT16 if half else FLOAT)
            else:  # Shape: whatever is there
                node.input[j] = self._renamed.get(name, name)
        for j, name in enumerate(node.output):
            node.output[j] = self._renamed.get(name, name)
        if half:
            _type_attributes(node)
        self.nodes.append(node)

    def _typed(self, name: str, kind: int) -> str:
        """The name of ``name``'s copy of the given type; it is made on first use."""
        if (name, kind) in self._copies:
            return self._copies[name, kind]
        if name in self.graph.constants:
            made = self._constant(name, half=kind == FLOAT16)
        elif name in self._half_home:
            home = self._renamed.get(name, name)
            if kind == FLOAT16:
                made = home
            else:  # an output's FP32 copy has its name
                made = self._cast(home, name if name in self._renamed else self._free(f"{name}/fp32"), kind)
        elif name in self.clamped:
            made = self._clamped_input(name, kind)
        elif kind == FLOAT:
            made = name
        else:
            saturate = name in self.graph.inputs or name in self.islands.masked or self._holds_free_input(name)
            made = self._cast(self._clip(name, HALF_MAX) if saturate else name, self._free(f"{name}/fp16"), kind)
        self._copies[name, kind] = made
        return made

    def _holds_free_input(self, name: str) -> bool:
        """Whether ``name`` holds nothing but inputs, and one that is not clamped."""
        if name in self.graph.inputs:
            return name not in self.clamped
        maker = self.graph.maker(name) if name in self.islands.moved else None
        floats = [n for n in maker.input if self.graph.is_float(n)] if maker is not None else []
        return any(self._holds_free_input(n) for n in floats if n not in self.graph.constants)

    def _clamped_input(self, name: str, kind: int) -> str:
        assert self.options.clamp is not None
        if kind == FLOAT:
            return self._clip(name, self.options.clamp)
        return self._cast(self._typed(name, FLOAT), self._free(f"{name}/fp16"), kind)

    def _clip(self, name: str, limit: float) -> str:
        low, high = (self._scalar(value) for value in (-limit, limit))
        return self._emit("Clip", [name, low, high], self._free(f"{name}/clip"))

    def _scalar(self, value: float) -> str:
        name = f"fp16/{value:g}"
        self.weights[name] = np.asarray(value, np.float32)
        return name

    def _cast(self, source: str, target: str, kind: int) -> str:
        self.casts += 1
        return self._emit("Cast", [source], target, to=kind)

    def _emit(self, operation: str, inputs: list[str], output: str, name: str | None = None, **attributes: Any) -> str:
        base = f"{operation}/{name or output}"
        unique = next(n for n in (base, *(f"{base}_{k}" for k in range(len(self._names) + 1))) if n not in self._names)
        self._names.add(unique)
        self.nodes.append(helper.make_node(operation, inputs, [output], name=unique, **attributes))
        return output

    def _free(self, name: str) -> str:
        found = next(n for n in (name, *(f"{name}_{k}" for k in range(len(self._taken) + 1))) if n not in self._taken)
        self._taken.add(found)
        return found

    def _constant(self, name: str, half: bool = False) -> str:
        """A weight of which an FP32 and an FP16 copy are read keeps its name for the FP16 one."""
        value = self.graph.constants[name]
        if not half:
            used = (name, FLOAT16) in self._copies or self._is_read_as_half(name)
            copy = self._free(f"{name}/fp32") if used and self.graph.is_float(name) else name
            self.weights[copy] = value
            return copy
        with np.errstate(over="ignore"):
            narrow = np.clip(value, -HALF_MAX, HALF_MAX).astype(np.float16)
        self.weights[name] = narrow
        self._count(value, narrow)
        return name

    def _count(self, value: Array, narrow: Array) -> None:
        held = narrow.astype(np.float32)
        small = (np.abs(held) < _SMALLEST_NORMAL) & (held != value)
        found = (np.abs(value) > HALF_MAX, (value != 0) & (held == 0), small & (held != 0))
        self.counts = [
            self.counts[0] + value.size,
            *(c + int(m.sum()) for c, m in zip(self.counts[1:], found, strict=True)),
        ]

    def _is_read_as_half(self, name: str) -> bool:
        readers = self.graph.readers.get(name, [])
        return any(self.islands.has_floats(k) and k not in self.islands.reasons for k in readers)

    def _model(self) -> onnx.ModelProto:
        source = self.graph.model
        for name in self.graph.outputs:  # a constant, or an input, as it is
            if name in self.graph.constants:
                self.weights.setdefault(name, self.graph.constants[name])
        inputs = [value for value in source.graph.input if value.name in self.graph.inputs]
        graph = helper.make_graph(self.nodes, source.graph.name or "tower", inputs, source.graph.output)
        used = {name for node in self.nodes for name in node.input} | set(self.graph.outputs)
        graph.initializer.extend(
            numpy_helper.from_array(np.ascontiguousarray(value) if value.ndim else value, name)
            for name, value in self.weights.items()
            if name in used
        )
        made = helper.make_model(graph, opset_imports=list(source.opset_import), ir_version=source.ir_version)
        made.producer_name = "tfctr"
        onnx.checker.check_model(made, full_check=True)
        return made


def _type_attributes(node: onnx.NodeProto) -> None:
    """FP16 where an attribute says the type of a result."""
    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.name == "to" and attribute.i == FLOAT:
            attribute.i = FLOAT16
        elif node.op_type == "ConstantOfShape" and attribute.name == "value":
            value = numpy_helper.to_array(attribute.t)
            attribute.t.CopyFrom(numpy_helper.from_array(value.astype(np.float16)))
    if node.op_type == "ConstantOfShape" and not node.attribute:
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1, np.float16))))


def count_casts(model: onnx.ModelProto) -> int:
    """Casts between FP32 and FP16 in a typed model (for reports and tests)."""
    typed = onnx.shape_inference.infer_shapes(model).graph
    values = (*typed.input, *typed.value_info, *typed.output)
    types = {v.name: v.type.tensor_type.elem_type for v in values}
    return sum(
        node.op_type == "Cast" and {types.get(node.input[0]), types.get(node.output[0])} == {FLOAT, FLOAT16}
        for node in typed.node
    )


def float_inputs(model: onnx.ModelProto) -> Collection[str]:
    """Names of the FP32 inputs."""
    constants = {t.name for t in model.graph.initializer}
    return [v.name for v in model.graph.input if v.type.tensor_type.elem_type == FLOAT and v.name not in constants]
