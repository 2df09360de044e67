"""The whole server in this process: both fronts over one context, TLS, tokens, metrics as scraped, and the way down."""

import contextlib
import io
import json
import os
import re
import shutil
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import parser
from tensorflow_serving.apis import predict_pb2

from tests.serving.server.gate import until
from tests.serving.server.grpc_serving import MODEL, SLOW, request
from tests.serving.versions.fakes import FakeLoader, write
from tfctr.cli.main import main
from tfctr.errors import UnavailableError, UsageError
from tfctr.serving.server import config as server_config
from tfctr.serving.server.logs import RequestLog
from tfctr.serving.server.server import Server
from tfctr.serving.versions import ModelManager, ModelSpec

PREDICT = "/tensorflow.serving.PredictionService/Predict"
LOOPS = 200_000  # of the slow model: some hundred milliseconds


@contextlib.contextmanager
def running(models: Any, log: RequestLog | None = None, **sections: Any):
    ports = {"grpc_port": 0, "http_port": 0, "admin_port": 0, **sections.pop("server", {})}
    config = server_config.build(
        model_dirs=[Path("ranker"), Path("slow")], overrides={"server": ports, **sections}
    )  # their folders are the given manager's
    log = log or RequestLog(stream=io.StringIO())
    with Server(config, manager=models.manager, log=log) as server:
        server.start()
        assert server.wait_ready()
        yield server


def body(model: str = MODEL, **inputs: Any) -> bytes:
    message = predict_pb2.PredictRequest()
    message.model_spec.name = model
    for name, value in (inputs or request(3)).items():
        message.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return message.SerializeToString()


def slow(loops: int = LOOPS) -> bytes:
    return body(SLOW, loops=np.array([loops], np.int32))


def fetch(url: str, data: Any = None, token: str | None = None, context: Any = None) -> tuple[int, bytes]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    asked = urllib.request.Request(url, None if data is None else json.dumps(data).encode(), headers)
    try:
        with urllib.request.urlopen(asked, timeout=120, context=context) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def instances() -> dict[str, Any]:
    return {"instances": [{"items": [3, 5], "price": [0.5], "city": "ulm"}]}


def samples(text: bytes) -> dict[str, list[Any]]:
    made: dict[str, list[Any]] = {}
    for family in parser.text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            made.setdefault(sample.name, []).append(sample)
    return made


def test_one_server_answers_both_fronts_and_counts_them(grpc_models, repo_root):
    """Triton #3321: both protocols beside each other, each with its histogram."""
    with running(grpc_models) as server:
        where = server.endpoints
        with grpc.insecure_channel(where.grpc) as channel:
            assert channel.unary_unary(PREDICT)(body(), timeout=120)
        status, answer = fetch(f"{where.http}/v1/models/{MODEL}:predict", instances())
        assert status == 200 and json.loads(answer)["predictions"]
        assert fetch(f"{where.http}/v1/models/nobody:predict", instances())[0] == 404
        assert fetch(f"{where.http}/v2/health/ready")[0] == 200
        pages = [fetch(f"{where.http}{path}")[1] for path in ("/metrics", "/monitoring/prometheus/metrics")]
        found = samples(pages[0])
        assert samples(pages[1]).keys() == found.keys()
        answered = {
            (one.labels["transport"], one.labels["model"], one.labels["version"], one.labels["code"])
            for one in found["tfctr_requests_total"]
        }
        assert {("grpc", MODEL, "2", "OK"), ("http", MODEL, "2", "OK"), ("http", "", "", "NOT_FOUND")} <= answered
        runs = [one for one in found["tfctr_stage_seconds_count"] if one.labels["model"] == MODEL]
        assert {one.labels["stage"] for one in runs} >= {"request", "queue", "pack", "lookup", "dense", "run", "reply"}
        assert sum(one.value for one in runs if one.labels["stage"] == "run") >= 2
        assert "tfctr_version_loaded_at_seconds" in found and found["tfctr_ready"][0].value == 1
        documented = set(
            re.findall(
                r"^\| `((?:tfctr_|process_|:tensorflow)[\w:]*)", (repo_root / "docs/monitoring.md").read_text(), re.M
            )
        )
        assert documented == set(re.findall(rb"^# TYPE (\S+) ".decode(), pages[0].decode(), re.M))


