"""Variables and big constants become table files (``TfctrTable``) or small constants.

A variable that serving only reads is constant. Read by row numbers anywhere, it is a table: a file, whatever its size,
so that every session shares one copy. Read as a whole only, it becomes a constant of the graph, or a file above
``dense_limit_bytes``. What serving writes, and strings (asset paths among them), stay
variables and are recorded in ``item.mutable_state``. Bodies of control flow that only read a variable take the tensor
instead.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from tensorflow.core.framework import node_def_pb2, types_pb2
from tensorflow.python.framework import dtypes, tensor_util

from graph_opt.functionals import FUNCTIONALS, Functionals
from graph_opt.item import CheckpointRef, GraphItem, MutableState, PartitionGroup
from graph_opt.options import ConvertOptions
from graph_opt.passes.prune_training import prune
from graph_opt.report import PassOutcome, Refused
from graph_opt.resources import USED, WRITTEN, cut_loose, drop_control, reads_rows, uses_of, why_not_constant
from graph_opt.restore_map import VARIABLES
from graph_opt.store_files import (
    TABLE_DTYPES,
    Checkpoint,
    add_array,
    add_table,
    constant_node,
    slice_start,
    table_node,
)
from graph_opt.view import GraphView, canonical
from tfctr.errors import UsageError

OPTIONS = ("dense_limit_bytes (Python): larger dense variables become files, not constants",)
REASONS = {
    "dtype": "stays a variable: its dtype {dtype} is never frozen",
    "used": f"stays a variable: {USED}",
    "written": f"stays a variable: {WRITTEN}",
    "in_body": "stays a variable: {reason} inside {op} {node}",
}
EXAMPLE = """\
before  emb = VarHandleOp;  rows = ResourceGather(emb, ids);  bias = ReadVariableOp(VarHandleOp)
after   emb = TfctrTable(store, index=0);  rows = GatherV2(emb, ids, axis=0);  bias = Const
"""


def externalise_tables(item: GraphItem, options: ConvertOptions) -> PassOutcome:
    """See the module docstring. UsageError where a variable that serving needs is not in the checkpoint."""
    view = GraphView(item.graph_def)
    checkpoint = Checkpoint((item.source_path or _no_source()) / "variables" / "variables")
    refused = []
    made: dict[str, list[str]] = {"table": [], "constant": [], "dense file": []}
    needed = view.ancestors(item.keep())  # where prune_training is disabled, training's variables are still there
    for names in _variables(view):
        if not needed.intersection(names):
            continue
        reason = _why_stays(view, names)
        if reason is not None:
            refused.append(_keep(item, view, checkpoint, names, reason))
            continue
        for name in names:
            kind = _replace_variable(item, view, checkpoint, name, _reference(item, view, checkpoint, name), options)
            made[kind].append(name)
    for name in _constant_tables(view):
        _replace_constant(item, view, name)
        made["table"].append(name)
    item.partitions = _partition_groups(item)
    prune(item)
    notes = [f"{len(names)} variables became {kind}s" for kind, names in made.items() if names]
    return PassOutcome(fired=sum(map(len, made.values())), refused=tuple(refused), notes=tuple(notes))


def _no_source():  # type: ignore[no-untyped-def]
    raise ValueError("the item has no source_path, so its variables' values are unknown")


def _variables(view: GraphView) -> list[list[str]]:
    """Variable nodes of the graph; handles of one variable (same container and shared_name) together."""
    groups: dict[tuple[str, bytes, bytes], list[str]] = defaultdict(list)
    for node in view:
        if node.op in VARIABLES:
            shared = node.attr["shared_name"].s or node.name.encode()
            groups[(node.op, node.attr["container"].s, shared)].append(node.name)
    return list(groups.values())


def _why_stays(view: GraphView, names: Sequence[str]) -> str | None:
    node = view.node(names[0])
    dtype = dtypes.as_dtype(node.attr["dtype"].type).name
    if dtype not in TABLE_DTYPES:
        return REASONS["dtype"].format(dtype=dtype)
    reason = next((found for name in names if (found := why_not_constant(view, name)) is not None), None)
    return None if reason is None else f"stays a variable: {reason}"


def _keep(item: GraphItem, view: GraphView, checkpoint: Checkpoint, names: Sequence[str], reason: str) -> Refused:
    try:
        keys: tuple[str, ...] = (_reference(item, view, checkpoint, names[0]).key,)
    except UsageError:
        if not any(user.op in ("Assign", "AssignVariableOp") for user, _ in uses_of(view, names[0]).nodes):
            raise
        keys = ()  # the graph itself assigns it, so the checkpoint need not have it (asset paths)
    for name in names:
        why = reason.removeprefix("stays a variable: ")
        item.mutable_state.append(MutableState(node=name, kind="variable", reason=why, keys=keys))
    return Refused(what=f"variable {names[0]}", reason=reason, nodes=tuple(names))


def _reference(item: GraphItem, view: GraphView, checkpoint: Checkpoint, name: str) -> CheckpointRef:
    """The checkpoint place of a variable: from the restore op, else by its shared_name."""
    shared = (view.node(name).attr["shared_name"].s or name.encode()).decode()
    ref = item.variables.get(name) or CheckpointRef(key=shared)
    if ref.key not in checkpoint.entries:
        raise UsageError(
            f"variable {name!r} is needed for serving, but {checkpoint.prefix}.index has no tensor {ref.key!r}"
        )
    return ref


def _replace_variable(
    item: GraphItem,
    view: GraphView,
    checkpoint: Checkpoint,
    name: str,
    ref: CheckpointRef,
    options: ConvertOptions,
) -> str:
    entry = checkpoint.entry(ref)
    rows = reads_rows(view, name) and len(entry.shape) > 0 and 0 not in entry.shape
    if rows or (entry.bytes > options.dense_limit_bytes or item.work_dir is None) and 0 not in entry.shape:
        value = table_node(item, view, add_table(item, checkpoint, ref, _table_name(view, name)))
        kind = "table" if rows else "dense file"
    else:
        array = (
            checkpoint.read(ref)
            if item.work_dir is not None
            else np.zeros(entry.shape, dtypes.as_dtype(entry.dtype).as_numpy_dtype)
        )
        node = constant_node(
            view.unique_name(f"tfctr/constant/{name}"), array, dtypes.as_dtype(entry.dtype).as_datatype_enum
        )
        value = view.add(node).name
        item.constants[value] = ref
        kind = "constant"
    if view.node(name).op == "VarHandleOp":
        _rewire_resource(view, name, value, entry.shape)
    else:
        cut_loose(view, [name])
        view.replace_tensor(canonical(name), value)
        _retype_ref_identities(view, value)
    return kind


def _table_name(view: GraphView, name: str) -> str:
    return (view.node(name).attr["shared_name"].s or name.encode()).decode()


def _rewire_resource(view: GraphView, name: str, value: str, shape: Sequence[int]) -> None:
    """Every read of resource variable ``name`` reads tensor ``value`` instead."""
    uses = uses_of(view, name)
    cut_loose(view, [name, *uses.chain])
    for user, index in uses.nodes:
        if user.op in ("ReadVariableOp", "VariableShape", "VarIsInitializedOp"):
            _replace_read(view, user, value, shape)
        elif user.op == "ResourceGather" and index == 0:
            _to_gather(view, user, value)
        elif user.op == "ResourceGatherNd" and index == 0:
            indices = view.inputs(user)[1]
            view.set_inputs(user.name, [value, indices, *_controls(user)])
            user.op = "GatherNd"
            _keep_attrs(user, {"dtype": "Tparams", "Tindices": "Tindices"})
        elif user.op in FUNCTIONALS:
            view.replace_input(user.name, index, value)
            Functionals(view.graph_def).retype(user, index, view.node(value).attr["dtype"].type)
        elif user.op == "DisableCopyOnRead":
            cut_loose(view, [user.name])


def _replace_read(view: GraphView, user: node_def_pb2.NodeDef, value: str, shape: Sequence[int]) -> None:
    replacement = value
    if user.op == "VariableShape":
        dtype = user.attr["out_type"].type or types_pb2.DT_INT32
        node = constant_node(
            view.unique_name(f"{user.name}/shape"), np.array(shape, dtypes.as_dtype(dtype).as_numpy_dtype)
        )
        replacement = view.add(node).name
    elif user.op == "VarIsInitializedOp":
        replacement = view.add(constant_node(view.unique_name(f"{user.name}/true"), np.array(True))).name
    cut_loose(view, [user.name])
    view.replace_tensor(canonical(user.name), replacement)
    # A read that is itself a model output keeps its name.
    dtype = view.node(replacement).attr["dtype"].type
    view.set_inputs(user.name, [replacement])
    user.op = "Identity"
    user.attr.clear()
    user.attr["T"].type = dtype


def _to_gather(view: GraphView, user: node_def_pb2.NodeDef, value: str) -> None:
    axis = "tfctr/axis0"
    if axis not in view:
        view.add(constant_node(axis, np.array(0, np.int32)))
    indices = view.inputs(user)[1]
    batch_dims = user.attr["batch_dims"].i
    if batch_dims:
        name = view.unique_name(f"{user.name}/axis")
        axis = view.add(constant_node(name, np.array(batch_dims, np.int32))).name
    view.set_inputs(user.name, [value, indices, axis, *_controls(user)])
    user.op = "GatherV2"
    _keep_attrs(user, {"dtype": "Tparams", "Tindices": "Tindices"})
    user.attr["Taxis"].type = types_pb2.DT_INT32
    user.attr["batch_dims"].i = batch_dims


def _controls(node: node_def_pb2.NodeDef) -> list[str]:
    return [i for i in node.input if i not in drop_control(node)]


def _keep_attrs(node: node_def_pb2.NodeDef, names: dict[str, str]) -> None:
    """Renames attributes (old -> new) and drops the others."""
    values = {new: node.attr[old].type for old, new in names.items()}
    node.attr.clear()
    for name, value in values.items():
        node.attr[name].type = value


def _retype_ref_identities(view: GraphView, value: str) -> None:
    for user, _ in view.consumers(canonical(value)):
        if user.op == "RefIdentity":
            user.op = "Identity"


def _constant_tables(view: GraphView) -> list[str]:
    """Constants of two and more dimensions and floating dtype that are read by row numbers (tables of frozen
    graphs).
    """
    found = []
    for node in view:
        if node.op != "Const" or not dtypes.as_dtype(node.attr["dtype"].type).is_floating:
            continue
        shape = [d.size for d in node.attr["value"].tensor.tensor_shape.dim]
        if len(shape) >= 2 and 0 not in shape and reads_rows(view, node.name):
            found.append(node.name)
    return found


def _replace_constant(item: GraphItem, view: GraphView, name: str) -> None:
    array = tensor_util.MakeNdarray(view.node(name).attr["value"].tensor)
    value = table_node(item, view, add_array(item, array, name))
    cut_loose(view, [name])
    view.replace_tensor(canonical(name), value)


def _partition_groups(item: GraphItem) -> list[PartitionGroup]:
    """Table nodes that are parts of one variable: slices of one checkpoint tensor, or names ending in part_0,
    part_1...
    """
    parts: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for node, index in item.tables.items():
        file = item.files[index]
        key, _, text = file.source.partition(" [")
        if text:
            start = slice_start(text.removesuffix("]"))
            if not any(start[1:]):
                parts[key].append((start[0], node))
        elif match := re.fullmatch(r"(.*)/part_(\d+)", file.name):
            parts[match[1]].append((int(match[2]), node))
    groups = []
    for name, members in parts.items():
        if len(members) > 1:
            nodes = tuple(node for _, node in sorted(members))
            rows = tuple(item.files[item.tables[n]].shape[0] for n in nodes)
            groups.append(PartitionGroup(name=name, nodes=nodes, rows=rows))
    return groups
