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


def add_dense_form(item: GraphItem, tower: Tower, spec: EngineSpec, files: Sequence[int], device: str = "") -> str:
    """Adds the engine's node, copies of what reads it, and the signature. Returns the node's name.

    files: index in ``item.files`` of each of ``spec.files``. device: of the node; "": none is set. Raises CannotExport
    where the tower's nodes can't be one node (something outside waits for one of them, and another waits for that).
    """
    return _Writer(item, tower, device).run(spec, files)


class _Writer:
    def __init__(self, item: GraphItem, tower: Tower, device: str) -> None:
        self.item, self.tower, self.device = item, tower, device
        self.view = GraphView(item.graph_def)
        self.prefix = _scope(self.view, tower.signature)
        self.needed = self.view.ancestors(item.fetches(tower.signature))
        self.inner = self._inner()
        self.tensors: dict[str, str] = {}
        self.copied: set[str] = set()

    def run(self, spec: EngineSpec, files: Sequence[int]) -> str:
        waits = self._waits()
        store = store_node(self.item, self.view)
        inputs = [short(canonical(one.source)) for one in self.tower.inputs]
        node = engine_node(f"{self.prefix}engine", store, inputs, spec, files)
        node.input.extend("^" + name for name in waits)
        node.device = self.device
        made = self.view.add(node).name
        self.tensors = {one.source: f"{made}:{k}" for k, one in enumerate(self.tower.outputs)}
        self._copy_readers(made)
        self._add_signature()
        return made

    def _inner(self) -> set[str]:
        """Nodes of the tower that depend on its inputs: the others are constants, which anything may read."""
        reached = {node_of(one.source) for one in self.tower.inputs}
        found: set[str] = set()
        for node in self.view.topological():
            if node.name in self.tower.nodes and any(node_of(i) in reached for i in node.input if not is_control(i)):
                reached.add(node.name)
                found.add(node.name)
        return found | {node_of(one.source) for one in self.tower.outputs}

    def _waits(self) -> list[str]:
        """Nodes outside that nodes of the tower wait for."""
        names = {n for name in self.inner for n in self.view.control_inputs(name) if n not in self.tower.nodes}
        behind = {n for n in self.view.ancestors(names) if n in self.inner}
        if behind:
            raise CannotExport(f"its nodes can't be one: something that waits for {min(behind)} is waited for in turn")
        return sorted(names)

    def _copy_readers(self, engine: str) -> None:
        """Everything between the tower's outputs and the form's, once more."""
        copied: set[str] = set()
        for node in self.view.topological():
            if node.name not in self.needed or node.name in self.inner:
                continue
            if not any(node_of(i) in copied or node_of(i) in self.inner for i in node.input):
                continue
            copied.add(node.name)
            copy = node_def_pb2.NodeDef()
            copy.CopyFrom(node)
            copy.name = self.prefix + node.name
            del copy.input[:]
            renamed = [self._renamed(i, copied, engine) for i in node.input]
            waits = dict.fromkeys(i for i in renamed if is_control(i))  # several nodes of the tower are one now
            copy.input.extend([*(i for i in renamed if not is_control(i)), *waits])
            self.view.add(copy)
        self.copied = copied

    def _renamed(self, tensor: str, copied: set[str], engine: str) -> str:
        name = node_of(tensor)
        if is_control(tensor):
            return f"^{engine}" if name in self.inner else f"^{self.prefix}{name}" if name in copied else tensor
        if canonical(tensor) in self.tensors:
            return short(self.tensors[canonical(tensor)])
        if name in self.inner:
            raise CannotExport(f"{tensor}, which is read outside, is no output of the tower")
        return self.prefix + tensor if name in copied else tensor

    def _add_signature(self) -> None:
        plain = self.item.signatures[self.tower.signature]
        made = meta_graph_pb2.SignatureDef()
        made.CopyFrom(plain)
        for info in made.outputs.values():
            rename_info(info, self._output)
        self.item.signatures[dense_name(self.tower.signature)] = made

    def _output(self, tensor: str) -> str:
        tensor = canonical(tensor)
        if tensor in self.tensors:
            return canonical(self.tensors[tensor])
        return canonical(self.prefix + tensor) if node_of(tensor) in self.copied else tensor


def _scope(view: GraphView, form: str) -> str:
    """A scope of its own for the dense form of ``form``, whose name may hold any character."""
    base = re.sub(r"[^A-Za-z0-9_.-]", "_", form)
    base = (base if base[:1].isalnum() else f"s{base}") + SUFFIX
    scope, number = base, 0
    while f"{scope}/engine" in view:
        number += 1
        scope = f"{base}_{number}"
    return f"{scope}/"
