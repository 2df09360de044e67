"""Configuration of `tfctr serve`: schema, defaults, overrides; errors name the key and the nearest known one."""

import dataclasses
import json
import re
import typing
from pathlib import Path

import pytest

from tfctr.errors import UsageError
from tfctr.serving.server import config, config_check, model_config, models
from tfctr.serving.server.limits import Limits
from tfctr.serving.server.tls import TlsOptions


def written(tmp_path, data) -> Path:
    path = tmp_path / "serve.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_every_option_of_a_file_arrives(tmp_path):
    (tmp_path / "token").write_text(" secret-token \n")
    file = written(
        tmp_path,
        {
            "models": [
                {
                    "name": "ranker",
                    "path": "models/ranker",
                    "versions": [3, 4],
                    "labels": {"stable": 3, "canary": 4},
                    "traffic": {"field": "user_id", "weights": {"stable": 9, "canary": 1}},
                    "group": {"executors": 2, "engine": "openvino", "fallback": False},
                    "batching": {"max_batch_rows": 64},
                    "op_libraries": ["ops/a.so"],
                    "poll_seconds": 0,
                },
                {"path": "models/other", "versions": "all"},
            ],
            "group": {"intra_op_threads": 2, "executors": 1, "routing": "round_robin", "table_memory": "huge_pages"},
            "batching": {"max_delay_us": 500},
            "server": {"grpc_port": 0, "http_port": None, "default_deadline_ms": 50, "drain_seconds": 5},
            "limits": {"max_rows": 7, "max_concurrent": 3},
            "tls": {"certificate": "c.pem", "key": "/k.pem"},
            "tokens": {"serving_file": "token"},
            "logs": {"file": "log.jsonl", "slow_ms": 20, "requests": "all", "level": "debug"},
            "metrics": {"enabled": False},
            "op_libraries": ["b.so"],
        },
    )
    made = config.build(file=file)
    ranker, other = made.models
    assert ranker.path == tmp_path / "models/ranker" and ranker.name == "ranker"
    assert ranker.versions == (3, 4) and ranker.labels == {"stable": 3, "canary": 4}
    assert ranker.traffic == config.TrafficConfig("user_id", {"stable": 9, "canary": 1})
    assert ranker.group == config.GroupConfig(2, 2, (), "round_robin", 1000, "openvino", False, "huge_pages")
    assert ranker.batching == config.BatchingConfig(64, 0), "a model's batching is its own, whole"
    assert ranker.op_libraries == (str(tmp_path / "ops/a.so"),) and ranker.poll_seconds == 0
    assert other.name == "other" and other.versions == "all" and other.batching == config.BatchingConfig(1024, 500)
    assert other.group.executors == 1 and other.poll_seconds == 2
    assert made.server.grpc_port == 0 and made.server.http_port is None and made.server.admin_port == 8502
    assert made.server.default_deadline_ms == 50 and made.server.drain_seconds == 5
    assert made.limits == Limits(max_rows=7, max_concurrent=3)
    assert [one.options.max_request_rows for one in models.specs(made)] == [7, 7]
    assert made.tls == TlsOptions(str(tmp_path / "c.pem"), "/k.pem")
    assert config.read_token(made.tokens.serving_file) == "secret-token"
    assert made.logs.file == str(tmp_path / "log.jsonl") and made.logs.slow_ms == 20 and not made.metrics.enabled
    assert made.op_libraries == (str(tmp_path / "b.so"),)
    assert "secret-token" not in json.dumps(made.as_dict()) and json.loads(json.dumps(made.as_dict()))["models"]


