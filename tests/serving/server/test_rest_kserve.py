"""KServe's REST interface: the unchanged official client, and bodies by hand."""

import json
import struct

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.serving.server.http_client import ask, get, post

ROWS = 5
INFER = "/v2/models/ranker/infer"


@pytest.fixture(scope="module")
def client(http_server):
    with triton.InferenceServerClient(f"{http_server.host}:{http_server.port}") as made:
        yield made


def inputs(binary=True, **arrays):
    made = []
    for name, array in arrays.items():
        kind = {"f": "FP32", "i": "INT64", "O": "BYTES"}[array.dtype.kind]
        made.append(triton.InferInput(name, list(array.shape), kind))
        made[-1].set_data_from_numpy(array, binary_data=binary)
    return made


def request():
    rng = np.random.default_rng(1)
    return {
        "user_id": rng.integers(0, 99, ROWS),
        "price": rng.normal(size=(ROWS, 2)).astype(np.float32),
        "name": np.array(["ä", "", "b", "cc", "d"], object),
        "tags": rng.integers(0, 99, 7),
        "tags_1": np.array([0, 2, 2, 3, 3, 7]),
    }


@pytest.fixture(scope="module")
def expected(served_folder):
    from tfctr import ServingSession

    with ServingSession(served_folder / "1") as session:
        return session.predict(request())


def test_a_feature_that_is_missing_is_named_with_its_parts(client):
    given = request()
    del given["tags"], given["tags_1"]
    with pytest.raises(InferenceServerException, match="missing feature 'tags' .*; as parts: 'tags' and 'tags_1'"):
        client.infer("ranker", inputs(**given))


