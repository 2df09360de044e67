"""Ids that a table does not have, and features whose parts disagree: refused by name in every protocol, and the next
request is served.
"""

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from tests.serving.server.grpc_serving import serving
from tests.serving.server.http_client import post
from tests.serving.server.served_model import VOCABULARY
from tfctr.serving.server import kserve_protos

PREDICT, INFER = "/v1/models/ranker:predict", "/v2/models/ranker/infer"
WHERE = "model 'ranker' version 2, signature "
IDS = [[-1], [3, -(2**63)], [VOCABULARY], [2**63 - 1, 0]]
KINDS = {"i": "INT64", "f": "FP32", "O": "BYTES"}
SPLITS = [[0, 5, 5], [0, 2, 1], [1, 2, 3], [0, -1, 3], [0, 1, 2, 3]]


@pytest.fixture(scope="module")
def front(served_manager):
    with serving(served_manager) as made:
        yield made


def refused_by_grpc(front, signature, arrays):
    """What Predict and ModelInfer say."""
    tfs, kserve = predict_pb2.PredictRequest(), kserve_protos.ModelInferRequest(model_name="ranker")
    tfs.model_spec.name, tfs.model_spec.signature_name = "ranker", signature
    kserve.parameters["signature_name"].string_param = signature
    for name, value in arrays.items():
        tfs.inputs[name].CopyFrom(tf.make_tensor_proto(value))
        tensor = kserve.inputs.add(name=name, datatype=KINDS[value.dtype.kind], shape=value.shape)
        field = {"i": "int64_contents", "f": "fp32_contents", "O": "bytes_contents"}[value.dtype.kind]
        getattr(tensor.contents, field).extend(value.ravel().tolist())
    paths = ("/tensorflow.serving.PredictionService/Predict", "/inference.GRPCInferenceService/ModelInfer")
    for path, made in zip(paths, (tfs, kserve), strict=True):
        with pytest.raises(grpc.RpcError) as caught:
            front.call(path, made.SerializeToString())
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT, caught.value
        yield caught.value.details()


def refused_by_http(server, signature, arrays):
    """What columns and KServe's JSON are told."""
    told = {name: [x.decode() for x in v] if v.dtype == object else v.tolist() for name, v in arrays.items()}
    columns = {"signature_name": signature, "inputs": told}
    tensors = [
        {"name": name, "shape": list(value.shape), "datatype": KINDS[value.dtype.kind], "data": told[name]}
        for name, value in arrays.items()
    ]
    infer = {"inputs": tensors, "parameters": {"signature_name": signature}}
    for path, body in ((PREDICT, columns), (INFER, infer)):
        answer = post(server, path, body)
        assert answer.status == 400, answer.body
        yield answer.error


@pytest.mark.parametrize("ids", IDS)
def test_ids_outside_of_the_table(http_server, front, ids):
    arrays = {"id": np.int64(ids)}
    said = [*refused_by_grpc(front, "rows", arrays), *refused_by_http(http_server, "rows", arrays)]
    rows = post(http_server, PREDICT, {"signature_name": "rows", "instances": [{"id": one} for one in ids]})
    assert rows.status == 400
    wrong = next(one for one in ids if not 0 <= one < VOCABULARY)
    for one in (*said, rows.error):
        assert one.startswith(f"{WHERE}'rows'") and "'id'" in one and str(wrong) in one, one
    good = post(http_server, PREDICT, {"signature_name": "rows", "instances": [0, VOCABULARY - 1]})
    assert good.status == 200 and len(good.json["predictions"]) == 2


def both(tags=(1, 2, 3), splits=(0, 2, 3)):
    """Two rows of every input."""
    return {
        "user_id": np.int64([1, -2]),  # any number: the model takes it modulo the table's rows
        "price": np.float32([[1, 2], [3, 4]]),
        "name": np.array([b"a", b"b"], object),
        "tags": np.int64(tags),
        "tags_1": np.int64(splits),
    }


@pytest.mark.parametrize("splits", SPLITS)
def test_row_splits_that_disagree(http_server, front, splits):
    """With their values, with themselves, with the rows of the other inputs."""
    arrays = both(splits=splits)
    for one in (
        *refused_by_grpc(front, "serving_default", arrays),
        *refused_by_http(http_server, "serving_default", arrays),
    ):
        assert one.startswith(f"{WHERE}'serving_default'") and "'tags'" in one, one
    good = {name: value.tolist() for name, value in both().items() if name != "name"} | {"name": ["a", "b"]}
    assert post(http_server, PREDICT, {"inputs": good}).status == 200
