"""Constant variables inside If, While, Case and calls: bodies take the table as a tensor instead of the variable's
handle.

A body that only reads the variable gets a copy in which the handle is a tensor; reads and row-gathers of it become
plain ops. The tensor is the mapped file, so passing it costs nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import MutableMapping

from tensorflow.core.framework import attr_value_pb2, function_pb2, graph_pb2, node_def_pb2, types_pb2
from tensorflow.python.framework import tensor_util

_BRANCHES = {"If": ("then_branch", "else_branch"), "StatelessIf": ("then_branch", "else_branch")}
_LOOPS = {"While": ("cond", "body"), "StatelessWhile": ("cond", "body")}
_CALLS = {"PartitionedCall": ("f",), "StatefulPartitionedCall": ("f",)}
_CASES = ("Case", "StatelessCase")
FUNCTIONALS = frozenset((*_BRANCHES, *_LOOPS, *_CALLS, *_CASES))
_READS = ("ReadVariableOp", "ResourceGather", "Identity")


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a functional node hands input ``index`` on: attribute with the types, argument number, functions."""

    types: str
    argument: int
    functions: tuple[str, ...]


class Functionals:
    """Reads and changes the library of one graph."""

    def __init__(self, graph_def: graph_pb2.GraphDef) -> None:
        self.library = graph_def.library
        self._retyped: dict[tuple[str, int, int], str] = {}

    def why_not(self, node: node_def_pb2.NodeDef, index: int) -> str | None:
        """Why input ``index`` of functional ``node``, a variable's handle, can't become a tensor; None where it can."""
        place = _place(node, index)
        if place is None:
            return f"used by {node.op} ({node.name})"
        for name in place.functions:
            function = self._function(name)
            if function is None:
                return f"used by an unknown function ({name})"
            reason = self._why_not_in(function, function.signature.input_arg[place.argument].name)
            if reason is not None:
                return f"{reason} inside {node.op} {node.name}"
        return None

    def reads_rows(self, node: node_def_pb2.NodeDef, index: int) -> bool:
        """Whether a body reads input ``index`` of functional ``node`` by row numbers."""
        place = _place(node, index)
        return place is not None and any(
            self._reads_rows_in(function, function.signature.input_arg[place.argument].name)
            for name in place.functions
            if (function := self._function(name)) is not None
        )

    def _reads_rows_in(self, function: function_pb2.FunctionDef, tensor: str) -> bool:
        for node in function.node_def:
            for index, source in enumerate(node.input):
                if source != tensor:
                    continue
                if index == 0 and node.op in ("ResourceGather", "GatherV2"):
                    return True
                output = {"Identity": "output", "ReadVariableOp": "value"}.get(node.op)
                if output is not None and self._reads_rows_in(function, f"{node.name}:{output}:0"):
                    return True
                if node.op in FUNCTIONALS and self.reads_rows(node, index):
                    return True
        return False

    def retype(self, node: node_def_pb2.NodeDef, index: int, dtype: int) -> None:
        """Makes input ``index`` of ``node`` a tensor of ``dtype`` (its producer is the caller's business)."""
        place = _place(node, index)
        assert place is not None
        types = node.attr[place.types].list.type
        types[place.argument] = dtype
        if node.op in _LOOPS:
            _forget_shape(node.attr, "output_shapes", place.argument)
        for attr in _function_attrs(node):
            for func in attr.list.func if attr.list.func else [attr.func]:
                func.name = self._variant(func.name, place.argument, dtype)

    def _why_not_in(self, function: function_pb2.FunctionDef, tensor: str) -> str | None:
        for node in function.node_def:
            for index, source in enumerate(node.input):
                if source != tensor:
                    continue
                if node.op == "Identity":
                    reason = self._why_not_in(function, f"{node.name}:output:0")
                elif node.op in FUNCTIONALS:
                    reason = self.why_not(node, index)
                else:
                    reason = None if node.op in _READS and index == 0 else f"written or used by {node.op}"
                if reason is not None:
                    return reason
        return None

    def _variant(self, name: str, argument: int, dtype: int) -> str:
        """A copy of function ``name`` whose ``argument`` is a tensor of ``dtype``."""
        known = self._retyped.get((name, argument, dtype))
        if known is not None:
            return known
        copy = function_pb2.FunctionDef()
        original = self._function(name)
        assert original is not None
        copy.CopyFrom(original)
        copy.signature.name = self._unique(f"{name}_tfctr_{argument}")
        self._retyped[name, argument, dtype] = copy.signature.name
        arg = copy.signature.input_arg[argument]
        arg.type = dtype
        arg.ClearField("handle_data")
        copy.arg_attr.pop(argument, None)
        _forget_shape(copy.attr, "_input_shapes", argument)
        copy.resource_arg_unique_id.pop(argument, None)
        self._retype_uses(copy, arg.name, dtype)
        added = self.library.function.add()
        added.CopyFrom(copy)
        return copy.signature.name

    def _retype_uses(self, function: function_pb2.FunctionDef, tensor: str, dtype: int) -> None:
        for node in list(function.node_def):
            for index, source in enumerate(node.input):
                if source != tensor:
                    continue
                if node.op in ("Identity", "ReadVariableOp"):
                    was_read = node.op == "ReadVariableOp"
                    node.op = "Identity"
                    node.attr.clear()
                    node.attr["T"].type = dtype
                    if was_read:
                        _rename(function, f"{node.name}:value:0", f"{node.name}:output:0")
                    else:
                        self._retype_uses(function, f"{node.name}:output:0", dtype)
                elif node.op == "ResourceGather":
                    _to_gather(function, node)
                else:
                    self.retype(node, index, dtype)
        for output in function.signature.output_arg:
            if function.ret[output.name] == tensor:
                output.type = dtype
                output.ClearField("handle_data")

    def _function(self, name: str) -> function_pb2.FunctionDef | None:
        return next((f for f in self.library.function if f.signature.name == name), None)

    def _unique(self, base: str) -> str:
        names = {f.signature.name for f in self.library.function}
        name, number = base, 0
        while name in names:
            number += 1
            name = f"{base}_{number}"
        return name


