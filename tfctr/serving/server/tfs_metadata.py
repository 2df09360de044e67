"""What TF Serving's protocol says about models: their signatures and the states of their versions."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import get_model_status_pb2

from tfctr.errors import NotFoundError, UnavailableError
from tfctr.serving.server.kserve_models import output_tensors

_OK, _UNKNOWN = 0, 2


def signature_definitions(served: Any) -> dict[str, meta_graph_pb2.SignatureDef]:
    """Name -> SignatureDef of every signature that may be asked for: the model's own, save that a sparse or ragged
    tensor is listed as its parts, by the names that requests and replies use for them."""
    return {name: _definition(handle) for name, handle in sorted(served.signatures.items())}


def _definition(handle: Any) -> meta_graph_pb2.SignatureDef:
    tensors = (*handle.definition.inputs.values(), *handle.definition.outputs.values())
    if all(one.WhichOneof("encoding") == "name" for one in tensors):
        return handle.definition  # type: ignore[no-any-return]
    made = meta_graph_pb2.SignatureDef(method_name=handle.method_name)
    for one in handle.inputs:
        _fill(made.inputs[one.name], one.tensor, one.dtype, one.shape)
    for name, part in output_tensors(handle.outputs):
        _fill(made.outputs[name], part.tensor, part.dtype, part.shape)
    return made


def _fill(info: meta_graph_pb2.TensorInfo, tensor: str, dtype: str, shape: tuple[int, ...] | None) -> None:
    info.name = tensor
    info.dtype = tf.as_dtype(dtype).as_datatype_enum
    known = None if shape is None else [size if size >= 0 else None for size in shape]
    info.tensor_shape.CopyFrom(tf.TensorShape(known).as_proto())


@dataclasses.dataclass(frozen=True)
class StatusEntry:
    """One version as GetModelStatus tells it. state: "AVAILABLE" and so on; tfs_state: its number; error_code: of
    google.rpc."""

    number: int
    state: str
    tfs_state: int
    error_code: int
    error: str


def version_status(manager: Any, model: str, version: int | None, label: str | None) -> list[StatusEntry]:
    """The versions of a model, newest first, or the one asked for.

    NotFoundError: no such model, version or label. UnavailableError: the label's version was unloaded by hand.
    """
    (status,) = manager.status(model, describe=False)
    if label is not None:
        there = ", ".join(sorted(status.labels)) or "none"
        if label in status.labels_unloaded:
            number = status.labels_unloaded[label]
            raise UnavailableError(
                f"model {model!r}: label {label!r} stands for version {number}, which was unloaded by hand; there is: "
                f"{there}"
            )
        if label not in status.labels:
            raise NotFoundError(f"model {model!r}: no label {label!r}; there is: {there}")
        version = status.labels[label]
    found = [one for one in status.versions if version is None or one.number == version]
    if not found:
        there = ", ".join(str(one.number) for one in status.versions) or "none"
        raise NotFoundError(f"model {model!r}: no version {version if version is not None else ''}; there is: {there}")
    states = get_model_status_pb2.ModelVersionStatus.State
    return [
        StatusEntry(
            number=one.number,
            state=one.state,
            tfs_state=states.Value(one.state) if one.state in states.keys() else 0,  # noqa: SIM118
            error_code=_UNKNOWN if one.error else _OK,
            error=one.error or "",
        )
        for one in sorted(found, key=lambda one: -one.number)
    ]
