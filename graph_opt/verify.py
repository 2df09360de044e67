"""Checks that a GraphItem is a legal graph; runs between passes."""

from __future__ import annotations

from tensorflow.core.framework import node_def_pb2, op_def_pb2, types_pb2
from tensorflow.python.framework import dtypes, op_def_registry

from graph_opt.item import GraphItem
from graph_opt.view import GraphView, is_control, node_of, port_of
from tfctr.errors import TfctrError


class BrokenGraph(TfctrError):
    """The graph is not legal; the message names the node and what is wrong with it."""


_REF_OFFSET = 100  # types.proto: a ref type is its base type + 100


def verify(item: GraphItem) -> None:
    """Raises BrokenGraph where ``item`` has a duplicate name, dangling input, missing fetch or feed, unknown op,
    dtypes that disagree, or a cycle."""
    names = [n.name for n in item.graph_def.node]
    if len(names) != len(set(names)):
        seen: set[str] = set()
        twice = next(n for n in names if n in seen or seen.add(n))  # type: ignore[func-returns-value]
        raise BrokenGraph(f"two nodes are named {twice!r}")
    view = GraphView(item.graph_def)
    functions = {f.signature.name: f.signature for f in item.graph_def.library.function}
    outputs = {node.name: _output_dtypes(node, functions) for node in view}
    for node in view:
        _check_inputs(view, node, functions, outputs)
    for name in sorted(item.keep()):
        if name not in view:
            raise BrokenGraph(f"node {name!r} is an input, output, initialiser or asset of the model, and is gone")
    for tensor in item.fetches():
        if port_of(tensor) >= len(outputs[node_of(tensor)]):
            raise BrokenGraph(f"output {tensor!r} does not exist: {node_of(tensor)!r} has fewer outputs")
    try:
        view.topological()
    except ValueError as error:
        raise BrokenGraph(str(error)) from error


def _check_inputs(
    view: GraphView,
    node: node_def_pb2.NodeDef,
    functions: dict[str, op_def_pb2.OpDef],
    outputs: dict[str, list[int]],
) -> None:
    for i in node.input:
        if node_of(i) not in view:
            raise BrokenGraph(f"node {node.name!r} reads {i!r}, which does not exist")
    data = [i for i in node.input if not is_control(i)]
    if any(is_control(i) for i in node.input[: len(data)]):
        raise BrokenGraph(f"node {node.name!r} has a control input before a data input")
    wanted = _arg_dtypes(node, _op_def(node, functions).input_arg)
    if len(wanted) != len(data):
        raise BrokenGraph(f"node {node.name!r} ({node.op}) has {len(data)} inputs, its op takes {len(wanted)}")
    for k, (tensor, dtype) in enumerate(zip(data, wanted, strict=True)):
        have = outputs[node_of(tensor)]
        if port_of(tensor) >= len(have):
            raise BrokenGraph(f"node {node.name!r} reads {tensor!r}: {node_of(tensor)!r} has only {len(have)} outputs")
        got = have[port_of(tensor)]
        if got % _REF_OFFSET != dtype % _REF_OFFSET:
            raise BrokenGraph(
                f"input {k} of node {node.name!r} ({node.op}) is {_name(got)} from {tensor!r}, expected {_name(dtype)}"
            )


def _op_def(node: node_def_pb2.NodeDef, functions: dict[str, op_def_pb2.OpDef]) -> op_def_pb2.OpDef:
    op_def = functions.get(node.op) or op_def_registry.get(node.op)
    if op_def is None:
        raise BrokenGraph(f"node {node.name!r} has the unknown op {node.op!r}")
    return op_def


def output_dtypes(node: node_def_pb2.NodeDef) -> list[int]:
    """dtype enum of each output of a node whose op is registered."""
    return _output_dtypes(node, {})


def _output_dtypes(node: node_def_pb2.NodeDef, functions: dict[str, op_def_pb2.OpDef]) -> list[int]:
    return _arg_dtypes(node, _op_def(node, functions).output_arg)


def _arg_dtypes(node: node_def_pb2.NodeDef, args) -> list[int]:  # type: ignore[no-untyped-def]
    defaults = {a.name: a.default_value for a in (op_def_registry.get(node.op) or op_def_pb2.OpDef()).attr}

    def attr(name: str):  # type: ignore[no-untyped-def]
        if name in node.attr:
            return node.attr[name]
        if name in defaults:
            return defaults[name]
        raise BrokenGraph(f"node {node.name!r} ({node.op}) lacks the attribute {name!r}")

    dtypes_found: list[int] = []
    for arg in args:
        if arg.type_list_attr:
            dtypes_found += list(attr(arg.type_list_attr).list.type)
            continue
        dtype = arg.type if arg.type != types_pb2.DT_INVALID else attr(arg.type_attr).type
        dtypes_found += [dtype] * (attr(arg.number_attr).i if arg.number_attr else 1)
    return dtypes_found


def _name(dtype: int) -> str:
    return dtypes.as_dtype(dtype).name