def test_schema_and_classes_have_the_same_keys():
    """Each option is in both; none is accepted and then dropped."""
    schema = config_check.schema()
    classes = {
        "model": config.ModelConfig,
        "group": config.GroupConfig,
        "batching": config.BatchingConfig,
        "traffic": config.TrafficConfig,
        "server": config.PortsConfig,
        "limits": Limits,
        "tls": TlsOptions,
        "tokens": config.TokensConfig,
        "logs": config.LogsConfig,
        "metrics": config.MetricsConfig,
        "profile": config.ProfileConfig,
    }
    objects = {name for name, rule in schema["$defs"].items() if "properties" in rule}
    assert objects == set(classes)
    for name, kind in classes.items():
        assert set(schema["$defs"][name]["properties"]) == {field.name for field in dataclasses.fields(kind)}, name
        assert schema["$defs"][name]["additionalProperties"] is False
    of_file = set(schema["properties"]) - {"group", "batching", "poll_seconds", "accept_changed_inputs"}
    assert of_file == {field.name for field in dataclasses.fields(config.ServerConfig)}
    hints = typing.get_type_hints(config.LogsConfig)
    assert set(typing.get_args(hints["level"])) == set(schema["$defs"]["logs"]["properties"]["level"]["enum"])


def test_options_win_over_the_file_and_over_its_models(tmp_path):
    """TF Serving #1522: batching is an option of each model."""
    file = written(
        tmp_path,
        {
            "models": [{"path": "a", "group": {"executors": 2}, "batching": None}],
            "server": {"grpc_port": 1},
            "op_libraries": ["b.so"],
        },
    )
    made = config.build(
        file=file,
        overrides={
            "group": {"executors": 3},
            "batching": {"max_delay_us": 7},
            "server": {"http_port": 2},
            "op_libraries": ["c.so"],
        },
        model_dirs=[tmp_path / "b"],
    )
    assert [model.name for model in made.models] == ["a", "b"]
    assert [model.group.executors for model in made.models] == [3, 3]
    assert [model.batching for model in made.models] == [config.BatchingConfig(1024, 7)] * 2
    assert (made.server.grpc_port, made.server.http_port) == (1, 2)
    assert made.op_libraries == (str(tmp_path / "b.so"), "c.so")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"model": []}, ["unknown key 'model' in the file", "did you mean 'models'?"]),
        ({"models": [{"path": "a", "labls": {}}]}, ["unknown key 'labls' in models[0]", "'labels'"]),
        ({"models": [{"path": "a", "group": {"executor": 2}}]}, ["'executor' in models[0].group", "'executors'?"]),
        ({"models": [{"path": "a", "versions": {"latst": 2}}]}, ["'latst' in models[0].versions", "'latest'"]),
        ({"models": [{"path": "a", "versions": "newest"}]}, ["models[0].versions", '"newest"', '"all"']),
        ({"models": [{"path": "a", "versions": []}]}, ["models[0].versions is []"]),
        ({"models": [{}]}, ["models[0] lacks the key 'path'"]),
        ({"models": [{"path": "a", "name": "a/b"}]}, ["models[0].name", '"a/b"']),
        ({"models": [{"path": "a", "labels": {"canary": "4"}}]}, ["models[0].labels.canary", "expected integer"]),
        ({"batching": {"ragged": True}}, ["unknown key 'ragged' in batching", "max_batch_rows"]),
        ({"server": {"grpc_port": 70000}}, ["server.grpc_port is 70000", "at most 65535"]),
        ({"server": {"grpc_port": True}}, ["server.grpc_port is true"]),
        ({"limits": {"max_rows": 0}}, ["limits.max_rows is 0", "at least 1"]),
        ({"logs": {"level": "loud"}}, ["logs.level", '"loud"', '"warning"']),
        ({"metrics": {"enabled": 1}}, ["metrics.enabled is 1, expected boolean"]),
        ({"tls": {"certificate": "c"}}, ["tls lacks the key 'key'"]),
        ([], ["the file is [], expected object"]),
        ("{", ["line 1, column 2"]),
        ('{"models": [], "models": []}', ["'models'", "twice"]),
        ('{"logs": {"slow_ms": NaN}}', ["NaN is not a number of JSON"]),
        ('{"models": [{"path": "a", "poll_seconds": 1e999}]}', ["models[0].poll_seconds is inf", "finite"]),
        ("[" * 100_000, ["nested too deep"]),
        ({}, ["no model is named", "MODEL_DIR"]),
        ({"models": [{"path": "x/a"}, {"path": "y/a"}]}, ["model 'a' is there twice", "x/a", "y/a"]),
        ({"models": [{"path": "a b"}]}, ["'a b' can't be the name of a model"]),
        ({"models": [{"path": "a"}], "server": {"grpc_port": None, "http_port": None}}, ["neither"]),
        ({"models": [{"path": "a"}], "server": {"grpc_port": 9, "http_port": 9}}, ["expected different"]),
        ({"models": [{"path": "a"}], "server": {"admin_host": "0.0.0.0"}}, ["admin port", "--admin-token-file"]),
        ({"models": [{"path": "a", "group": {"cpu_sets": [[99999]]}}]}, ["CPU 99999"]),
        ({"models": [{"path": "a", "group": {"cpu_sets": [[0]], "executors": 2}}]}, ["2 executors, but 1 cpu_sets"]),
        (
            {"models": [{"path": "a", "traffic": {"field": "u", "weights": {"stabl": 1}}, "labels": {"stable": 1}}]},
            ["traffic names label 'stabl'", "'stable'?"],
        ),
        ({"models": [{"path": "a", "traffic": {"field": "u", "weights": {"1": 0}}}]}, ["weights of traffic are all 0"]),
    ],
)
def test_what_is_wrong_is_named(tmp_path, data, words):
    """Triton #8653: a wrong key that is ignored without a word."""
    file = written(tmp_path, data)
    with pytest.raises(UsageError) as caught:
        config.build(file=file)
    assert str(file) in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_unreadable_files_and_tokens(tmp_path):
    with pytest.raises(UsageError, match="no.json: configuration can't be read"):
        config.build(file=tmp_path / "no.json")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe{}")
    with pytest.raises(UsageError, match="not UTF-8"):
        config.build(file=tmp_path / "bytes")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UsageError, match="token file is empty"):
        config.read_token(str(tmp_path / "empty"))
    assert config.read_token(None) is None


