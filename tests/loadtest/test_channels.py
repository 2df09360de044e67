"""Ways to a model: gRPC and HTTP against small servers, in process, and what is told of errors."""

import json

import grpc
import numpy as np
import pytest

from tests.loadtest.fakes import as_json, grpc_server, http_server
from tfctr.errors import InputError, UsageError
from tfctr.loadtest import server_metrics
from tfctr.loadtest.channel import Prepared
from tfctr.loadtest.connecting import batch_reader, open_channel
from tfctr.loadtest.model_info import ask
from tfctr.loadtest.process_channel import ProcessChannel
from tfctr.loadtest.runs import OpenLoop, RunOptions, closed_loop
from tfctr.loadtest.schedule import Arrivals
from tfctr.loadtest.target import parse_target

TFS = "tensorflow.serving.PredictionService"
KSERVE = "inference.GRPCInferenceService"


@pytest.mark.parametrize(("protocol", "service", "method"), [("tfs", TFS, "Predict"), ("kserve", KSERVE, "ModelInfer")])
def test_grpc_sends_the_bytes_and_tells_timing_and_errors(protocol, service, method):
    seen = []

    def answer(body, context):
        seen.append((body, dict(context.invocation_metadata()), context.time_remaining()))
        if body == b"bad":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "feature 'x' is missing")
        if "x-tfctr-timing" in seen[-1][1]:
            context.set_trailing_metadata((("x-tfctr-timing", json.dumps({"run": 7})),))
        return b"reply"

    with grpc_server({method: answer}, service) as port:
        channel = open_channel(parse_target(f"grpc://127.0.0.1:{port}/m", protocol), [("X-Who", "me")], timeout_s=20)
        call = channel.connect()
        assert call(Prepared(b"body", 1), False).code == "OK"
        assert call(Prepared(b"body", 1), True).timing == {"run": 7}
        wrong = call(Prepared(b"bad", 1), False)
        channel.close()
    assert (wrong.code, wrong.message) == ("INVALID_ARGUMENT", "feature 'x' is missing")
    assert seen[0][0] == b"body" and seen[0][1]["x-who"] == "me" and "x-tfctr-timing" not in seen[0][1]
    assert 0 < seen[0][2] <= 20


def test_a_grpc_server_that_is_not_there_is_an_error_of_the_request():
    with grpc_server({}, TFS) as port:
        pass
    channel = open_channel(parse_target(f"grpc://127.0.0.1:{port}/m"), timeout_s=5)
    assert channel.connect()(Prepared(b"body", 1), False).code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
    channel.close()


def message(body, port, path="/v1/models/m:predict"):
    return b"POST %s HTTP/1.1\r\nHost: h:%d\r\nContent-Length: %d\r\n\r\n" % (path.encode(), port, len(body)) + body


def test_http_keeps_its_connection_and_tells_timing_and_errors():
    seen = []

    def answer(method, path, headers, body):
        seen.append((path, headers.get("x-tfctr-timing"), body))
        if body == b"bad":
            return 400, {}, b'{"error": "no such input"}'
        return 200, {"x-tfctr-timing": '{"run": 7}'} if headers.get("x-tfctr-timing") else {}, b"{}"

    with http_server(answer) as port:
        call = open_channel(parse_target(f"http://127.0.0.1:{port}/m")).connect()
        assert call(Prepared(message(b"a" * 300_000, port), 1), False).code == "OK"
        assert call(Prepared(message(b"b", port), 1), True).timing == {"run": 7}
        wrong = call(Prepared(message(b"bad", port), 1), False)
    assert (wrong.code, wrong.message) == ("HTTP_400", '{"error": "no such input"}')
    assert [s[1] for s in seen] == [None, "1", None] and seen[0][2] == b"a" * 300_000


def test_a_connection_that_the_server_closed_is_opened_again():
    bodies = []

    def answer(method, path, headers, body):
        bodies.append(body)
        return (None, {}, b"") if body == b"drop" and bodies.count(b"drop") == 1 else (200, {}, b"{}")

    with http_server(answer) as port:
        call = open_channel(parse_target(f"http://127.0.0.1:{port}/m")).connect()
        assert call(Prepared(message(b"first", port), 1), False).code == "OK"
        assert call(Prepared(message(b"drop", port), 1), False).code == "OK"  # sent again on a new connection
        fresh = open_channel(parse_target(f"http://127.0.0.1:{port}/m")).connect()
        bodies.clear()
        assert fresh(Prepared(message(b"drop", port), 1), False).code == "CONNECTION_CLOSED"  # a new one is not retried
    gone = open_channel(parse_target(f"http://127.0.0.1:{port}/m")).connect()
    assert gone(Prepared(message(b"late", port), 1), False).code == "CONNECTION_FAILED"


def test_both_loops_over_http_with_real_connections():
    with http_server(lambda *_: (200, {}, b"{}")) as port:
        channel = open_channel(parse_target(f"http://127.0.0.1:{port}/m"))
        requests = [Prepared(message(b"x", port), 2)]
        options = RunOptions(warmup_s=0.0, timing_every=0)
        schedule = Arrivals("bursts", burst_size=25).schedule(2000, 0.05)
        run = OpenLoop(channel, requests, options).run(schedule, 2000)
        assert run.summary.ok == len(schedule) and not run.summary.errors
        assert run.summary.percentile(50.0) > 0
        closed = closed_loop(channel, requests, 3, 0.5, options)
        assert closed.summary.ok == closed.summary.requests > 0
        assert closed.cpu["us_per_request"] > 0


