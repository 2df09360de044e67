"""Functions of a graph without the names that a process gives: of functions, of their arguments and results."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from tensorflow.core.framework import attr_value_pb2, function_pb2, node_def_pb2

# Names of resources: a counter of the process, for lookup tables.
FREE_ATTRS = frozenset(("shared_name", "container"))


def attr_bytes(value: attr_value_pb2.AttrValue, name_of: Callable[[str], str]) -> bytes:
    """An attribute with functions under the names that ``name_of`` gives them."""
    if value.HasField("func") or value.list.func:
        copy = attr_value_pb2.AttrValue()
        copy.CopyFrom(value)
        for func in copy.list.func or [copy.func]:
            func.name = name_of(func.name)
        value = copy
    return value.SerializeToString(deterministic=True)


def function_hash(function: function_pb2.FunctionDef, name_of: Callable[[str], str]) -> str:
    """Equal for functions that are the same but for those names, and those of their nodes (tables and their
    initialisers are counted there)."""
    inputs = {node.name: f"node {k}" for k, node in enumerate(function.node_def)}
    inputs |= {arg.name: f"in {k}" for k, arg in enumerate(function.signature.input_arg)}
    digest = hashlib.sha256()
    for arg in (*function.signature.input_arg, *function.signature.output_arg):
        digest.update(f"{arg.type} {arg.type_attr} {arg.number_attr} {arg.is_ref}\n".encode())
    for arg in function.signature.output_arg:
        digest.update(f"out {_renamed(function.ret[arg.name], inputs)}\n".encode())
    digest.update(f"effects {sorted(_renamed(name, inputs) for name in function.control_ret.values())}\n".encode())
    for node in function.node_def:
        digest.update(_node(node, inputs, name_of))
    return digest.hexdigest()


def _node(node: node_def_pb2.NodeDef, inputs: dict[str, str], name_of: Callable[[str], str]) -> bytes:
    read = [_renamed(i, inputs) for i in node.input]
    parts = [f"{name_of(node.op)} {node.device} {read}\n".encode()]
    for key in sorted(k for k in node.attr if k[:1] != "_" and k not in FREE_ATTRS):
        parts += [key.encode(), attr_bytes(node.attr[key], name_of)]
    return b"".join(parts)


def _renamed(tensor: str, inputs: dict[str, str]) -> str:
    """A tensor ("name", "name:output:0") or control input ("^name") with the numbers that names have."""
    control = "^" if tensor.startswith("^") else ""
    name, colon, rest = tensor.removeprefix("^").partition(":")
    return f"{control}{inputs[name]}{colon}{rest}" if name in inputs else tensor
