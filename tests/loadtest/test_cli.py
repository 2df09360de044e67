"""The command, in process, against a small HTTP server and with bad arguments."""

import json

import numpy as np
import pytest

from tests.loadtest.fakes import as_json, http_server
from tfctr.cli.main import main

METADATA = {
    "name": "m", "outputs": [],
    "inputs": [
        {"name": "ids", "datatype": "INT64", "shape": [-1]}, {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
    ],
}  # fmt: skip
FAST = ["--duration", "0.15", "--warmup", "0", "--requests", "3", "--rows", "2-4"]


@pytest.fixture
def server():
    seen = []

    def answer(method, path, headers, body):
        if method == "GET":
            return as_json(METADATA) if path == "/v2/models/m" else (404, {}, b"")
        seen.append((path, dict(headers), body))
        return 200, {}, b"{}"

    with http_server(answer) as port:
        yield f"http://127.0.0.1:{port}/v2/models/m", seen


def test_rates_in_turn_as_json_and_as_a_page(server, capsys, tmp_path):
    address, seen = server
    page = tmp_path / "load.html"
    assert main(["loadtest", address, "--rate", "60,120", *FAST, "--json", "--html", str(page)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [run["rate"] for run in told["runs"]] == [60, 120]
    assert all(run["summary"]["failed"] == 0 for run in told["runs"])
    assert sum(run["summary"]["ok"] for run in told["runs"]) + 1 == len(seen)  # and the first request alone
    assert told["protocol"] == "kserve" and told["search"] is None
    assert "<svg" in page.read_text()
    assert list(tmp_path.iterdir()) == [page]
    path, headers, _ = seen[0]
    assert path == "/v2/models/m/infer" and headers["Content-Type"] == "application/octet-stream"


def test_a_closed_loop_of_a_file_with_headers(server, capsys, tmp_path):
    address, seen = server
    np.savez(tmp_path / "in.npz", ids=np.arange(6), x=np.zeros((6, 3), np.float32))
    (tmp_path / "token").write_text("secret\n")
    more = ["--inputs", str(tmp_path / "in.npz"), "--encoding", "json", "--header", "x-a: b", "--deadline-ms", "50"]
    more += ["--token-file", str(tmp_path / "token"), "--clients", "2"]
    assert main(["loadtest", address, *FAST, *more]) == 0
    assert "2 clients" in capsys.readouterr().out
    _, headers, body = seen[0]
    assert headers["x-a"] == "b" and headers["x-tfctr-deadline-ms"] == "50"
    assert headers["Authorization"] == "Bearer secret"
    assert json.loads(body)["inputs"][0]["data"][:2] == [0, 1]


def test_the_search_ends_at_the_highest_rate_allowed(server, capsys):
    address, _ = server
    search = ["--find-rate", "--p99-ms", "20000", "--start-rate", "40", "--max-rate", "40", "--min-requests", "1"]
    assert main(["loadtest", address, *search, *FAST]) == 0
    assert "40 requests/s keep a p99 of 20000 ms (--max-rate: more may be possible)" in capsys.readouterr().out


def test_a_missed_budget_exits_with_6(server, capsys):
    address, _ = server
    assert main(["loadtest", address, "--p99-ms", "0.000001", *FAST]) == 6


def test_a_first_request_that_fails_ends_the_test(capsys):
    def answer(method, path, headers, body):
        return as_json(METADATA) if method == "GET" else (400, {}, b"input 'x' is wrong")

    with http_server(answer) as port:
        assert main(["loadtest", f"http://127.0.0.1:{port}/v2/models/m", *FAST]) == 2
    assert "the first request failed with HTTP_400: input 'x' is wrong" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "or the folder of a model"),
        (["http://192.0.2.1:1/m"], "--allow-remote"),
        (["http://127.0.0.1:1/m"], "no metadata"),
        (["http://127.0.0.1:1/m", "--rate", "1,x"], "expected numbers separated by commas"),
        (["http://127.0.0.1:1/m", "--rate", "0"], "rates are positive"),
        (["http://127.0.0.1:1/m", "--find-rate"], "--p99-ms"),
        (["http://127.0.0.1:1/m", "--find-rate", "--rate", "5"], "--start-rate"),
        (["http://127.0.0.1:1/m", "--rows", "a-b"], "--rows 'a-b'"),
        (["http://127.0.0.1:1/m", "--rows", "5-2"], "expected 1 <= least <= most"),
        (["http://127.0.0.1:1/m", "--header", "x"], "expected NAME: VALUE"),
        (["http://127.0.0.1:1/m", "--ca", "none.pem"], "none.pem: no readable certificate"),
        (["http://127.0.0.1:1/m", "--token-file", "none"], "none: no readable token"),
        (["http://127.0.0.1:1/m", "--duration", "nan"], "--duration"),
        (["http://127.0.0.1:1/m", "--p99-ms", "-1"], "expected a positive number"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_2(arguments, message, capsys):
    assert main(["loadtest", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
