"""TF Serving's REST interface, asked as curl asks, on a real port over a bundle and a plain SavedModel."""

import base64
import gzip
import json
import zlib

import numpy as np
import pytest

from tests.serving.server.http_client import ask, get, post

ROWS = [
    {"user_id": 1, "price": [1, 2.5], "name": "a", "tags": [1, 2]},
    {"user_id": 103, "price": [0, 4], "name": "b:c", "tags": []},
    {"user_id": 7, "price": [-1, 0], "name": "", "tags": [5]},
]
COLUMNS = {key: [row[key] for row in ROWS] for key in ROWS[0]}
PREDICT = "/v1/models/ranker:predict"


@pytest.fixture(scope="module")
def expected(served_folder):
    """Of version 1, by the session that all else is measured against."""
    from tfctr import ServingSession

    with ServingSession(served_folder / "1") as session:
        return session.predict(COLUMNS)


def test_rows(http_server, expected):
    answer = post(http_server, "/v1/models/ranker/versions/1:predict", {"instances": ROWS})
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    predictions = answer.json["predictions"]
    assert [set(one) for one in predictions] == [{"score", "pair"}] * 3
    np.testing.assert_array_equal(np.float32([one["score"] for one in predictions]), expected["score"])
    np.testing.assert_array_equal(np.float32([one["pair"] for one in predictions]), expected["pair"])


def test_columns(http_server, expected):
    answer = post(http_server, "/v1/models/ranker/labels/stable:predict", {"inputs": COLUMNS})
    outputs = answer.json["outputs"]
    np.testing.assert_array_equal(np.float32(outputs["score"]), expected["score"])
    np.testing.assert_array_equal(np.float32(outputs["pair"]), expected["pair"])


def test_the_highest_version_answers(http_server, expected):
    answer = post(http_server, PREDICT, {"signature_name": "serving_default", "instances": ROWS})
    np.testing.assert_array_equal(np.float32([p["score"] for p in answer.json["predictions"]]), 2 * expected["score"])
    canary = post(http_server, "/v1/models/ranker/labels/canary:predict", {"instances": ROWS})
    assert canary.json == answer.json


def test_one_input_and_one_output_go_without_names(http_server):
    path = "/v1/models/ranker/versions/1:predict"
    assert post(http_server, path, {"signature_name": "one", "instances": [1, 2.5]}).json == {"predictions": [1.0, 2.5]}
    assert post(http_server, path, {"signature_name": "one", "inputs": [0.1]}).json == {"outputs": [0.1]}
    named = post(http_server, path, {"signature_name": "one", "instances": [{"x": 1}, {"x": 3}]})
    assert named.json == {"predictions": [1.0, 3.0]}


def test_text_and_bytes(http_server):
    raw = base64.b64encode(b"\xff\x00").decode()
    texts = ["ä:{", "", {"b64": raw}, {"b64": ""}]
    answer = post(http_server, PREDICT, {"signature_name": "echo", "instances": texts})
    assert answer.json == {"predictions": ["ä:{", "", {"b64": raw}, ""]}
    column = post(http_server, PREDICT, {"signature_name": "echo", "inputs": {"text": texts}})
    assert column.json == {"outputs": ["ä:{", "", {"b64": raw}, ""]}
    alone = post(http_server, PREDICT, {"signature_name": "echo", "instances": [{"b64": raw}]})
    assert alone.json == {"predictions": [{"b64": raw}]}


def test_what_all_rows_share_may_come_once(http_server, expected):
    rows = [{key: row[key] for key in ("price", "name", "tags")} for row in ROWS]
    answer = post(http_server, PREDICT, {"instances": rows, "user": {"user_id": 1}})
    full = post(http_server, PREDICT, {"instances": [{**row, "user_id": 1} for row in rows]})
    assert answer.status == 200 and answer.json == full.json
    twice = post(http_server, PREDICT, {"instances": ROWS, "user": {"user_id": 1}})
    assert twice.status == 400 and "'user_id' is given by 'user' and beside it" in twice.error


def test_a_ragged_output_in_columns(http_server):
    asked = {"signature_name": "ragged", "inputs": {"tags": [1, 2, 3], "tags_1": [0, 2, 2, 3]}}
    answer = post(http_server, PREDICT, asked)
    assert answer.status == 200, answer.body
    values = {name.rpartition("/")[2]: value for name, value in answer.json["outputs"].items()}
    assert [2, 4, 6] in values.values() and [0, 2, 2, 3] in values.values()