def test_the_name_is_the_folders(tmp_path, monkeypatch):
    version = tmp_path / "ranker" / "3"
    version.mkdir(parents=True)
    (version / "saved_model.pb").write_bytes(b"")
    assert config.name_and_folder(tmp_path / "ranker")[0] == "ranker"
    assert config.name_and_folder(version) == ("ranker", tmp_path / "ranker", (3,))
    monkeypatch.chdir(tmp_path / "ranker")
    made = config.build(model_dirs=[Path(".")])
    assert made.models[0].name == "ranker" and made.models[0].versions == {"latest": 1}
    assert config.build(model_dirs=[Path("3")]).models[0].versions == (3,)


def test_a_link_is_named_as_it_was_typed(tmp_path, monkeypatch):
    version = tmp_path / "store" / "a81f" / "3"
    version.mkdir(parents=True)
    (version / "saved_model.pb").write_bytes(b"")
    (tmp_path / "ranker").symlink_to(tmp_path / "store" / "a81f")
    assert config.name_and_folder(tmp_path / "ranker") == ("ranker", tmp_path / "ranker", ())
    (tmp_path / "live").symlink_to(version)
    assert config.name_and_folder(tmp_path / "live") == ("live", tmp_path / "live", ())
    monkeypatch.chdir(tmp_path)
    assert config.name_and_folder(Path("ranker/3")) == ("ranker", tmp_path / "ranker", (3,))
    assert config.name_and_folder(Path("store/../ranker/"))[0] == "ranker"


