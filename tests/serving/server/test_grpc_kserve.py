"""KServe's gRPC service, asked by the unchanged ``tritonclient.grpc`` client."""

import asyncio
import queue

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.serving.server.grpc_serving import MODEL, SLOW, request

WAIT = 120


@pytest.fixture(scope="session")
def client(grpc_front):
    with triton.InferenceServerClient(grpc_front.address) as made:
        yield made


def inputs_of(arrays, kinds=triton):
    made = []
    for name, value in arrays.items():
        datatype = {"i": "INT64", "f": "FP32", "O": "BYTES"}[value.dtype.kind]
        one = kinds.InferInput(name, list(value.shape), datatype)
        one.set_data_from_numpy(value)
        made.append(one)
    return made


def check(result, stock, arrays):
    expected = stock(**arrays)
    np.testing.assert_allclose(result.as_numpy("score"), expected["score"], rtol=1e-6)
    assert result.as_numpy("where").tolist() == expected["where"].tolist()
    assert result.as_numpy("first").tolist() == expected["first"].tolist()


@pytest.mark.parametrize(("version", "number"), [("", 2), ("1", 1), ("2", 2), ("stable", 1), ("canary", 2)])
def test_infer_gives_what_the_model_gives(client, grpc_models, version, number):
    arrays = request(5, seed=number)
    result = client.infer(MODEL, inputs_of(arrays), model_version=version, request_id="r1", client_timeout=WAIT)
    check(result, grpc_models.stock[number], arrays)
    response = result.get_response()
    assert (response.model_name, response.model_version, response.id) == (MODEL, str(number), "r1")
    assert {one.name: one.datatype for one in response.outputs} == {"score": "FP32", "where": "BYTES", "first": "INT64"}


def test_outputs_asked_for_compression_and_parameters(client, grpc_models):
    arrays = request(64)
    wanted = [triton.InferRequestedOutput("first")]
    result = client.infer(
        MODEL, inputs_of(arrays), outputs=wanted, priority=1, timeout=100_000_000, compression_algorithm="gzip",
        parameters={"signature_name": "serving_default"}, client_timeout=WAIT,
    )  # fmt: skip
    assert result.as_numpy("first").tolist() == arrays["items"][:, 0].tolist()
    assert result.as_numpy("score") is None


def test_asynchronous_calls(client, grpc_models):
    arrays = [request(3, seed=k) for k in range(8)]
    answers: queue.Queue = queue.Queue()
    for k, one in enumerate(arrays):
        client.async_infer(MODEL, inputs_of(one), lambda result, error: answers.put((result, error)), request_id=str(k))
    for _ in arrays:
        result, error = answers.get(timeout=WAIT)
        assert error is None
        check(result, grpc_models.stock[2], arrays[int(result.get_response().id)])


def test_the_asyncio_client(grpc_front, grpc_models):
    arrays = request(3)

    async def ask():
        async with triton_aio.InferenceServerClient(grpc_front.address) as made:
            assert await made.is_server_ready()
            return await made.infer(MODEL, inputs_of(arrays, triton_aio), client_timeout=WAIT)

    check(asyncio.run(ask()), grpc_models.stock[2], arrays)


@pytest.mark.parametrize("final", [False, True])
def test_a_stream_answers_in_order_and_goes_on_after_an_error(grpc_front, grpc_models, final):
    arrays = [request(2 + k, seed=k) for k in range(40)]
    answers: queue.Queue = queue.Queue()
    with triton.InferenceServerClient(grpc_front.address) as made:
        made.start_stream(lambda result, error: answers.put((result, error)))
        for k, one in enumerate(arrays):
            broken = {"items": one["items"]}
            given = inputs_of(broken if k == 7 else one)
            made.async_stream_infer(MODEL, given, request_id=str(k), enable_empty_final_response=final)
        for k, one in enumerate(arrays):
            result, error = answers.get(timeout=WAIT)
            if k == 7:
                assert isinstance(error, InferenceServerException) and "price" in str(error)
                continue
            assert error is None
            response = result.get_response()
            assert response.id == str(k)
            assert ("triton_final_response" in response.parameters) == final
            check(result, grpc_models.stock[2], one)
        made.stop_stream()


def test_a_stream_whose_client_goes_away(grpc_front, grpc_models):
    with triton.InferenceServerClient(grpc_front.address) as made:
        made.start_stream(lambda result, error: None)
        for k in range(5):
            made.async_stream_infer(MODEL, inputs_of(request(2)), request_id=str(k))
        made.stop_stream(cancel_requests=True)
    with triton.InferenceServerClient(grpc_front.address) as made:
        assert made.is_server_live()


@pytest.mark.parametrize(
    ("model", "version", "parameters", "message"),
    [
        ("other", "", {}, "'other'"),
        (MODEL, "7", {}, "7"),
        (MODEL, "beta", {}, "'beta'"),
        (MODEL, "9" * 30, {}, "out of range"),
        (MODEL, "", {"signature_name": "scores"}, "'scores'"),
        (MODEL, "", {"signature_name": 3}, "'signature_name': expected a string"),
        (MODEL, "", {"sequence_id": 5}, "sequence_id"),
    ],
)
def test_what_is_not_there_is_named(client, model, version, parameters, message):
    sequence = parameters.pop("sequence_id", 0)
    with pytest.raises(InferenceServerException, match=message):
        client.infer(
            model, inputs_of(request(1)), model_version=version, parameters=parameters, sequence_id=sequence,
            client_timeout=WAIT,
        )  # fmt: skip


