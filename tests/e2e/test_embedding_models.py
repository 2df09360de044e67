"""Models with embedding variables, from SavedModel to bundle: fused in one op with static tables, equal predictions in
another process, what unknown keys give, forms of a signature, and what is refused.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from graph_opt.conversion import analyse
from tests.models import embedding_models as zoo
from tfctr.cli.main import main
from tfctr.errors import UsageError

READER = """
import json, sys
import numpy as np
import tfctr
for name in sys.argv[1:]:
    request = dict(np.load(f"{name}.npz", allow_pickle=True))
    for kind in ("model", "bundle"):
        with tfctr.ServingSession(f"{name}.{kind}") as session:
            np.savez(f"{name}.{kind}.out.npz", **session.predict(request))
"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models and their bundles, as NAME.model and NAME.bundle, and a batch of each."""
    folder = tmp_path_factory.mktemp("embedding_models")
    for name, (save, request) in zoo.MODELS.items():
        save(folder / f"{name}.model")
        tfctr.convert(folder / f"{name}.model", folder / f"{name}.bundle", strict=True)
        np.savez(folder / f"{name}.npz", **request())
    return folder


@pytest.fixture(scope="session")
def answers(folder: Path, repo_root: Path) -> dict[str, dict[str, np.ndarray]]:
    """What models and bundles predict in a new process, by file name."""
    done = subprocess.run(
        [sys.executable, "-c", READER, *zoo.MODELS], cwd=folder, capture_output=True, text=True, timeout=300,
        env=dict(os.environ) | {"PYTHONPATH": str(repo_root)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return {path.name: dict(np.load(path)) for path in folder.glob("*.out.npz")}


def manifest(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}.bundle" / "assets.extra" / "tfctr_manifest.json").read_text())


@pytest.mark.parametrize("name", sorted(zoo.MODELS))
def test_a_bundle_predicts_what_its_model_predicts(answers, name):
    got, want = answers[f"{name}.bundle.out.npz"], answers[f"{name}.model.out.npz"]
    assert sorted(got) == sorted(want)
    for output, value in want.items():
        assert np.unique(value.round(4)).size > value.size // 3, "outputs must spread to say something"
        np.testing.assert_allclose(got[output], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "fused", "ops"), [("keras", 3, 1), ("module", 9, 1), ("tf1", 9, 1)])
def test_every_lookup_is_fused_with_the_static_ones(folder, name, fused, ops):
    (info,) = (
        manifest(folder, name)["signatures"].values()
        if name != "keras"
        else [manifest(folder, name)["signatures"]["serving_default"]]
    )
    lookups = info["lookups"]
    assert [entry["status"] for entry in lookups] == ["fused"] * fused, lookups
    assert len({entry["node"] for entry in lookups}) == ops


def test_unknown_and_unadmitted_keys_give_the_default_value(folder, answers):
    rows = answers["module.bundle.out.npz"]["rows"]
    user, word = rows[:, :8], rows[:, 8:16]
    absent = np.isin(zoo.INPUTS["user"], [zoo.UNKNOWN, zoo.RARE])
    assert (user[absent] == 0.25).all() and (user[~absent] != 0.25).all()
    np.testing.assert_array_equal(word[-1], np.linspace(-1, 1, 8).astype(np.float32))
    empty = np.diff(zoo.INPUTS["tags/row_splits"]) == 0
    assert empty.sum() == 2 and (rows[empty][:, 16:24] == 0).all() and (rows[~empty][:, 16:24] != 0).any(1).all()


def test_the_bundle_has_no_table_that_could_grow(folder):
    for name in zoo.MODELS:
        model = (folder / f"{name}.bundle" / "saved_model.pb").read_bytes()
        assert b"TfctrEv" not in model and b"TfctrFusedLookup" in model and b"TfctrStoreOverlay" in model
        files = manifest(folder, name)["store"]["files"]
        assert [f["kind"] for f in files].count("hash") == (3 if name == "keras" else 4)
        stored = sorted(p.name for p in (folder / f"{name}.bundle" / "assets" / "tfctr").iterdir())
        assert stored == sorted(Path(f["file"]).name for f in files)
        assert not list((folder / f"{name}.bundle").glob("variables/*.data*"))


def test_the_report_says_what_became_of_each_variable(folder):
    passes = {p["name"]: p for p in manifest(folder, "module")["passes"]}
    found = passes["externalise_embeddings"]
    tables = {t["table"]: (t["rows"], t["dim"], t["lookups"]) for t in found["details"]["tables"]}
    words, keys = len(zoo.WORDS), len(zoo.KEYS)
    assert tables == {"users": (keys, 8, 4), "words": (words, 8, 1), "small": (7, 8, 1), "bags": (keys, 8, 2)}
    proof = found["details"]["proof"]
    assert "sqrtn, dim 8, weighted, max_norm 0.75" in proof["kinds"] and proof["largest_difference"] <= 1e-6
    assert "embedding variables became hash files" in found["reason"]


def test_inputs_that_a_conversion_generates_hold_keys_of_the_tables(folder):
    info = manifest(folder, "module")["signatures"]["serving_default"]
    domains = {entry["name"]: entry.get("domain") for entry in info["inputs"]}
    assert set(zoo.KEYS.tolist()) <= set(domains["user"]["keys"]) and -(10**12) in domains["user"]["keys"]
    assert set(zoo.INTS.tolist()) <= set(domains["small"]["keys"]) and -(10**12) not in domains["small"]["keys"]
    assert domains["word"] == {"kind": "text"} and domains["item"] == {"kind": "ids", "low": 0, "high": 10}
    assert {f["name"]: f["kind"] for f in info["features"]}["tags"] == "ragged"


class _One(tf.Module):
    """One table, one signature ``serve(ids)``: rows and what else ``more`` gives."""

    def __init__(self, fill: Any = (), more: Any = None, training: Any = False, **options: Any) -> None:
        super().__init__()
        self.table = tfctr.EmbeddingVariable(options.pop("dim", 4), "ids", **options)
        if len(fill):
            self.table.lookup(fill, training=True)
        self.serve = tf.function(
            lambda ids: {"rows": self.table.lookup(ids, training=training), **(more(self.table, ids) if more else {})},
            input_signature=[tf.TensorSpec([None], tf.int64, "ids")],
        )


def saved(module: _One, path: Path) -> Path:
    tf.saved_model.save(module, str(path), {"serving_default": module.serve})
    return path


@pytest.mark.parametrize("fill", [(), [-5]], ids=["empty", "one key"])
def test_small_tables(tmp_path, fill):
    module = _One(fill, default_value=[1.0, 2.0, 3.0, 4.0])
    tfctr.convert(saved(module, tmp_path / "model"), tmp_path / "bundle", strict=True)
    ids = np.array([-5, 0, 2**63 - 1], np.int64)
    with tfctr.ServingSession(tmp_path / "bundle") as session:
        got = session.predict({"ids": ids})["rows"]
        np.testing.assert_array_equal(got, module.table.lookup(ids))
        assert session.predict({"ids": ids[:0]})["rows"].shape == (0, 4)
    assert (got[1:] == [1, 2, 3, 4]).all() and (got[0] == got[1]).all() == (not fill)
    table = tfctr.load_table(tmp_path / "bundle", "ids")
    assert len(table) == len(fill) and table.contains([-5]).tolist() == [bool(fill)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"training": True}, r"'ids': signature 'serving_default' looks it up with training=True \(.*training=False"),
        (
            {"more": lambda table, _: {"size": table.size()}},
            r"'ids': signature 'serving_default' asks it by TfctrEvSize",
        ),
        (
            {"more": lambda t, ids: {"has": t.contains(ids)}},
            r"'ids': signature 'serving_default' asks it by .*Contains",
        ),
        (
            {"more": lambda t, ids: {"y": tf.cond(tf.size(ids) > 3, lambda: t.lookup(ids), lambda: t.lookup(ids[:1]))}},
            r"'ids': signature 'serving_default' looks it up inside control flow \(",
        ),
    ],
    ids=["training", "size", "contains", "control flow"],
)
def test_what_a_frozen_table_has_no_answer_to_is_refused(tmp_path, options, message):
    model = saved(_One([1, 2], **options), tmp_path / "model")
    with pytest.raises(UsageError, match=message):
        tfctr.convert(model, tmp_path / "bundle")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    told = analyse(model)  # it can be looked at, and says why it can't be converted
    assert re.search(message, told["notes"][-1]) and "serving_default" in told["signatures"]


