"""Options of `tfctr serve` and `tfctr admin`: what they mean, and what is refused before anything starts."""

import argparse
import importlib.util
import json
import socket
import threading

import pytest

from tfctr.cli import admin, serve
from tfctr.cli.main import build_parser, main
from tfctr.errors import UsageError

ACCEPT = "--accept-changed-inputs"


def checked(capsys, *argv) -> dict:
    assert main(["serve", *map(str, argv), "--check-config"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def refused(capsys, *argv) -> str:
    assert main(list(map(str, argv))) == 2
    return capsys.readouterr().err


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "models" / "ranker"
    made.mkdir(parents=True)
    return made


def test_every_option_reaches_the_configuration(capsys, folder, tmp_path):
    made = checked(
        capsys, folder, "--name", "r2", "--executors", 3, "--intra-op-threads", 2, "--routing", "round_robin",
        "--queue-limit", 9, "--max-batch-rows", 64, "--max-delay-us", 100, "--engine", "openvino", "--no-fallback",
        "--poll-seconds", 0.5, ACCEPT, "--op-library", "a.so", "--host", "::1", "--grpc-port", 1, "--http-port", "off",
        "--admin-port", 0, "--admin-host", "127.0.0.2", "--tls-certificate", "c", "--tls-key", "k",
        "--tls-client-ca", "ca", "--token-file", "t", "--admin-token-file", "at", "--default-deadline-ms", 50,
        "--max-body-bytes", 4096, "--max-total-body-bytes", 8192, "--max-rows", 10, "--max-concurrent", 11,
        "--drain-seconds", 1.5, "--log-file", "l", "--log-level", "error",
        "--log-requests", "all", "--slow-ms", 5, "--no-metrics", "--profile-every", 500, "--profile-folder", "p",
        "--profile-max-mb", 7,
    )  # fmt: skip
    (model,) = made.pop("models")
    assert model["name"] == "r2" and model["path"] == str(folder) and model["poll_seconds"] == 0.5
    assert model["accept_changed_inputs"] is True
    assert model["group"] == {
        "executors": 3, "intra_op_threads": 2, "cpu_sets": [], "routing": "round_robin", "queue_limit": 9,
        "engine": "openvino", "fallback": False, "table_memory": None,
    }  # fmt: skip
    assert model["batching"] == {"max_batch_rows": 64, "max_delay_us": 100}
    server = made["server"]
    assert (server["host"], server["grpc_port"], server["http_port"], server["admin_port"]) == ("::1", 1, None, 0)
    assert server["default_deadline_ms"] == 50 and server["drain_seconds"] == 1.5
    assert made["limits"]["max_total_body_bytes"] == 8192
    assert made["limits"]["max_body_bytes"] == 4096 and made["limits"]["max_concurrent"] == 11
    assert made["profile"] == {"every": 500, "folder": "p", "max_mb": 7}
    assert made["tls"] == {"certificate": "c", "key": "k", "client_ca": "ca"}
    assert made["tokens"] == {"serving_file": "t", "admin_file": "at"} and made["op_libraries"] == ["a.so"]
    assert made["logs"] == {"file": "l", "level": "error", "requests": "all", "slow_ms": 5, "lines_per_second": 20}
    assert made["metrics"] == {"enabled": False}


def test_the_defaults_are_loopback_and_tf_servings_ports(capsys, folder):
    made = checked(capsys, folder)
    server = made["server"]
    assert (server["host"], server["admin_host"]) == ("127.0.0.1", "127.0.0.1")
    assert (server["grpc_port"], server["http_port"], server["admin_port"]) == (8500, 8501, 8502)
    assert made["models"][0]["name"] == "ranker" and made["models"][0]["batching"] is None
    assert made["models"][0]["versions"] == {"latest": 1} and not made["models"][0]["accept_changed_inputs"]


def test_tf_servings_spelling_is_taken(capsys, folder, tmp_path):
    (tmp_path / "models.config").write_text(
        f'model_config_list {{ config {{ name: "a" base_path: "{folder}" model_platform: "tensorflow" }} }}'
    )
    made = checked(
        capsys, "--model_config_file", tmp_path / "models.config", "--port", 7000, "--rest_api_port", 7001, "--batching"
    )
    assert made["models"][0]["name"] == "a" and made["models"][0]["batching"]["max_batch_rows"] == 1024
    assert made["server"]["grpc_port"] == 7000 and made["server"]["http_port"] == 7001


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], ["no model is named"]),
        (["no/such/folder"], ["no/such/folder: no such folder"]),
        (["{folder}", "{folder}"], ["model 'ranker' is there twice"]),
        (["{folder}", "--executors", "0"], ["group.executors is 0", "at least 1"]),
        (["{folder}", "--cpu-sets", "a"], ["--cpu-sets 'a'", "0-1;2-3"]),
        (["{folder}", "--max-batch-rows", "0"], ["batching.max_batch_rows is 0"]),
        (["{folder}", "--default-deadline-ms", "nan"], ["server.default_deadline_ms is nan"]),
        (["{folder}", "--grpc-port", "off", "--http-port", "off"], ["neither a gRPC nor an HTTP port"]),
        (["{folder}", "--admin-host", "0.0.0.0"], ["--admin-token-file"]),
        (["{folder}", "--tls-key", "k"], ["--tls-key goes with --tls-certificate"]),
        (["{folder}", "--tls-certificate", "c"], ["--tls-certificate goes with --tls-key"]),
        (["{folder}", "--tls-client-ca", "c"], ["--tls-client-ca goes with --tls-certificate and --tls-key"]),
        (["{folder}", "--max-body-bytes", "2000000000"], ["max_total_body_bytes is 1073741824"]),
        (["{folder}", "--profile-every", "0"], ["profile.every is 0"]),
        (["{folder}", "--profile-max-mb", "0.5"], ["profile.max_mb is 0.5"]),
        (["{folder}", "--config", "no.json"], ["no.json: configuration can't be read"]),
        (["{folder}", "--name", "a", "--config", "x"], ["--name: expected exactly one MODEL_DIR"]),
        (["{folder}", "--tls-certificate", "no.pem", "--tls-key", "no.pem"], ["no.pem: TLS file can't be read"]),
        (["{folder}", "--token-file", "no"], ["no: token file can't be read"]),
        (
            ["{folder}", "--op-library", "no.so", "--grpc-port", "0", "--http-port", "0", "--admin-port", "0"],
            ["no.so"],
        ),
        (["{folder}", "--host", "203.0.113.77"], ["203.0.113.77 is no address of this machine"]),
    ],
)
def test_what_is_wrong_ends_before_a_model_is_touched(capsys, folder, argv, words):
    error = refused(capsys, "serve", *(one.format(folder=folder) for one in argv))
    for word in words:
        assert word in error
    assert error.count("\n") == 1


