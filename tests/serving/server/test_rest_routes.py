"""Traffic split over HTTP, and TLS on its port."""

import shutil
import ssl
import subprocess
import urllib.request

import pytest

from tests.serving.server.http_client import post


@pytest.fixture(scope="module")
def split(make_http, served_folder):
    """Half of the users get version 1, half version 2."""
    from tfctr.serving.versions import All, ModelManager, ModelSpec, Traffic

    spec = ModelSpec(
        name="ranker",
        base_path=served_folder,
        policy=All(),
        labels={"stable": 1, "canary": 2},
        traffic=Traffic("user_id", {"stable": 1, "canary": 1}),
        poll_seconds=0,
    )
    with ModelManager([spec]) as manager:
        assert manager.wait(240)
        yield make_http(manager=manager)


def row(user):
    return {"user_id": user, "price": [1, 2.5], "name": "a", "tags": [1, 2]}


def tensors(user):
    return [
        {"name": "user_id", "shape": [1], "datatype": "INT64", "data": [user]},
        {"name": "price", "shape": [1, 2], "datatype": "FP32", "data": [1, 2.5]},
        {"name": "name", "shape": [1], "datatype": "BYTES", "data": ["a"]},
        {"name": "tags", "shape": [2], "datatype": "INT64", "data": [1, 2]},
        {"name": "tags_1", "shape": [2], "datatype": "INT64", "data": [0, 2]},
    ]


def test_a_user_gets_one_version_in_every_protocol(split):
    versions = {}
    for user in range(24):
        answer = post(split, "/v2/models/ranker/infer", {"inputs": tensors(user)}).json
        score = next(one["data"][0] for one in answer["outputs"] if one["name"] == "score")
        versions[user] = answer["model_version"]
        rows = post(split, "/v1/models/ranker:predict", {"instances": [row(user), row(user + 1)]}).json
        assert rows["predictions"][0]["score"] == score
        columns = post(split, "/v1/models/ranker:predict", {"inputs": {k: [v] for k, v in row(user).items()}}).json
        assert columns["outputs"]["score"] == [score]
    assert set(versions.values()) == {"1", "2"}


def test_tls(make_http, tmp_path):
    from tfctr.serving.server import tls
    from tfctr.serving.server.http_app import build_http_app
    from tfctr.serving.server.http_server import HttpServer, bound

    if shutil.which("openssl") is None:
        pytest.skip("no openssl command here to make a certificate with")
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )  # fmt: skip
    ctx = make_http().ctx
    options = tls.http_arguments(tls.TlsOptions(str(certificate), str(key)))
    server = HttpServer("tls", build_http_app(ctx), bound(), ctx.limits, options)
    server.start()
    try:
        trusting = ssl.create_default_context(cafile=certificate)
        with urllib.request.urlopen(f"{server.url}/v2/health/live", context=trusting, timeout=120) as answer:
            assert answer.status == 200
    finally:
        assert server.stop(120)
