"""What a signature takes and gives, read from its SignatureDef.

A TensorInfo that encodes a sparse or ragged tensor ``x`` becomes several inputs, its *parts*: ``x/values``,
``x/indices``, ``x/dense_shape`` (sparse), ``x/values``, ``x/row_splits``, ``x/row_splits_1``... (ragged, outermost
first). Which of a TF2 signature's plain inputs belong together is not in the SignatureDef; callers who know give it as
``features``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from tfctr.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Input:
    """One tensor that is fed. dtype: TensorFlow's name. shape: -1 = any size, None = any rank. tensor: in the graph,
    ``x:0``."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    tensor: str


@dataclasses.dataclass(frozen=True)
class Output:
    """One output. kind: "dense", "sparse" or "ragged". parts: the tensors fetched, by role; only ``values`` for dense
    ones."""

    name: str
    kind: str
    parts: dict[str, Input]

    @property
    def dtype(self) -> str:
        return self.parts["values"].dtype


@dataclasses.dataclass(frozen=True)
class Feature:
    """Inputs that mean one thing together. kind: "sparse" or "ragged". parts: role -> input name."""

    name: str
    kind: str
    parts: dict[str, str]

    def row_splits(self) -> list[str]:
        """Input names of the row_splits, outermost first."""
        levels = [role for role in self.parts if role.startswith("row_splits")]
        return [
            self.parts[role]
            for role in sorted(levels, key=lambda r: int(r.removeprefix("row_splits").lstrip("_") or 0))
        ]


@dataclasses.dataclass(frozen=True)
class SignatureInfo:
    """inputs: in the order of the packed layout (by signature input name, then parts as the encoding lists them)."""

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    features: tuple[Feature, ...]


def read_signature(signature: meta_graph_pb2.SignatureDef) -> SignatureInfo:
    """Inputs, outputs and features of ``signature``."""
    inputs: list[Input] = []
    features: list[Feature] = []
    for name in sorted(signature.inputs):
        kind, parts = _parts(name, signature.inputs[name])
        inputs += parts.values()
        if kind in ("sparse", "ragged"):
            features.append(Feature(name, kind, {role: part.name for role, part in parts.items()}))
    outputs = [Output(name, *_parts(name, signature.outputs[name])) for name in sorted(signature.outputs)]
    _check_distinct(inputs)
    return SignatureInfo(tuple(inputs), tuple(outputs), tuple(features))


def numpy_dtype(dtype: str) -> np.dtype:
    """The NumPy dtype of a TensorFlow dtype name; object for strings. UsageError for what no array can hold."""
    found = tf.as_dtype(dtype)
    if found == tf.string:
        return np.dtype(object)
    if found in (tf.resource, tf.variant):
        raise UsageError(f"a tensor of type {found.name} can't be given or returned as an array")
    return np.dtype(found.as_numpy_dtype)


def _parts(name: str, info: meta_graph_pb2.TensorInfo) -> tuple[str, dict[str, Input]]:
    """("dense" | "sparse" | "ragged" | "composite", role -> tensor). Parts come in the order of the encoding."""
    encoding = info.WhichOneof("encoding")
    if encoding == "coo_sparse":
        rank = -1 if info.tensor_shape.unknown_rank else len(info.tensor_shape.dim)
        sparse = info.coo_sparse
        dtype = tf.as_dtype(info.dtype).name
        return "sparse", {
            "values": Input(f"{name}/values", dtype, (-1,), _port(sparse.values_tensor_name)),
            "indices": Input(f"{name}/indices", "int64", (-1, rank), _port(sparse.indices_tensor_name)),
            "dense_shape": Input(f"{name}/dense_shape", "int64", (rank,), _port(sparse.dense_shape_tensor_name)),
        }
    if encoding != "composite_tensor":
        return "dense", {"values": _tensor(name, info)}
    components = list(info.composite_tensor.components)
    kind, roles = _composite_roles(info.composite_tensor.type_spec.type_spec_class_name, len(components))
    return kind, {role: _tensor(f"{name}/{role}", part) for role, part in zip(roles, components, strict=True)}


def _composite_roles(spec: str, count: int) -> tuple[str, list[str]]:
    if spec == "SparseTensorSpec" and count == 3:
        return "sparse", ["indices", "values", "dense_shape"]
    if spec == "RaggedTensorSpec" and count >= 2:
        return "ragged", ["values", "row_splits", *(f"row_splits_{k}" for k in range(1, count - 1))]
    return "composite", ["values", *(f"component_{k}" for k in range(1, count))]


def _tensor(name: str, info: meta_graph_pb2.TensorInfo) -> Input:
    shape = None if info.tensor_shape.unknown_rank else tuple(d.size for d in info.tensor_shape.dim)
    return Input(name, tf.as_dtype(info.dtype).name, shape, _port(info.name))


def _port(tensor: str) -> str:
    return tensor if ":" in tensor else f"{tensor}:0"


def _check_distinct(inputs: list[Input]) -> None:
    for first, second in _same_tensor(inputs):
        raise UsageError(
            f"inputs {first!r} and {second!r} are the same graph tensor, so only one of them could be given"
        )


def _same_tensor(inputs: list[Input]) -> Iterator[tuple[str, str]]:
    seen: dict[str, str] = {}
    for one in inputs:
        if one.tensor in seen:
            yield seen[one.tensor], one.name
        seen[one.tensor] = one.name
