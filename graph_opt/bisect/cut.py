"""Cuts a part of a SavedModel out as a SavedModel of its own, for stock TensorFlow: some tensors as outputs, what they
need of inputs, variables and static tables, and of embedding tables only the rows that given inputs reach.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from graph_opt.assemble import saved_model_bytes
from graph_opt.bisect.forms import Inputs, Original
from graph_opt.finish import assign_node
from graph_opt.item import CheckpointRef, GraphItem
from graph_opt.passes.prune_training import prune
from graph_opt.resources import ROW_READERS, uses_of
from graph_opt.restore_map import VARIABLES, resource_node
from graph_opt.saved_model import SavedModelSource, load
from graph_opt.signature_info import signature_info
from graph_opt.store_files import string_vector
from graph_opt.view import GraphView, canonical, node_of

_INITIALISERS = (
    "InitializeTableV2", "InitializeTableFromTextFileV2", "InitializeTable", "InitializeTableFromTextFile",
    "LookupTableImportV2", "LookupTableImport", "AssignVariableOp", "Assign",
)  # fmt: skip
_GATHERS = ("GatherV2", "Gather")
_PREFIX = "bisect/"


def cut_model(
    source: SavedModelSource,
    item: GraphItem,
    signature: str,
    outputs: Mapping[str, meta_graph_pb2.TensorInfo],
    inputs: Inputs,
    folder: Path,
    *,
    exact: bool,
) -> tuple[SavedModelSource, Inputs]:
    """Writes the part of ``item`` (the inlined graph of ``source``) that ``outputs`` need to ``folder``, with one
    signature of the same name; returns it and its inputs.

    exact: with whole tables, and waiting for all that the original waits for; else tables keep only the rows that the
    inputs reach, and control edges (which tie a function's body to all of its inputs) go.
    """
    part = _part(item, signature, outputs, inputs, exact=exact)
    kept = set(_input_names(part, signature))
    fed = Inputs(
        arrays={name: value for name, value in inputs.arrays.items() if name in kept},
        count=inputs.count,
        info=_info(inputs.info, kept),
        take=inputs.take,
        write=inputs.write,
    )
    written = _write(source, part.copy(), {}, folder)
    ids = {} if exact else _row_ids(part)
    if not ids:
        return written, fed
    tensors = list(dict.fromkeys(tensor for found in ids.values() for tensor in found))
    with Original(written, part, signature) as whole:
        values = dict(zip(tensors, whole.values(tensors, fed), strict=True))
    shutil.rmtree(folder)
    return _write(source, part, {name: [values[t] for t in found] for name, found in ids.items()}, folder), fed


def _write(
    source: SavedModelSource, part: GraphItem, rows: Mapping[str, Sequence[Any]], folder: Path
) -> SavedModelSource:
    """Writes ``part`` as a SavedModel; ``rows``: variable node -> the row numbers to keep of it."""
    folder.mkdir(parents=True)
    _copy_assets(source, part, folder)
    _write_variables(source, part, rows, folder)
    (folder / "saved_model.pb").write_bytes(saved_model_bytes(source, part))
    return load(folder, source.tags)


def _part(
    item: GraphItem,
    signature: str,
    outputs: Mapping[str, meta_graph_pb2.TensorInfo],
    inputs: Inputs,
    *,
    exact: bool,
) -> GraphItem:
    part = item.copy()
    old = item.signatures[signature]
    made = meta_graph_pb2.SignatureDef(method_name=old.method_name)
    for name, info in outputs.items():
        made.outputs[name].CopyFrom(info)
    part.signatures, part.optimise = {signature: made}, (signature,)
    view = GraphView(part.graph_def)
    if not exact:
        for node in list(view):
            if node.op not in _INITIALISERS and view.control_inputs(node):
                view.set_inputs(node.name, [i for i in node.input if not i.startswith("^")])
    part.init_op = _initialiser(item, view, view.ancestors(part.fetches(signature)))
    needed = view.ancestors(part.fetches(signature))
    tensor_of = {entry["name"]: entry["tensor"] for entry in inputs.info["inputs"]}
    wanted = {
        name
        for feature in inputs.info["features"]
        if any(node_of(tensor_of[p]) in needed for p in feature["parts"].values())
        for name in feature["parts"].values()
    }
    for name in old.inputs:
        if any(part_name == name or part_name.startswith(name + "/") for part_name in wanted):
            made.inputs[name].CopyFrom(old.inputs[name])
    kept = view.ancestors([*part.fetches(signature), *([part.init_op] if part.init_op else [])])
    part.assets = [asset for asset in item.assets if node_of(asset.tensor_info.name) in kept]
    prune(part)
    return part


def _initialiser(item: GraphItem, view: GraphView, needed: Collection[str]) -> str | None:
    """A NoOp that initialises the tables and variables that are needed, and what their initialisers need."""
    if not item.init_op:
        return None
    before = GraphView(item.graph_def)  # with all that its initialiser waits for
    writers = [n for n in before.ancestors([item.init_op]) if before.node(n).op in _INITIALISERS]
    reached, chosen = set(needed), set[str]()
    changed = True
    while changed:
        found = {w for w in writers if resource_node(view, view.inputs(w)[0]) in reached}
        changed = found != chosen
        chosen = found
        reached |= view.ancestors(chosen)
    if not chosen:
        return None
    node = node_def_pb2.NodeDef(name=view.unique_name(_PREFIX + "init"), op="NoOp")
    node.input.extend("^" + name for name in sorted(chosen))
    return view.add(node).name


def _input_names(part: GraphItem, signature: str) -> list[str]:
    return [entry["name"] for entry in signature_info(part.signatures[signature])["inputs"]]


def _info(info: Mapping[str, Any], kept: Collection[str]) -> dict[str, Any]:
    return {
        **info,
        "inputs": [entry for entry in info["inputs"] if entry["name"] in kept],
        "features": [f for f in info["features"] if set(f["parts"].values()) <= set(kept)],
    }


def _variables(part: GraphItem, view: GraphView) -> dict[str, CheckpointRef]:
    """Variable node -> its place in the checkpoint, for those that no initialiser sets."""
    found = {}
    for node in view:
        if node.op in VARIABLES:
            shared = (node.attr["shared_name"].s or node.name.encode()).decode()
            set_here = any(user.op in ("Assign", "AssignVariableOp") for user, _ in uses_of(view, node.name).nodes)
            if node.name in part.variables or not set_here:
                found[node.name] = part.variables.get(node.name, CheckpointRef(key=shared))
    return found


def _row_ids(part: GraphItem) -> dict[str, list[str]]:
    """Variable node -> tensors of the row numbers by which it is read; absent where it is read otherwise as well."""
    view = GraphView(part.graph_def)
    found = {}
    for name in _variables(part, view):
        ids = _ids_of(view, name)
        if ids:
            found[name] = list(dict.fromkeys(ids))
    return found


def _ids_of(view: GraphView, name: str) -> list[str] | None:
    ids: list[str] = []
    for node, index in uses_of(view, name).nodes:
        inputs = view.inputs(node)
        if node.op == "ReadVariableOp":
            more = _ids_of(view, node.name)
            if more is None:
                return None
            ids += more
        elif node.op == "ResourceGather" or (node.op in (*ROW_READERS, *_GATHERS) and index == 0):
            ids.append(inputs[1])
        elif node.op not in ("VariableShape", "Shape"):
            return None
    return ids


def _write_variables(
    source: SavedModelSource, part: GraphItem, rows: Mapping[str, Sequence[Any]], folder: Path
) -> None:
    """The checkpoint of the part and the op that restores it."""
    view = GraphView(part.graph_def)
    states = _variables(part, view)
    tables = {name: keys for name, keys in part.restored_tables.items() if name in view}
    refs = [(name, [ref]) for name, ref in states.items()]
    refs += [(name, [CheckpointRef(key=key) for key in keys]) for name, keys in tables.items()]
    if not refs:
        return
    saved: dict[tuple[str, str], Any] = {}
    with tf.init_scope():
        for name, places in refs:
            node = view.node(name)
            attrs = ("dtype",) if len(places) == 1 else ("key_dtype", "value_dtype")
            for ref, attr in zip(places, attrs, strict=True):
                key = (ref.key, ref.slice)
                value = saved[key] if key in saved else _read(source, ref, node.attr[attr].type)
                saved[key] = _only(value, rows[name]) if name in rows else value
        (folder / "variables").mkdir()
        tf.raw_ops.SaveV2(
            prefix=str(folder / "variables" / "variables"),
            tensor_names=[key for key, _ in saved],
            shape_and_slices=[text for _, text in saved],
            tensors=list(saved.values()),
        )
    _add_restore(part, view, refs)


def _read(source: SavedModelSource, ref: CheckpointRef, dtype: int) -> Any:
    (value,) = tf.raw_ops.RestoreV2(
        prefix=str(source.checkpoint), tensor_names=[ref.key], shape_and_slices=[ref.slice], dtypes=[tf.as_dtype(dtype)]
    )
    return value


def _only(value: Any, rows: Sequence[Any]) -> Any:
    """``value`` with zeros in every row that is not among ``rows``."""
    array = value.numpy()
    if array.ndim == 0 or array.dtype == object:
        return value
    ids = np.unique(np.concatenate([np.asarray(r, np.int64).reshape(-1) for r in rows]))
    ids = ids[(ids >= 0) & (ids < len(array))]
    kept = np.zeros_like(array)
    kept[ids] = array[ids]
    return tf.constant(kept)


def _add_restore(part: GraphItem, view: GraphView, refs: Sequence[tuple[str, Sequence[CheckpointRef]]]) -> None:
    places = [ref for _, found in refs for ref in found]
    filename = node_def_pb2.NodeDef(name=_PREFIX + "filename", op="Placeholder")
    filename.attr["dtype"].type = types_pb2.DT_STRING
    filename.attr["shape"].shape.SetInParent()
    view.add(filename)
    view.add(string_vector(_PREFIX + "keys", [ref.key for ref in places]))
    view.add(string_vector(_PREFIX + "slices", [ref.slice for ref in places]))
    names = [_PREFIX + name for name in ("filename", "keys", "slices")]
    restore = node_def_pb2.NodeDef(name=_PREFIX + "values", op="RestoreV2", input=names)
    done, port = [], 0
    for number, (name, found) in enumerate(refs):
        node = view.node(name)
        for attr in ("dtype",) if len(found) == 1 else ("key_dtype", "value_dtype"):
            restore.attr["dtypes"].list.type.append(node.attr[attr].type)
        values = [f"{restore.name}:{port + k}" for k in range(len(found))]
        port += len(found)
        done.append(assign_node(node, values, f"{_PREFIX}assign_{number}"))
    view.add(restore)
    controls = ["^" + view.add(node).name for node in done]
    part.restore_op = view.add(node_def_pb2.NodeDef(name=_PREFIX + "restore", op="NoOp", input=controls)).name
    part.restore_filename = canonical(filename.name)


def _copy_assets(source: SavedModelSource, part: GraphItem, folder: Path) -> None:
    for asset in part.assets:
        target = folder / "assets" / asset.filename
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.path / "assets" / asset.filename, target)
