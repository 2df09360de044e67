"""The frozen graph of a tower: placeholders, its nodes without devices and waits, weights as constants."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.python.framework import dtypes, versions

from export.cutting.joins import join_nodes
from export.cutting.region import Region
from export.cutting.rows import USERS, FormRows
from export.cutting.supply import TABLE_OP, Supplies
from export.reasons import CannotExport
from export.tower import TowerTensor
from graph_opt.item import GraphItem
from graph_opt.placement.sides import JOINS
from graph_opt.recognise.facts import Facts
from graph_opt.split.builder import Builder
from graph_opt.store_files import constant_node
from graph_opt.view import GraphView, canonical, node_of, short

# Attributes that say where a node runs, or what grappler once knew of it.
_PLACES = ("_class", "_output_shapes", "_xla_compile_id", "_tfctr_rule", "_grappler_do_not_remove")
PREFIX = "tower/"


class TowerGraph:
    """Builds the graph of one region. tensors: tensor of the model -> its tensor in the tower, once built."""

    def __init__(self, item: GraphItem, facts: Facts, rows: FormRows, region: Region, supplies: Supplies) -> None:
        self._item, self._facts, self._rows, self._region, self._supplies = item, facts, rows, region, supplies
        self.graph_def = graph_pb2.GraphDef()
        # Placeholders of scalars have a shape from version 24 on.
        self.graph_def.versions.producer = versions.GRAPH_DEF_VERSION
        self._view = GraphView(self.graph_def)
        self._build = Builder(self._view, PREFIX, custom=False)
        self.tensors: dict[str, str] = {}
        self.nodes: set[str] = set(region.nodes)

    def run(self, inputs: Sequence[TowerTensor]) -> graph_pb2.GraphDef:
        """inputs: ``tensor`` is the name of the placeholder to be made."""
        for one in inputs:
            self._placeholder(one)
            self.tensors[one.source] = one.tensor
        inside = set(self._region.nodes)
        reads = [t for name in self._region.nodes for t in self._facts.view.inputs(name)]
        along, anew = self._supplies.needed_nodes(
            [t for t in reads if node_of(t) not in inside], inside, set(self._region.inputs)
        )
        for tensor in anew:
            self.tensors[tensor] = self._size(tensor, inputs)
        wanted = inside | set(along)
        for node in self._facts.view.topological():
            if node.name in wanted:
                self._add(node)
        self.nodes |= set(along)
        self._view.sort()
        return self.graph_def

    def _placeholder(self, one: TowerTensor) -> None:
        node = node_def_pb2.NodeDef(name=node_of(one.tensor), op="Placeholder")
        node.attr["dtype"].type = dtypes.as_dtype(one.dtype).as_datatype_enum
        for size in one.shape:
            node.attr["shape"].shape.dim.add().size = -1 if size is None else size
        node.attr["shape"].shape.SetInParent()
        self._view.add(node)

    def _add(self, node: node_def_pb2.NodeDef) -> None:
        if node.op == TABLE_OP:
            self._view.add(constant_node(node.name, self._table(node)))
            return
        made = node_def_pb2.NodeDef(name=node.name, op=node.op)
        # "x", not "x:0": grappler, which tf2onnx runs, makes control inputs of edges that it drops: "^x:0" is none.
        made.input.extend(short(self.tensors.get(t, t)) for t in self._facts.view.inputs(node))
        for key, value in node.attr.items():
            if key not in _PLACES:
                made.attr[key].CopyFrom(value)
        if node.op in JOINS:
            self._join(made, node)
        else:
            self._view.add(made)

    def _join(self, made: node_def_pb2.NodeDef, node: node_def_pb2.NodeDef) -> None:
        kind = self._rows.kind(self._facts.view.inputs(node)[0])
        fold = kind.fold
        if kind.rank is None or fold is None or not fold.known:
            raise CannotExport(f"the number of entries per row of {node.name} is not known", node=node.name)
        shape = self._facts.shape(self._facts.view.inputs(node)[1]) or []
        self.tensors[f"{node.name}:0"] = join_nodes(self._build, made, kind.rank, fold.coef, list(shape[1:]))

    def _table(self, node: node_def_pb2.NodeDef) -> np.ndarray:
        file = self._item.files[node.attr["index"].i]
        if file.path is None:
            raise CannotExport(
                f"the weights {file.name} have not been read: the model was only analysed", node=node.name
            )
        return read_table(file.path, file.dtype, file.shape)

    def _size(self, tensor: str, inputs: Sequence[TowerTensor]) -> str:
        """A scalar or vector of sizes, from the rows of an input."""
        side = self._rows.whose(tensor)
        sides = ("user",) if side == USERS else ("item", "row_to_user", "dense")
        reference = next((one for one in inputs if one.side in sides and one.shape and one.shape[0] is None), None)
        sizes = self._rows.sizes(tensor) or ()
        dtype = self._facts.dtype(tensor)
        elements = []
        for factor, by_rows in sizes:
            if not by_rows:
                elements.append(self._build.constant(factor, dtype.as_numpy_dtype))
                continue
            if reference is None:
                whose = "users" if side == USERS else "items"
                raise CannotExport(f"it needs {tensor}, a number of rows of {whose}, and has no input of theirs")
            rows = self._build.element(self._build.shape(reference.tensor, dtype.as_datatype_enum), 0)
            by = self._build.constant(factor, dtype.as_numpy_dtype)
            elements.append(rows if factor == 1 else self._build.binary("Mul", rows, by))
        scalar = self._rows.kind(tensor).rank == 0
        return elements[0] if scalar else self._build.pack(elements, 0, "sizes")


def read_table(path: Path, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """The rows of a table file: they lie at its start, one behind the other."""
    numpy_dtype = np.dtype(dtypes.as_dtype(dtype).as_numpy_dtype)
    return np.fromfile(path, numpy_dtype, int(np.prod(shape))).reshape(shape)


def tower_tensors(
    item: GraphItem,
    facts: Facts,
    rows: FormRows,
    tensors: Sequence[str],
    names: Mapping[str, str],
    row_to_user: str,
) -> tuple[TowerTensor, ...]:
    """Inputs with their sides and shapes: axis 0 open where it is the rows."""
    from export.cutting.sides import side_of

    return tuple(
        TowerTensor(
            name=names[tensor],
            tensor=f"{PREFIX}in/{names[tensor]}:0",
            source=canonical(tensor),
            dtype=facts.dtype(tensor).name,
            shape=shape_of(facts, rows, tensor),
            side=side_of(item, facts, rows, tensor, row_to_user),
            dims=_dims(rows, tensor, names[tensor], shape_of(facts, rows, tensor)),
        )
        for tensor in tensors
    )


def _dims(rows: FormRows, tensor: str, name: str, shape: Sequence[int | None]) -> tuple[str, ...]:
    """Names of the open inner sizes: those that come from one size of the model's inputs have one name."""
    kinds = rows.kind(tensor).dims or ()
    found = []
    for axis, size in enumerate(shape):
        if size is not None or axis == 0:
            found.append("")
            continue
        dim = kinds[axis] if len(kinds) == len(shape) else None
        known = dim is not None and dim.coef == 1 and dim.rows == 0 and len(dim.symbols) == 1
        found.append(re.sub(r"[^A-Za-z0-9]+", "_", dim.symbols[0] if dim and known else f"{name}_{axis}"))
    return tuple(found) if any(found) else ()


def shape_of(facts: Facts, rows: FormRows, tensor: str) -> tuple[int | None, ...]:
    """Sizes; None for the rows and what is not known."""
    kind: Any = rows.kind(tensor)
    static = facts.shape(tensor)
    if kind.dims is None:
        return tuple(static) if static is not None else ()  # as the region has it: the rows are open
    sizes = [dim.coef if dim.known else None for dim in kind.dims]
    if static is not None and len(static) == len(sizes):
        sizes = [size if size is not None else found for size, found in zip(sizes, static, strict=True)]
    if kind.name in ("row", "opaque") and sizes:
        sizes[0] = None
    return tuple(sizes)