def test_packages_that_are_missing_are_named(capsys, folder, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "starlette" else found(name))
    for command in (["serve", folder], ["loadtest", "grpc://127.0.0.1:1/ranker"]):
        error = refused(capsys, *command)
        assert f"tfctr {command[0]}" in error and "starlette (pip install 'tfctr[serve]')" in error
        assert error.count("\n") == 1


def test_a_taken_port_is_named_with_its_option(capsys, folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for option, others in (("--grpc-port", "--http-port"), ("--http-port", "--grpc-port")):
            error = refused(capsys, "serve", folder, option, port, others, 0, "--admin-port", 0)
            assert f"port {port} of 127.0.0.1 is taken" in error and option in error


def test_ports_out_of_range_are_refused_by_the_parser(capsys, folder):
    assert main(["serve", str(folder), "--grpc-port", "70000"]) == 2
    assert "70000 is not between 0 and 65535" in capsys.readouterr().err


def test_cpu_sets():
    assert serve.cpu_sets("0-1;2,5-6;3") == [[0, 1], [2, 5, 6], [3]]
    for wrong in ("", "1-", "3-1", "0;;1", "-1"):
        with pytest.raises(UsageError, match="--cpu-sets"):
            serve.cpu_sets(wrong)


def test_help_teaches(capsys):
    for command in ("serve", "admin"):
        assert main([command, "--help"]) == 0
        text = capsys.readouterr().out
        assert "exit codes of" in text and f"tfctr {command} " in text
    assert "TF Serving" in text or "8502" in text


def admin_args(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["admin", *words])


@pytest.mark.parametrize(
    ("words", "path", "body"),
    [
        (["status"], "/v1/status", None),
        (["status", "a b/c"], "/v1/models/a%20b%2Fc", None),
        (["load", "m", "7"], "/v1/models/m:load", {"version": 7}),
        (["load", "m"], "/v1/models/m:load", {}),
        (
            ["load", "m", "7", ACCEPT],
            "/v1/models/m:load",
            {"version": 7, "accept_changed_inputs": True},
        ),
        (["reload", "m", ACCEPT], "/v1/models/m:reload", {"accept_changed_inputs": True}),
        (["rollback", "m"], "/v1/models/m:rollback", {}),
        (["profile", "m", "--every", "1000"], "/v1/models/m:profile", {"every": 1000}),
        (
            ["profile", "m", "--every", "9", "--folder", "a", "--max-mb", "5"],
            "/v1/models/m:profile",
            {"every": 9, "folder": "a", "max_mb": 5.0},
        ),
        (["profile", "m", "--off"], "/v1/models/m:profile", {"every": 0}),
        (["profile", "m", "--status"], "/v1/models/m:profile", None),
        (["profile", "m", "--seconds", "2"], "/v1/models/m:profile", {"seconds": 2.0}),
        (["label", "m", "7", "canary"], "/v1/models/m:label", {"label": "canary", "version": 7}),
        (["label", "m", "none", "canary"], "/v1/models/m:label", {"label": "canary", "version": None}),
    ],
)
def test_admin_words_to_requests(words, path, body):
    assert admin.request_of(admin_args(*words)) == (path, body)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["load"], "expected a model"),
        (["load", "m", "x"], "version 'x': expected a whole number"),
        (["load", "m", "-1"], None),
        (["load", "m", "1", "canary"], "'canary' is one word too many"),
        (["label", "m", "7"], "label ranker 7 canary"),
        (["status", "m", "7"], "takes no version"),
        (["profile", "m"], "expected one of --every N, --off, --status, --seconds S"),
        (["profile", "m", "--off", "--every", "5"], "expected one of"),
        (["profile", "m", "--off", "--folder", "x"], "--folder and --max-mb go with --every"),
        (["profile", "m", "7", "--off"], "'7' is one word too many"),
        (["profile", "m", "--every", "0"], "expected 1 or more"),
        (["profile", "--off"], "expected a model"),
        (["load", "m", "--every", "5"], "takes none of the options of profile"),
        (["unload", "m", ACCEPT], "--accept-changed-inputs goes with load and reload"),
        (["status", "--url", "ftp://x"], "expected http://"),
        (["status", "--token-file", "no"], "no: token file can't be read"),
        (["status", "--url", "https://127.0.0.1:1", "--ca", "no.pem"], "no.pem"),
    ],
)
def test_admin_refuses_by_name(capsys, words, expected):
    error = refused(capsys, "admin", *words)
    assert expected is None or expected in error


def test_admin_says_when_nobody_answers(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # it never listens, and nobody else can
        port = taken.getsockname()[1]
        assert main(["admin", "status", "--url", f"http://127.0.0.1:{port}"]) == 1
    error = capsys.readouterr().err
    assert f"http://127.0.0.1:{port}: no answer" in error and "--url says where it is" in error


def test_admin_says_what_may_help_against_tls(capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:  # as a server does that expects TLS
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)

        thread = threading.Thread(target=hang_up)
        thread.start()
        assert main(["admin", "status", "--url", f"http://127.0.0.1:{server.getsockname()[1]}"]) == 1
        thread.join()
    assert "where the server has TLS: --url https://" in capsys.readouterr().err
