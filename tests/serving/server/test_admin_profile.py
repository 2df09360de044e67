"""Profiling over the admin port: on, off, status, recordings; what is refused; what metrics say."""

import concurrent.futures
import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tests.serving.profiles import usual_priority
from tests.serving.server.http_client import ask, get, post
from tfctr.cli.main import main
from tfctr.serving.server.auth import Auth
from tfctr.serving.server.config import ProfileConfig

PATH = "/v1/models/ranker:profile"
WAIT = 120
writers_have_their_turn = usual_priority.writers_have_their_turn


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture(scope="module")
def admin(make_http, root):
    server = make_http(admin=True, profile=ProfileConfig(folder=str(root), max_mb=50))
    ctx = server.ctx
    ctx.metrics.watch(ctx.manager, ctx.ready, ctx.bodies, ctx.profiles)
    yield server
    server.ctx.profiles.stop("ranker")


def predict(manager):
    with manager.acquire("ranker", 2) as lease:
        outputs, _ = lease.version.signature("one").predict({"x": np.ones(3, np.float32)})
    np.testing.assert_array_equal(outputs["y"], [2, 2, 2])


def until(admin, manager, done):
    end = time.monotonic() + WAIT
    while not done(told := get(admin, PATH).json["profile"]):
        assert time.monotonic() < end, told
        predict(manager)
        time.sleep(0.05)  # who writes has the lowest priority
    return told


def test_on_and_off(admin, root, served_manager):
    told = get(admin, PATH).json
    assert told["model"] == "ranker" and told["profile"]["every"] == 0 and told["profile"]["folder"] is None
    on = post(admin, PATH, {"every": 2, "folder": "a", "max_mb": 20})
    assert on.status == 200, on.body
    told = on.json["profile"]
    assert told["every"] == 2 and told["max_mb"] == 20 and Path(told["folder"]) == root / "a" / "ranker"
    told = until(admin, served_manager, lambda told: told["files"] >= 2 and told["page"])
    assert told["bytes"] > 0 and told["error"] == "" and told["written"] >= 1
    assert "version 2" in Path(told["page"]).read_text()

    metrics = get(admin, "/metrics").body.decode()
    assert 'tfctr_traced_runs_total{model="ranker"}' in metrics
    assert 'tfctr_traces_lost_total{model="ranker",reason="write"} 0.0' in metrics
    assert 'tfctr_profile_bytes{model="ranker"}' in metrics

    recorded = post(admin, PATH, {"seconds": 0.2})
    assert recorded.status == 200, recorded.body
    space = xplane_pb2.XSpace.FromString(Path(recorded.json["profile"]["recorded"]).read_bytes())
    assert space.planes and recorded.json["profile"]["every"] == 2, "sampling goes on"

    off = post(admin, PATH, {"every": 0})
    assert off.json["profile"]["every"] == 0 and off.json["profile"]["files"] >= 3
    predict(served_manager)
    with served_manager.acquire("ranker", 2) as lease:
        assert lease.version.group.trace_counts()["every"] == 0


def test_recordings_of_one_second_are_all_kept(admin):
    told = [post(admin, PATH, {"seconds": 0.01}).json["profile"]["recorded"] for _ in range(3)]
    assert len(set(told)) == 3 and all(Path(path).is_file() for path in told)