def test_health_and_metadata(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("ranker") and client.is_model_ready("ranker", "1")
    assert not client.is_model_ready("ranker", "9")
    assert client.get_server_metadata()["name"] == "tfctr"
    found = client.get_model_metadata("ranker", "1")
    assert found["versions"] == ["1", "2"]
    assert {"name": "price", "datatype": "FP32", "shape": [-1, 2]} in found["inputs"]
    assert {one["name"] for one in found["outputs"]} == {"score", "pair"}
    assert client.get_model_config("ranker")["max_batch_size"] == 0
    assert {(one["name"], one["version"], one["state"]) for one in client.get_model_repository_index()} == {
        ("ranker", "1", "READY"),
        ("ranker", "2", "READY"),
    }


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("output_binary", [None, True, False])
def test_infer(client, expected, binary, output_binary):
    wanted = None
    if output_binary is not None:
        wanted = [triton.InferRequestedOutput(name, binary_data=output_binary) for name in ("pair", "score")]
    result = client.infer("ranker", inputs(binary, **request()), model_version="1", request_id="42", outputs=wanted)
    for name in ("score", "pair"):
        np.testing.assert_array_equal(result.as_numpy(name), expected[name])
    response = result.get_response()
    assert (response["model_name"], response["model_version"], response["id"]) == ("ranker", "1", "42")


def test_one_output_is_asked_for(client, expected):
    wanted = [triton.InferRequestedOutput("pair")]
    result = client.infer("ranker", inputs(**request()), model_version="stable", outputs=wanted)
    np.testing.assert_array_equal(result.as_numpy("pair"), expected["pair"])
    assert result.as_numpy("score") is None


@pytest.mark.parametrize("binary", [True, False])
def test_bytes(client, binary):
    text = np.array(["ä:{", "", "x" * 300], object)
    wanted = [triton.InferRequestedOutput("text", binary_data=binary)]
    given = {"signature_name": "echo"}
    result = client.infer("ranker", inputs(binary, text=text), outputs=wanted, parameters=given)
    assert [one if isinstance(one, str) else one.decode() for one in result.as_numpy("text")] == text.tolist()


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed(client, algorithm):
    x = np.arange(1000, dtype=np.float32)
    result = client.infer(
        "ranker",
        inputs(x=x),
        model_version="1",
        parameters={"signature_name": "one"},
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )
    np.testing.assert_array_equal(result.as_numpy("y"), x)


def test_priority_timeout_and_async(client, expected):
    many = [
        client.async_infer("ranker", inputs(**request()), model_version="1", priority=k, timeout=30_000_000)
        for k in range(3)
    ]
    for one in many:
        np.testing.assert_array_equal(one.get_result().as_numpy("score"), expected["score"])


def test_a_timeout_that_has_passed_names_its_stage(http_server):
    body = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
    body["parameters"] = {"timeout": 1, "signature_name": "one"}
    answer = post(http_server, INFER, body)
    assert answer.status == 504
    assert answer.headers["x-tfctr-stage"] in answer.error


def test_shared_memory_is_unimplemented(client, http_server):
    for call in (
        client.get_system_shared_memory_status,
        client.get_cuda_shared_memory_status,
        lambda: client.register_system_shared_memory("r", "/r", 64),
        lambda: client.unregister_system_shared_memory("r"),
    ):
        with pytest.raises(InferenceServerException, match="shared memory is not supported") as caught:
            call()
        assert caught.value.status() == "501"
    region = triton.InferInput("x", [1], "FP32")
    region.set_shared_memory("r", 4)
    with pytest.raises(InferenceServerException, match="input 'x': .*shared memory is not supported"):
        client.infer("ranker", [region])
    assert get(http_server, "/v2/trace/setting").status == 501


def test_classification_is_unimplemented(client):
    wanted = triton.InferRequestedOutput("score", class_count=2)
    with pytest.raises(InferenceServerException, match="output 'score': the classification extension") as caught:
        client.infer("ranker", inputs(**request()), outputs=[wanted])
    assert caught.value.status() == "501"


def test_errors_call_the_model_by_name_and_version(client):
    with pytest.raises(InferenceServerException) as caught:
        client.infer("ranker", inputs(prise=np.zeros(1, np.float32)), model_version="1")
    assert "model 'ranker' version 1, signature 'serving_default': " in caught.value.message()


def test_load_and_unload_need_the_admin_port(client):
    for call in (client.load_model, client.unload_model):
        with pytest.raises(InferenceServerException, match="the admin port is http://127.0.0.1:8502") as caught:
            call("ranker")
        assert caught.value.status() == "403"


def test_statistics(client):
    client.infer("ranker", inputs(**request()), model_version="1")
    (found,) = client.get_inference_statistics("ranker", "1")["model_stats"]
    assert found["inference_stats"]["success"]["count"] > 0
    assert len(client.get_inference_statistics()["model_stats"]) == 2


def tensor(**changed):
    given = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2], **changed}
    return {key: value for key, value in given.items() if value is not None}


ONE = {"parameters": {"signature_name": "one"}}


def test_nested_data(http_server):
    answer = post(http_server, "/v2/models/ranker/versions/1/infer", {"inputs": [tensor(data=[[1], [2]])], **ONE})
    assert answer.status == 200, answer.body
    (output,) = answer.json["outputs"]
    assert output == {"name": "y", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}