def test_training_that_depends_on_the_request_is_refused(tmp_path):
    module = _One([1, 2])
    serve = tf.function(lambda ids, training: {"rows": module.table.lookup(ids, training=training)})
    specs = [tf.TensorSpec([None], tf.int64, "ids"), tf.TensorSpec([], tf.bool, "training")]
    signatures = {"serving_default": serve.get_concrete_function(*specs)}
    tf.saved_model.save(module, str(tmp_path / "model"), signatures)
    with pytest.raises(
        UsageError, match="'ids': signature 'serving_default' looks it up with training=a value that is"
    ):
        tfctr.convert(tmp_path / "model", tmp_path / "bundle")


def test_a_training_placeholder_that_no_signature_feeds_is_its_default(tmp_path):
    with tf.Graph().as_default():
        ids = tf.compat.v1.placeholder(tf.int64, [None], "ids")
        training = tf.compat.v1.placeholder_with_default(False, [], "training")
        table = tfctr.EmbeddingVariable(3, "ids")
        rows = table.lookup(ids, training=training)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(rows, {ids: [4, 5], training: True})
            want = session.run(rows, {ids: [5, 6]})
            tf.compat.v1.saved_model.simple_save(session, str(tmp_path / "model"), {"ids": ids}, {"rows": rows})
    tfctr.convert(tmp_path / "model", tmp_path / "bundle", strict=True)
    with tfctr.ServingSession(tmp_path / "bundle") as session:
        np.testing.assert_array_equal(session.predict({"ids": np.array([5, 6])})["rows"], want)


