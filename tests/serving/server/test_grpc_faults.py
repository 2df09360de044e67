"""The gRPC front under bad input, short deadlines, clients that go away, and limits; who may ask what; health."""

import contextlib
import subprocess
import threading

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorflow_serving.apis import predict_pb2

from tests.serving.server.gate import until
from tests.serving.server.grpc_serving import MODEL, SLOW, request, serving
from tfctr.serving.server import kserve_protos, tls
from tfctr.serving.server.auth import Auth
from tfctr.serving.server.limits import Limits

PREDICT = "/tensorflow.serving.PredictionService/Predict"
INFER = "/inference.GRPCInferenceService/ModelInfer"
LOAD = "/inference.GRPCInferenceService/RepositoryModelLoad"
LIVE = "/inference.GRPCInferenceService/ServerLive"
DEADLINES_MS = (30, 1000, 10_000)  # the first that a request gets as far with as the test wants
TOKEN, ADMIN = "t" * 12, "a" * 12


def predict_body(inputs, model=MODEL, version=None):
    made = predict_pb2.PredictRequest()
    made.model_spec.name = model
    if version is not None:
        made.model_spec.version.value = version
    for name, value in inputs.items():
        made.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return made.SerializeToString()


def infer_body(inputs, model=MODEL, **parameters):
    made = kserve_protos.ModelInferRequest(model_name=model)
    for name, value in inputs.items():
        datatype = {"i": f"INT{8 * value.itemsize}", "f": "FP32", "O": "BYTES"}[value.dtype.kind]
        made.inputs.add(name=name, datatype=datatype, shape=value.shape)
        texts = value.ravel() if datatype == "BYTES" else ()
        raw = b"".join(len(one).to_bytes(4, "little") + one for one in texts)
        made.raw_input_contents.append(raw if datatype == "BYTES" else value.tobytes())
    for name, value in parameters.items():
        setattr(made.parameters[name], "string_param" if isinstance(value, str) else "int64_param", value)
    return made.SerializeToString()


def error_of(front, path, body, **options):
    with pytest.raises(grpc.RpcError) as caught:
        front.call(path, body, **options)
    return caught.value


def end_of(front, path, body):
    """(status, message); (None, "") where it is answered."""
    try:
        front.call(path, body)
    except grpc.RpcError as error:
        return error.code(), error.details()
    return None, ""


# Deadlines


@pytest.mark.parametrize("source", ["metadata", "timeout parameter", "server default"])
def test_a_deadline_ends_a_request_while_it_runs_and_names_the_stage(grpc_front, grpc_models, gate, source):
    for ms in DEADLINES_MS:
        if source == "metadata":
            error = error_of(grpc_front, PREDICT, gate.body, metadata=[("x-tfctr-deadline-ms", str(ms))])
        elif source == "timeout parameter":
            body = infer_body(gate.inputs, SLOW, signature_name="held", timeout=ms * 1000)
            error = error_of(grpc_front, INFER, body)
        else:
            with serving(grpc_models.manager, default_deadline_ms=ms) as front:
                error = error_of(front, PREDICT, gate.body)
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        stage = dict(error.trailing_metadata())["x-tfctr-stage"]
        assert stage in error.details()
        if stage in ("queue", "run"):
            return
    pytest.fail(f"{ms} ms did not get it further than {stage}")


def test_the_deadline_of_the_call_reaches_the_server(grpc_models, gate):
    with serving(grpc_models.manager) as front:
        for number, ms in enumerate(DEADLINES_MS):
            error = error_of(front, PREDICT, gate.body, timeout=ms / 1000)
            assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            with contextlib.suppress(AssertionError):  # it never got there
                until(lambda wanted=number: len(front.record.answers) > wanted, seconds=5)
            if any(one.stage in ("queue", "run") for one in front.record.answers):
                break
        assert any(one.stage in ("queue", "run") for one in front.record.answers)
        # The server's own clock, or the client that hung up: whichever it saw first.
        assert {one.code for one in front.record.answers} <= {"DEADLINE_EXCEEDED", "CANCELLED"}


