"""Control edges between the devices: each would be a transfer of its own, though it carries nothing.

What waits on the dense device reads something that crossed; so the packing of that can wait in its place.
"""

from __future__ import annotations

import tensorflow as tf

from graph_opt.item import GraphItem
from graph_opt.placement.crossings import Crossings
from graph_opt.placement.merging import PACK_OP
from graph_opt.placement.sides import signature_sets
from graph_opt.placement.words import Nodes
from graph_opt.verify import output_dtypes
from graph_opt.view import GraphView, node_of, port_of


def move_waits(item: GraphItem, view: GraphView, crossings: Crossings) -> tuple[int, list[tuple[str, str]]]:
    """(number of control edges that no longer cross, those that still do: source, node)."""
    moved, left = 0, []
    signatures = signature_sets(item, view)
    for source, name in crossings.control():
        if crossings.device[name] == crossings.dense and _move(view, crossings, signatures, source, name):
            moved += 1
        else:
            left.append((source, name))
    return moved, left


def _move(view: GraphView, crossings: Crossings, signatures: dict[str, frozenset[str]], source: str, name: str) -> bool:
    if source in view.ancestors(view.inputs(name)):
        _drop(view, source, name)
        return True
    above = view.ancestors([source])
    for tensor, readers in _crossed(view, crossings, name).items():
        gate = node_of(tensor)
        users = frozenset().union(*(signatures[r] for r in readers))
        if gate in above or not users <= signatures[source]:
            continue
        if view.node(gate).op != PACK_OP:
            near = Nodes(view, f"{gate}/tfctr_transfer", crossings.sparse)
            dtype = tf.as_dtype(_dtype(view, tensor))
            gate = node_of(near.op("Identity", "wait", [tensor], T=dtype))
            for reader in readers:
                inputs = [f"{gate}:0" if i == tensor else i for i in view.inputs(reader)]
                view.set_inputs(reader, [*inputs, *("^" + c for c in view.control_inputs(reader))])
        view.set_inputs(gate, [*view.node(gate).input, f"^{source}"])
        _drop(view, source, name)
        return True
    return False


def _drop(view: GraphView, source: str, name: str) -> None:
    view.set_inputs(name, [i for i in view.node(name).input if i != f"^{source}"])


def _crossed(view: GraphView, crossings: Crossings, name: str) -> dict[str, list[str]]:
    """Tensors that cross on the way to ``name``, nearest first, each with all dense nodes that read it."""
    found: dict[str, list[str]] = {}
    pending, seen = [name], set()
    while pending:
        reader = pending.pop(0)
        if reader in seen:
            continue
        seen.add(reader)
        for tensor in view.inputs(reader):
            producer = view.producer(tensor)
            if producer.device == crossings.sparse:
                readers = [n.name for n, _ in view.consumers(tensor) if n.device == crossings.dense]
                found[tensor] = list(dict.fromkeys(readers))
            elif producer.device == crossings.dense:
                pending.append(producer.name)
    return found


def _dtype(view: GraphView, tensor: str) -> int:
    """DataType number of a tensor."""
    return output_dtypes(view.producer(tensor))[port_of(tensor)]