def test_a_model_that_was_loaded_and_saved_again(tmp_path, folder, answers):
    loaded = tf.saved_model.load(str(folder / "module.model"))
    tf.saved_model.save(loaded, str(tmp_path / "again"), loaded.signatures)
    tfctr.convert(tmp_path / "again", tmp_path / "bundle", strict=True)
    with tfctr.ServingSession(tmp_path / "bundle") as session:
        got = session.predict(zoo.INPUTS)
    np.testing.assert_allclose(got["rows"], answers["module.model.out.npz"]["rows"], rtol=1e-6, atol=1e-6)


def test_a_tf1_model_whose_saver_streams(tmp_path):
    with tf.Graph().as_default():
        ids = tf.compat.v1.placeholder(tf.string, [None], "ids")
        table = tfctr.EmbeddingVariable(3, "scope/ids", key_dtype=tf.string, default_value=9.0)
        bias = tf.compat.v1.get_variable("bias", initializer=[1.0, 2.0, 3.0])
        filled, rows = table.lookup(["a", "b"], training=True), table.lookup(ids) + bias
        saver = tf.compat.v1.train.Saver(builder=tfctr.embedding.saver_v1.StreamingSaverBuilder())
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(filled)
            want = session.run(rows, {ids: ["b", "c"]})
            builder = tf.compat.v1.saved_model.Builder(str(tmp_path / "model"))
            signature = tf.compat.v1.saved_model.predict_signature_def({"ids": ids}, {"rows": rows})
            builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature}, saver=saver)
            builder.save()
    report = tfctr.convert(tmp_path / "model", tmp_path / "bundle", strict=True, require_fused=["ids"])
    assert [(f["name"], f["source"]) for f in report.manifest["store"]["files"]] == [("scope/ids", "scope/ids")]
    with tfctr.ServingSession(tmp_path / "bundle") as session:
        np.testing.assert_array_equal(session.predict({"ids": ["b", "c"]})["rows"], want)


