"""Shape arithmetic becomes constants: every shape, repeat or axis input whose value the model fixes.

Translations of Tensordot and einsum compute the shapes of their reshapes from the shapes of their inputs, ten nodes per
layer; engines then see a graph that is dynamic where nothing varies but the rows. The model is run at several sizes and
each such input is written as the constant it always is, with one -1 for what varies.

Only values computed from shapes and constants are touched, by operations that are linear in a size or take the larger
of sizes: what depends on data, or could depend on a size otherwise than these runs show, stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx

from export.onnx.graph import add_constant, constants, producers
from export.onnx.ordering import sort_nodes
from export.onnx.probing import run_probes
from export.tower import Tower

# op -> numbers of the inputs that are shapes, repeats, axes and the like.
_SHAPE_INPUTS = {
    "Reshape": (1,),
    "Tile": (1,),
    "Expand": (1,),
    "ConstantOfShape": (0,),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Pad": (1,),
    "ReduceSum": (1,),
    "ReduceMean": (1,),
    "ReduceMax": (1,),
    "ReduceMin": (1,),
    "ReduceProd": (1,),
    "ReduceL2": (1,),
    "Gather": (1,),
    "TopK": (1,),
    "OneHot": (1,),
}
# What may compute a shape: nothing that could treat another size differently (no minimum, comparison or remainder).
_SHAPE_OPS = frozenset(
    {
        "Shape", "Size", "Gather", "Slice", "Concat", "Cast", "ReduceProd", "ReduceSum", "Mul", "Add",
        "Unsqueeze", "Squeeze", "Max", "Identity", "Reshape", "ScatterElements", "Split",
    }
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Use:
    node: onnx.NodeProto
    place: int


def fold_shapes(model: onnx.ModelProto, tower: Tower) -> tuple[int, list[str]]:
    """Writes what is always the same as constants. Returns how many inputs were written, and what was left and why."""
    sort_nodes(model)
    graph = model.graph
    uses = _computed_shapes(graph)
    if not uses:
        return 0, []
    wanted = {use.node.input[use.place] for use in uses}
    wanted |= {
        name for use in uses if use.node.op_type == "Reshape" for name in (use.node.input[0], use.node.output[0])
    }
    runs = run_probes(model, tower, sorted(wanted))
    folded, left = 0, []
    for use in uses:
        if use.node.op_type == "Reshape":
            value = _reshape_target(
                [run[use.node.input[0]].shape for run in runs], [run[use.node.output[0]].shape for run in runs]
            )
        else:
            value = _same([run[use.node.input[use.place]] for run in runs])
        if value is None:
            left.append(f"{use.node.op_type} {use.node.name}")
            continue
        use.node.input[use.place] = add_constant(graph, f"{use.node.name}/shape", value)
        folded += 1
    sort_nodes(model)
    return folded, left


def _computed_shapes(graph: onnx.GraphProto) -> list[_Use]:
    """Uses of tensors that are computed from shapes and constants alone."""
    made_by, values = producers(graph), constants(graph)
    known: dict[str, bool] = dict.fromkeys(values, True)
    for node in graph.node:  # in order: producers first
        if node.op_type == "Constant":
            continue
        pure = node.op_type == "Shape" or (
            node.op_type in _SHAPE_OPS and all(known.get(source, False) for source in node.input if source)
        )
        known |= dict.fromkeys(node.output, pure)
    return [
        _Use(node, place)
        for node in graph.node
        for place in _SHAPE_INPUTS.get(node.op_type, ())
        if place < len(node.input) and node.input[place] in made_by and known.get(node.input[place], False)
        and node.input[place] not in values
    ]  # fmt: skip


def _reshape_target(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> np.ndarray | None:
    """The constant shape that makes these outputs of these inputs. Taken from the outputs: a shape that has a -1
    already would get a second one if its varying sizes were replaced.
    """
    if len({len(shape) for shape in after}) != 1:
        return None
    target, open_axes = [], []
    for axis, sizes in enumerate(zip(*after, strict=True)):
        if len(set(sizes)) == 1:
            target.append(sizes[0])
        else:
            open_axes.append(axis)
            target.append(-1)
    # 0: the input's size along the same axis. All but the last need it.
    for axis in open_axes[:-1]:
        if not all(axis < len(shape) and shape[axis] == made[axis] for shape, made in zip(before, after, strict=True)):
            return _target_from_the_end(before, after, target, open_axes)
        target[axis] = 0
    return None if any(size == 0 and axis not in open_axes for axis, size in enumerate(target)) else np.array(target)


def _target_from_the_end(
    before: Sequence[Sequence[int]], after: Sequence[Sequence[int]], target: list[int], open_axes: list[int]
) -> np.ndarray | None:
    """The same with the -1 elsewhere: at the one open axis that is no copy of the input's."""
    copied = [
        axis
        for axis in open_axes
        if all(axis < len(shape) and shape[axis] == made[axis] for shape, made in zip(before, after, strict=True))
    ]
    if len(copied) != len(open_axes) - 1:
        return None
    return np.array([0 if axis in copied else -1 if axis in open_axes else size for axis, size in enumerate(target)])


def _same(values: Sequence[np.ndarray]) -> np.ndarray | None:
    first = values[0]
    return first if all(np.array_equal(first, other) and first.dtype == other.dtype for other in values) else None
