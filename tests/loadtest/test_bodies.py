"""Requests as bytes of each protocol, read back by the protocol's own library."""

import gzip
import json

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from tfctr.errors import UsageError
from tfctr.loadtest.bodies import kserve_http, kserve_message, prepare, tfs_json, tfs_message
from tfctr.loadtest.fresh_ids import Markers
from tfctr.loadtest.target import parse_target
from tfctr.serving.server import kserve_protos

ARRAYS = {
    "ids": np.array([3, 5, 7], np.int64),
    "weights": np.array([0.1, 2.5, -1.0], np.float32),
    "tags": np.array([[b"a", b"\xff\x00"], [b"", "é".encode()]], object),
    "flag": np.array(True),
}


def test_tfs_message_holds_the_arrays():
    target = parse_target("grpc://h/v1/models/r/versions/4")
    request = predict_pb2.PredictRequest.FromString(tfs_message(target, "score", ARRAYS))
    assert (request.model_spec.name, request.model_spec.signature_name) == ("r", "score")
    assert request.model_spec.version.value == 4
    assert request.inputs["ids"].tensor_content  # the compact form
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(tf.make_ndarray(request.inputs[name]), array)


def test_tfs_message_names_a_label():
    target = parse_target("grpc://h/v1/models/r/labels/canary")
    assert predict_pb2.PredictRequest.FromString(tfs_message(target, "s", {})).model_spec.version_label == "canary"


def test_kserve_message_holds_the_arrays_as_raw_contents():
    target = parse_target("grpc://h/v2/models/r/versions/4")
    request = kserve_protos.ModelInferRequest.FromString(kserve_message(target, ARRAYS))
    assert (request.model_name, request.model_version) == ("r", "4")
    told = {t.name: (t.datatype, list(t.shape)) for t in request.inputs}
    assert told == {"ids": ("INT64", [3]), "weights": ("FP32", [3]), "tags": ("BYTES", [2, 2]), "flag": ("BOOL", [])}
    assert request.raw_input_contents[0] == ARRAYS["ids"].tobytes()
    assert request.raw_input_contents[2] == b"\x01\0\0\0a\x02\0\0\0\xff\0\0\0\0\0\x02\0\0\0\xc3\xa9"


def test_tfs_json_is_in_columns():
    told = json.loads(tfs_json("score", ARRAYS))
    assert told["signature_name"] == "score"
    assert told["inputs"]["ids"] == [3, 5, 7]
    assert told["inputs"]["tags"] == [["a", {"b64": "/wA="}], ["", "é"]]
    assert np.float32(told["inputs"]["weights"]).tobytes() == ARRAYS["weights"].tobytes()
    assert b"0.1," in tfs_json("score", ARRAYS)  # the shortest digits of a float32, not 0.10000000149


def test_kserve_http_with_binary_data_and_in_json():
    body, headers = kserve_http(ARRAYS, "binary")
    size = int(dict(headers)["Inference-Header-Content-Length"])
    head = json.loads(body[:size])
    sizes = [t["parameters"]["binary_data_size"] for t in head["inputs"]]
    assert sum(sizes) == len(body) - size
    assert body[size : size + sizes[0]] == ARRAYS["ids"].tobytes()
    plain = {name: ARRAYS[name] for name in ("ids", "weights")}
    told = json.loads(kserve_http(plain, "json")[0])
    assert told["inputs"][0] == {"name": "ids", "shape": [3], "datatype": "INT64", "data": [3, 5, 7]}


def test_http_messages_are_whole():
    target = parse_target("http://h:7/v1/models/r")
    (one,) = prepare(target, "s", [({"ids": ARRAYS["ids"]}, 3, Markers())], headers=[("x-a", "b")], compress=True)
    head, _, body = one.body.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v1/models/r:predict HTTP/1.1"
    assert {"Host: h:7", "x-a: b", "Content-Encoding: gzip", f"Content-Length: {len(body)}"} <= set(lines)
    assert json.loads(gzip.decompress(body))["inputs"] == {"ids": [3, 5, 7]}


def test_a_dtype_without_a_name_is_refused():
    with pytest.raises(UsageError, match="input 'x' is complex64, which KServe has no name for"):
        kserve_http({"x": np.zeros(1, np.complex64)}, "binary")


def with_markers():
    markers = Markers()
    ids = np.array([1, 0, 3, 0], np.int64)
    ids[[1, 3]] = markers.take(2)
    texts = np.array([b"a", b"%d" % markers.take(1)[0]], object)
    return {"ids": ids, "texts": texts}, 2, markers


@pytest.mark.parametrize("address", ["grpc://h/v1/models/m", "http://h/v1/models/m", "http://h/v2/models/m"])
def test_fresh_ids_replace_their_markers_every_time(address):
    target = parse_target(address)
    arrays, rows, markers = with_markers()
    (request,) = prepare(target, "s", [(arrays, rows, markers)])
    first, second = request.payload(), request.payload()
    assert len(first) == len(second) == len(request.body)
    a, b = (ids_of(address, one) for one in (first, second))
    assert a["ids"][[0, 2]].tolist() == [1, 3] and a["texts"][0] == b"a"
    fresh = [*a["ids"][[1, 3]].tolist(), int(a["texts"][1]), *b["ids"][[1, 3]].tolist(), int(b["texts"][1])]
    assert len(set(fresh)) == 6
    assert not set(fresh) & set(markers_of(arrays))


def markers_of(arrays):
    return [*arrays["ids"][[1, 3]].tolist(), int(arrays["texts"][1])]


def ids_of(address, body):
    if address.startswith("grpc"):
        request = predict_pb2.PredictRequest.FromString(body)
        return {name: tf.make_ndarray(request.inputs[name]) for name in ("ids", "texts")}
    body = body.partition(b"\r\n\r\n")[2]
    if "/v1/" in address:
        told = json.loads(body)["inputs"]
        return {"ids": np.array(told["ids"]), "texts": [text.encode() for text in told["texts"]]}
    head, _ = json.JSONDecoder().raw_decode(body.decode(errors="replace"))
    tail = body[-sum(t["parameters"]["binary_data_size"] for t in head["inputs"]) :]
    ids = np.frombuffer(tail[:32], np.int64)
    return {"ids": ids, "texts": [tail[36:37], tail[41:]]}


def test_fresh_ids_in_process_are_written_into_copies():
    arrays, rows, markers = with_markers()
    (request,) = prepare(parse_target("."), "s", [(arrays, rows, markers)])
    first, second = request.payload(), request.payload()
    assert first["ids"][1] != second["ids"][1] and first["texts"][1] != second["texts"][1]
    assert first["ids"][0] == 1 and first["texts"][0] == b"a"
    assert markers_of(request.body) == markers_of(arrays)


def test_fresh_ids_and_compression_exclude_each_other():
    with pytest.raises(UsageError, match="--gzip with --unseen"):
        prepare(parse_target("http://h/v1/models/m"), "s", [with_markers()], compress=True)
