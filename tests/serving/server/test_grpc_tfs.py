"""TF Serving's gRPC services, asked by the unchanged ``tensorflow-serving-api`` client."""

import json

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from tests.serving.server import grpc_serving
from tests.serving.server.grpc_serving import MODEL, request

PREDICT = "/tensorflow.serving.PredictionService/Predict"
INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND


@pytest.fixture(scope="session")
def stub(grpc_front):
    return prediction_service_pb2_grpc.PredictionServiceStub(grpc_front.channel)


@pytest.fixture(scope="session")
def status_stub(grpc_front):
    return model_service_pb2_grpc.ModelServiceStub(grpc_front.channel)


def predict_request(inputs, model=MODEL, version=None, label=None, signature="", outputs=()):
    made = predict_pb2.PredictRequest(output_filter=outputs)
    made.model_spec.name, made.model_spec.signature_name = model, signature
    if version is not None:
        made.model_spec.version.value = version
    if label is not None:
        made.model_spec.version_label = label
    for name, value in inputs.items():
        made.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return made


def outputs_of(response):
    return {name: tf.make_ndarray(value) for name, value in response.outputs.items()}


def refused(call, *args, **kwargs):
    """(status, message) of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*args, timeout=120, **kwargs)
    return caught.value.code(), caught.value.details()


def examples(rows, seed=0, kind=None):
    """An Input of tf.Examples, and the same as arrays."""
    arrays = request(rows, seed)
    made = classification_pb2.ClassificationRequest().input
    for items, price, city in zip(arrays["items"], arrays["price"], arrays["city"], strict=True):
        features = made.example_list.examples.add().features.feature
        features["items"].int64_list.value[:] = items
        features["price"].float_list.value[:] = price
        features["city"].bytes_list.value[:] = [city]
    return made, arrays


@pytest.mark.parametrize("choice", [{}, {"version": 1}, {"version": 2}, {"label": "stable"}, {"label": "canary"}])
@pytest.mark.parametrize("rows", [1, 7])
def test_predict_gives_what_the_model_gives(stub, grpc_models, choice, rows):
    inputs = request(rows, seed=rows)
    response = stub.Predict(predict_request(inputs, **choice), timeout=120)
    version = choice.get("version") or {"stable": 1, "canary": 2}.get(choice.get("label"), 2)
    expected = grpc_models.stock[version](**inputs)
    found = outputs_of(response)
    assert found.keys() == expected.keys()
    np.testing.assert_allclose(found["score"], expected["score"], rtol=1e-6)
    assert found["score"].dtype == np.float32 and found["score"].shape == (rows, 1)
    assert found["where"].tolist() == expected["where"].tolist()
    assert found["first"].tolist() == inputs["items"][:, 0].tolist()
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == (MODEL, version, "serving_default")


def test_versions_differ(stub):
    inputs = request(4)
    old, new = (stub.Predict(predict_request(inputs, version=v), timeout=120) for v in (1, 2))
    assert not np.allclose(outputs_of(old)["score"], outputs_of(new)["score"])


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_messages(stub, compression):
    made = predict_request(request(100))
    plain = stub.Predict(made, timeout=120)
    assert stub.Predict(made, timeout=120, compression=compression) == plain


def test_output_filter(stub):
    made = predict_request(request(2), outputs=["first", "score"])
    assert sorted(stub.Predict(made, timeout=120).outputs) == ["first", "score"]
    code, message = refused(stub.Predict, predict_request(request(2), outputs=["scores"]))
    assert code == INVALID and "'scores'" in message and "score" in message


@pytest.mark.parametrize(
    ("choice", "code", "named"),
    [
        ({"model": "other"}, NOT_FOUND, ["'other'", "ranker"]),
        ({"model": ""}, NOT_FOUND, ["''", "ranker"]),
        ({"version": 7}, NOT_FOUND, ["ranker", "7", "1, 2"]),
        ({"label": "beta"}, NOT_FOUND, ["ranker", "'beta'"]),
        ({"signature": "serving_defalt"}, INVALID, ["'serving_defalt'", "did you mean 'serving_default'"]),
    ],
)
def test_what_is_not_there_is_named(stub, choice, code, named):
    found, message = refused(stub.Predict, predict_request(request(1), **choice))
    assert found == code, message
    assert all(one in message for one in named), message


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"items": np.float32([[1, 2]])}, ["items"]),
        ({"items": np.int64([1, 2])}, ["items"]),
        ({"price": np.array([[b"x"]], object)}, ["price"]),
        ({"city": np.int64([1])}, ["city"]),
        ({"price": None}, ["price"]),
        ({"prise": np.float32([[1]])}, ["prise"]),
        ({"items": np.int64([[1, 2], [3, 4], [5, 6]]), "price": np.float32([[1], [2]])}, []),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_inputs_that_do_not_fit_are_named_and_the_next_request_is_served(stub, change, named, version):
    inputs = {name: value for name, value in {**request(1), **change}.items() if value is not None}
    code, message = refused(stub.Predict, predict_request(inputs, version=version))
    assert code == INVALID, message
    assert all(one in message for one in named), message
    stub.Predict(predict_request(request(1), version=version), timeout=120)


def test_an_empty_batch(stub):
    found = outputs_of(stub.Predict(predict_request(request(0)), timeout=120))
    assert found["score"].shape == (0, 1)


def test_a_truncated_message(grpc_front):
    body = predict_request(request(3)).SerializeToString()
    for size in (1, len(body) // 2, len(body) - 1):
        with pytest.raises(grpc.RpcError) as caught:
            grpc_front.call(PREDICT, body[:size])
        assert caught.value.code() == INVALID
    assert grpc_front.call(PREDICT, body)


def test_signatures_of_a_model(stub):
    made = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    made.model_spec.name, made.model_spec.version.value = MODEL, 1
    response = stub.GetModelMetadata(made, timeout=120)
    assert (response.model_spec.name, response.model_spec.version.value) == (MODEL, 1)
    found = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(found)
    assert sorted(found.signature_def) == ["classify", "regress", "serving_default"]
    plain = found.signature_def["serving_default"]
    assert plain.method_name == "tensorflow/serving/predict"
    assert tf.as_dtype(plain.inputs["items"].dtype) == tf.int64
    assert [one.size for one in plain.inputs["items"].tensor_shape.dim] == [-1, 2]
    assert sorted(plain.outputs) == ["first", "score", "where"]
    assert found.signature_def["classify"].method_name == "tensorflow/serving/classify"


@pytest.mark.parametrize(("fields", "named"), [([], "none was asked for"), (["signature_def", "size"], "'size'")])
def test_metadata_that_is_not_there(stub, fields, named):
    made = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=fields)
    made.model_spec.name = MODEL
    code, message = refused(stub.GetModelMetadata, made)
    assert code == INVALID and named in message


def test_status_of_versions(status_stub):
    states = get_model_status_pb2.ModelVersionStatus
    made = get_model_status_pb2.GetModelStatusRequest()
    made.model_spec.name = MODEL
    found = status_stub.GetModelStatus(made, timeout=120).model_version_status
    assert [(one.version, one.state, one.status.error_code) for one in found] == [
        (2, states.AVAILABLE, 0),
        (1, states.AVAILABLE, 0),
    ]
    made.model_spec.version_label = "stable"
    assert [one.version for one in status_stub.GetModelStatus(made, timeout=120).model_version_status] == [1]
    made.model_spec.version.value = 9
    assert refused(status_stub.GetModelStatus, made)[0] == NOT_FOUND
    made.model_spec.name = "other"
    assert refused(status_stub.GetModelStatus, made)[0] == NOT_FOUND


@pytest.mark.parametrize("version", [1, 2])
def test_classify(stub, grpc_models, version):
    made = classification_pb2.ClassificationRequest()
    given, arrays = examples(3)
    made.input.CopyFrom(given)
    made.model_spec.name, made.model_spec.signature_name, made.model_spec.version.value = MODEL, "classify", version
    response = stub.Classify(made, timeout=120)
    expected = grpc_models.stock[version](**arrays)["score"][:, 0]
    rows = response.result.classifications
    assert [[one.label for one in row.classes] for row in rows] == [["no", "yes"]] * 3
    scores = [[one.score for one in row.classes] for row in rows]
    np.testing.assert_allclose(scores, np.stack([1 - expected, expected], 1), rtol=1e-5)
    assert response.model_spec.version.value == version and response.model_spec.signature_name == "classify"


def test_regress_and_a_signature_that_is_for_predict(stub, grpc_models):
    given, arrays = examples(3, seed=4)
    expected = grpc_models.stock[1](**arrays)["score"][:, 0]
    for signature in ("regress", ""):
        made = regression_pb2.RegressionRequest()
        made.input.CopyFrom(given)
        made.model_spec.name, made.model_spec.signature_name = MODEL, signature
        made.model_spec.version.value = 1
        # The second has one float output.
        found = [one.value for one in stub.Regress(made, timeout=120).result.regressions]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_multi_inference(stub, grpc_models):
    made = inference_pb2.MultiInferenceRequest()
    given, arrays = examples(2)
    made.input.CopyFrom(given)
    for signature, method in grpc_serving.METHODS.items():
        task = made.tasks.add(method_name=method)
        task.model_spec.name, task.model_spec.signature_name, task.model_spec.version.value = MODEL, signature, 1
    first, second = stub.MultiInference(made, timeout=120).results
    expected = grpc_models.stock[1](**arrays)["score"][:, 0]
    scores = [row.classes[1].score for row in first.classification_result.classifications]
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    np.testing.assert_allclose([one.value for one in second.regression_result.regressions], expected, rtol=1e-5)
    assert (first.model_spec.signature_name, second.model_spec.signature_name) == ("classify", "regress")
    made.tasks[1].model_spec.signature_name = "classify"
    assert "asked for twice" in refused(stub.MultiInference, made)[1]
    made.tasks[1].model_spec.name = "slow"
    assert "one model" in refused(stub.MultiInference, made)[1]
    made.tasks[0].method_name = "tensorflow/serving/predict"
    assert "method" in refused(stub.MultiInference, made)[1]
    del made.tasks[:]
    assert "tasks" in refused(stub.MultiInference, made)[1]


def test_examples_that_do_not_fit(stub):
    made = classification_pb2.ClassificationRequest()
    made.model_spec.name, made.model_spec.signature_name = MODEL, "classify"
    assert refused(stub.Classify, made)[1].startswith(f"model '{MODEL}': input: no examples")
    made.input.example_list.examples.add()
    for signature in ("classify", ""):
        made.model_spec.signature_name = signature
        code, message = refused(stub.Classify, made)
        assert code == INVALID and "Feature: " in message, message
    made.model_spec.signature_name = "regress"
    code, message = refused(stub.Classify, made)
    assert code == INVALID and "expected a signature with method name tensorflow/serving/classify" in message


def test_timing_adds_up_and_ids_come_back(grpc_front):
    """TF Serving #1955, #1624: time outside the graph is told too, to the nanosecond."""
    body = predict_request(request(100)).SerializeToString()
    _, call = grpc_front.call(PREDICT, body, [("x-tfctr-timing", "1"), ("x-request-id", "abc")])
    trailing = dict(call.trailing_metadata())
    assert trailing["x-request-id"] == "abc"
    timing = json.loads(trailing["x-tfctr-timing"])
    parts = ("wait", "parse", "pack", "queue", "batch", "run", "split", "reply", "other")
    assert sum(timing[part] for part in parts) == timing["server"]
    assert all(timing[part] >= 0 for part in parts), timing
    assert timing["run"] > 0
    _, call = grpc_front.call(PREDICT, body)
    trailing = dict(call.trailing_metadata())
    assert "x-tfctr-timing" not in trailing and trailing["x-request-id"]
    recorded = [one for one in grpc_front.record.answers if one.request_id == "abc"]
    assert [(one.api, one.method, one.model, one.code, one.rows) for one in recorded] == [
        ("tfs", "Predict", MODEL, "OK", 100)
    ]


def test_failed_requests_name_their_stage_and_id(grpc_front):
    body = predict_request({"items": np.int64([[1, 2]])}).SerializeToString()
    with pytest.raises(grpc.RpcError) as caught:
        grpc_front.call(PREDICT, body, [("x-request-id", "bad")])
    trailing = dict(caught.value.trailing_metadata())
    assert trailing["x-request-id"] == "bad" and trailing["x-tfctr-stage"] == "parse"
    assert [one.stage for one in grpc_front.record.answers if one.request_id == "bad"] == ["parse"]


def test_reload_config_needs_the_admin_token(status_stub):
    code, message = refused(status_stub.HandleReloadConfigRequest, model_management_pb2.ReloadConfigRequest())
    assert code == grpc.StatusCode.PERMISSION_DENIED and "8502" in message