def test_rows_that_were_not_saved_are_missed_by_name(tmp_path):
    with tf.Graph().as_default():
        ids = tf.compat.v1.placeholder(tf.int64, [None], "ids")
        bias = tf.compat.v1.get_variable("bias", initializer=1.0)
        rows = tfctr.EmbeddingVariable(3, "ids").lookup(ids) + bias
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            builder = tf.compat.v1.saved_model.Builder(str(tmp_path / "model"))
            signature = tf.compat.v1.saved_model.predict_signature_def({"ids": ids}, {"rows": rows})
            saver = tf.compat.v1.train.Saver([bias])
            builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature}, saver=saver)
            builder.save()
    with pytest.raises(UsageError, match=r"'ids': its rows are not in the checkpoint .*: no tensor 'ids/keys'"):
        tfctr.convert(tmp_path / "model", tmp_path / "bundle")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose table is worth storing in fewer bytes."""
    module = _One(np.arange(3000), dim=16, default_value=0.3, initializer=tfctr.Normal(0.0, 1.0))
    return saved(module, tmp_path_factory.mktemp("large") / "model")


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "int8"])
def test_narrow_tables(tmp_path, large, dtype):
    limits = {"max_dp": 1.0, "max_bias": 1.0, "max_auc_delta": 1.0}
    wide = tfctr.convert(large, tmp_path / "wide").manifest["store"]["files"][0]
    report = tfctr.convert(large, tmp_path / "bundle", table_dtype=dtype, strict=True, **limits)
    (file,) = report.manifest["store"]["files"]
    storage = {"fp16": "float16", "bf16": "bfloat16", "int8": "int8"}[dtype]
    assert (file["kind"], file["dtype"], file["storage"], file["shape"]) == ("hash", storage, storage, [3000, 16])
    assert file["stands_for"] == {"dtype": "float32", "shape": [3000, 16]} and file["bytes"] < 0.7 * wide["bytes"]
    assert report.manifest["precision"] == f"fp32, tables {dtype}"
    ids = np.array([0, 7, 2999, 3000, -1], np.int64)
    with tfctr.ServingSession(tmp_path / "bundle") as session, tfctr.ServingSession(tmp_path / "wide") as exact:
        got, want = session.predict({"ids": ids})["rows"], exact.predict({"ids": ids})["rows"]
    bound = {"fp16": 1e-3, "bf16": 1e-2, "int8": 2e-2}[dtype]
    assert 0 < np.abs(got - want).max() <= bound * np.abs(want).max()
    np.testing.assert_array_equal(tfctr.load_table(tmp_path / "bundle", "ids").lookup(ids), got)


def test_tables_that_would_not_be_smaller_stay(tmp_path, folder):
    report = tfctr.convert(folder / "module.model", tmp_path / "bundle", table_dtype="int8")
    (found,) = [p for p in report.manifest["passes"] if p["name"] == "compress_tables"]
    assert {t["table"] for t in found["details"]["left"]} >= {"table users", "table words"}
    assert all("would not be smaller as int8" in t["reason"] for t in found["details"]["left"])


def test_user_features_once_per_user(tmp_path, folder):
    features = ("user", "word", "seen", "tags", "bag")
    report = tfctr.convert(folder / "module.model", tmp_path / "bundle", user_features=features, strict=True)
    split = report.manifest["signatures"]["serving_default"]["split"]
    assert split["user_features"] == sorted(features) and not split["item_side"], split
    rows = zoo.BATCH
    one = {name: zoo.INPUTS[name][1:2] for name in ("user", "word", "seen")}
    repeated = {name: np.repeat(value, rows, axis=0) for name, value in one.items()}
    values, weights = np.array([1, 3, zoo.UNKNOWN], np.int64), np.array([0.5, 2, 1], np.float32)
    for count, into in ((1, one), (rows, repeated)):
        into |= {name: np.tile(values, count) for name in ("tags/values", "bag/values")}
        into["tags/row_splits"] = np.arange(0, 3 * count + 1, 3)
        into["bag/indices"] = np.array([[r, c] for r in range(count) for c in range(3)])
        into["bag/dense_shape"], into["bag/weights"] = np.array([count, 3]), np.tile(weights, count)
    items = {name: zoo.INPUTS[name] for name in ("item", "small")}
    with tfctr.ServingSession(tmp_path / "bundle") as session, tfctr.ServingSession(folder / "module.model") as model:
        got, want = session.predict({**items, **one}), model.predict({**items, **repeated})
        assert session.describe()["requests"]["split"] == 1
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-6, atol=1e-6)


def test_a_signature_that_is_not_optimised_keeps_working(tmp_path):
    module = _One([1, 2, 3])
    pooled = tf.function(
        lambda v, s: {"y": tfctr.embedding_lookup_sparse(module.table, tf.RaggedTensor.from_row_splits(v, s))}
    ).get_concrete_function(tf.TensorSpec([None], tf.int64, "v"), tf.TensorSpec([None], tf.int64, "s"))
    tf.saved_model.save(module, str(tmp_path / "model"), {"serving_default": module.serve, "pooled": pooled})
    report = tfctr.convert(tmp_path / "model", tmp_path / "bundle", signatures=["serving_default"])
    assert not report.manifest["signatures"]["pooled"]["optimised"]
    values, splits = np.array([1, 3, 9], np.int64), np.array([0, 2, 2, 3], np.int64)
    with tfctr.ServingSession(tmp_path / "bundle", signature="pooled") as session:
        got = session.predict({"v": values, "s": splits})["y"]
    ragged = tf.RaggedTensor.from_row_splits(values, splits)
    np.testing.assert_allclose(got, tfctr.embedding_lookup_sparse(module.table, ragged), rtol=1e-6)


def test_the_command_line_tells_the_same(tmp_path, folder, capsys):
    assert main(["convert", str(folder / "tf1.model"), str(tmp_path / "bundle"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {f["name"] for f in told["store"]["files"] if f["kind"] == "hash"} == {"users", "words", "small", "bags"}
    assert main(["inspect", str(folder / "tf1.model")]) == 0
    plain = capsys.readouterr().out
    assert "users" in plain and "11" in plain
    assert main(["inspect", str(tmp_path / "bundle")]) == 0
    assert "words" in capsys.readouterr().out


def test_damaged_rows_are_found_while_converting(tmp_path):
    model = saved(_One(np.arange(500)), tmp_path / "model")
    data = max((model / "variables").glob("*.data*"), key=lambda path: path.stat().st_size)
    raw = bytearray(data.read_bytes())
    raw[len(raw) // 2] ^= 0x10
    data.write_bytes(bytes(raw))
    with pytest.raises(tfctr.errors.CorruptFileError):
        tfctr.convert(model, tmp_path / "bundle")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
