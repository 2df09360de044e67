"""Serialises requests beforehand: arrays by input name to the bytes of each protocol's message.

Tensors are written as a client that cares for speed writes them: contiguous bytes (``tensor_content``,
``raw_input_contents``, the binary extension), JSON only where a protocol has nothing else.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfctr.errors import UsageError
from tfctr.loadtest.channel import Prepared
from tfctr.loadtest.fresh_ids import Counter, FreshArrays, FreshIds, Markers
from tfctr.loadtest.target import Target

Arrays = Mapping[str, npt.NDArray[Any]]

_KSERVE_TYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64",
    "bfloat16": "BF16", "object": "BYTES",
}  # fmt: skip


def prepare(
    target: Target,
    signature: str,
    requests: Sequence[tuple[Arrays, int, Markers]],
    *,
    headers: Sequence[tuple[str, str]] = (),
    encoding: str = "binary",
    compress: bool = False,
) -> list[Prepared]:
    """requests: arrays, rows, markers of fresh ids. encoding: "binary" or "json" (KServe over HTTP).

    Raises:
      UsageError: fresh ids can't be written into compressed bodies; a dtype that the protocol does not have.
    """
    counter = Counter()
    if target.transport == "process":
        return [
            Prepared(dict(arrays), rows, FreshArrays(arrays, markers, counter) if markers.count else None)
            for arrays, rows, markers in requests
        ]
    if compress and any(markers.count for _, _, markers in requests):
        raise UsageError("--gzip with --unseen: ids can't be written into compressed bodies")
    write = _writer(target, signature, encoding)
    prepared = []
    for arrays, rows, markers in requests:
        body, extra = write(arrays)
        if target.transport == "http":
            body = _http_message(target, body, [*extra, *headers], compress)
        fresh = FreshIds.find(body, markers, counter) if markers.count else None
        prepared.append(Prepared(body, rows, fresh))
    return prepared


Written = tuple[bytes, list[tuple[str, str]]]


def _writer(target: Target, signature: str, encoding: str) -> Callable[[Arrays], Written]:
    if target.protocol == "tfs":
        if target.transport == "grpc":
            return lambda arrays: (tfs_message(target, signature, arrays), [])
        return lambda arrays: (tfs_json(signature, arrays), [("Content-Type", "application/json")])
    if target.transport == "grpc":
        return lambda arrays: (kserve_message(target, arrays), [])
    return lambda arrays: kserve_http(arrays, encoding)


def tfs_message(target: Target, signature: str, arrays: Arrays) -> bytes:
    """``tensorflow.serving.PredictRequest``."""
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name = target.model
    request.model_spec.signature_name = signature
    if target.version:
        request.model_spec.version.value = int(target.version)
    if target.label:
        request.model_spec.version_label = target.label
    for name, array in arrays.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(array))
    return bytes(request.SerializeToString())


def kserve_message(target: Target, arrays: Arrays) -> bytes:
    """``inference.ModelInferRequest`` with raw contents."""
    from tfctr.serving.server import kserve_protos

    request = kserve_protos.ModelInferRequest(model_name=target.model, model_version=target.version)
    for name, array in arrays.items():
        request.inputs.add(name=name, datatype=_kserve_type(name, array), shape=array.shape)
        request.raw_input_contents.append(_raw(array))
    return bytes(request.SerializeToString())


def tfs_json(signature: str, arrays: Arrays) -> bytes:
    """The column form: ``{"signature_name": S, "inputs": {...}}``."""
    inputs = {name: _plain(array, name.endswith("_bytes")) for name, array in arrays.items()}
    return json.dumps({"signature_name": signature, "inputs": inputs}, separators=(",", ":")).encode()


def kserve_http(arrays: Arrays, encoding: str) -> Written:
    """Body and headers of ``/infer``: with binary data behind the JSON, or all in JSON."""
    inputs: list[dict[str, Any]] = []
    tail: list[bytes] = []
    for name, array in arrays.items():
        entry: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": _kserve_type(name, array)}
        if encoding == "binary":
            tail.append(_raw(array))
            entry["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            entry["data"] = _plain(array.reshape(-1), False)
        inputs.append(entry)
    binary = {"parameters": {"binary_data_output": True}} if encoding == "binary" else {}
    head = json.dumps({"inputs": inputs, **binary}, separators=(",", ":")).encode()
    if encoding != "binary":
        return head, [("Content-Type", "application/json")]
    sizes = [("Content-Type", "application/octet-stream"), ("Inference-Header-Content-Length", str(len(head)))]
    return b"".join([head, *tail]), sizes


def _http_message(target: Target, body: bytes, headers: list[tuple[str, str]], compress: bool) -> bytes:
    if compress:
        body = gzip.compress(body, 6)
        headers = [*headers, ("Content-Encoding", "gzip")]
    lines = [f"POST {target.infer_path} HTTP/1.1", f"Host: {target.address}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _kserve_type(name: str, array: npt.NDArray[Any]) -> str:
    kind = array.dtype.name if array.dtype.kind not in "SU" else "object"
    if kind not in _KSERVE_TYPES:
        raise UsageError(f"input {name!r} is {array.dtype}, which KServe has no name for")
    return _KSERVE_TYPES[kind]


def _raw(array: npt.NDArray[Any]) -> bytes:
    if array.dtype != object:
        return np.ascontiguousarray(array).tobytes()
    return b"".join(len(text).to_bytes(4, "little") + text for text in map(_bytes, array.flat))


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _plain(array: npt.NDArray[Any], as_bytes: bool) -> Any:
    if array.dtype == object:
        flat = np.empty(array.shape, object)
        flat.reshape(-1)[:] = [_text(_bytes(value), as_bytes) for value in array.flat]
        return flat.tolist()
    if array.dtype.kind in "fV":
        return array.astype(np.float64).tolist() if array.dtype != np.float32 else _short_floats(array)
    return array.tolist()


def _short_floats(array: npt.NDArray[Any]) -> Any:
    """float32 as JSON: the shortest digits that give the same float32."""
    flat = np.empty(array.shape, object)
    flat.reshape(-1)[:] = [float(str(value)) for value in array.reshape(-1)]
    return flat.tolist()


def _text(value: bytes, as_bytes: bool) -> Any:
    text = value.decode(errors="replace")
    if as_bytes or text.encode() != value:
        return {"b64": base64.b64encode(value).decode()}
    return text
