"""A tower as an engine's inputs and outputs: open sizes by name, so that outputs' sizes follow from the inputs'."""

from __future__ import annotations

import re

from export.dense.built import NotUsable
from export.feeds import Sizes, random_feeds
from export.onnx.naming import ROWS, dimensions
from export.tower import Tower, TowerTensor
from export.tower_session import TowerSession, sizes_differ
from tfctr.engines.spec import EngineTensor

# Sizes of the inputs by name, and shapes of the outputs by name, of one run.
Run = tuple[dict[str, int], dict[str, tuple[int, ...]]]


def engine_tensors(tower: Tower) -> tuple[tuple[EngineTensor, ...], tuple[EngineTensor, ...]]:
    """(inputs, outputs). Raises NotUsable where an open size of an output is none of the inputs'."""
    inputs = tuple(EngineTensor(one.name, one.dtype, tuple(map(_size, dimensions(one)))) for one in tower.inputs)
    known = {size for one in inputs for size in one.shape if isinstance(size, str)}
    outputs = []
    found = None
    for one in tower.outputs:
        shape = _output_shape(one)
        if not all(size in known for size in shape if isinstance(size, str)):
            found = found or _sizes_by_name(tower, inputs)
            shape = _resolved(one, found)
        outputs.append(EngineTensor(one.name, one.dtype, shape))
    return inputs, tuple(outputs)


def _size(size: int | str) -> int | str:
    """Names start with a letter."""
    return f"d_{size}" if isinstance(size, str) and re.match(r"\d", size) else size


def _output_shape(one: TowerTensor) -> tuple[int | str, ...]:
    """Axis 0 is the rows, whatever the graph says of it: the referee has seen that."""
    sizes = tuple(map(_size, dimensions(one)))
    return (ROWS, *sizes[1:]) if sizes else ()


def _sizes_by_name(tower: Tower, inputs: tuple[EngineTensor, ...]) -> list[Run]:
    """Of two runs with random inputs."""
    found: list[Run] = []
    distinct = sizes_differ(tower)
    with TowerSession(tower) as session:
        for rows, inner in ((13, 4), (29, 7)):
            feeds = random_feeds(tower, Sizes(rows=rows, user_rows=2, inner=inner, distinct=distinct))
            sizes = {
                name: size
                for one in inputs
                for name, size in zip(one.shape, feeds[one.name].shape, strict=True)
                if isinstance(name, str)
            }
            found.append((sizes, {name: value.shape for name, value in session.run(feeds).items()}))
    return found


def _resolved(one: TowerTensor, runs: list[Run]) -> tuple[int | str, ...]:
    shape: list[int | str] = [ROWS]
    for axis in range(1, len(one.shape)):
        seen = [shapes[one.name][axis] for _, shapes in runs]
        if len(set(seen)) == 1:
            shape.append(seen[0])
            continue
        names = [name for name in runs[0][0] if all(sizes[name] == n for (sizes, _), n in zip(runs, seen, strict=True))]
        if not names:
            raise NotUsable(f"the size of its output {one.name}, axis {axis}, is not one of its inputs' sizes")
        shape.append(names[0])
    return tuple(shape)
