"""Addresses of models, and which machine they are on."""

import pytest

from tfctr.errors import UsageError
from tfctr.loadtest.target import Target, check_is_local, parse_target


@pytest.mark.parametrize(
    ("text", "expected", "path"),
    [
        ("grpc://127.0.0.1:8500/ranker", Target("grpc", "tfs", "127.0.0.1", 8500, "ranker"), None),
        ("grpc://localhost/ranker", Target("grpc", "tfs", "localhost", 8500, "ranker"), None),
        ("grpc://h:1/v2/models/r/versions/3", Target("grpc", "kserve", "h", 1, "r", version="3"), None),
        ("http://h:1/v1/models/r", Target("http", "tfs", "h", 1, "r"), "/v1/models/r:predict"),
        ("http://h/v1/models/r/versions/2:predict", Target("http", "tfs", "h", 8501, "r", version="2"),
         "/v1/models/r/versions/2:predict"),
        ("http://h/v1/models/r/labels/canary", Target("http", "tfs", "h", 8501, "r", label="canary"),
         "/v1/models/r/labels/canary:predict"),
        ("https://[::1]:9/v2/models/r/infer", Target("http", "kserve", "::1", 9, "r", tls=True), "/v2/models/r/infer"),
        ("http://h/v2/models/a%20b", Target("http", "kserve", "h", 8501, "a b"), "/v2/models/a%20b/infer"),
    ],
)  # fmt: skip
def test_addresses(text, expected, path):
    assert parse_target(text) == expected
    if path is not None:
        assert expected.infer_path == path


def test_the_protocol_of_a_plain_path_is_an_option():
    assert parse_target("grpc://h/m", "kserve").protocol == "kserve"
    assert parse_target("http://h/m", "kserve").metadata_path == "/v2/models/m"
    assert parse_target("http://h/m").metadata_path == "/v1/models/m/metadata"


def test_a_folder_is_a_model_in_this_process(tmp_path):
    assert parse_target(str(tmp_path)) == Target("process", "", path=str(tmp_path))


@pytest.mark.parametrize(
    ("text", "protocol", "message"),
    [
        ("nowhere/at/all", None, "or the folder of a model"),
        ("ftp://h/m", None, "unknown scheme 'ftp'; expected one of grpc, grpcs, http, https"),
        ("grpc://h", None, "no model in the path ''"),
        ("http://h/v3/models/m", None, "no model in the path"),
        ("http://h:99999/m", None, "the port is no number"),
        ("http:///m", None, "expected http://HOST:PORT/MODEL"),
        ("http://h/v1/models/m", "kserve", "the path is of tfs, --protocol says kserve"),
    ],
)
def test_other_texts_are_refused(text, protocol, message):
    with pytest.raises(UsageError, match=message):
        parse_target(text, protocol)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "127.9.9.9"])
def test_this_machine_may_be_loaded(host):
    check_is_local(parse_target(f"grpc://{host}:1/m"), allow_remote=False)


def test_another_machine_only_when_asked_for():
    target = parse_target("grpc://192.0.2.7:1/m")
    with pytest.raises(UsageError, match="192.0.2.7 is not this machine; --allow-remote"):
        check_is_local(target, allow_remote=False)
    check_is_local(target, allow_remote=True)