def test_the_least_deadline_wins(grpc_models, gate):
    with serving(grpc_models.manager, default_deadline_ms=20) as front:
        long = [("x-tfctr-deadline-ms", "60000")]
        body = infer_body(gate.inputs, SLOW, signature_name="held", timeout=60_000_000)
        error = error_of(front, INFER, body, metadata=long, timeout=60)
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_request_that_is_late_already_never_starts(grpc_front):
    error = error_of(grpc_front, PREDICT, predict_body(request(1)), metadata=[("x-tfctr-deadline-ms", "0.000001")])
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert dict(error.trailing_metadata())["x-tfctr-stage"] == "parse"


@pytest.mark.parametrize("value", ["soon", "-1", "0", "nan", "inf"])
def test_a_deadline_that_is_no_number(grpc_front, value):
    error = error_of(grpc_front, PREDICT, predict_body(request(1)), metadata=[("x-tfctr-deadline-ms", value)])
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and repr(value) in error.details()


# Clients that go away


def start_held(front, gate):
    """A request that runs by now, until the gate opens."""
    future = front.channel.unary_unary(PREDICT).future(gate.body)
    until(lambda: gate.running() == 1)
    return future


def test_a_client_that_goes_away_gives_its_request_up(grpc_models, gate):
    with serving(grpc_models.manager) as front:
        running = start_held(front, gate)
        waiting = front.channel.unary_unary(PREDICT).future(gate.body)
        until(lambda: gate.waiting() == 1)
        waiting.cancel()
        first = front.record.wait_for("CANCELLED")
        assert (first.model, first.stage) == (SLOW, "queue")
        assert gate.waiting() == 0
        running.cancel()
        until(lambda: len(front.record.answers) == 2)
        second = front.record.answers[1]
        assert (second.code, second.stage) == ("CANCELLED", "run")
        assert front.call(PREDICT, predict_body(request(1)))


# Limits


def test_too_many_requests_at_once(grpc_models, gate):
    with serving(grpc_models.manager, limits=Limits(max_concurrent=1)) as front:
        busy = start_held(front, gate)
        code, details = end_of(front, PREDICT, predict_body(request(1)))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED and "max_concurrent" in details
        health_pb2_grpc.HealthStub(front.channel).Check(health_pb2.HealthCheckRequest(), timeout=120)
        busy.cancel()
        assert front.record.wait_for("RESOURCE_EXHAUSTED").method == "Predict"


def test_requests_that_come_on_the_way_down_may_be_sent_elsewhere(grpc_models, gate):
    with serving(grpc_models.manager) as front:
        busy = start_held(front, gate)
        front.ctx.state.refuse()
        code, details = end_of(front, PREDICT, predict_body(request(1)))
        assert code == grpc.StatusCode.UNAVAILABLE and "shutting down" in details
        health_pb2_grpc.HealthStub(front.channel).Check(health_pb2.HealthCheckRequest(), timeout=120)
        assert not busy.done()  # what is inside goes on
        busy.cancel()


def test_a_message_that_is_too_large(grpc_models):
    with serving(grpc_models.manager, limits=Limits(max_body_bytes=20_000)) as front:
        error = error_of(front, PREDICT, predict_body(request(5000)))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "20000" in error.details()
        # Small on the wire, large once unpacked.
        zeros = predict_body({**request(1), "city": np.array([b"0" * 1_000_000], object)})
        with pytest.raises(grpc.RpcError) as caught:
            front.channel.unary_unary(PREDICT)(zeros, timeout=120, compression=grpc.Compression.Gzip)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert front.call(PREDICT, predict_body(request(2)))


# Tokens and TLS