def test_the_ports_answer_while_models_load(tmp_path):
    """As Kubernetes wants it: alive at once, ready when it can answer, and what it waits for."""
    go_on, loading = threading.Event(), threading.Event()
    loader = FakeLoader()
    loader.during = lambda number: (loading.set(), go_on.wait(60))
    write(tmp_path / "ranker", 3, "three")
    spec = ModelSpec(name="ranker", base_path=tmp_path / "ranker", poll_seconds=0)
    config = server_config.build(
        model_dirs=[tmp_path / "ranker"], overrides={"server": {"grpc_port": 0, "http_port": 0, "admin_port": 0}}
    )
    manager = ModelManager([spec], loader=loader, start=False)
    with manager, Server(config, manager=manager, log=RequestLog(stream=io.StringIO())) as server:
        where = server.start()
        assert loading.wait(60)
        for path in ("/v2/health/live", "/healthz"):
            assert fetch(where.http + path)[0] == fetch(where.admin + path)[0] == 200
        for path in ("/v2/health/ready", "/readyz"):
            status, body = fetch(where.http + path)
            assert status == 503 and b"model 'ranker' does not serve: version 3 is being loaded" in body
        status, body = fetch(f"{where.http}/v1/models/ranker:predict", instances())
        assert status == 503 and b"version 3 is being loaded" in body
        with grpc.insecure_channel(where.grpc) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            asked = health_pb2.HealthCheckRequest()
            assert health.Check(asked, timeout=120).status == health_pb2.HealthCheckResponse.NOT_SERVING
            go_on.set()
            assert server.wait_ready()
            assert health.Check(asked, timeout=120).status == health_pb2.HealthCheckResponse.SERVING
        assert fetch(f"{where.http}/readyz")[0] == 200


def test_admin_over_the_servers_own_port(grpc_models, capsys):
    with running(grpc_models) as server:
        url = ["--url", str(server.endpoints.admin)]
        assert main(["admin", "status", *url, "--json"]) == 0
        told = {one["name"]: one for one in json.loads(capsys.readouterr().out)["models"]}
        assert told[MODEL]["labels"].items() >= {"stable": 1, "canary": 2}.items()  # other tests set more
        assert told[MODEL]["default"] == 2
        assert main(["admin", "status", MODEL, *url]) == 0
        table = capsys.readouterr().out
        assert "AVAILABLE" in table and "canary (default)" in table
        assert main(["admin", "label", MODEL, "1", "shadow", *url]) == 0
        assert "shadow" in capsys.readouterr().out
        assert main(["admin", "label", MODEL, "none", "shadow", *url]) == 0
        assert "shadow" not in capsys.readouterr().out
        assert main(["admin", "load", "nobody", *url]) == 2
        assert "no model 'nobody'" in capsys.readouterr().err
        assert main(["admin", "load", MODEL, "77", *url]) == 2
        assert "77" in capsys.readouterr().err
        assert main(["admin", "status", "--url", str(server.endpoints.http)]) == 2  # the wrong port
        assert capsys.readouterr().err


def test_tokens_of_files(grpc_models, tmp_path, capsys, monkeypatch):
    (tmp_path / "serving").write_text("serving-token\n")
    (tmp_path / "admin").write_text("admin-token-1\n")
    tokens = {"serving_file": str(tmp_path / "serving"), "admin_file": str(tmp_path / "admin")}
    with running(grpc_models, tokens=tokens) as server:
        where, url = server.endpoints, ["--url", str(server.endpoints.admin)]
        for token, status in ((None, 401), ("wrong-token", 401), ("serving-token", 200), ("admin-token-1", 200)):
            assert fetch(f"{where.http}/v1/models/{MODEL}:predict", instances(), token)[0] == status
        assert fetch(f"{where.http}/v2/health/live")[0] == 200, "health checks carry no token"
        with grpc.insecure_channel(where.grpc) as channel:
            call = channel.unary_unary(PREDICT)
            with pytest.raises(grpc.RpcError) as caught:
                call(body(), timeout=120)
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
            assert call(body(), metadata=[("authorization", "Bearer serving-token")], timeout=120)
        assert main(["admin", "status", *url]) == 2
        assert "token" in capsys.readouterr().err
        monkeypatch.setenv("TFCTR_ADMIN_TOKEN", "admin-token-1")
        assert main(["admin", "status", *url]) == 0
        monkeypatch.setenv("TFCTR_ADMIN_TOKEN", "serving-token")
        assert main(["admin", "status", *url]) == 2
        assert main(["admin", "status", *url, "--token-file", str(tmp_path / "admin")]) == 0