def test_executors_by_default_use_the_cpus(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    assert config.GroupConfig().count() == config.MOST_EXECUTORS
    assert config.GroupConfig(intra_op_threads=8).count() == 8
    assert config.GroupConfig(cpu_sets=((0,), (1,))).count() == 2
    assert config.GroupConfig(executors=5).count() == 5
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    assert config.GroupConfig(intra_op_threads=4).count() == 1


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("example.org", False),
    ],
)
def test_loopback(host, expected):
    assert config.is_loopback(host) == expected


TEXT = """
# as TF Serving takes it
model_config_list: {
  config: { name: "a" base_path: "models/a" model_platform: "tensorflow"
            model_version_policy: { specific: { versions: 3, versions: 4 } }
            version_labels { key: "stable" value: 3 } version_labels { key: "canary" value: 4 } }
  config { name: "b" base_path: "/models/b" model_version_policy { all {} } }
  config { name: "c" base_path: "/models/c" model_version_policy { latest { num_versions: 2 } } }
  config { name: "d" base_path: "/models/d" }
}
"""


def test_model_config_file_of_tf_serving(tmp_path):
    file = tmp_path / "models.config"
    file.write_text(TEXT)
    a, b, c, d = model_config.read(file)
    assert (a.name, a.path, a.versions) == ("a", tmp_path / "models/a", (3, 4))
    assert a.labels == {"stable": 3, "canary": 4}
    assert (b.path, b.versions) == (Path("/models/b"), "all")
    assert c.versions == {"latest": 2} and d.versions == {"latest": 1}
    made = config.build(overrides={"group": {"executors": 4}, "batching": {}}, more_models=[a, d])
    assert [one.group.executors for one in made.models] == [4, 4]
    assert made.models[0].versions == (3, 4) and made.models[1].batching == config.BatchingConfig()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model_config_lst {}", ["1:1", "model_config_lst", "did you mean 'model_config_list'?"]),
        (
            'model_config_list { config { name: "a" base_pth: "b" } }',
            ["base_pth", "did you mean 'base_path'?"],
        ),
        ('model_config_list { config { name: "a" }', ["1:"]),
        ('model_config_list { config { name: "a" } }', ["config 0 ('a')", "no base_path"]),
        ('model_config_list { config { base_path: "a" } }', ["config 0", "no name"]),
        ('model_config_list { config { name: "a" base_path: "a" model_platform: "onnx" } }', ["'onnx'", "tensorflow"]),
        ('model_config_list { config { name: "a/b" base_path: "a" } }', ["'a/b' can't be the name"]),
        (
            'model_config_list { config { name: "a" base_path: "a" '
            "model_version_policy { specific { versions: -1 } } } }",
            ["[-1]"],
        ),
        ('model_config_list { config { name: "a" base_path: "a" logging_config {} } }', ["logging_config"]),
        ("custom_model_config {}", ["custom_model_config"]),
        ("", ["no model in it"]),
    ],
)
def test_wrong_model_config_files(tmp_path, text, words):
    file = tmp_path / "models.config"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        model_config.read(file)
    for word in [str(file), *words]:
        assert word in str(caught.value)


def test_the_file_in_the_documentation_is_one(repo_root, tmp_path):
    blocks = re.findall(r"```json\n(.*?)```", (repo_root / "docs/server.md").read_text(), re.S)
    made = config.build(file=written(tmp_path, blocks[0]))
    assert [model.name for model in made.models] == ["ranker", "other"]
    assert made.models[0].traffic and made.models[1].group == config.GroupConfig(executors=1, queue_limit=200)


def test_the_documentation_names_every_key(repo_root):
    text = (repo_root / "docs/server.md").read_text()
    schema = config_check.schema()
    rules = [schema, *(rule for rule in schema["$defs"].values() if "properties" in rule)]
    keys = {key for rule in rules for key in rule["properties"]}
    assert {key for key in keys if f"`{key}`" not in text and f'"{key}"' not in text} == set()
