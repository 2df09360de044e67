"""Signatures as plain data: the ``signatures`` part of a manifest, the same for bundles and plain SavedModels.

inputs: one entry per graph tensor that is fed {name, dtype, shape, tensor}; the parts of one composite TensorInfo
``x`` are ``x/values``, ``x/indices``... shape: -1 = any size, null = any rank. features: what the inputs mean together
{name, kind "dense" | "sparse" | "ragged", parts {role: input name}}; every input is a part of exactly one feature.
outputs: {name, dtype, shape, tensor, kind}; sparse and ragged ones have ``parts`` {role: tensor}.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from graph_opt.view import canonical

_SPARSE_ROLES = ("values", "indices", "dense_shape")


def signature_info(signature: meta_graph_pb2.SignatureDef, streams: Iterable[Mapping[str, str]] = ()) -> dict[str, Any]:
    """``inputs``, ``outputs`` and ``features`` of one signature.

    streams: features that lookups or the graph show: {"values", and "indices" + "dense_shape" or "row_splits": graph
    tensor}.
    """
    inputs, features = [], []
    for name in sorted(signature.inputs):
        entries, feature = _input(name, signature.inputs[name])
        inputs += entries
        features.append(feature)
    outputs = [_output(name, signature.outputs[name]) for name in sorted(signature.outputs)]
    return {"inputs": inputs, "outputs": outputs, "features": _join(inputs, features, streams)}


def _input(name: str, info: meta_graph_pb2.TensorInfo) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    kind, parts = composite_parts(info)
    if kind == "dense":
        entry = {"name": name, **_tensor(info)}
        return [entry], {"name": name, "kind": "dense", "parts": {"values": name}}
    entries = [{"name": f"{name}/{role}", **part} for role, part in parts.items()]
    return entries, {"name": name, "kind": kind, "parts": {role: f"{name}/{role}" for role in parts}}


def _output(name: str, info: meta_graph_pb2.TensorInfo) -> dict[str, Any]:
    kind, parts = composite_parts(info)
    if kind == "dense":
        return {"name": name, "kind": kind, **_tensor(info)}
    values = parts["values"]
    return {"name": name, "kind": kind, **values, "parts": {role: part["tensor"] for role, part in parts.items()}}


def composite_parts(info: meta_graph_pb2.TensorInfo) -> tuple[str, dict[str, dict[str, Any]]]:
    """("dense" | "sparse" | "ragged" | "composite", role -> {dtype, shape, tensor}) of a TensorInfo."""
    encoding = info.WhichOneof("encoding")
    if encoding == "coo_sparse":
        sparse = info.coo_sparse
        rank = -1 if info.tensor_shape.unknown_rank else len(info.tensor_shape.dim)
        return "sparse", {
            "values": _part(info.dtype, [-1], sparse.values_tensor_name),
            "indices": _part(tf.int64.as_datatype_enum, [-1, rank], sparse.indices_tensor_name),
            "dense_shape": _part(tf.int64.as_datatype_enum, [rank], sparse.dense_shape_tensor_name),
        }
    if encoding != "composite_tensor":
        return "dense", {}
    components = [_tensor(part) for part in info.composite_tensor.components]
    spec = info.composite_tensor.type_spec.type_spec_class_name
    if spec == "SparseTensorSpec" and len(components) == 3:
        indices, values, shape = components
        return "sparse", {"values": values, "indices": indices, "dense_shape": shape}
    if spec == "RaggedTensorSpec" and len(components) >= 2:
        roles = ["values", "row_splits", *(f"row_splits_{k}" for k in range(1, len(components) - 1))]
        return "ragged", dict(zip(roles, components, strict=True))
    return "composite", {"values" if k == 0 else f"component_{k}": c for k, c in enumerate(components)}


def _tensor(info: meta_graph_pb2.TensorInfo) -> dict[str, Any]:
    shape = None if info.tensor_shape.unknown_rank else [d.size for d in info.tensor_shape.dim]
    return _part(info.dtype, shape, info.name)


def _part(dtype: int, shape: list[int] | None, tensor: str) -> dict[str, Any]:
    return {"dtype": tf.as_dtype(dtype).name, "shape": shape, "tensor": canonical(tensor)}


def _join(
    inputs: list[dict[str, Any]], features: list[dict[str, Any]], streams: Iterable[Mapping[str, str]]
) -> list[dict[str, Any]]:
    """Puts inputs that are parts of one stream into one feature, where they are plain inputs so far."""
    name_of = {entry["tensor"]: entry["name"] for entry in inputs}
    plain = {f["name"] for f in features if f["kind"] == "dense"}
    joined: list[dict[str, Any]] = []
    used: set[str] = set()
    for stream in streams:
        parts = {role: name_of[tensor] for role, tensor in stream.items() if tensor in name_of}
        names = set(parts.values())
        if len(parts) != len(stream) or len(names) != len(parts) or not names <= plain or names & used:
            continue
        used |= names
        kind = "ragged" if "row_splits" in parts else "sparse"
        joined.append({"name": stem(list(parts.values())), "kind": kind, "parts": parts})
    rest = [f for f in features if f["name"] not in used]
    taken = {entry["name"] for entry in inputs}
    for feature in joined:
        # The stem may be a part's own name (`a`, `a_1`, `a_2`), but not the name of an input that is no part of it.
        if feature["name"] in taken - set(feature["parts"].values()) or not feature["name"]:
            feature["name"] = feature["parts"]["values"]
    return sorted(rest + joined, key=lambda f: str(f["name"]))


def stem(names: list[str]) -> str:
    """What the names of a feature's parts have in common: ``a``, ``a_1``, ``a_2`` -> ``a``; ``x_ids``, ``x_rows`` ->
    ``x``.
    """
    common = os.path.commonprefix(names)  # noqa: RUF071 - characters, not folders
    if common in names:
        return common
    for mark in ("/", "_", ".", ":", "-"):
        if mark in common:
            return common[: common.rindex(mark)].rstrip("/_.:-") or common
    return common