def make_certificate(folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    made = {"certificate": str(folder / "cert.pem"), "key": str(folder / "key.pem")}
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    try:
        subprocess.run(
            [*command.split(), *names, "-keyout", made["key"], "-out", made["certificate"]],
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("no openssl here")
    return made


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> dict[str, str]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_tls_on_all_ports(grpc_models, certificate, capsys):
    with running(grpc_models, tls=certificate) as server:
        where = server.endpoints
        trusted = ssl.create_default_context(cafile=certificate["certificate"])
        assert where.http.startswith("https://")
        assert fetch(f"{where.http}/v1/models/{MODEL}", context=trusted)[0] == 200
        root = Path(certificate["certificate"]).read_bytes()
        with grpc.secure_channel(where.grpc, grpc.ssl_channel_credentials(root)) as channel:
            assert channel.unary_unary(PREDICT)(body(), timeout=120)
        with grpc.insecure_channel(where.grpc) as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary(PREDICT)(body(), timeout=5)
        assert main(["admin", "status", "--url", where.admin, "--ca", certificate["certificate"]]) == 0
        assert main(["admin", "status", "--url", where.admin]) == 1  # whose certificate nobody here signed
        assert "no answer" in capsys.readouterr().err


def test_renewed_certificates_are_taken_without_a_stop(grpc_models, tmp_path):
    files, renewed = make_certificate(tmp_path / "old"), make_certificate(tmp_path / "new")
    before, after = (ssl.create_default_context(cafile=one["certificate"]) for one in (files, renewed))
    with running(grpc_models, tls=files) as server:
        where, path = server.endpoints, f"/v1/models/{MODEL}"
        assert fetch(where.http + path, context=before)[0] == 200
        shutil.copy(renewed["key"], files["key"])
        assert fetch(where.http + path, context=before)[0] == 200  # half-renewed: the old one serves on
        shutil.copy(renewed["certificate"], files["certificate"])
        for url in (where.http, where.admin):
            assert fetch(url + path, context=after)[0] == 200
            with pytest.raises(urllib.error.URLError, match="certificate"):
                fetch(url + path, context=before)
        roots = grpc.ssl_channel_credentials(Path(renewed["certificate"]).read_bytes())
        with grpc.secure_channel(where.grpc, roots) as channel:
            assert channel.unary_unary(PREDICT)(body(), timeout=120)


def test_clients_must_show_a_certificate(grpc_models, certificate):
    with running(grpc_models, tls={**certificate, "client_ca": certificate["certificate"]}) as server:
        where = server.endpoints
        context = ssl.create_default_context(cafile=certificate["certificate"])
        with pytest.raises((urllib.error.URLError, OSError)):
            fetch(f"{where.http}/v1/models/{MODEL}", context=context)
        context.load_cert_chain(certificate["certificate"], certificate["key"])
        assert fetch(f"{where.http}/v1/models/{MODEL}", context=context)[0] == 200


def test_a_key_of_another_certificate_is_refused_by_name(certificate, tmp_path):
    (tmp_path / "key.pem").write_text("no key")
    config = server_config.build(
        model_dirs=[Path("a")], overrides={"tls": {**certificate, "key": str(tmp_path / "key.pem")}}
    )
    with pytest.raises(UsageError, match="key.pem: expected a PEM certificate and its unencrypted key"):
        Server(config, log=RequestLog(stream=io.StringIO())).start()


def test_requests_inside_are_answered_on_the_way_down(grpc_models, gate):
    stream = io.StringIO()
    with running(grpc_models, log=RequestLog(stream=stream)) as server:
        where, answers = server.endpoints, []
        channel = grpc.insecure_channel(where.grpc)
        inside = channel.unary_unary(PREDICT).future(gate.body, timeout=240)
        over_http = threading.Thread(
            target=lambda: answers.append(fetch(f"{where.http}/v1/models/{SLOW}:predict", gate.json))
        )
        over_http.start()
        until(lambda: gate.running() + gate.waiting() == 2)
        opens = threading.Thread(target=lambda: (until(lambda: not server.context.ready()), gate.open()))
        opens.start()
        assert server.stop()
        over_http.join()
        opens.join()
        assert inside.result().__class__ is bytes and answers[0][0] == 200
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(PREDICT)(body(), timeout=120)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        with pytest.raises(urllib.error.URLError):
            fetch(f"{where.http}/v1/models/{MODEL}")
        channel.close()
        assert not server.context.ready()
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert told[0]["event"] == "listening" and told[-1] == {**told[-1], "event": "stopped", "clean": True}


def test_what_takes_too_long_is_cut_off_and_told(grpc_models, gate):
    with running(grpc_models, server={"drain_seconds": 0}) as server:
        channel = grpc.insecure_channel(server.endpoints.grpc)
        inside = channel.unary_unary(PREDICT).future(gate.body, timeout=240)
        until(lambda: gate.running() == 1)
        assert not server.stop()
        assert inside.exception().code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        channel.close()


def test_logs_that_cannot_be_written_fail_no_request(grpc_models):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    log = RequestLog(server_config.LogsConfig(file="/dev/full", requests="all", lines_per_second=1000))
    with running(grpc_models, log=log) as server:
        for _ in range(5):
            assert fetch(f"{server.endpoints.http}/v1/models/{MODEL}:predict", instances())[0] == 200
    assert log.dropped["failed"] >= 5


def test_no_model_that_serves_ends_the_start(tmp_path):
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "saved_model.pb").write_bytes(b"not a model")
    ports = {"server": {"grpc_port": 0, "http_port": 0, "admin_port": None}}
    config = server_config.build(model_dirs=[tmp_path / "broken"], overrides=ports)
    with Server(config, log=RequestLog(stream=io.StringIO())) as server:
        assert server.start().admin is None
        with pytest.raises(UnavailableError, match="model 'broken' .* does not serve: version 1: "):
            server.wait_ready()
        assert fetch(f"{server.endpoints.http}/v2/health/live")[0] == 200
        assert fetch(f"{server.endpoints.http}/v2/health/ready")[0] != 200
        found = samples(fetch(f"{server.endpoints.http}/metrics")[1])
        (rejected,) = found["tfctr_version_rejected"]
        assert rejected.labels["model"] == "broken" and rejected.labels["version"] == "1" and rejected.labels["reason"]
        assert found["tfctr_load_failures_total"][0].value == 1 and found["tfctr_ready"][0].value == 0


def test_one_model_that_does_not_serve_leaves_the_others(tmp_path):
    """Readiness is false, the log and the answer say why, and what can be served is."""
    names = ("good", "bad")
    write(tmp_path / "good", 1, "good"), write(tmp_path / "bad", 1, "broken for good")
    ports = {"server": {"grpc_port": 0, "http_port": 0, "admin_port": 0}}
    config = server_config.build(model_dirs=[tmp_path / name for name in names], overrides=ports)
    specs = [ModelSpec(name=name, base_path=tmp_path / name, poll_seconds=0) for name in names]
    manager, stream = ModelManager(specs, loader=FakeLoader(), start=False), io.StringIO()
    with manager, Server(config, manager=manager, log=RequestLog(stream=stream)) as server:
        where = server.start()
        assert not server.wait_ready()
        status, told = fetch(f"{where.http}/readyz")
        assert status == 503 and b"model 'bad' does not serve: version 1: " in told and b"'good'" not in told
        (version,) = json.loads(fetch(f"{where.http}/v1/models/good")[1])["model_version_status"]
        assert version["state"] == "AVAILABLE"
        status, told = fetch(f"{where.http}/v1/models/bad:predict", instances())
        assert status == 503 and b"is broken for good" in told
    (event,) = [
        one for one in map(json.loads, stream.getvalue().splitlines()) if one["event"] == "model does not serve"
    ]
    assert event["level"] == "error" and "is broken for good" in event["reason"]