def test_classify_and_regress(http_server):
    examples = [{"x": 0.25}, {"x": [0.5]}]
    answer = post(http_server, "/v1/models/ranker:classify", {"signature_name": "classify", "examples": examples})
    assert answer.json == {"results": [[["no", 0.75], ["yes", 0.25]], [["no", 0.5], ["yes", 0.5]]]}
    shared = {"signature_name": "one", "context": {"x": 2.0}, "examples": [{}, {"x": 0.5}]}
    assert post(http_server, "/v1/models/ranker/versions/1:regress", shared).json == {"results": [2.0, 0.5]}


def test_status(http_server):
    states = get(http_server, "/v1/models/ranker").json["model_version_status"]
    ok = {"error_code": "OK", "error_message": ""}
    assert states == [{"version": v, "state": "AVAILABLE", "status": ok} for v in ("2", "1")]
    assert get(http_server, "/v1/models/ranker/labels/stable").json["model_version_status"] == states[1:]
    assert get(http_server, "/v1/models/ranker/versions/2").json["model_version_status"] == states[:1]


def test_metadata(http_server):
    found = get(http_server, "/v1/models/ranker/versions/1/metadata").json
    assert found["model_spec"] == {"name": "ranker", "signature_name": "", "version": "1"}
    signatures = found["metadata"]["signature_def"]["signature_def"]
    price = signatures["serving_default"]["inputs"]["price"]
    assert price["dtype"] == "DT_FLOAT"
    assert [one["size"] for one in price["tensor_shape"]["dim"]] == ["-1", "2"]
    assert set(signatures["one"]["outputs"]) == {"y"}


def test_compressed_both_ways(http_server):
    rows = ROWS * 200
    plain = post(http_server, PREDICT, {"instances": rows})
    assert "content-encoding" not in plain.headers
    body = json.dumps({"instances": rows}).encode()
    packed = post(http_server, PREDICT, gzip.compress(body), content_encoding="gzip", accept_encoding="gzip")
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    deflated = post(http_server, PREDICT, zlib.compress(body), content_encoding="deflate", accept_encoding="deflate")
    assert zlib.decompress(deflated.body) == plain.body


def test_timing_adds_up(http_server):
    """TF Serving #1955, #1624: time outside the graph is told too, to the nanosecond."""
    answer = post(http_server, PREDICT, {"instances": ROWS}, x_tfctr_timing="1", x_request_id="r-1")
    assert answer.headers["x-request-id"] == "r-1"
    timing = json.loads(answer.headers["x-tfctr-timing"])
    parts = ("receive", "wait", "parse", "pack", "queue", "batch", "run", "split", "reply", "other")
    assert sum(timing[part] for part in parts) == timing["server"]
    assert all(timing[part] >= 0 for part in parts), timing
    assert timing["run"] > 0 and timing["parse"] > 0
    assert "x-tfctr-timing" not in post(http_server, PREDICT, {"instances": ROWS}).headers


def test_request_ids_are_made_and_strange_ones_are_not_taken(http_server):
    first, second = (post(http_server, PREDICT, {"instances": ROWS}).headers["x-request-id"] for _ in range(2))
    assert first and second and first != second
    odd = get(http_server, "/v1/models/ranker", x_request_id="caf\xe9").headers["x-request-id"]
    assert odd.isascii()
    assert len(get(http_server, "/v1/models/ranker", x_request_id="y" * 500).headers["x-request-id"]) == 128


def without(key):
    return [{name: value for name, value in row.items() if name != key} for row in ROWS]