def _place(node: node_def_pb2.NodeDef, index: int) -> _Place | None:
    functions = tuple(
        func.name for attr in _function_attrs(node) for func in (attr.list.func if attr.list.func else [attr.func])
    )
    if node.op in _LOOPS:
        return _Place("T", index, functions)
    if node.op in _CALLS:
        return _Place("Tin", index, functions)
    if (node.op in _BRANCHES or node.op in _CASES) and index > 0:
        return _Place("Tin", index - 1, functions)
    return None


def _function_attrs(node: node_def_pb2.NodeDef):  # type: ignore[no-untyped-def]
    names = _BRANCHES.get(node.op) or _LOOPS.get(node.op) or _CALLS.get(node.op) or ("branches",)
    return [node.attr[name] for name in names]


def _to_gather(function: function_pb2.FunctionDef, node: node_def_pb2.NodeDef) -> None:
    dtype, indices = node.attr["dtype"].type, node.attr["Tindices"].type
    batch_dims = node.attr["batch_dims"].i
    axis = function.node_def.add(name=f"{node.name}/tfctr_axis", op="Const")
    axis.attr["dtype"].type = types_pb2.DT_INT32
    axis.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto(batch_dims, dtype=types_pb2.DT_INT32))
    node.op = "GatherV2"
    node.input.insert(2, f"{axis.name}:output:0")
    node.attr.clear()
    node.attr["Tparams"].type = dtype
    node.attr["Tindices"].type = indices
    node.attr["Taxis"].type = types_pb2.DT_INT32
    node.attr["batch_dims"].i = batch_dims


def _forget_shape(attrs: MutableMapping[str, attr_value_pb2.AttrValue], name: str, index: int) -> None:
    """The recorded shape was the handle's (a scalar), not the table's."""
    if name in attrs and index < len(attrs[name].list.shape):
        shape = attrs[name].list.shape[index]
        shape.Clear()
        shape.unknown_rank = True


def _rename(function: function_pb2.FunctionDef, old: str, new: str) -> None:
    for node in function.node_def:
        for index, source in enumerate(node.input):
            if source == old:
                node.input[index] = new
    for name, source in function.ret.items():
        if source == old:
            function.ret[name] = new