def test_one_recording_at_a_time(admin, served_manager):
    """The second is refused by name, while requests are answered."""
    for seconds in (1.5, 10, 60):  # longer where the first is over before the second gets there
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(post, admin, PATH, {"seconds": seconds})
            while not (told := get(admin, PATH).json["profile"]["recording"]) and not first.done():
                time.sleep(0.002)
            second = post(admin, PATH, {"seconds": 0.01})
            predict(served_manager)
            assert first.result().status == 200
        assert get(admin, PATH).json["profile"]["recording"] is None
        if told and second.status != 200:
            break
    assert told.startswith(f"model 'ranker' is recorded for {seconds:g} s")
    assert second.status == 503 and "one recording at a time: model 'ranker'" in second.error


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"every": -1}, 400, "'every' is '-1'"),
        ({"every": "7"}, 400, "'every'"),
        ({"every": True}, 400, "'every'"),
        ({"every": 2**40}, 400, "every is"),
        ({"every": 0, "folder": "a"}, 400, "takes nothing beside it"),
        ({"folder": "a"}, 400, "'every'"),
        ({"evry": 1}, 400, "unknown 'evry'"),
        ({"every": 1, "max_mb": 51}, 400, "50 at most"),
        ({"every": 1, "max_mb": 0}, 400, "max_mb is 0"),
        ({"every": 1, "max_mb": "5"}, 400, "'max_mb'"),
        ({"every": 1, "folder": 5}, 400, "'folder'"),
        ({"every": 1, "folder": "/etc"}, 400, "no name of a folder"),
        ({"every": 1, "folder": "../x"}, 400, "no name of a folder"),
        ({"every": 1, "folder": ".."}, 400, "no name of a folder"),
        ({"every": 1, "folder": "a/b"}, 400, "no name of a folder"),
        ({"every": 1, "folder": ""}, 400, "no name of a folder"),
        ({"seconds": 0}, 400, "seconds is 0"),
        ({"seconds": 61}, 400, "at most 60"),
        ({"seconds": "2"}, 400, "'seconds'"),
        ({"seconds": 1, "every": 2}, 400, "stands alone"),
        (b"[]", 400, "expected an object"),
    ],
)
def test_refused(admin, body, status, said):
    answer = post(admin, PATH, body)
    assert answer.status == status and said in answer.error, answer.body
    assert get(admin, PATH).json["profile"]["every"] == 0


def test_the_command(admin, capfd):
    def command(*words):
        code = main(["admin", "profile", "ranker", *words, "--url", admin.url])
        return (code, *capfd.readouterr())

    code, out, _ = command("--every", "1000000", "--max-mb", "5")
    assert code == 0 and "1 request in 1000000 is traced" in out and "of 5 MB, in " in out
    code, out, _ = command("--status", "--json")
    assert code == 0 and json.loads(out)["profile"]["every"] == 1_000_000
    code, out, _ = command("--off")
    assert code == 0 and "no request is traced" in out
    code, _, err = command("--every", "5", "--folder", "../x")
    assert code == 2 and "no name of a folder" in err


def test_no_way_out_of_the_root(admin, root, tmp_path):
    (root / "link").symlink_to(tmp_path)
    answer = post(admin, PATH, {"every": 1, "folder": "link"})
    assert answer.status == 400 and "leads out of" in answer.error
    assert list(tmp_path.iterdir()) == []


def test_no_such_model(admin):
    assert get(admin, "/v1/models/rankre:profile").status == 404
    assert post(admin, "/v1/models/rankre:profile", {"every": 5}).status == 404
    assert post(admin, "/v1/models/rankre:profile", {"seconds": 1}).status == 404


def test_the_admin_token(make_http):
    server = make_http(admin=True, auth=Auth(token="serving-token", admin_token="admin-token"))
    for method, body in (("GET", None), ("POST", json.dumps({"every": 1}).encode())):
        for token in ("", "Bearer serving-token"):
            assert ask(server, method, PATH, body, {"authorization": token}).status == 401
    assert ask(server, "GET", PATH, None, {"authorization": "Bearer admin-token"}).status == 200


def test_not_on_the_public_port(http_server):
    assert post(http_server, PATH, {"every": 1}).status in (404, 405)


def test_a_server_that_goes_down_ends_a_recording(make_http):
    server = make_http(admin=True)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(post(server, PATH, {"seconds": 60})))
    thread.start()
    end = time.monotonic() + WAIT
    while not server.ctx.profiles.describe("ranker")["recording"]:
        assert time.monotonic() < end
    server.ctx.profiles.close()
    thread.join(WAIT)
    assert answers[0].status == 503 and "going down" in answers[0].error