def test_tokens(grpc_models):
    body, metadata_of_server = predict_body(request(1)), LIVE.replace("ServerLive", "ServerMetadata")
    with serving(grpc_models.manager, auth=Auth(token=TOKEN, admin_token=ADMIN)) as front:
        for path, message in ((PREDICT, body), (metadata_of_server, b""), (LOAD, b"")):
            for metadata in ([], [("authorization", "Bearer wrong-one")], [("authorization", f"Basic {TOKEN}")]):
                assert error_of(front, path, message, metadata=metadata).code() == grpc.StatusCode.UNAUTHENTICATED
        refused = error_of(front, PREDICT, body, metadata=[("x-request-id", "r-7")])
        assert ("x-request-id", "r-7") in [(key, value) for key, value in refused.trailing_metadata()]
        for token in (TOKEN, ADMIN):
            assert front.call(PREDICT, body, [("authorization", f"Bearer {token}")])
        denied = error_of(front, LOAD, b"", metadata=[("authorization", f"Bearer {TOKEN}")])
        assert denied.code() == grpc.StatusCode.PERMISSION_DENIED and "8502" in denied.details()
        # Probes bring no token.
        check = health_pb2_grpc.HealthStub(front.channel).Check(health_pb2.HealthCheckRequest(), timeout=120)
        assert check.status == health_pb2.HealthCheckResponse.SERVING
        for probe in (LIVE, LIVE.replace("ServerLive", "ServerReady")):
            assert front.call(probe, b"")


def test_the_admin_token_changes_models(grpc_models):
    admin = [("authorization", f"Bearer {ADMIN}")]
    made = kserve_protos.RepositoryModelLoadRequest(model_name=MODEL)
    with serving(grpc_models.manager, auth=Auth(admin_token=ADMIN)) as front:
        assert front.call(LOAD, made.SerializeToString(), admin)[0] == b""
        made.model_name = "other"
        error = error_of(front, LOAD, made.SerializeToString(), metadata=admin)
        assert error.code() == grpc.StatusCode.NOT_FOUND and "'other'" in error.details()
        made.parameters["config"].string_param = "{}"
        error = error_of(front, LOAD, made.SerializeToString(), metadata=admin)
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and "'config'" in error.details()


def test_labels_by_reload_config(grpc_models):
    from tensorflow_serving.apis import model_management_pb2

    path = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
    admin = [("authorization", f"Bearer {ADMIN}")]
    made = model_management_pb2.ReloadConfigRequest()
    with serving(grpc_models.manager, auth=Auth(admin_token=ADMIN)) as front:
        assert (
            error_of(front, path, made.SerializeToString(), metadata=admin).code() == grpc.StatusCode.INVALID_ARGUMENT
        )
        model = made.config.model_config_list.config.add(name=MODEL)
        model.version_labels["night"] = 1
        front.call(path, made.SerializeToString(), admin)
        assert grpc_models.manager.status(MODEL)[0].labels["night"] == 1
        model.base_path = "/somewhere/else"
        error = error_of(front, path, made.SerializeToString(), metadata=admin)
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and "/somewhere/else" in error.details()


def test_tls(grpc_models, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", key, "-out", certificate, "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    server = tls.grpc_credentials(tls.TlsOptions(str(certificate), str(key)))
    client = grpc.ssl_channel_credentials(certificate.read_bytes())
    with serving(grpc_models.manager, credentials=(server, client)) as front:
        assert front.call(PREDICT, predict_body(request(1)))
        with grpc.insecure_channel(front.address) as plain, pytest.raises(grpc.RpcError):
            plain.unary_unary(PREDICT)(predict_body(request(1)), timeout=5)


# Health and reflection


def test_health_follows_readiness(grpc_models):
    states = health_pb2.HealthCheckResponse
    with serving(grpc_models.manager) as front:
        stub = health_pb2_grpc.HealthStub(front.channel)
        for service in ("", "tensorflow.serving.PredictionService", "inference.GRPCInferenceService"):
            found = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=120)
            assert found.status == states.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            stub.Check(health_pb2.HealthCheckRequest(service="other"), timeout=120)
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=120)
        assert next(watch).status == states.SERVING
        front.ctx.state.drain()
        assert next(watch).status == states.NOT_SERVING
        assert stub.Check(health_pb2.HealthCheckRequest(), timeout=120).status == states.NOT_SERVING
        assert next(watch, None) is None  # it ends, so that the server can


