"""The last touch before a graph can run or be written: its store is opened by the init op, its state is restorable.

The store's files are assets: the loader feeds their paths, so the bundle works from any directory.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from graph_opt.item import GraphItem, MutableState
from graph_opt.store_files import constant_node, string_vector
from graph_opt.view import GraphView, canonical
from tfctr.bundle import naming

ASSET_FOLDER = "tfctr"
_NAMED_RESOURCES = (
    "VarHandleOp", "HashTableV2", "MutableHashTableV2", "MutableHashTableOfTensorsV2", "MutableDenseHashTableV2",
)  # fmt: skip


def finish(item: GraphItem) -> None:
    """Adds the store's opening, the restore op of mutable state, and names resources after the bundle (in place,
    once).
    """
    view = GraphView(item.graph_def)
    _own_names(item, view)
    if item.store_node:
        _open_store(item, view)
    restorable = [m for m in item.mutable_state if m.keys and m.node in view]
    if restorable:
        _add_restore(item, view, restorable)
    view.sort()


def _own_names(item: GraphItem, view: GraphView) -> None:
    # The TF2 loader runs a TF1 graph in the process's one resource manager: equal names of two bundles would meet
    # there.
    for node in view:
        if node.op in _NAMED_RESOURCES:
            own = node.attr["shared_name"].s or node.name.encode()
            node.attr["shared_name"].s = item.store_name.encode() + b"/" + own


def _open_store(item: GraphItem, view: GraphView) -> None:
    names = []
    for index, file in enumerate(item.files):
        if file.path is None:
            raise ValueError(f"file {index} ({file.name}) was only analysed")
        asset = view.add(constant_node(f"tfctr/asset/{index}", np.array(file.path.name.encode(), dtype=object)))
        names.append(asset.name)
        entry = meta_graph_pb2.AssetFileDef(filename=f"{ASSET_FOLDER}/{file.path.name}")
        entry.tensor_info.name = canonical(asset.name)
        item.assets.append(entry)
        item.asset_paths[entry.filename] = file.path
    pack = node_def_pb2.NodeDef(name="tfctr/filenames", op="Pack", input=names)
    pack.attr["N"].i = len(names)
    pack.attr["T"].type = types_pb2.DT_STRING
    view.add(pack)
    opened = node_def_pb2.NodeDef(name="tfctr/open_store", op="TfctrStoreOpen", input=[item.store_node, pack.name])
    opened.attr["kinds"].list.s.extend(f.kind.encode() for f in item.files)
    opened.attr["fingerprints"].list.s.extend(f.fingerprint.encode() for f in item.files)
    opened.attr["bases"].list.SetInParent()
    opened.attr["bases"].list.i.extend(f.base or 0 for f in item.files if f.kind == "overlay")
    view.add(opened)
    _take_overlays(item, view)
    waits = ["^" + opened.name] + (["^" + item.init_op] if item.init_op else [])
    item.init_op = view.add(node_def_pb2.NodeDef(name=view.unique_name("tfctr/init"), op="NoOp", input=waits)).name


def _take_overlays(item: GraphItem, view: GraphView) -> None:
    """The node by which a running session takes other overlays: its inputs are placeholders that nothing else reads."""
    overlay = node_def_pb2.NodeDef(name=naming.OVERLAY_NODE, op="TfctrStoreOverlay", input=[item.store_node])
    for name, dtype in ((naming.OVERLAY_INDICES, types_pb2.DT_INT64), (naming.OVERLAY_FILENAMES, types_pb2.DT_STRING)):
        fed = node_def_pb2.NodeDef(name=name, op="Placeholder")
        fed.attr["dtype"].type = dtype
        fed.attr["shape"].shape.dim.add().size = -1
        overlay.input.append(view.add(fed).name)
    view.add(overlay)


def _add_restore(item: GraphItem, view: GraphView, states: list[MutableState]) -> None:
    keys: list[str] = []
    wanted: list[int] = []
    for state in states:
        node = view.node(state.node)
        attrs = ("dtype",) if state.kind == "variable" else ("key_dtype", "value_dtype")
        keys += [_saved_key(item, state, key) for key in state.keys]
        wanted += [node.attr[a].type for a in attrs]
    filename = node_def_pb2.NodeDef(name="tfctr/restore/filename", op="Placeholder")
    filename.attr["dtype"].type = types_pb2.DT_STRING
    filename.attr["shape"].shape.SetInParent()
    view.add(filename)
    view.add(string_vector("tfctr/restore/keys", keys))
    view.add(string_vector("tfctr/restore/slices", [""] * len(keys)))
    restore = node_def_pb2.NodeDef(
        name="tfctr/restore/values",
        op="RestoreV2",
        input=["tfctr/restore/filename", "tfctr/restore/keys", "tfctr/restore/slices"],
    )
    restore.attr["dtypes"].list.type.extend(wanted)
    view.add(restore)
    done, port = [], 0
    for number, state in enumerate(states):
        values = [f"tfctr/restore/values:{port + k}" for k in range(len(state.keys))]
        port += len(values)
        assign = assign_node(view.node(state.node), values, f"tfctr/restore/assign_{number}")
        done.append("^" + view.add(assign).name)
    item.restore_op = view.add(node_def_pb2.NodeDef(name="tfctr/restore/all", op="NoOp", input=done)).name
    item.restore_filename = canonical(filename.name)


def assign_node(target: node_def_pb2.NodeDef, values: list[str], name: str) -> node_def_pb2.NodeDef:
    """The node that sets a variable to one value, or a table to keys and values (graph tensors)."""
    node = node_def_pb2.NodeDef(name=name, input=[target.name, *values])
    if len(values) == 2:
        node.op = "LookupTableImportV2"
        node.attr["Tin"].type = target.attr["key_dtype"].type
        node.attr["Tout"].type = target.attr["value_dtype"].type
    elif target.op == "VarHandleOp":
        node.op = "AssignVariableOp"
        node.attr["dtype"].type = target.attr["dtype"].type
    else:
        node.op = "Assign"
        node.attr["T"].type = target.attr["dtype"].type
    return node


def _slice(item: GraphItem, state: MutableState) -> str:
    reference = item.variables.get(state.node)
    return reference.slice if reference else ""


def _saved_key(item: GraphItem, state: MutableState, key: str) -> str:
    """Name in the bundle's own checkpoint; the parts of a partitioned variable share a key, so each adds its slice."""
    part = _slice(item, state)
    return f"{key} [{part}]" if part else key


def write_state(item: GraphItem, prefix: str, saved: str) -> int:
    """Copies the mutable state from the model's checkpoint ``prefix`` into a new, small one at ``saved``; returns its
    tensors' bytes.
    """
    view = GraphView(item.graph_def)
    names, tensors = [], []
    with tf.init_scope():
        for state in item.mutable_state:
            if not state.keys or state.node not in view:
                continue
            node = view.node(state.node)
            attrs = ("dtype",) if state.kind == "variable" else ("key_dtype", "value_dtype")
            for key, attr in zip(state.keys, attrs, strict=True):
                dtype = tf.as_dtype(node.attr[attr].type)
                if _saved_key(item, state, key) in names:
                    continue  # another handle of the same variable
                part = _slice(item, state)
                (value,) = tf.raw_ops.RestoreV2(
                    prefix=prefix, tensor_names=[key], shape_and_slices=[part], dtypes=[dtype]
                )
                names.append(_saved_key(item, state, key))
                tensors.append(value)
        if names:
            tf.raw_ops.SaveV2(prefix=saved, tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors)
    return sum(t.shape.num_elements() * max(t.dtype.size, 1) for t in tensors)
