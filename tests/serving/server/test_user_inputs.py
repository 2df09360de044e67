"""Inputs that a request names as the user's have one row for all rows of the others, in every protocol and form."""

import json

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from tests.serving.server.grpc_serving import serving
from tests.serving.server.http_client import post
from tfctr.serving.server import kserve_protos

ROWS = 3
USER = {"user_id": [41], "tags": [[3, 5, 7]]}
ITEMS = {"price": [[1.0, 2.5], [0.0, 4.0], [-1.0, 0.5]], "name": ["a", "b:c", ""]}
NAMES = "user_id, tags"
PREDICT = "/v1/models/ranker:predict"
TFS = "/tensorflow.serving.PredictionService/Predict"
INFER = "/inference.GRPCInferenceService/ModelInfer"


@pytest.fixture(scope="module")
def expected(served_manager):
    with served_manager.acquire("ranker") as lease:
        full = {name: value * ROWS for name, value in USER.items()}
        return lease.version.signatures["serving_default"].predict({**full, **ITEMS})[0]["score"]


@pytest.fixture(scope="module")
def front(served_manager):
    with serving(served_manager) as made:
        yield made


def arrays(tags=(3, 5, 7), splits=(0, 3)):
    return {
        "user_id": np.int64([41]),
        "tags": np.int64(tags),
        "tags_1": np.int64(splits),
        "price": np.float32(ITEMS["price"]),
        "name": np.array([one.encode() for one in ITEMS["name"]], object),
    }


def predict_body(inputs):
    made = predict_pb2.PredictRequest()
    made.model_spec.name = "ranker"
    for name, value in inputs.items():
        made.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return made.SerializeToString()


def infer_body(inputs, users=None):
    made = kserve_protos.ModelInferRequest(model_name="ranker")
    for name, value in inputs.items():
        kind = {"i": "INT64", "f": "FP32", "O": "BYTES"}[value.dtype.kind]
        tensor = made.inputs.add(name=name, datatype=kind, shape=value.shape)
        field = {"INT64": "int64_contents", "FP32": "fp32_contents", "BYTES": "bytes_contents"}[kind]
        getattr(tensor.contents, field).extend(value.ravel().tolist())
    if users is not None:
        made.parameters["user_inputs"].string_param = users
    return made.SerializeToString()


def infer_json(inputs, **parameters):
    tensors = [
        {
            "name": name,
            "shape": list(value.shape),
            "datatype": {"i": "INT64", "f": "FP32", "O": "BYTES"}[value.dtype.kind],
            "data": [one.decode() if isinstance(one, bytes) else one for one in value.ravel().tolist()],
        }
        for name, value in inputs.items()
    ]
    return {"inputs": tensors, "parameters": parameters}


def kserve_scores(answer):
    assert answer.status == 200, answer.body
    return next(one["data"] for one in answer.json["outputs"] if one["name"] == "score")


def test_rest(http_server, expected):
    user = {name: value[0] for name, value in USER.items()}
    rows = [{name: value[k] for name, value in ITEMS.items()} for k in range(ROWS)]
    in_rows = post(http_server, PREDICT, {"instances": rows, "user": user})
    np.testing.assert_array_equal(np.float32([one["score"] for one in in_rows.json["predictions"]]), expected)
    in_columns = post(http_server, PREDICT, {"inputs": ITEMS, "user": user})
    np.testing.assert_array_equal(np.float32(in_columns.json["outputs"]["score"]), expected)
    by_header = post(http_server, PREDICT, {"inputs": {**ITEMS, **USER}}, x_tfctr_user_inputs=NAMES)
    np.testing.assert_array_equal(np.float32(by_header.json["outputs"]["score"]), expected)


def test_kserve_over_http(http_server, expected):
    path = "/v2/models/ranker/infer"
    by_parameter = post(http_server, path, infer_json(arrays(), user_inputs=NAMES))
    np.testing.assert_array_equal(np.float32(kserve_scores(by_parameter)), expected)
    by_header = post(http_server, path, infer_json(arrays()), x_tfctr_user_inputs=NAMES)
    np.testing.assert_array_equal(np.float32(kserve_scores(by_header)), expected)
    wrong = post(http_server, path, infer_json(arrays(), user_inputs=7))
    assert wrong.status == 400 and "'user_inputs': expected names" in wrong.error


def test_grpc(front, expected):
    metadata = [("x-tfctr-user-inputs", NAMES)]
    reply = predict_pb2.PredictResponse.FromString(front.call(TFS, predict_body(arrays()), metadata)[0])
    np.testing.assert_array_equal(tf.make_ndarray(reply.outputs["score"]), expected)
    for body, given in ((infer_body(arrays(), NAMES), ()), (infer_body(arrays()), metadata)):
        reply = kserve_protos.ModelInferResponse.FromString(front.call(INFER, body, given)[0])
        place = [one.name for one in reply.outputs].index("score")
        np.testing.assert_array_equal(np.frombuffer(reply.raw_output_contents[place], np.float32), expected)


@pytest.mark.parametrize(
    ("names", "inputs", "said"),
    [
        ("usr_id", arrays(), "did you mean 'user_id'?"),
        (
            "user_id,tags",
            arrays(tags=(1, 2), splits=(0, 1, 2)),
            "'tags', which the request names as the user's, has 2 rows",
        ),
        ("price,tags", arrays(), "'price', which the request names as the user's, has 3 rows; expected 1"),
    ],
)
def test_what_does_not_fit_is_named(front, names, inputs, said):
    if names.startswith("price"):  # nothing else has three rows
        inputs = {**inputs, "name": np.array([b"a", b"b"], object), "user_id": np.int64([1, 2])}
    for path, body in ((TFS, predict_body(inputs)), (INFER, infer_body(inputs))):
        with pytest.raises(grpc.RpcError) as caught:
            front.call(path, body, [("x-tfctr-user-inputs", names)])
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT and said in caught.value.details()


def test_the_split_of_traffic_sees_the_user(make_http, served_folder):
    from tfctr.serving.versions import All, ModelManager, ModelSpec, Traffic

    traffic = Traffic("user_id", {"1": 1, "2": 1})
    spec = ModelSpec(name="ranker", base_path=served_folder, policy=All(), traffic=traffic, poll_seconds=0)
    with ModelManager([spec]) as manager:
        assert manager.wait(240)
        server = make_http(manager=manager)
        seen = set()
        for user in range(8):
            row = {"price": [1, 2], "name": "a", "tags": [1]}
            apart = post(server, PREDICT, {"instances": [row], "user": {"user_id": user}}).json
            whole = post(server, PREDICT, {"instances": [{**row, "user_id": user}]}).json
            assert apart == whole
            seen.add(json.dumps(apart))
        assert len(seen) > 2
