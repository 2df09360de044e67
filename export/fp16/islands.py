"""Which nodes of an FP32 tower must stay FP32, each with the reason. Everything else runs in FP16.

FP16 has 11 bits, 6.1e-5 as its smallest normal number and 65504 as its largest. So what stays is: squares that are
averaged (LayerNorm's variance: 300 squared is infinite), what divides or takes roots (an epsilon of 1e-8 is 0), masks
(-2^32 is -inf, and inf times 0 is NaN), Exp and Pow, whole numbers and comparisons, and the last sigmoid (beside 1 an
FP16 probability moves in steps of 5e-4). The rules read structure and constants only; what depends on the data is
found by ``calibrate`` and by the accuracy gate, and comes in by node name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from export.fp16.graph import ELEMENTWISE, FLOAT, HEAVY, MOVERS, Array, Graph
from tfctr.errors import UsageError

HALF_MAX = 65504.0
# Adding two such constants overflows; a constant this large is a mask.
MASK_SIZE = HALF_MAX / 2
# How far FP16 may move a scalar constant (an epsilon, a scale) before its node stays FP32.
_SCALAR_ERROR = 0.01

_BY_OPERATION = {
    "Exp": "exp overflows FP16 above 11",
    "Pow": "a power leaves FP16's range",
    "Log": "a logarithm of what FP16 rounds to 0",
    "Softplus": "exp overflows FP16 above 11",
    "Mish": "exp overflows FP16 above 11",
    "ReduceSumSquare": "a sum of squares",
    "ReduceL2": "a sum of squares",
    "ReduceLogSum": "a logarithm",
    "ReduceLogSumExp": "exp overflows FP16 above 11",
    "LayerNormalization": "LayerNorm statistics",
    "InstanceNormalization": "normalisation statistics",
    "GroupNormalization": "normalisation statistics",
    "BatchNormalization": "unfolded batch normalisation",
    "Sqrt": "an unfolded root",
    "Reciprocal": "an unfolded reciprocal",
    "Range": "ONNX has it in FP32 only",
    "Celu": "ONNX has it in FP32 only",
}
_COMPARISONS = frozenset(
    {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsNaN", "IsInf", "ArgMax", "ArgMin", "TopK"}
)
_STEPS = frozenset({"Ceil", "Floor", "Round", "Mod", "Sign"})
_LAST = frozenset({"Sigmoid", "Softmax", "LogSoftmax", "HardSigmoid", "Tanh"})
# What a masked value can't leave as a large one.
_BOUNDING = frozenset({"Softmax", "LogSoftmax", "Sigmoid", "HardSigmoid", "Tanh", "Exp", "Clip", *_COMPARISONS})
_MEANS = frozenset({"ReduceMean", "ReduceSum"})
_SHAPES = frozenset({"Shape", "Size"})


class IslandFinder:
    """The islands of ``graph``: ``reasons`` by node number; ``masked``: tensors that may hold mask constants;
    ``moved``: tensors that hold nothing but inputs as they came.

    named: further nodes by name, with the reason of each. Raises UsageError: a name that no node has.
    """

    def __init__(self, graph: Graph, named: Mapping[str, str] | None = None) -> None:
        self.graph = graph
        self.reasons: dict[int, str] = {}
        self.masked: set[str] = set()
        self.moved: set[str] = set()
        numbers = {node.name: k for k, node in enumerate(graph.nodes)}
        for name, reason in (named or {}).items():
            if name not in numbers:
                raise UsageError(f"FP32 island {name!r}: the tower has no such node; it has {_some(numbers)}")
            self._add(numbers[name], reason)
        self._by_operation()
        self._by_constants()
        self._masks()
        self._divisions()
        self._normalisations()
        self._outputs()
        self._joined_inputs()
        self._between()

    def has_floats(self, k: int) -> bool:
        """Whether the node's precision is a question at all: integers, and shapes of anything, are left alone."""
        if self.graph.nodes[k].op_type in _SHAPES:
            return False
        return bool(self.graph.float_inputs(k) or self.graph.float_outputs(k))

    def _add(self, k: int, reason: str) -> None:
        if self.has_floats(k):
            self.reasons.setdefault(k, reason)

    def _by_operation(self) -> None:
        g = self.graph
        for k, node in enumerate(g.nodes):
            if node.op_type in _BY_OPERATION:
                self._add(k, _BY_OPERATION[node.op_type])
            elif node.op_type in _COMPARISONS:
                self._add(k, "a comparison of values that FP16 would round")
            elif node.op_type in _STEPS:
                self._add(k, "a step that FP16 may take on the other side")
            elif node.op_type == "Cast" and self._converts(node):
                self._add(k, "a conversion from or to whole numbers, which FP16 holds up to 2048")

    def _converts(self, node: onnx.NodeProto) -> bool:
        """Whether a Cast changes between floats and others; a boolean made a float is exact in any precision."""
        source, target = self.graph.types[node.input[0]], self.graph.types[node.output[0]]
        return source != target and source != TensorProto.BOOL

    def _by_constants(self) -> None:
        g = self.graph
        for k, node in enumerate(g.nodes):
            if node.op_type in HEAVY or node.op_type in _BY_OPERATION:
                continue
            if node.op_type == "ConstantOfShape":
                held = [next((a.t for a in node.attribute if a.name == "value"), None)]
                values = [numpy_helper.to_array(t) for t in held if t is not None]
            else:
                values = [g.constants[n] for n in node.input if n in g.constants and g.types[n] == FLOAT]
            for value in values:
                if value.dtype.kind != "f" or not value.size:
                    continue
                if float(np.abs(value).max()) > MASK_SIZE:
                    if node.op_type != "Clip":  # a bound beyond FP16 is none
                        self._add(k, "a mask constant")
                        self.masked.update(g.float_outputs(k))
                elif value.size == 1 and not _holds(value):
                    self._add(k, f"the constant {float(value.reshape(-1)[0]):g} is not in FP16's range")

    def _masks(self) -> None:
        """What a masked value reaches, up to the operation that bounds it."""
        g = self.graph
        for k, node in enumerate(g.nodes):
            if node.op_type in HEAVY or not any(name in self.masked for name in g.float_inputs(k)):
                continue
            self._add(k, "adds a mask" if node.op_type in ELEMENTWISE or node.op_type in MOVERS else "reads a mask")
            if node.op_type not in _BOUNDING and node.op_type != "LayerNormalization":
                self.masked.update(g.float_outputs(k))

    def _divisions(self) -> None:
        """Divisions by what was computed, and the epsilon that is added before a division or a root."""
        g = self.graph
        for k, node in enumerate(g.nodes):
            divisor = None
            if node.op_type == "Div" and node.input[1] not in g.constants and g.is_float(node.input[1]):
                self._add(k, "a division by a computed value")
                divisor = node.input[1]
            elif node.op_type in ("Sqrt", "Reciprocal", "Log") or _is_root(g, k):
                divisor = node.input[0]
            path: list[int] = []
            while divisor is not None and divisor in g.producer:
                above = g.producer[divisor]
                path.append(above)
                operation = g.nodes[above].op_type
                if operation in ("Add", "Max", "Clip"):
                    if any(n in g.constants and g.constants[n].size == 1 for n in g.nodes[above].input):
                        for found in path:
                            self._add(found, "the epsilon of a division or root")
                    break
                if operation not in ("Abs", "Sqrt", *MOVERS):
                    break
                divisor = next((n for n in g.float_inputs(above) if n not in g.constants), None)

    def _normalisations(self) -> None:
        """The pattern of a LayerNorm: mean, difference, square, mean, epsilon, root, and the scaling that follows."""
        g = self.graph
        sources: set[str] = set()
        spread: set[int] = set()
        statistics: set[int] = set()
        for k, node in enumerate(g.nodes):
            root = _square_of(g, k)
            if root is None:
                continue
            means = [r for r in self._readers_through_movers(node.output[0]) if g.nodes[r].op_type in _MEANS]
            if not means:
                continue
            above = g.maker(root)
            mean = [n for n in above.input if _is_mean(g, n)] if above is not None and above.op_type == "Sub" else []
            if above is not None and mean:
                spread.update((k, *means, g.producer[root], _mean_maker(g, mean[0])))
                sources.update(n for n in above.input if n not in mean)
            else:  # of a variance written another way, or a factorisation machine's
                for found in (k, *means):
                    self._add(found, "a sum of squares")
                statistics.update((k, *means))
                sources.add(root)
        for k, node in enumerate(g.nodes):
            if node.op_type == "ReduceMean" and node.input[0] in sources:
                spread.add(k)
        for k in sorted(spread):
            self._add(k, "LayerNorm statistics")
        roots = {k for k in self.reasons if g.nodes[k].op_type in ("Sqrt", "Reciprocal")}
        self._scalings(spread | statistics | roots, sources)

    def _scalings(self, found: set[int], sources: set[str]) -> None:
        """Adds, in order, elementwise nodes that read nothing but statistics, the normalised tensor and constants."""
        g = self.graph
        statistics = {name for k in found for name in g.nodes[k].output}
        for k, node in enumerate(g.nodes):
            if k in found or node.op_type not in (*ELEMENTWISE, "Sqrt", "Reciprocal", *MOVERS):
                continue
            reads = [n for n in g.float_inputs(k) if n not in g.constants]
            if any(n in statistics for n in reads) and all(n in statistics or n in sources for n in reads):
                statistics.update(node.output)
                if node.op_type not in MOVERS:  # those between FP32 nodes are found below
                    self._add(k, "scaling by LayerNorm statistics" if sources else "scaling by an unfolded root")

    def _outputs(self) -> None:
        """The last sigmoid or softmax of each output, and what only multiplies or moves its results."""
        g = self.graph
        for output in g.outputs:
            nodes: list[int] = []
            if g.is_float(output) and self._ends_in_sigmoid(output, nodes) and nodes:
                for k in nodes:
                    self._add(k, "the output's sigmoid")

    def _ends_in_sigmoid(self, tensor: str, nodes: list[int]) -> bool:
        g = self.graph
        k = g.producer.get(tensor)
        if k is None:
            return tensor in g.constants
        node = g.nodes[k]
        nodes.append(k)
        if node.op_type in _LAST:
            return True
        if node.op_type not in (*ELEMENTWISE, *MOVERS):
            return False
        reads = [n for n in g.float_inputs(k) if n not in g.constants]
        return bool(reads) and all(self._ends_in_sigmoid(n, nodes) for n in reads)

    def _joined_inputs(self) -> None:
        """Inputs that only go side by side: joined in FP32 they need one cast, not one each."""
        g = self.graph
        moved = {n for n in g.inputs if g.is_float(n)}
        for k, node in enumerate(g.nodes):
            reads = {n for n in g.float_inputs(k) if n not in g.constants}
            if node.op_type not in MOVERS or k in self.reasons or not reads or not reads <= moved:
                continue
            if all(g.readers[n] == [k] for n in reads):
                moved.update(g.float_outputs(k))
                self.moved.update(g.float_outputs(k))
                if len(reads) > 1:
                    self._add(k, "joins FP32 inputs: one cast instead of several")

    def _between(self) -> None:
        """Light nodes that read FP32 only and feed it: in FP16 they would cost a pair of casts.

        What only moves values does so in FP32 as soon as one reader is FP32: others lose nothing by a later cast.
        """
        g = self.graph
        light = {
            k for k, n in enumerate(g.nodes) if n.op_type not in HEAVY and self.has_floats(k)
        } - self.reasons.keys()
        while True:
            # The largest set whose members read FP32 or each other, and then of those the ones that feed it.
            reading: set[int] = set()
            for k in sorted(light):
                makers = [g.producer[n] for n in g.float_inputs(k) if n in g.producer]
                if all(m in self.reasons or m in reading for m in makers):
                    reading.add(k)
            feeding: set[int] = set()
            for k in sorted(reading, reverse=True):
                wide = [r in self.reasons or r in feeding for r in self._float_readers(k)]
                wide += [True for n in g.float_outputs(k) if n in g.outputs]
                if wide and (any(wide) if g.nodes[k].op_type in MOVERS else all(wide)):
                    feeding.add(k)
            if feeding == light:
                break
            light = feeding
        for k in sorted(light):
            self._add(k, "between FP32 neighbours")

    def _float_readers(self, k: int) -> list[int]:
        g = self.graph
        return [r for n in g.float_outputs(k) for r in g.readers.get(n, []) if self.has_floats(r)]

    def _readers_through_movers(self, tensor: str) -> Iterable[int]:
        for reader in self.graph.readers.get(tensor, []):
            if self.graph.nodes[reader].op_type in ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose"):
                yield from self._readers_through_movers(self.graph.nodes[reader].output[0])
            else:
                yield reader


