"""The dense tower of one signature form: what an engine is made from."""

from __future__ import annotations

import dataclasses

from tensorflow.core.framework import graph_pb2

# item: [B, ...]; user: [U, ...], one row per user; row_to_user: int64 [B]; dense: an input of the model, [B, ...].
SIDES = ("item", "user", "row_to_user", "dense")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TowerTensor:
    """An input or output of a tower.

    name: for people and for the engine's binding (letters, digits, underscore). tensor: in ``Tower.graph_def``.
    source: in the model's graph. dtype: TensorFlow's name. shape: None for the rows and every dimension not known.
    side: one of ``SIDES`` for an input, "" for an output. dims: names of the inner sizes that are not known, "" for the
    others; equal names are equal sizes. Empty: nothing is known of them.
    """

    name: str
    tensor: str
    source: str
    dtype: str
    shape: tuple[int | None, ...]
    side: str = ""
    dims: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tower:
    """A frozen graph: a Placeholder per input, the tower's nodes, its weights as constants.

    signature: the form it was cut from. nodes: names of the tower's nodes in the model's graph. left_outside: what is
    not part of it though it computes on the way to the outputs, as "node: reason".
    """

    signature: str
    graph_def: graph_pb2.GraphDef
    inputs: tuple[TowerTensor, ...]
    outputs: tuple[TowerTensor, ...]
    nodes: frozenset[str] = frozenset()
    left_outside: tuple[str, ...] = ()
