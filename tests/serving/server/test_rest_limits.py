"""What a request may cost, who may ask, clients that go away, and the way down; on servers of their own."""

import contextlib
import gzip
import http.client
import json
import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.server.gate import until
from tests.serving.server.http_client import ask, get, post
from tfctr.serving.server.auth import Auth
from tfctr.serving.server.limits import Limits

PREDICT, HELD = "/v1/models/ranker:predict", "/v1/models/slow:predict"
ONE = {"signature_name": "one", "instances": [1.0]}
SLOW = {"signature_name": "slow", "instances": [1500]}
SECRET, ADMIN = "secret-token", "admin-token"


class Recorded:
    """Metrics that remember what was answered, and tell when."""

    def __init__(self):
        self.answers = []
        self.changed = threading.Condition()

    def answered(self, transport, api, method, model, version, code, seconds):
        with self.changed:
            self.answers.append((api, method, model, version, code))
            self.changed.notify_all()

    def render(self):
        return "text/plain", b""

    def wait_for(self, code):
        with self.changed:
            return self.changed.wait_for(lambda: any(one[-1] == code for one in self.answers), 120)


@pytest.fixture(scope="module")
def small(make_http):
    """Tight limits."""
    limits = Limits(max_body_bytes=20_000, max_rows=100, max_concurrent=1, max_header_bytes=4000, idle_seconds=1)
    return make_http(limits=limits, metrics=Recorded())


@pytest.fixture
def one_at_a_time(make_http, grpc_models):
    """Over the models that can be held."""
    return make_http(manager=grpc_models.manager, limits=Limits(max_concurrent=1), metrics=Recorded())


