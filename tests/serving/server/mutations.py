"""Valid requests of both protocols, and what a broken client or an attacker makes of them.

    python -m tests.serving.server.mutations HOST:GRPC_PORT http://HOST:HTTP_PORT COUNT [SEED]

sends ``COUNT`` of them to a server of ``ranker`` (grpc_serving) that runs, and tells how they were answered.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import http.client
import json
import sys
import urllib.parse
from collections.abc import Iterator, Sequence

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import classification_pb2, inference_pb2, predict_pb2, regression_pb2

from tests.serving.server.grpc_serving import MODEL, request
from tfctr.serving.server import kserve_protos

SERVICE = "/tensorflow.serving.PredictionService/"
INFER = "/inference.GRPCInferenceService/ModelInfer"
# What a request may be told that is not what it should be. Everything else is a fault of the server.
GRPC_REFUSALS = {"INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"}
HTTP_REFUSALS = {400, 404, 413, 415, 429, 501}
_NUMBERS = [
    b"\x00",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\xff" * 4,
    b"\xff" * 9 + b"\x01",
    b"\x80" * 10,
    b"-1",
    b"1e999",
    b"NaN",
]
_NUMBERS += [b"9" * 30, b"[" * 50, b"{", b'"', b"\\", b"\\u0000", b"null", b"true", b"\xc3\x28", b",", b":"]


@dataclasses.dataclass(frozen=True)
class Valid:
    """A request that is answered. where: the gRPC method, or the path over HTTP."""

    where: str
    body: bytes
    over_http: bool = False
    json_bytes: int | None = None  # of KServe's binary extension: how long the JSON is


def valid_requests() -> list[Valid]:
    """Of every method that takes tensors or examples."""
    inputs = request(3)
    predict = predict_pb2.PredictRequest()
    predict.model_spec.name, predict.model_spec.signature_name = MODEL, "serving_default"
    infer = kserve_protos.ModelInferRequest(model_name=MODEL)
    for name, array in inputs.items():
        predict.inputs[name].CopyFrom(tf.make_tensor_proto(array))
        infer.inputs.add(name=name, datatype=_DATATYPES[name], shape=array.shape)
        infer.raw_input_contents.append(_raw(array))
    found = [Valid(SERVICE + "Predict", predict.SerializeToString()), Valid(INFER, infer.SerializeToString())]
    return [*found, *_example_requests(), *_http_requests()]


_DATATYPES = {"items": "INT64", "price": "FP32", "city": "BYTES"}


def _raw(array: np.ndarray) -> bytes:
    if array.dtype != object:
        return array.tobytes()
    return b"".join(len(one).to_bytes(4, "little") + one for one in array)


def _example_requests() -> list[Valid]:
    classify, regress = classification_pb2.ClassificationRequest(), regression_pb2.RegressionRequest()
    multi = inference_pb2.MultiInferenceRequest()
    for made, signature in ((classify, "classify"), (regress, "regress")):
        made.model_spec.name, made.model_spec.signature_name = MODEL, signature
        task = multi.tasks.add(method_name=f"tensorflow/serving/{signature}")
        task.model_spec.CopyFrom(made.model_spec)
    for made in (classify, regress, multi):
        example = made.input.example_list.examples.add()
        example.features.feature["items"].int64_list.value.extend([1, 2])
        example.features.feature["price"].float_list.value.append(0.5)
        example.features.feature["city"].bytes_list.value.append(b"ulm")
    names = ("Classify", "Regress", "MultiInference")
    bodies = (one.SerializeToString() for one in (classify, regress, multi))
    return [Valid(SERVICE + name, body) for name, body in zip(names, bodies, strict=True)]


def _http_requests() -> list[Valid]:
    inputs = request(2, 5)
    city = [{"b64": base64.b64encode(one).decode()} for one in inputs["city"]]
    columns = {"items": inputs["items"].tolist(), "price": inputs["price"].tolist(), "city": city}
    rows = [{name: value[k] for name, value in columns.items()} for k in range(2)]
    tensors = [
        {"name": name, "shape": list(array.shape), "datatype": _DATATYPES[name]} for name, array in inputs.items()
    ]
    plain = [
        one | {"data": np.asarray(inputs[one["name"]]).ravel().tolist()} for one in tensors if one["name"] != "city"
    ]
    plain.append({"name": "city", "shape": [2], "datatype": "BYTES", "data": ["ulm", "bonn"]})
    raw = [_raw(array) for array in inputs.values()]
    sized = [one | {"parameters": {"binary_data_size": len(part)}} for one, part in zip(tensors, raw, strict=True)]
    head = json.dumps({"inputs": sized}).encode()
    example = {"items": [1, 2], "price": 0.5, "city": "ulm"}
    tfs, kserve = f"/v1/models/{MODEL}", f"/v2/models/{MODEL}/infer"
    return [
        Valid(f"{tfs}:predict", json.dumps({"inputs": columns}).encode(), True),
        Valid(f"{tfs}:predict", json.dumps({"instances": rows}).encode(), True),
        Valid(f"{tfs}:classify", json.dumps({"signature_name": "classify", "examples": [example]}).encode(), True),
        Valid(f"{tfs}:regress", json.dumps({"signature_name": "regress", "examples": [example]}).encode(), True),
        Valid(kserve, json.dumps({"inputs": plain}).encode(), True),
        Valid(kserve, b"".join([head, *raw]), True, len(head)),
    ]


def mutated(one: Valid, others: Sequence[Valid], rng: np.random.Generator) -> Valid:
    """One to four changes: cut off, bits and bytes changed, parts left out, doubled, or of another request."""
    body, length = bytearray(one.body), one.json_bytes
    for _ in range(int(rng.integers(1, 5))):
        at, size = int(rng.integers(0, len(body) + 1)), int(rng.integers(1, 12))
        match int(rng.integers(0, 8)):
            case 0:
                del body[at:]
            case 1 if at < len(body):
                body[at] ^= 1 << int(rng.integers(0, 8))
            case 2:
                body[at : at + size] = rng.bytes(size)
            case 3:
                del body[at : at + size]
            case 4:
                body[at:at] = body[at : at + 4 * size]
            case 5:
                body[at:at] = _NUMBERS[int(rng.integers(len(_NUMBERS)))]
            case 6:
                other = others[int(rng.integers(len(others)))].body
                begin = int(rng.integers(0, len(other)))
                body[at : at + 2 * size] = other[begin : begin + 2 * size]
            case 7 if length is not None:
                length = int(rng.choice([0, 1, length - 1, length + 1, len(body) + 1, 2**31, 2**63, -1]))
            case _:
                pass
    return dataclasses.replace(one, body=bytes(body), json_bytes=length)


class Client:
    """Over a connection of each kind; ``send`` tells the status, "OK" or 200 where it is answered."""

    def __init__(self, grpc_address: str, http_url: str) -> None:
        self._channel = grpc.insecure_channel(grpc_address)
        where = urllib.parse.urlsplit(http_url)
        self._http = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)

    def send(self, one: Valid) -> tuple[str | int, str]:
        """(status, what was said). A reply that its protocol does not know fails an assertion."""
        if not one.over_http:
            try:
                self._channel.unary_unary(one.where)(one.body, timeout=60)
                return "OK", ""
            except grpc.RpcError as error:
                return error.code().name, error.details() or ""
        headers = {} if one.json_bytes is None else {"inference-header-content-length": str(one.json_bytes)}
        self._http.request("POST", one.where, one.body, headers)
        answer = self._http.getresponse()
        said = answer.read()
        told = {} if answer.headers.get_content_type() == "application/octet-stream" else json.loads(said)
        if answer.status != 200:
            assert isinstance(told.get("error"), str) and told["error"], said
        return answer.status, told.get("error", "")

    def close(self) -> None:
        self._channel.close()
        self._http.close()


def attack(client: Client, count: int, seed: int) -> Iterator[tuple[Valid, str | int, str]]:
    """Sends mutations; after every tenth, all valid requests, which must be answered."""
    rng = np.random.default_rng(seed)
    valid = valid_requests()
    for number in range(count):
        if number % 10 == 0:
            one = valid[number // 10 % len(valid)]
            status, said = client.send(one)
            assert status in ("OK", 200), (one.where, status, said)
        one = mutated(valid[number % len(valid)], valid, rng)
        status, said = client.send(one)
        refusals: set[str] | set[int] = HTTP_REFUSALS if one.over_http else GRPC_REFUSALS
        assert status in ("OK", 200) or (status in refusals and said), (number, one, status, said)
        yield one, status, said


def main(argv: Sequence[str]) -> None:
    client = Client(argv[0], argv[1])
    answered = collections.Counter(
        (one.where, status) for one, status, _ in attack(client, int(argv[2]), int(argv[3]) if len(argv) > 3 else 0)
    )
    for (where, status), times in sorted(answered.items(), key=str):
        print(f"{where:50} {status!s:20} {times}")


if __name__ == "__main__":
    main(sys.argv[1:])
