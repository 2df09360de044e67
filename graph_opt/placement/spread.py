"""Gives every node of the forms a device, and constants and shape arithmetic a copy on each side that reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tensorflow.core.framework import node_def_pb2

from graph_opt.item import GraphItem
from graph_opt.placement.devices import DeviceMap, canonical_device, runs_on
from graph_opt.placement.sides import DENSE, SPARSE, Sides, forms
from graph_opt.view import GraphView, canonical, is_control, node_of, port_of
from tfctr.bundle.naming import RULE_ATTR

_SHAPES = ("Shape", "ShapeN", "Size", "Rank")


@dataclasses.dataclass(frozen=True)
class Spread:
    """placed: number of nodes whose device is new. copies: nodes that got a copy on the other side. kept: node ->
    device that the model sets and that stays.
    """

    placed: int
    copies: tuple[str, ...]
    kept: dict[str, str]


def spread(
    item: GraphItem, view: GraphView, sides: Sides, devices: DeviceMap, force: bool, apart: frozenset[str]
) -> Spread:
    """Edits ``view`` (the view of ``item.graph_def``). force: devices of the model go. apart: nodes that can't run on
    the dense device.
    """
    return _Spreader(item, view, sides, devices, force, apart).run()


class _Spreader:
    def __init__(
        self, item: GraphItem, view: GraphView, sides: Sides, devices: DeviceMap, force: bool, apart: frozenset[str]
    ) -> None:
        self.view, self.sides, self.devices, self.force, self.apart = view, sides, devices, force, apart
        self.of_side = {SPARSE: devices.sparse, DENSE: devices.dense}
        self.fetched = {node_of(t) for name in forms(item) for t in item.fetches(name)}
        self.needed = set(sides.needed)
        self.kept: dict[str, str] = {}
        self.copy_of: dict[tuple[str, str], str] = {}  # (node, device) -> its copy there
        self.placed = 0

    def run(self) -> Spread:
        # Consumers first: a free node goes where it is read.
        wanted: dict[str, list[str]] = {}
        for name in reversed(self.sides.needed):
            wanted[name] = self._wanted(name, wanted)
        for name in self.sides.needed:
            self._place(name, wanted[name])
        for name in self.sides.needed:
            self._read_near(name)
        for (name, device), copy in self.copy_of.items():
            self._read_near(copy, device=device, original=name)
        return Spread(self.placed, tuple(sorted({name for name, _ in self.copy_of})), self.kept)

    def _wanted(self, name: str, wanted: dict[str, list[str]]) -> list[str]:
        """Devices that need this node, the first of them for the node itself."""
        node = self.view.node(name)
        set_already = canonical_device(node.device) if node.device and not self.force else ""
        if name not in self.sides.free:
            return [set_already or self.of_side[self.sides.side[name]]]
        readers = [c.name for c, _ in self.view.data_consumers(name) if c.name in self.needed]
        found = dict.fromkeys(d for reader in readers for d in wanted[reader])
        if name in self.fetched or not found:
            found[self.devices.sparse] = None
        if self.devices.dense in found and not self._may_be_dense(node):
            del found[self.devices.dense]
            found[self.devices.sparse] = None
        order = [d for d in (set_already, self.devices.sparse) if d in found or d == set_already != ""]
        return list(dict.fromkeys([*order, *found]))

    def _may_be_dense(self, node: node_def_pb2.NodeDef) -> bool:
        """Whether a copy on the dense side saves a transfer: not of the shape of something that would cross for it."""
        if node.name in self.apart:
            return False
        if node.op not in _SHAPES:
            return True
        return all(self._is_there(t) for t in self.view.inputs(node))

    def _is_there(self, tensor: str) -> bool:
        """Whether ``tensor`` is on the dense side anyway: made there, or read there for its values."""
        source = node_of(tensor)
        if source in self.sides.free or self.sides.side.get(source) == DENSE:
            return True
        readers = [n.name for n, _ in self.view.consumers(tensor) if n.name not in self.sides.free]
        return any(self.sides.side.get(r) == DENSE for r in readers)

    def _place(self, name: str, wanted: list[str]) -> None:
        node = self.view.node(name)
        self._set(node, wanted[0], self.of_side.get(self.sides.side.get(name, ""), ""))
        for device in wanted[1:]:
            copy = node_def_pb2.NodeDef()
            copy.CopyFrom(node)
            side = "dense" if device == self.devices.dense else "sparse"
            copy.name = self.view.unique_name(f"{name}/tfctr_{side}")
            copy.device = device
            copy.attr[RULE_ATTR].s = b"place_devices"
            self.copy_of[name, device] = self.view.add(copy).name

    def _set(self, node: node_def_pb2.NodeDef, device: str, meant: str) -> None:
        if node.device and not self.force and meant and canonical_device(node.device) != meant:
            self.kept[node.name] = node.device
            return
        if node.device != device:
            node.device = device
            self.placed += 1

    def _read_near(self, name: str, device: str = "", original: str = "") -> None:
        """Makes a node read the copies on its own device."""
        node = self.view.node(name)
        device = device or canonical_device(node.device)
        inputs = [self._near(i, device) for i in node.input]
        if inputs != list(node.input):
            self.view.set_inputs(name, inputs)

    def _near(self, tensor: str, device: str) -> str:
        copy = self.copy_of.get((node_of(tensor), device))
        if copy is None or is_control(tensor):
            return tensor
        return f"{copy}:{port_of(canonical(tensor))}"


def kept_in_bodies(item: GraphItem, force: bool) -> list[tuple[str, str]]:
    """(function/node, device) of devices that the model sets in function bodies; with ``force`` they are cleared."""
    found = []
    for function in item.graph_def.library.function:
        for node in function.node_def:
            if not node.device:
                continue
            if force:
                node.device = ""
            else:
                found.append((f"{function.signature.name}/{node.name}", node.device))
    return found


def without_kernel(view: GraphView, names: Iterable[str], device_type: str) -> frozenset[str]:
    """Those of ``names`` that TensorFlow can't run on a device of this type."""
    return frozenset(name for name in names if not runs_on(view.node(name), device_type))