def in_background(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    return thread, found


def send(server, data):
    """A connection on which ``data`` was sent."""
    made = socket.create_connection((server.host, server.port), timeout=120)
    made.sendall(data)
    return made


def raw_post(path, body, extra=""):
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n{extra}\r\n".encode() + body


def test_a_large_body(small):
    answer = post(small, PREDICT, b"x" * 20_001)
    assert answer.status == 413 and "20000 bytes" in answer.error
    connection = http.client.HTTPConnection(small.host, small.port, timeout=120)
    connection.request("POST", PREDICT, body=iter([b"x" * 8000] * 4), encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()
    assert post(small, PREDICT, ONE).status == 200


def test_many_rows(small):
    answer = post(small, PREDICT, {**ONE, "instances": [1.0] * 101})
    assert answer.status == 400 and "101 rows, the limit is 100" in answer.error
    columns = post(small, PREDICT, {"signature_name": "one", "inputs": [1.0] * 101})
    assert columns.status == 400 and "101" in columns.error
    tensor = {"name": "x", "shape": [101], "datatype": "FP32", "data": [1.0] * 101}
    kserve = post(small, "/v2/models/ranker/infer", {"inputs": [tensor], "parameters": {"signature_name": "one"}})
    assert kserve.status == 400 and "101" in kserve.error


def test_all_bodies_together(make_http):
    """Counted as they come and as they unpack; who is over the limit is refused, whoever comes later is not."""
    body = json.dumps({"signature_name": "one", "instances": [1.0] * 500}).encode()
    server = make_http(limits=Limits(max_body_bytes=4000, max_total_body_bytes=4000))
    bodies = server.ctx.bodies
    bodies.take(4000 - len(body))  # of other requests
    assert post(server, PREDICT, body).status == 200 and bodies.held == 4000 - len(body)
    packed = post(server, PREDICT, gzip.compress(body), content_encoding="gzip")
    assert packed.status == 429 and "max_total_body_bytes" in packed.error
    bodies.take(1)
    assert post(server, PREDICT, body).status == 429
    connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
    connection.request("POST", PREDICT, body=iter([body[:1000], body[1000:]]), encode_chunked=True)
    assert connection.getresponse().status == 429
    connection.close()
    assert bodies.held == 4001 - len(body) and bodies.refused == 3
    bodies.give(bodies.held)
    assert post(server, PREDICT, body).status == 200
    assert post(server, PREDICT, b"{").status == 400
    assert bodies.held == 0


def test_bodies_that_come_slowly_count_while_they_come(make_http):
    """Also those that are handed over when they are complete; and no more once their clients are gone."""
    server = make_http(limits=Limits(max_body_bytes=4000, max_total_body_bytes=4000))
    bodies = server.ctx.bodies
    with send(server, raw_post(PREDICT, b"{" * 3900)[:-3000]):
        until(lambda: bodies.held == 3900)
        assert post(server, PREDICT, b"{" * 101).status == 429
    until(lambda: bodies.held == 0)
    assert post(server, PREDICT, ONE).status == 200 and bodies.refused == 1


def test_large_headers(small):
    answer = send(small, b"GET /v2 HTTP/1.1\r\n" + b"x-many: " + b"y" * 5000 + b"\r\n\r\n").recv(1000)
    assert b" 400 " in answer.split(b"\r\n")[0]
    assert get(small, "/v2").status == 200


def test_headers_that_never_end(small):
    """The connection is closed, and no thread waits for it."""
    with send(small, b"POST /v1/models/ranker:predict HTTP/1.1\r\nhost:") as waiting:
        assert waiting.recv(100) == b""


@pytest.mark.parametrize("came", [0, 40])
def test_a_body_that_does_not_come(make_http, came):
    """None of it, or a part."""
    server = make_http(limits=Limits(body_seconds=1))
    with send(server, raw_post(PREDICT, b"{" * 50)[: came - 50]) as waiting:
        answer = waiting.recv(1000)
    assert answer.startswith(b"HTTP/1.1 504") and server.app.gate.inside == 0


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_http_versions_and_a_client_that_asks_first(http_server, version):
    body = json.dumps(ONE).encode()
    head = f"POST {PREDICT} HTTP/{version}\r\nhost: x\r\ncontent-length: {len(body)}\r\nexpect: 100-continue\r\n\r\n"
    with send(http_server, head.encode()) as asking:
        assert b" 100 Continue" in asking.recv(100)
        asking.sendall(body)
        assert b" 200 OK" in asking.recv(1000)


def test_one_too_many(one_at_a_time, gate):
    thread, found = in_background(lambda: post(one_at_a_time, HELD, gate.json))
    until(gate.running)
    refused = post(one_at_a_time, HELD, gate.json)
    assert refused.status == 429 and "max_concurrent" in refused.error
    assert get(one_at_a_time, "/healthz").status == 200
    gate.open()
    thread.join()
    assert found[0].status == 200
    assert post(one_at_a_time, HELD, gate.json).status == 200


def test_a_client_that_goes_away(one_at_a_time, gate):
    with send(one_at_a_time, raw_post(HELD, json.dumps(gate.json).encode())):
        until(gate.running)
    assert one_at_a_time.ctx.metrics.wait_for("CANCELLED")
    until(lambda: not one_at_a_time.app.gate.inside)  # it is recorded first
    gate.open()
    assert post(one_at_a_time, HELD, gate.json).status == 200


def test_a_body_that_ends_early(small):
    with send(small, raw_post(PREDICT, b"{" * 50)[:-10]):
        until(lambda: small.app.gate.inside)
    assert post(small, PREDICT, ONE).status in (200, 429)
    assert small.ctx.metrics.wait_for("CANCELLED")


def test_requests_in_one_packet(http_server):
    body = json.dumps(ONE).encode()
    last = raw_post(PREDICT, b"[]", "connection: close\r\n")
    with send(http_server, raw_post(PREDICT, body) * 2 + last) as connection:
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.count(b"HTTP/1.1 200") == 2 and answer.count(b"HTTP/1.1 400") == 1


def test_deadlines(http_server):
    for wrong in ("abc", "-1", "0", "nan", "inf", ""):
        answer = post(http_server, PREDICT, ONE, x_tfctr_deadline_ms=wrong)
        assert answer.status == 400 and "x-tfctr-deadline-ms" in answer.error
    late = post(http_server, PREDICT, SLOW, x_tfctr_deadline_ms="20")
    assert late.status == 504
    stages = ("parse", "pack", "queue", "run")  # how far it gets within its time is the machine's affair
    assert late.headers["x-tfctr-stage"] in stages and late.headers["x-tfctr-stage"] in late.error
    gone = post(http_server, PREDICT, ONE, x_tfctr_deadline_ms="0.001")
    assert gone.status == 504 and gone.headers["x-tfctr-stage"]
    assert post(http_server, PREDICT, ONE, x_tfctr_deadline_ms="60000").status == 200


def test_the_servers_own_deadline(make_http):
    server = make_http(default_deadline_ms=20)
    assert post(server, PREDICT, SLOW, x_tfctr_deadline_ms="60000").status == 504


def test_stop_finishes_what_is_inside(make_http, grpc_models, gate):
    server = make_http(manager=grpc_models.manager)
    thread, found = in_background(lambda: post(server, HELD, gate.json))
    until(gate.running)
    opens = threading.Timer(0.1, gate.open)
    opens.start()
    assert server.stop(120)
    thread.join()
    assert found[0].status == 200
    with pytest.raises(ConnectionError):
        get(server, "/healthz")


def test_draining_is_told(make_http):
    server = make_http()
    assert get(server, "/readyz").status == 200
    server.ctx.state.drain()
    answer = get(server, "/readyz")
    assert answer.status == 503 and "shutting down" in answer.error
    assert get(server, "/healthz").status == 200


def test_tokens(make_http):
    server = make_http(auth=Auth(token=SECRET, admin_token=ADMIN, admin_address="http://127.0.0.1:9"))
    for headers in ({}, {"authorization": "Bearer wrong-token"}, {"authorization": SECRET}):
        answer = ask(server, "POST", PREDICT, ONE, headers)
        assert answer.status == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert get(server, "/metrics", **headers).status == 401
    for token in (SECRET, ADMIN):
        assert ask(server, "POST", PREDICT, ONE, {"authorization": f"Bearer {token}"}).status == 200
    assert get(server, "/healthz").status == get(server, "/readyz").status == 200
    load = "/v2/repository/models/ranker/load"
    refused = ask(server, "POST", load, b"", {"authorization": f"Bearer {SECRET}"})
    assert refused.status == 403 and "http://127.0.0.1:9" in refused.error
    assert ask(server, "POST", load, b"", {"authorization": f"Bearer {ADMIN}"}).status == 200
    odd = ask(server, "POST", load, {"parameters": {"config": "{}"}}, {"authorization": f"Bearer {ADMIN}"})
    assert odd.status == 400 and "'config'" in odd.error


def test_answers_are_recorded(make_http):
    recorded = Recorded()
    server = make_http(metrics=recorded)
    post(server, PREDICT, ONE)
    post(server, PREDICT, {"signature_name": "one", "instances": ["x"]})
    post(server, "/v1/models/rankre:predict", ONE)
    get(server, "/v2/models/ranker/versions/1")
    post(server, PREDICT, b"{")
    get(server, "/healthz")
    assert recorded.answers == [
        ("tfs", "Predict", "ranker", 2, "OK"),
        ("tfs", "Predict", "ranker", 2, "INVALID_ARGUMENT"),
        ("tfs", "Predict", "rankre", None, "NOT_FOUND"),
        ("kserve", "ModelMetadata", "ranker", 1, "OK"),
        ("tfs", "Predict", "ranker", None, "INVALID_ARGUMENT"),
    ]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["b64", "x", "name", "shape", "data", "datatype", "parameters"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["instances", "inputs", "examples", "signature_name", "user", "outputs", "parameters"]), JUNK, JUNK
)
def test_any_json_gets_an_answer(http_server, key, junk, more):
    body = json.dumps({"signature_name": "one", "instances": [1.0], key: junk}).encode()
    answer = post(http_server, PREDICT, body)
    assert answer.status in (200, 400) and ("predictions" in answer.json or answer.error)
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0], **(more if isinstance(more, dict) else {})}
    body = json.dumps({"inputs": [tensor], "parameters": {"signature_name": "one"}, key: junk}).encode()
    answer = post(http_server, "/v2/models/ranker/infer", body)
    assert answer.status in (200, 400, 501) and ("outputs" in answer.json or answer.error)


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_leave_the_server_serving(http_server, junk, start):
    message = (b"POST /v1/models/ranker:predict HTTP/1.1\r\n" if start else b"") + junk + b"\r\n\r\n"
    with send(http_server, message) as made, contextlib.suppress(OSError):  # the server may have closed it
        made.shutdown(socket.SHUT_WR)
        made.settimeout(0.02)
        made.recv(1000)
    assert get(http_server, "/healthz").status == 200
