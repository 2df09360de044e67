"""The admin port: load, unload, reload, rollback, labels, over a manager of its own."""

import shutil

import pytest

from tests.serving.server.http_client import ask, get, post
from tfctr.serving.server.auth import Auth
from tfctr.serving.server.limits import Limits


@pytest.fixture(scope="module")
def manager(served_folder, tmp_path_factory):
    from tfctr.serving.versions import All, ModelManager, ModelSpec

    folder = tmp_path_factory.mktemp("admin") / "ranker"
    for version in ("1", "2"):
        shutil.copytree(served_folder / "2", folder / version)
    (folder / "3").mkdir()
    made = ModelManager([ModelSpec(name="ranker", base_path=folder, policy=All(), poll_seconds=0)])
    assert made.wait(240)
    yield made
    made.close(5)


@pytest.fixture(scope="module")
def admin(make_http, manager):
    return make_http(admin=True, manager=manager)


def states(answer):
    assert answer.status == 200, answer.body
    return {one["number"]: one["state"] for one in answer.json["versions"]}


def test_the_life_of_a_model(admin):
    (model,) = get(admin, "/v1/status").json["models"]
    assert model["name"] == "ranker" and model["default"] == 2
    loaded = {one["number"]: one for one in model["versions"]}
    assert loaded[2]["state"] == "AVAILABLE" and loaded[2]["describe"]["executors"]

    path = "/v1/models/ranker"
    assert post(admin, path + ":label", {"label": "stable", "version": 1}).json["labels"] == {"stable": 1}
    assert post(admin, path + ":label", {"label": "stable", "version": None}).json["labels"] == {}
    rolled = post(admin, path + ":rollback", b"")
    assert states(rolled)[2] != "AVAILABLE" and rolled.json["default"] == 1
    assert states(post(admin, path + ":load", {"version": 2}))[2] == "AVAILABLE"
    assert states(post(admin, path + ":reload", {"version": "2"}))[2] == "AVAILABLE"
    assert states(post(admin, path + ":unload", {"version": 1}))[1] != "AVAILABLE"
    assert get(admin, path).json["default"] == 2
    assert states(post(admin, path + ":unload", {}))[2] != "AVAILABLE"
    assert get(admin, "/readyz").status == 503
    assert states(post(admin, path + ":load", {"version": 1}))[1] == "AVAILABLE"
    assert get(admin, "/readyz").status == 200


@pytest.mark.parametrize(
    ("verb", "body", "status", "said"),
    [
        ("load", {"version": 9}, 404, "9"),
        ("load", {"version": -1}, 400, "'version'"),
        ("load", {"version": 1.5}, 400, "'version'"),
        ("load", {"version": 2**63}, 400, "'version'"),
        ("load", {"versoin": 1}, 400, "'versoin'"),
        ("load", b"[]", 400, "expected an object"),
        ("load", {"label": "x"}, 400, "'label'"),
        ("load", {"accept_changed_inputs": 1}, 400, "expected true or false"),
        ("unload", {"version": 1, "accept_changed_inputs": True}, 400, "unknown 'accept_changed_inputs'"),
        ("unload", {"version": 9}, 404, "9"),
        ("label", {"version": 1}, 400, "label"),
        ("label", {"label": "stable"}, 400, "label"),
        ("label", {"label": "7", "version": 1}, 400, "'7'"),
        ("label", {"label": "stable", "version": 9}, 404, "9"),
        ("promote", {}, 405, "POST is not for this path"),
    ],
)
def test_refused(admin, verb, body, status, said):
    answer = post(admin, f"/v1/models/ranker:{verb}", body)
    assert answer.status == status and said in answer.error, answer.body


def test_a_version_that_may_not_serve(admin):
    """The folder 3 is empty."""
    answer = post(admin, "/v1/models/ranker:load", {"version": 3})
    assert answer.status == 412 and "version 3 was not loaded: " in answer.error
    assert {one["number"]: one["error"] for one in get(admin, "/v1/models/ranker").json["versions"]}[3]


def test_labels_of_an_unloaded_version_are_told(admin):
    path = "/v1/models/ranker"
    assert post(admin, path + ":load", {"version": 1, "accept_changed_inputs": True}).status == 200
    post(admin, path + ":label", {"label": "old", "version": 1})
    told = post(admin, path + ":unload", {"version": 1}).json
    assert told["labels"] == {} and told["labels_unloaded"] == {"old": 1}
    told = post(admin, path + ":load", {"version": 1}).json
    assert told["labels"] == {"old": 1} and told["labels_unloaded"] == {}
    assert [one["number"] for one in told["versions"] if one["pinned"]] == [1]


PAGES = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:8502"},  # no page is served here
    {"sec-fetch-site": "cross-site"},
    {"host": "evil.example:8502"},  # its name was made to mean 127.0.0.1
    {"host": "127.0.0.1.evil.example"},
    {"host": "10.0.0.7"},
    {"host": "[::1"},
]


@pytest.mark.parametrize("headers", PAGES)
def test_web_pages_do_not_administer(admin, headers):
    for method, path in (("POST", "/v1/models/ranker:load"), ("GET", "/v1/status")):
        answer = ask(admin, method, path, b"" if method == "POST" else None, headers)
        assert answer.status == 403 and "--admin-token-file" in answer.error
    assert get(admin, "/healthz", **headers).status == 200


@pytest.mark.parametrize("host", ["127.0.0.1:8502", "localhost", "LOCALHOST:9000", "127.9.9.9", "[::1]:8502"])
def test_names_of_this_machine_are_taken(admin, host):
    assert ask(admin, "GET", "/v1/status", None, {"host": host}).status == 200


def test_who_has_the_admin_token_may_come_from_anywhere(make_http):
    server = make_http(admin=True, auth=Auth(admin_token="admin-token"))
    for headers in PAGES:
        assert ask(server, "GET", "/v1/status", None, {**headers, "authorization": "Bearer admin-token"}).status == 200
        assert ask(server, "GET", "/v1/status", None, headers).status == 401


def test_no_such_model_or_path(admin):
    assert post(admin, "/v1/models/rankre:load", {}).status == 404
    assert get(admin, "/v1/models/rankre").status == 404
    assert get(admin, "/v1/models/ranker:load").status == 405
    assert post(admin, "/v1/models/ranker:predict", {}).status in (404, 405)
    assert get(admin, "/metrics").status == 200


def test_the_admin_token(make_http):
    server = make_http(admin=True, auth=Auth(token="serving-token", admin_token="admin-token"), limits=Limits())
    for token in ("", "Bearer serving-token"):
        assert ask(server, "GET", "/v1/status", None, {"authorization": token}).status == 401
    assert ask(server, "GET", "/v1/status", None, {"authorization": "Bearer admin-token"}).status == 200
    assert get(server, "/healthz").status == 200