@pytest.mark.parametrize("name", ["priority", "timeout"])
@pytest.mark.parametrize("value", ["soon", True, 1.5])
def test_scheduling_parameters_that_are_no_numbers(grpc_front, name, value):
    from tfctr.serving.server import kserve_protos

    made = kserve_protos.ModelInferRequest(model_name=MODEL)
    kind = {str: "string_param", bool: "bool_param", float: "double_param"}[type(value)]
    setattr(made.parameters[name], kind, value)
    with pytest.raises(grpc.RpcError, match=f"model '{MODEL}': .*'{name}': expected a whole number") as caught:
        grpc_front.call("/inference.GRPCInferenceService/ModelInfer", made.SerializeToString())
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_inputs_that_do_not_fit_are_named(client):
    good = request(2)
    wrong = {
        "price": inputs_of({**good, "price": np.int64([[1], [2]])})[:1] + inputs_of({"city": good["city"]}),
        "items": inputs_of({**good, "items": np.int64([1, 2])}),
        "city": inputs_of({**good, "city": np.float32([1, 2])}),
        "itens": inputs_of({**good, "itens": good["items"]}),
    }
    for name, inputs in wrong.items():
        with pytest.raises(InferenceServerException, match=name) as caught:
            client.infer(MODEL, inputs, client_timeout=WAIT)
        assert "INVALID_ARGUMENT" in caught.value.status()
    client.infer(MODEL, inputs_of(good), client_timeout=WAIT)


def test_liveness_readiness_and_metadata(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready(MODEL) and client.is_model_ready(MODEL, "1") and client.is_model_ready(MODEL, "stable")
    assert not client.is_model_ready(MODEL, "7")
    server = client.get_server_metadata()
    assert server.name == "tfctr" and "model_repository" in server.extensions
    model = client.get_model_metadata(MODEL)
    assert (model.name, list(model.versions), model.platform) == (MODEL, ["1", "2"], "tensorflow_savedmodel")
    assert {one.name: (one.datatype, list(one.shape)) for one in model.inputs} == {
        "items": ("INT64", [-1, 2]),
        "price": ("FP32", [-1, 1]),
        "city": ("BYTES", [-1]),
    }
    assert {one.name: one.datatype for one in model.outputs} == {"score": "FP32", "where": "BYTES", "first": "INT64"}
    with pytest.raises(InferenceServerException, match="'other'"):
        client.get_model_metadata("other")


def test_configuration_statistics_and_repository(client):
    client.infer(MODEL, inputs_of(request(6)), model_version="1", client_timeout=WAIT)
    config = client.get_model_config(MODEL).config
    assert config.name == MODEL and config.max_batch_size == 0
    assert {one.name: list(one.dims) for one in config.input} == {"items": [-1, 2], "price": [-1, 1], "city": [-1]}
    (one,) = client.get_inference_statistics(MODEL, "1").model_stats
    assert (one.name, one.version) == (MODEL, "1")
    assert one.inference_stats.success.count >= 1 and one.inference_stats.success.ns > 0
    assert one.inference_count >= 6 and one.execution_count >= 1
    assert {(s.name, s.version) for s in client.get_inference_statistics().model_stats} == {
        (MODEL, "1"), (MODEL, "2"), (SLOW, "1"),
    }  # fmt: skip
    index = client.get_model_repository_index().models
    assert {(one.name, one.version, one.state) for one in index} >= {(MODEL, "1", "READY"), (SLOW, "1", "READY")}


def test_changes_of_models_name_the_admin_port(client):
    for change in (client.load_model, client.unload_model):
        with pytest.raises(InferenceServerException, match="8502") as caught:
            change(MODEL)
        assert "PERMISSION_DENIED" in caught.value.status()


def test_shared_memory_traces_and_log_settings_are_not_there(client):
    calls = [
        client.get_system_shared_memory_status,
        lambda: client.register_system_shared_memory("a", "/a", 8),
        client.unregister_system_shared_memory,
        client.get_cuda_shared_memory_status,
        lambda: client.register_cuda_shared_memory("a", b"aGFuZGxl", 0, 8),
        client.unregister_cuda_shared_memory,
        client.get_trace_settings,
        client.get_log_settings,
    ]
    for call in calls:
        with pytest.raises(InferenceServerException) as caught:
            call()
        assert "UNIMPLEMENTED" in caught.value.status()


@pytest.mark.parametrize("others", [{}, {"price": request(1)["price"]}])
def test_an_input_in_shared_memory(client, others):
    """Alone, and beside inputs whose values are in the request."""
    one = triton.InferInput("items", [1, 2], "INT64")
    one.set_shared_memory("region", 16)
    with pytest.raises(InferenceServerException, match="input 'items': got a region of shared memory") as caught:
        client.infer(MODEL, [*inputs_of(others), one], client_timeout=WAIT)
    assert "UNIMPLEMENTED" in caught.value.status()


def test_outputs_as_classes_or_in_shared_memory(client):
    placed = triton.InferRequestedOutput("score")
    placed.set_shared_memory("region", 16)
    for wanted in (placed, triton.InferRequestedOutput("score", class_count=2)):
        with pytest.raises(InferenceServerException, match="output 'score': the parameter .* not supported") as caught:
            client.infer(MODEL, inputs_of(request(2)), outputs=[wanted], client_timeout=WAIT)
        assert "UNIMPLEMENTED" in caught.value.status()


def test_errors_call_the_model_by_name_and_version(client):
    arrays = request(2)
    arrays["prise"] = arrays.pop("price")
    with pytest.raises(InferenceServerException) as caught:
        client.infer(MODEL, inputs_of(arrays), model_version="1", client_timeout=WAIT)
    assert caught.value.message().startswith(f"model '{MODEL}' version 1, signature 'serving_default': ")
    assert "'prise'" in caught.value.message() and "/" not in caught.value.message()
