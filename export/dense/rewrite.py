"""Adds the form ``S__dense``: the inputs and outputs of S, its tower one ``TfctrDenseEngine``.

What comes before the tower is shared with S; what reads its outputs is duplicated. Nothing of S changes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tensorflow.core.framework import node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from export.reasons import CannotExport
from export.tower import Tower
from graph_opt.item import GraphItem
from graph_opt.passes.pack_inputs import rename_info
from graph_opt.store_files import store_node
from graph_opt.view import GraphView, canonical, is_control, node_of, short
from tfctr.engines.node import engine_node
from tfctr.engines.spec import EngineSpec

SUFFIX = "__dense"


def dense_name(form: str) -> str:
    """The signature that stands beside ``form``."""
    return form + SUFFIX


class DenseWriter:
    """Writes the form of one tower. device: of the engine's node; "": none is set. The graph is not changed before
    ``write``.

    Raises CannotExport where the tower's nodes can't be one node: something outside waits for one of them, and another
    waits for that.
    """

    def __init__(self, item: GraphItem, tower: Tower, device: str = "") -> None:
        self._item, self._tower, self._device = item, tower, device
        view = GraphView(item.graph_def)
        self._inner = _inner(view, tower)
        self._waits = _waits(view, tower, self._inner)
        self._readers = _readers(view, item, tower, self._inner)
        self._prefix = _scope(view, tower.signature)
        self._tensors: dict[str, str] = {}

    def write(self, spec: EngineSpec, files: Sequence[int]) -> str:
        """Adds the engine's node, copies of what reads it, and the signature. Returns the node's name.

        files: index in ``item.files`` of each of ``spec.files``.
        """
        view = GraphView(self._item.graph_def)
        inputs = [short(canonical(one.source)) for one in self._tower.inputs]
        node = engine_node(f"{self._prefix}engine", store_node(self._item, view), inputs, spec, files)
        node.input.extend("^" + name for name in self._waits)
        node.device = self._device
        engine = view.add(node).name
        self._tensors = {one.source: f"{engine}:{k}" for k, one in enumerate(self._tower.outputs)}
        for name in self._readers:
            self._copy(view, name, engine)
        self._add_signature()
        return engine

    def _copy(self, view: GraphView, name: str, engine: str) -> None:
        copy = node_def_pb2.NodeDef()
        copy.CopyFrom(view.node(name))
        copy.name = self._prefix + name
        del copy.input[:]
        renamed = [self._renamed(i, engine) for i in view.node(name).input]
        waits = dict.fromkeys(i for i in renamed if is_control(i))  # several nodes of the tower are one now
        copy.input.extend([*(i for i in renamed if not is_control(i)), *waits])
        view.add(copy)

    def _renamed(self, tensor: str, engine: str) -> str:
        name = node_of(tensor)
        if is_control(tensor):
            copied = f"^{self._prefix}{name}" if name in self._readers else tensor
            return f"^{engine}" if name in self._inner else copied
        if canonical(tensor) in self._tensors:
            return short(self._tensors[canonical(tensor)])
        return self._prefix + tensor if name in self._readers else tensor

    def _add_signature(self) -> None:
        made = meta_graph_pb2.SignatureDef()
        made.CopyFrom(self._item.signatures[self._tower.signature])
        for info in made.outputs.values():
            rename_info(info, lambda tensor: canonical(self._renamed(canonical(tensor), "")))
        self._item.signatures[dense_name(self._tower.signature)] = made


def _inner(view: GraphView, tower: Tower) -> set[str]:
    """Nodes of the tower that depend on its inputs: the others are constants, which anything may read."""
    reached = {node_of(one.source) for one in tower.inputs}
    found: set[str] = set()
    for node in view.topological():
        if node.name in tower.nodes and any(node_of(i) in reached for i in node.input if not is_control(i)):
            reached.add(node.name)
            found.add(node.name)
    return found | {node_of(one.source) for one in tower.outputs}


def _waits(view: GraphView, tower: Tower, inner: set[str]) -> list[str]:
    """Nodes outside that nodes of the tower wait for."""
    names = {n for name in tower.nodes for n in view.control_inputs(name) if n not in tower.nodes}
    behind = {n for n in view.ancestors(names) if n in inner}
    if behind:
        raise CannotExport(f"its nodes can't be one: something that waits for {min(behind)} is waited for in turn")
    return sorted(names)


def _readers(view: GraphView, item: GraphItem, tower: Tower, inner: set[str]) -> dict[str, None]:
    """Everything between the tower's outputs and the form's, producers first."""
    needed = view.ancestors(item.fetches(tower.signature))
    outputs = {canonical(one.source) for one in tower.outputs}
    found: dict[str, None] = {}
    for node in view.topological():
        if node.name not in needed or node.name in inner or node.name in tower.nodes:
            continue
        if not any(node_of(i) in found or node_of(i) in inner for i in node.input):
            continue
        found[node.name] = None
        hidden = [t for t in view.inputs(node) if node_of(t) in inner and t not in outputs]
        if hidden:
            raise CannotExport(f"{hidden[0]}, which is read outside, is no output of the tower")
    return found


def _scope(view: GraphView, form: str) -> str:
    """A scope of its own for the dense form of ``form``, whose name may hold any character."""
    base = re.sub(r"[^A-Za-z0-9_.-]", "_", form)
    base = (base if base[:1].isalnum() else f"s{base}") + SUFFIX
    scope, number = base, 0
    while f"{scope}/engine" in view:
        number += 1
        scope = f"{base}_{number}"
    return f"{scope}/"