def test_reflection_serves_both_protocols(grpc_front):
    database = ProtoReflectionDescriptorDatabase(grpc_front.channel)
    services = set(database.get_services())
    assert services >= {
        "tensorflow.serving.PredictionService",
        "tensorflow.serving.ModelService",
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
    }
    for symbol in ("tensorflow.serving.PredictRequest", "tensorflow.TensorProto", "inference.ModelInferRequest"):
        file = database.FindFileContainingSymbol(symbol)
        assert symbol.rpartition(".")[2] in {one.name for one in file.message_type}
        assert database.FindFileByName(file.name).name == file.name
    with pytest.raises(KeyError):
        database.FindFileContainingSymbol("inference.Nothing")


def test_an_unknown_method(grpc_front):
    error = error_of(grpc_front, "/tensorflow.serving.PredictionService/Predicted", b"")
    assert error.code() == grpc.StatusCode.UNIMPLEMENTED


# Malformed messages

CLIENTS_FAULT = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
GOOD = {PREDICT: predict_body(request(3)), INFER: infer_body(request(3))}
ZEROS = {"items": np.int64([0]), "price": np.float32([0]), "city": np.array([b""], object)}
HOSTILE = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def check_refused_or_served(front, path, body):
    code, details = end_of(front, path, body)
    assert code is None or code in CLIENTS_FAULT and details, (code, details)


@pytest.mark.parametrize("path", [PREDICT, INFER])
@HOSTILE
@given(data=st.data())
def test_damaged_messages_are_refused_and_the_server_serves_on(grpc_front, path, data):
    body = bytearray(GOOD[path])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        how = data.draw(st.sampled_from(["flip", "cut", "insert", "drop"]))
        if how == "flip":
            body[at] ^= 1 << data.draw(st.integers(0, 7))
        elif how == "cut" and at:
            del body[at:]
        elif how == "insert":
            body[at:at] = data.draw(st.binary(min_size=1, max_size=9))
        elif len(body) > 1:
            del body[at]
    check_refused_or_served(grpc_front, path, bytes(body))
    assert grpc_front.call(path, GOOD[path])


@pytest.mark.parametrize("path", [PREDICT, INFER])
@HOSTILE
@given(body=st.binary(max_size=200))
def test_bytes_that_are_no_message(grpc_front, path, body):
    check_refused_or_served(grpc_front, path, body)


@pytest.mark.parametrize("make", [predict_body, infer_body])
@HOSTILE
@given(data=st.data())
def test_inputs_of_any_type_shape_and_number(grpc_front, make, data):
    inputs = request(data.draw(st.integers(0, 3)))
    for name in list(inputs):
        change = data.draw(st.sampled_from(["keep", "drop", "dtype", "shape", "extra"]))
        if change == "drop":
            del inputs[name]
        elif change == "dtype":
            wide = data.draw(st.sampled_from([np.int32, np.int64, np.float32]))
            inputs[name] = np.zeros(inputs[name].shape, wide)
        elif change == "shape":
            shape = data.draw(st.lists(st.integers(0, 3), max_size=3))
            inputs[name] = np.resize(inputs[name] if inputs[name].size else ZEROS[name], shape)
        elif change == "extra":
            inputs["x" + data.draw(st.text(max_size=5))] = np.int64([1])
    path = PREDICT if make is predict_body else INFER
    check_refused_or_served(grpc_front, path, make(inputs))
    assert grpc_front.call(path, GOOD[path])


def test_many_clients_at_once(grpc_front, grpc_models):
    bodies = [predict_body(request(k + 1, seed=k)) for k in range(8)]
    expected = [grpc_models.stock[2](**request(k + 1, seed=k))["score"] for k in range(8)]
    wrong = []

    def ask(k):
        for _ in range(25):
            response = predict_pb2.PredictResponse.FromString(grpc_front.call(PREDICT, bodies[k])[0])
            if not np.allclose(tf.make_ndarray(response.outputs["score"]), expected[k], rtol=1e-5):
                wrong.append(k)

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong
