"""Our ops of split forms as stock ones, which tf2onnx and every engine know.

TfctrAddUserRows -> Gather, Add (and Relu); TfctrJoinUserRows -> Gather, Slice, Add, Concat. Where a row has K entries,
[U*K, ...] is gathered as [U, K, ...].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tensorflow.core.framework import node_def_pb2

from graph_opt.split.builder import Builder

_USER, _ITEM, _BOTH = range(3)


def join_nodes(build: Builder, node: node_def_pb2.NodeDef, rank: int, entries: int, tail: list[int | None]) -> str:
    """Adds them for one node; returns the tensor that stands for its output.

    build: over the tower's graph, in which the node's inputs are. rank: of item and user. entries: K. tail: sizes of
    user's axes from 1 on (needed where K > 1).
    """
    item, user, row_to_user = node.input[:3]
    users = _repeat(build, user, row_to_user, entries, tail)
    if node.op == "TfctrAddUserRows":
        made = build.binary("AddV2", item, users, f"{node.name}/add")
        return build.unary("Relu", made, f"{node.name}/relu") if node.attr["relu"].b else made
    return _join(build, node, item, users, rank)


def _repeat(build: Builder, user: str, row_to_user: str, entries: int, tail: list[int | None]) -> str:
    if entries == 1:
        return build.gather(user, row_to_user, name="user_rows")
    sizes: list[Any] = [-1 if size is None else size for size in tail]
    blocks = build.reshape(user, build.constant([-1, entries, *sizes], np.int64))
    gathered = build.gather(blocks, row_to_user, name="user_rows")
    return build.reshape(gathered, build.constant([-1, *sizes], np.int64))


def _join(build: Builder, node: node_def_pb2.NodeDef, item: str, users: str, rank: int) -> str:
    axis = node.attr["axis"].i
    widths, sides = list(node.attr["widths"].list.i), list(node.attr["sides"].list.i)
    start = {_USER: 0, _ITEM: 0}
    parts = []
    for width, side in zip(widths, sides, strict=True):
        pieces = []
        for of, tensor in ((_ITEM, item), (_USER, users)):
            if side in (of, _BOTH):
                pieces.append(build.slice(tensor, rank, axis, start[of], width))
                start[of] += width
        parts.append(pieces[0] if len(pieces) == 1 else build.binary("AddV2", pieces[0], pieces[1], f"{node.name}/add"))
    return build.concat(parts, axis, f"{node.name}/concat")
