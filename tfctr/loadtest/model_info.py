"""What a server tells about a model's inputs, in the form in which manifests describe a signature.

Metadata has names, dtypes and shapes only. Which inputs are the parts of one sparse or ragged feature is read from
their names (``tags_indices``, ``tags_values``, ``tags_shape``; ``tags/values``, ``tags/row_splits``); which ids are
legal is not said, so they stay below a limit. A bundle knows both: name it where it is at hand.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from tfctr.errors import UsageError
from tfctr.loadtest.grpc_channel import open_channel
from tfctr.loadtest.target import Target

_PART = re.compile(r"(?P<name>.+?)[_/.:](?P<role>indices|values|dense_shape|shape|row_splits(_\d+)?)")
_FROM_KSERVE = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16", "FP32": "float32", "FP64": "float64",
    "BF16": "bfloat16", "BYTES": "string",
}  # fmt: skip
_METADATA_METHOD = "/tensorflow.serving.PredictionService/GetModelMetadata"
_KSERVE_METHOD = "/inference.GRPCInferenceService/ModelMetadata"
_TIMEOUT_S = 10.0

Input = tuple[str, str, list[int] | None]  # name, dtype, shape with -1 for any size


def ask(
    target: Target,
    signature: str,
    headers: Sequence[tuple[str, str]] = (),
    id_limit: int = 1000,
    root_certificates: bytes | None = None,
    tls: Any = None,
) -> dict[str, Any]:
    """The signature's entry, from the server's metadata.

    Raises:
      UsageError: the server does not answer, or has no such model or signature.
    """
    if target.transport == "grpc":
        inputs = _ask_grpc(target, signature, headers, root_certificates)
    else:
        inputs = _ask_http(target, signature, headers, tls)
    return describe(inputs, id_limit)


def describe(inputs: Sequence[Input], id_limit: int = 1000) -> dict[str, Any]:
    """``inputs`` as a manifest's signature: ``inputs`` and ``features``."""
    found: dict[str, dict[str, str]] = {}
    for name, _, _ in inputs:
        match = _PART.fullmatch(name)
        if match:
            role = "dense_shape" if match["role"] == "shape" else match["role"]
            found.setdefault(match["name"], {})[role] = name
    features: list[dict[str, Any]] = []
    for name, parts in found.items():
        if set(parts) == {"indices", "values", "dense_shape"}:
            features.append({"name": name, "kind": "sparse", "parts": parts})
        elif {"values", "row_splits"} <= set(parts) and not {"indices", "dense_shape"} & set(parts):
            features.append({"name": name, "kind": "ragged", "parts": parts})
    taken = {part for feature in features for part in feature["parts"].values()}
    for name, _, _ in inputs:
        if name not in taken:
            features.append({"name": name, "kind": "dense", "parts": {"values": name}})
    structure = taken - {feature["parts"]["values"] for feature in features}
    entries = []
    for name, dtype, shape in inputs:
        integer = dtype in ("int32", "int64") and name not in structure
        domain = {"kind": "ids", "low": 0, "high": id_limit} if integer else None
        entries.append({"name": name, "dtype": dtype, "shape": shape, "domain": domain})
    return {"inputs": entries, "features": features}


def _ask_grpc(
    target: Target, signature: str, headers: Sequence[tuple[str, str]], root_certificates: bytes | None
) -> list[Input]:
    channel = open_channel(target, root_certificates)
    metadata = [(name.lower(), value) for name, value in headers]
    try:
        if target.protocol == "tfs":
            return _tfs_inputs(target, signature, channel, metadata)
        from tfctr.serving.server import kserve_protos

        request = kserve_protos.ModelMetadataRequest(name=target.model, version=target.version)
        call = channel.unary_unary(_KSERVE_METHOD)
        reply = kserve_protos.ModelMetadataResponse.FromString(
            call(request.SerializeToString(), timeout=_TIMEOUT_S, metadata=metadata)
        )
        return [(t.name, _kserve_dtype(target, t.name, t.datatype), list(t.shape)) for t in reply.inputs]
    except grpc.RpcError as error:
        raise UsageError(
            f"{target}: no metadata: {error.code().name}: {error.details()}{_trust(target, str(error.details()))}"
        ) from error
    finally:
        channel.close()


def _tfs_inputs(target: Target, signature: str, channel: Any, metadata: list[tuple[str, str]]) -> list[Input]:
    from tensorflow_serving.apis import get_model_metadata_pb2

    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = target.model
    if target.version:
        request.model_spec.version.value = int(target.version)
    if target.label:
        request.model_spec.version_label = target.label
    call = channel.unary_unary(_METADATA_METHOD)
    reply = get_model_metadata_pb2.GetModelMetadataResponse.FromString(
        call(request.SerializeToString(), timeout=_TIMEOUT_S, metadata=metadata)
    )
    told = get_model_metadata_pb2.SignatureDefMap()
    reply.metadata["signature_def"].Unpack(told)
    if signature not in told.signature_def:
        raise _no_signature(target, signature, list(told.signature_def))
    import tensorflow as tf

    return [
        (name, tf.dtypes.as_dtype(info.dtype).name, _dims([d.size for d in info.tensor_shape.dim], info.tensor_shape))
        for name, info in told.signature_def[signature].inputs.items()
    ]


def _trust(target: Target, said: str) -> str:
    """What to do where the certificate was the reason."""
    if not target.tls or not any(word in said.lower() for word in ("certificate", "handshake")):
        return ""
    return "; --ca FILE names the certificate that signed the server's"


def _dims(sizes: list[int], shape: Any) -> list[int] | None:
    return None if shape.unknown_rank else sizes


def _ask_http(target: Target, signature: str, headers: Sequence[tuple[str, str]], tls: Any) -> list[Input]:
    url = f"http{'s' if target.tls else ''}://{target.address}{target.metadata_path}"
    request = urllib.request.Request(url, headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=tls) as reply:
            told = json.load(reply)
    except (OSError, ValueError) as error:
        raise UsageError(f"{url}: no metadata: {error}{_trust(target, str(error))}") from error
    if target.protocol == "kserve":
        return [(t["name"], _kserve_dtype(target, t["name"], t["datatype"]), list(t["shape"])) for t in told["inputs"]]
    signatures = told["metadata"]["signature_def"]["signature_def"]
    if signature not in signatures:
        raise _no_signature(target, signature, list(signatures))
    return [(name, *_rest_tensor(info)) for name, info in signatures[signature]["inputs"].items()]


def _rest_tensor(info: Mapping[str, Any]) -> tuple[str, list[int] | None]:
    shape = info.get("tensor_shape") or {}
    dims = None if shape.get("unknown_rank") else [int(dim["size"]) for dim in shape.get("dim", ())]
    dtype = info["dtype"].removeprefix("DT_").lower()
    return {"float": "float32", "double": "float64", "half": "float16"}.get(dtype, dtype), dims


def _kserve_dtype(target: Target, name: str, datatype: str) -> str:
    if datatype not in _FROM_KSERVE:
        raise UsageError(f"{target}: input {name!r} has the unknown datatype {datatype!r}")
    return _FROM_KSERVE[datatype]


def _no_signature(target: Target, signature: str, has: list[str]) -> UsageError:
    return UsageError(f"{target}: no signature {signature!r}; it has {', '.join(sorted(has)) or 'none'}")