def _square_of(g: Graph, k: int) -> str | None:
    """The tensor that node ``k`` squares, if it does."""
    node = g.nodes[k]
    if node.op_type == "Mul" and node.input[0] == node.input[1] and node.input[0] not in g.constants:
        return node.input[0]
    return node.input[0] if _exponent(g, k) == 2 else None


def _is_root(g: Graph, k: int) -> bool:
    exponent = _exponent(g, k)
    return exponent is not None and (exponent < 0 or exponent != int(exponent))


def _exponent(g: Graph, k: int) -> float | None:
    """Of a Pow by one constant."""
    node = g.nodes[k]
    power = g.constants.get(node.input[1]) if node.op_type == "Pow" else None
    return float(power.reshape(-1)[0]) if power is not None and power.size == 1 else None


def _mean_maker(g: Graph, tensor: str) -> int:
    k = g.producer[tensor]
    while g.nodes[k].op_type in MOVERS:
        k = g.producer[g.nodes[k].input[0]]
    return k


def _is_mean(g: Graph, tensor: str) -> bool:
    k = g.producer.get(tensor)
    while k is not None and g.nodes[k].op_type in MOVERS:
        k = g.producer.get(g.nodes[k].input[0])
    return k is not None and g.nodes[k].op_type == "ReduceMean"


def _holds(value: Array) -> bool:
    exact = np.abs(value.astype(np.float64))
    with np.errstate(over="ignore"):
        held = np.abs(value.astype(np.float16).astype(np.float64))
    return bool(np.all(np.abs(held - exact) <= _SCALAR_ERROR * exact))


def _some(names: Iterable[str], most: int = 8) -> str:
    known = list(names)
    return ", ".join(known[:most]) + (f" and {len(known) - most} more" if len(known) > most else "")
