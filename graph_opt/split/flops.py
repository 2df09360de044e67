"""Counts the multiplications and additions of matrix products, per row of each side.

An unknown size other than the number of rows (positions of a history) counts as 1.
"""

from __future__ import annotations

import dataclasses
import math

from tensorflow.core.framework import node_def_pb2

from graph_opt.rows.analysis import RowFacts
from graph_opt.rows.dims import Dims

PRODUCTS = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"})


@dataclasses.dataclass
class Flops:
    """before: of the original graph per row; user, item: of the split form per user and per item row."""

    before: int = 0
    user: int = 0
    item: int = 0

    def add(self, world: str, amount: float) -> None:
        if world == "user":
            self.user += round(amount)
        else:
            self.item += round(amount)


def flops_of(node: node_def_pb2.NodeDef, rows: RowFacts) -> int:
    """Multiplications and additions of one product per row, 0 for other ops."""
    if node.op not in PRODUCTS:
        return 0
    out = rows.kind(node.name).dims
    inputs = rows.view.inputs(node)
    x = rows.kind(inputs[0]).dims
    if out is None or x is None:
        return 0
    if node.op == "Einsum":
        return 2 * _size(out[1:]) * _contracted(node, rows)
    adjoint = node.op != "MatMul" and node.attr["adj_x"].b
    fold = out[0].coef if out else 1
    return 2 * fold * _size(out[1:]) * _number(x[-2 if adjoint else -1].coef if x[-1].known or adjoint else 1)


def _contracted(node: node_def_pb2.NodeDef, rows: RowFacts) -> int:
    equation = node.attr["equation"].s.decode().replace(" ", "")
    left, _, output = equation.partition("->")
    sizes: dict[str, int] = {}
    for term, tensor in zip(left.split(","), rows.view.inputs(node), strict=True):
        dims = rows.kind(tensor).dims or ()
        sizes |= {letter: d.coef if d.known else 1 for letter, d in zip(term, dims, strict=False)}
    return math.prod(size for letter, size in sizes.items() if letter not in output)


def _size(dims: Dims) -> int:
    return math.prod(_number(d.coef) for d in dims)


def _number(value: int) -> int:
    return max(int(value), 1)