def replaced(key, value):
    return [*ROWS[:2], {**ROWS[2], key: value}]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "no valid JSON"),
        (b'{"instances": [{"user_id": 1e999}]}', "instances[0].user_id"),
        (b"[" * 100_000, "deep"),
        ({}, "neither"),
        ({"instances": ROWS, "inputs": COLUMNS}, "both"),
        ({"instance": ROWS}, "'instance'"),
        ({"instances": []}, "one or more rows"),
        ({"instances": {}}, "one or more rows"),
        ({"instances": [*ROWS[:1], 3]}, "instances[1]"),
        ({"instances": [3]}, "without a name"),
        ({"instances": ROWS, "signature_name": 3}, "'signature_name' is a JSON number"),
        ({"instances": ROWS, "signature_name": "serving_defualt"}, "did you mean 'serving_default'"),
        ({"instances": without("price")}, "price"),
        ({"instances": without("tags")}, "tags"),
        ({"instances": [ROWS[0], *without("price")[1:]]}, "price"),
        ({"instances": [{**row, "prize": 1} for row in ROWS]}, "prize"),
        ({"instances": replaced("user_id", 1.5)}, "user_id"),
        ({"instances": replaced("user_id", 2**63)}, "user_id"),
        ({"instances": replaced("user_id", 10**30)}, "user_id"),
        ({"instances": replaced("user_id", "1")}, "user_id"),
        ({"instances": replaced("user_id", None)}, "user_id"),
        ({"instances": replaced("user_id", [1])}, "user_id"),
        ({"instances": replaced("user_id", {"a": 1})}, "user_id"),
        ({"instances": replaced("price", [1])}, "price"),
        ({"instances": replaced("price", [1, 2, 3])}, "price"),
        ({"instances": replaced("price", 1e300)}, "price"),
        ({"instances": replaced("price", [1, 1e300])}, "price"),
        ({"instances": replaced("name", 3)}, "name"),
        ({"instances": replaced("name", {"b64": "%%%"})}, "instances[2].name"),
        ({"instances": replaced("name", {"b64": 7})}, "name"),
        ({"instances": replaced("tags", [[1]])}, "tags"),
        ({"instances": replaced("tags", ["x"])}, "tags"),
        ({"instances": replaced("tags", [1.5])}, "tags"),
        ({"inputs": {**COLUMNS, "user_id": [1, 2]}}, "user_id"),
        ({"inputs": {**COLUMNS, "user_id": []}}, "user_id"),
        ({"inputs": {**COLUMNS, "name": ["a", "b", {"b64": "*"}]}}, "name"),
        ({"inputs": COLUMNS, "user": {"user_id": 1}}, "'user_id' is given by 'user' and beside it"),
        ({"inputs": COLUMNS, "user": [1]}, "'user': expected an object"),
        ({"inputs": [1, 2]}, "without a name"),
        ({"inputs": None}, "without a name"),
    ],
)
def test_malformed(http_server, body, said):
    answer = post(http_server, PREDICT, body)
    assert answer.status == 400, answer.body
    assert said in answer.error and "model 'ranker'" in answer.error
    assert len(answer.error) < 1000
    assert post(http_server, PREDICT, {"instances": ROWS}).status == 200


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"examples": []}, "one or more"),
        ({"signature_name": "one", "examples": [3]}, "examples[0]"),
        ({"signature_name": "one", "examples": [{"x": "text"}]}, "x"),
        ({"signature_name": "one", "examples": [{"x": [1, "a"]}]}, "examples[0].x"),
        ({"signature_name": "one", "examples": [{"x": 1e300}]}, "examples[0].x"),
        ({"signature_name": "one", "examples": [{}]}, "x"),
        ({"signature_name": "one", "examples": [{"x": 1.0}], "contexts": {}}, "'contexts'"),
        ({"signature_name": "one", "examples": [{"x": 1.0}], "context": 3}, "'context'"),
    ],
)
def test_malformed_examples(http_server, body, said):
    answer = post(http_server, "/v1/models/ranker:regress", body)
    assert answer.status == 400 and said in answer.error and answer.error.startswith("model 'ranker'")


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("POST", "/v1/models/rankre:predict", 404, "rankre"),
        ("POST", "/v1/models/ranker/versions/9:predict", 404, "9"),
        ("POST", "/v1/models/ranker/versions/x:predict", 400, "'x'"),
        ("POST", "/v1/models/ranker/versions/99999999999999999999:predict", 400, "expected a whole number"),
        ("POST", "/v1/models/ranker/labels/nightly:predict", 404, "nightly"),
        ("GET", "/v1/models/rankre", 404, "rankre"),
        ("GET", "/v1/models/rankre/metadata", 404, "rankre"),
        ("GET", "/v1/models/ranker/versions/9", 404, "9"),
        ("GET", "/v1/models/ranker/labels/nightly", 404, "nightly"),
        ("GET", PREDICT, 405, "POST"),
        ("POST", "/v1/models/ranker", 405, "GET"),
        ("GET", "/v1/model/ranker", 404, "no such path"),
        ("GET", "/", 404, "no such path"),
    ],
)
def test_what_is_not_there(http_server, method, path, status, said):
    answer = ask(http_server, method, path, {"instances": ROWS} if method == "POST" else None)
    assert answer.status == status and said in answer.error
    assert answer.headers["x-request-id"]


def test_health_and_metrics(http_server):
    for path in ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"):
        assert get(http_server, path).status == 200
    post(http_server, PREDICT, {"instances": ROWS})
    for path in ("/metrics", "/monitoring/prometheus/metrics"):
        answer = get(http_server, path)
        assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain")
        assert b'model="ranker"' in answer.body
    head = ask(http_server, "HEAD", "/v2/health/live")
    assert head.status == 200 and head.body == b""