def test_priorities_that_are_none(http_server):
    for parameters in ({"priority": "high"}, {"timeout": -1}, {"timeout": 1.5}, {"sequence_id": 3}):
        answer = post(http_server, INFER, {"inputs": [tensor()], "parameters": {**ONE["parameters"], **parameters}})
        assert answer.status == 400 and next(iter(parameters)) in answer.error


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no valid JSON"),
        (b'{"inputs": [{"name": "x", "data": [1e999]}]}', "inputs[0].data[0]"),
        ({"inputs": []}, "'inputs'"),
        ({"inputs": {}}, "'inputs'"),
        ({"inputs": [3]}, "inputs[0]"),
        ({"input": [tensor()]}, "'input'"),
        ({"inputs": [tensor(name=None)]}, "inputs[0].name"),
        ({"inputs": [tensor(name=7)]}, "inputs[0].name"),
        ({"inputs": [tensor(), tensor()]}, "'x' is there twice"),
        ({"inputs": [tensor(dims=[2])]}, "'dims'"),
        ({"inputs": [tensor(shape=None)]}, "'x'"),
        ({"inputs": [tensor(shape=[-1])]}, "'x'"),
        ({"inputs": [tensor(shape=[2**62, 4])]}, "'x'"),
        ({"inputs": [tensor(shape=[3])]}, "'x'"),
        ({"inputs": [tensor(shape=["2"])]}, "'x'"),
        ({"inputs": [tensor(datatype="FP33")]}, "FP33"),
        ({"inputs": [tensor(datatype=None)]}, "'x'"),
        ({"inputs": [tensor(data=None)]}, "'x'"),
        ({"inputs": [tensor(data=["a", "b"])]}, "'x'"),
        ({"inputs": [tensor(datatype="INT64", data=[1, 2**63])]}, "'x'"),
        ({"inputs": [tensor(datatype="INT64", data=[1, 1.5])]}, "'x'"),
        ({"inputs": [tensor(parameters={"binary_data_size": 8})]}, "'x'"),
        ({"inputs": [tensor(data=None, parameters={"binary_data_size": 8})]}, "binary_data_size 8"),
        ({"inputs": [tensor(data=None, parameters={"binary_data_size": -1})]}, "binary_data_size"),
        ({"inputs": [tensor(parameters=3)]}, "'x'"),
        ({"inputs": [tensor()], "outputs": [{"name": "z"}]}, "no output 'z'"),
        ({"inputs": [tensor()], "outputs": [3]}, "outputs[0]"),
        ({"inputs": [tensor()], "outputs": "y"}, "'outputs'"),
        ({"inputs": [tensor()], "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]}, "binary_data"),
        ({"inputs": [tensor()], "id": 3}, "'id'"),
        ({"inputs": [tensor(name="z")]}, "z"),
        ({"inputs": [tensor(shape=[2, 1])]}, "x"),
        ({"inputs": [tensor()], "parameters": {"signature_name": 3}}, "signature_name"),
        ({"inputs": [tensor()], "parameters": {"signature_name": "two"}}, "'two'"),
    ],
)
def test_malformed(http_server, body, said):
    if isinstance(body, dict):
        body = {**ONE, **body}
    answer = post(http_server, INFER, body)
    assert answer.status == 400, answer.body
    assert said in answer.error and "model 'ranker'" in answer.error


@pytest.mark.parametrize(
    ("length", "tail", "said"),
    [
        ("x", b"", "Inference-Header-Content-Length is 'x'"),
        ("-1", b"", "Inference-Header-Content-Length"),
        ("99999", b"", "the body has"),
        (None, bytes(8) + b"more", "4 bytes"),
        (None, bytes(7), "7 bytes"),
        (None, bytes(9), "1 bytes"),
    ],
)
def test_malformed_tails(http_server, length, tail, said):
    text = json.dumps({"inputs": [tensor(data=None, parameters={"binary_data_size": 8})], **ONE}).encode()
    headers = {"Inference-Header-Content-Length": length or str(len(text))}
    answer = ask(http_server, "POST", INFER, text + tail, headers)
    assert answer.status == 400 and said in answer.error


def test_malformed_strings_in_the_tail(http_server):
    for raw in (struct.pack("<I", 9) + b"abc", b"\0\0", struct.pack("<I", 1) + b"ab"):
        given = {"name": "text", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(raw)}}
        text = json.dumps({"inputs": [given], "parameters": {"signature_name": "echo"}}).encode()
        headers = {"Inference-Header-Content-Length": str(len(text))}
        answer = ask(http_server, "POST", INFER, text + raw, headers)
        assert answer.status == 400 and "'text'" in answer.error


def test_what_is_not_there(http_server):
    body = {"inputs": [tensor()]}
    for path in ("/v2/models/rankre/infer", "/v2/models/ranker/versions/9/infer", "/v2/models/ranker/versions/x/infer"):
        assert post(http_server, path, body).status == 404
    assert get(http_server, "/v2/models/rankre").status == 404
    assert get(http_server, "/v2/models/rankre/ready").status == 404
    assert get(http_server, INFER).status == 405
