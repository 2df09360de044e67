"""Adds a packed form ``S__packed`` to each optimised signature ``S`` of three and more inputs.

Feeding tensors one by one costs more than computing with them. The packed form takes all inputs as three tensors
(arena, shapes, strings); fused lookups read them in place (``in:K``), whatever else needs an input gets it from
``TfctrUnpack`` without a copy. The nodes between inputs and outputs are duplicated; tables, constants and everything
that depends on no input are shared with ``S``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from tensorflow.core.framework import node_def_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.python.framework import tensor_shape, tensor_util

from graph_opt.fused_node import FUSED_OP, fused_node
from graph_opt.item import FusedGroup, GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.passes.prune_training import prune
from graph_opt.report import PassOutcome, Refused
from graph_opt.signature_info import composite_parts
from graph_opt.store_files import constant_node
from graph_opt.verify import output_dtypes
from graph_opt.view import GraphView, canonical, is_control, node_of, port_of

SUFFIX = "__packed"
MIN_INPUTS = 3
REASONS = {
    "few": "{count} inputs: feeding them is as cheap as packing",
    "taken": "the model has a signature {name} of its own",
    "odd": "input {tensor} is not a placeholder",
    "default": "input {tensor} may be left out (it has a default)",
}
EXAMPLE = """\
before  S: 120 inputs -> TfctrFusedLookup(store, arguments...) -> tower
after   S, and S__packed: arena, shapes, strings -> TfctrFusedLookup(store, arena, shapes, strings) -> tower
"""


def pack_inputs(item: GraphItem, options: ConvertOptions) -> PassOutcome:
    """See the module docstring. Signatures of one or two inputs are already packed and pass through."""
    del options
    refused = []
    packed = []
    split = [form.signature for form in item.split.values()]
    dense = [form.signature for form in item.dense.values()]
    for name in (*item.optimise, *split, *dense):
        reason = _why_not(item, name)
        if reason is not None:
            refused.append(Refused(what=f"signature {name}", reason=reason))
            continue
        _Packer(item, name).run()
        packed.append(name)
    prune(item)
    notes = tuple(f"{name} takes its {len(item.feeds(name))} inputs packed" for name in packed)
    return PassOutcome(fired=len(packed), refused=tuple(refused), notes=notes)


def _why_not(item: GraphItem, name: str) -> str | None:
    feeds = item.feeds(name)
    if len(feeds) < MIN_INPUTS:
        return REASONS["few"].format(count=len(feeds))
    if name + SUFFIX in item.signatures:
        return REASONS["taken"].format(name=name + SUFFIX)
    view = GraphView(item.graph_def)
    odd = [t for t in feeds if port_of(t) != 0 or view.producer(t).op not in ("Placeholder", "PlaceholderWithDefault")]
    if odd:
        return REASONS["odd"].format(tensor=odd[0])
    for info in item.signatures[name].inputs.values():
        # A part of a sparse tensor comes with the others: TF1's sparse_placeholder gives its shape a default
        # that no call can use.
        if composite_parts(info)[0] == "dense" and _may_be_left_out(view, canonical(info.name)):
            return REASONS["default"].format(tensor=canonical(info.name))
    return None


def _may_be_left_out(view: GraphView, tensor: str) -> bool:
    """Whether this input has a default of its own that means something: a shape with -1 in it does not."""
    node = view.producer(tensor)
    if node.op != "PlaceholderWithDefault":
        return False
    default = view.producer(view.inputs(node)[0])
    if default.op != "Const" or default.attr["dtype"].type != types_pb2.DT_INT64:
        return True
    value = tensor_util.MakeNdarray(default.attr["value"].tensor)
    return not (value.ndim == 1 and np.any(value == -1))


class _Packer:
    """Builds the packed form of one signature."""

    def __init__(self, item: GraphItem, name: str) -> None:
        self.item = item
        self.name = name
        self.view = GraphView(item.graph_def)
        self.prefix = _scope(self.view, name)
        self.feeds = item.feeds(name)
        self.layout = [output_dtypes(self.view.producer(t))[0] for t in self.feeds]
        self.groups = {g.node: g for g in item.groups}
        # Inputs are where place_devices put them, and so is what takes them out of a request.
        self.device = self.view.producer(self.feeds[0]).device

    def run(self) -> None:
        arena, shapes = self._placeholder("arena", types_pb2.DT_UINT8), self._placeholder("shapes", types_pb2.DT_INT64)
        has_strings = types_pb2.DT_STRING in self.layout
        strings = self._placeholder("strings", types_pb2.DT_STRING) if has_strings else self._no_strings()
        self.sources = (arena, shapes, strings)
        inner = self._inner()
        unpacked = [t for t in self.feeds if self._needs(t, inner)]
        self.renamed = {t: f"{self.prefix}unpack:{k}" for k, t in enumerate(unpacked)}
        self._add_unpack(unpacked)
        for node in self.view.topological():
            if node.name in inner:
                self._duplicate(node, inner)
        self._add_signature(has_strings, inner)

    def _placeholder(self, name: str, dtype: int) -> str:
        node = node_def_pb2.NodeDef(name=self.prefix + name, op="Placeholder", device=self.device)
        node.attr["dtype"].type = dtype
        node.attr["shape"].shape.dim.add().size = -1
        return self.view.add(node).name

    def _no_strings(self) -> str:
        node = constant_node(f"{self.prefix}no_strings", np.array([], dtype=object))
        node.device = self.device
        return self.view.add(node).name

    def _inner(self) -> set[str]:
        """Nodes between the inputs and outputs of the signature, inputs left out."""
        needed = self.view.ancestors(self.item.fetches(self.name))
        feeds = {node_of(t) for t in self.feeds}
        reached = set(feeds)
        for node in self.view.topological():
            if node.name in needed and any(node_of(i) in reached for i in node.input):
                reached.add(node.name)
        return reached - feeds

    def _needs(self, tensor: str, inner: set[str]) -> bool:
        """Whether anything but fused lookups reads this input, or an output is this input."""
        if tensor in self.item.fetches(self.name):
            return True
        return any(node.name in inner and node.name not in self.groups for node, _ in self.view.consumers(tensor))

    def _add_unpack(self, tensors: Sequence[str]) -> None:
        if not tensors:
            return
        node = node_def_pb2.NodeDef(
            name=f"{self.prefix}unpack", op="TfctrUnpack", input=self.sources, device=self.device
        )
        numbers = [self.feeds.index(t) for t in tensors]
        node.attr["layout"].list.type.extend(self.layout)
        node.attr["emit"].list.i.extend(numbers)
        node.attr["Tout"].list.type.extend(self.layout[k] for k in numbers)
        for tensor in tensors:
            shape = self.view.producer(tensor).attr["shape"].shape
            known = tensor_shape.TensorShape(shape)
            added = node.attr["output_shapes"].list.shape.add()
            added.CopyFrom(known.as_proto())
        self.view.add(node)

    def _duplicate(self, node: node_def_pb2.NodeDef, inner: set[str]) -> None:
        if node.op == FUSED_OP and node.name in self.groups:
            self._rebind(self.groups[node.name], node, inner)
            return
        copy = node_def_pb2.NodeDef()
        copy.CopyFrom(node)
        copy.name = self.prefix + node.name
        del copy.input[:]
        copy.input.extend(self._rename_inputs(node, inner))
        self.view.add(copy)

    def _rename_inputs(self, node: node_def_pb2.NodeDef, inner: set[str]) -> list[str]:
        controls = []
        for i in node.input:
            if is_control(i):
                name = node_of(i)
                if canonical(name) in self.feeds:
                    continue  # the input is there from the start
                controls.append("^" + (self.prefix + name if name in inner else name))
        return [self._rename(i, inner) for i in self.view.inputs(node)] + controls

    def _rename(self, tensor: str, inner: set[str]) -> str:
        tensor = canonical(tensor)
        if tensor in self.renamed:
            return self.renamed[tensor]
        return self.prefix + tensor if node_of(tensor) in inner else tensor

    def _rebind(self, group: FusedGroup, node: node_def_pb2.NodeDef, inner: set[str]) -> None:
        inputs = self.view.inputs(node)
        arguments = dict(zip(_argument_order(group), inputs[4:], strict=True))
        dtypes = dict(zip(arguments, node.attr["Targs"].list.type, strict=True))
        bind: dict[str, str] = {}
        kept: list[str] = []
        for tensor, graph_tensor in arguments.items():
            if graph_tensor in self.feeds:
                bind[tensor] = f"in:{self.feeds.index(graph_tensor)}"
            else:
                bind[tensor] = f"arg:{len(kept)}"
                kept.append(tensor)
        made = fused_node(
            self.prefix + node.name,
            inputs[0],
            self.sources,
            [self._rename(arguments[t], inner) for t in kept],
            [dtypes[t] for t in kept],
            group.lookups,
            group.outputs,
            bind,
            group.copies,
        )
        made.attr["layout"].list.type.extend(self.layout)
        made.device = node.device
        for key in node.attr:
            if key.startswith("_"):
                made.attr[key].CopyFrom(node.attr[key])
        made.input.extend("^" + self.prefix + n for n in self.view.control_inputs(node) if n in inner)
        self.view.add(made)

    def _add_signature(self, has_strings: bool, inner: set[str]) -> None:
        packed = meta_graph_pb2.SignatureDef(method_name=self.item.signatures[self.name].method_name)
        for name, source in zip(("arena", "shapes", "strings"), self.sources, strict=True):
            if name != "strings" or has_strings:
                info = packed.inputs[name]
                info.name = canonical(source)
                info.dtype = self.view.node(source).attr["dtype"].type
                info.tensor_shape.dim.add().size = -1
        for name, info in self.item.signatures[self.name].outputs.items():
            packed.outputs[name].CopyFrom(info)
            rename_info(packed.outputs[name], lambda t: canonical(self._rename(t, inner)))
        self.item.signatures[self.name + SUFFIX] = packed
        self.item.packed[self.name] = self.name + SUFFIX


def _scope(view: GraphView, signature: str) -> str:
    """A scope of its own for the packed form of ``signature``, whose name may hold any character."""
    base = re.sub(r"[^A-Za-z0-9_.-]", "_", signature)
    base = (base if base[:1].isalnum() else f"s{base}") + SUFFIX
    scope, number = base, 0
    while f"{scope}/arena" in view:
        number += 1
        scope = f"{base}_{number}"
    return f"{scope}/"


def _argument_order(group: FusedGroup) -> list[str]:
    """Tensors of the group by argument number."""
    numbers = {int(place.removeprefix("arg:")): tensor for tensor, place in group.bind.items()}
    return [numbers[k] for k in range(len(numbers))]


def rename_info(info: meta_graph_pb2.TensorInfo, rename) -> None:  # type: ignore[no-untyped-def]
    """Gives every tensor of ``info`` the name that ``rename`` makes of it."""
    encoding = info.WhichOneof("encoding")
    if encoding == "name":
        info.name = rename(info.name)
    elif encoding == "coo_sparse":
        for field in ("values_tensor_name", "indices_tensor_name", "dense_shape_tensor_name"):
            setattr(info.coo_sparse, field, rename(getattr(info.coo_sparse, field)))
    elif encoding == "composite_tensor":
        for part in info.composite_tensor.components:
            rename_info(part, rename)