def test_in_process_errors_have_their_class():
    def predict(inputs):
        if "x" not in inputs:
            raise InputError("input 'x' is missing")
        return inputs

    call = ProcessChannel(predict, lambda: None).connect()
    assert call(Prepared({"x": np.zeros(1)}, 1), False).code == "OK"
    assert call(Prepared({}, 1), False).code == "InputError"


def test_metadata_of_kserve_over_http():
    told = {"name": "m", "inputs": [{"name": "ids", "datatype": "INT64", "shape": [-1]}], "outputs": []}
    with http_server(lambda method, path, *_: as_json(told) if path == "/v2/models/m" else (404, {}, b"")) as port:
        info = ask(parse_target(f"http://127.0.0.1:{port}/v2/models/m"), "serving_default")
        assert info["inputs"][0]["dtype"] == "int64" and info["features"][0]["kind"] == "dense"
        with pytest.raises(UsageError, match="no metadata: HTTP Error 404"):
            ask(parse_target(f"http://127.0.0.1:{port}/v2/models/other"), "serving_default")


def test_metadata_of_tfs_over_http():
    tensor = {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1"}, {"size": "4"}], "unknown_rank": False}}
    signature = {"signature_def": {"signature_def": {"score": {"inputs": {"x": tensor}}}}}
    with http_server(lambda *_: as_json({"metadata": signature})) as port:
        target = parse_target(f"http://127.0.0.1:{port}/v1/models/m")
        assert ask(target, "score")["inputs"] == [{"name": "x", "dtype": "float32", "shape": [-1, 4], "domain": None}]
        with pytest.raises(UsageError, match="no signature 'other'; it has score"):
            ask(target, "other")


def test_metadata_over_grpc():
    from tensorflow.core.protobuf import meta_graph_pb2
    from tensorflow_serving.apis import get_model_metadata_pb2 as messages

    from tfctr.serving.server import kserve_protos

    def tfs(body, context):
        assert messages.GetModelMetadataRequest.FromString(body).model_spec.name == "m"
        signature = meta_graph_pb2.SignatureDef()
        signature.inputs["x"].dtype = 9
        signature.inputs["x"].tensor_shape.dim.add(size=-1)
        told = messages.SignatureDefMap()
        told.signature_def["score"].CopyFrom(signature)
        reply = messages.GetModelMetadataResponse()
        reply.metadata["signature_def"].Pack(told)
        return reply.SerializeToString()

    def kserve(body, context):
        reply = kserve_protos.ModelMetadataResponse(name="m")
        reply.inputs.add(name="x", datatype="INT64", shape=[-1])
        return reply.SerializeToString()

    with grpc_server({"GetModelMetadata": tfs}, TFS) as port:
        first = ask(parse_target(f"grpc://127.0.0.1:{port}/m"), "score")
        with pytest.raises(UsageError, match="no signature 'other'; it has score"):
            ask(parse_target(f"grpc://127.0.0.1:{port}/m"), "other")
        with pytest.raises(UsageError, match="no metadata: UNIMPLEMENTED"):
            ask(parse_target(f"grpc://127.0.0.1:{port}/v2/models/m"), "")
    with grpc_server({"ModelMetadata": kserve}, KSERVE) as port:
        second = ask(parse_target(f"grpc://127.0.0.1:{port}/v2/models/m"), "")
    assert first["inputs"] == second["inputs"]


PAGE = """# HELP tfctr_batch_rows rows
tfctr_batch_rows_bucket{model="m",version="1",le="1.0"} 3
tfctr_batch_rows_sum{model="m",version="1"} %d
tfctr_batch_rows_count{model="m",version="1"} %d
tfctr_batch_rows_sum{model="n",version="1"} 99
tfctr_batch_rows_count{model="n",version="1"} 99
"""


def test_batches_are_the_difference_of_two_readings():
    pages = [PAGE % (10, 5), PAGE % (40, 10), PAGE % (40, 10)]
    with http_server(lambda *_: (200, {}, pages.pop(0).encode())) as port:
        target = parse_target(f"http://127.0.0.1:{port}/v1/models/m")
        read = batch_reader(target, None, (), None)
        assert read() == {"rows": 6.0, "batches": 5.0}
        assert read() == {}
    assert read() == {}  # the server is gone: nothing is told, the run goes on
    assert batch_reader(target, None, (), None) is None
    with pytest.raises(UsageError, match="--metrics http://127.0.0.1:1/m"):
        batch_reader(target, "http://127.0.0.1:1/m", (), None)


def test_where_metrics_usually_are():
    assert server_metrics.guess_url(parse_target("grpc://127.0.0.1:8500/m")) == "http://127.0.0.1:8501/metrics"
    assert server_metrics.guess_url(parse_target("http://[::1]:8501/m")) == "http://[::1]:8501/metrics"
