"""Models that are unusual but real: frozen tables, anonymous and dense hash tables, GPU placements, lost variables."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import graph_opt
import tfctr
from graph_opt.recognise import reasons
from tests.models.base import run_stock
from tfctr.errors import UsageError


def save_v1(path: Path, build: Any) -> None:
    """A TF1-style SavedModel of ``build() -> (inputs, outputs)``."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        inputs, outputs = build()
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(path), inputs, outputs)


def both(path: Path, bundle: Path, inputs: dict[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, Any]]:
    request = {"serving_default": inputs}
    return run_stock(path, request)["serving_default"], run_stock(bundle, request)["serving_default"]


def test_tables_of_a_frozen_graph(tmp_path: Path) -> None:
    table = np.random.default_rng(1).normal(size=(50, 8)).astype(np.float32)

    def build() -> Any:
        ids = tf.compat.v1.placeholder(tf.int64, [None], "ids")
        return {"ids": ids}, {"y": tf.gather(tf.constant(table), ids)}

    save_v1(tmp_path / "model", build)
    report = graph_opt.convert(tmp_path / "model", tmp_path / "bundle", strict=True)
    assert [f["shape"] for f in report.manifest["store"]["files"]] == [[50, 8]]
    want, got = both(tmp_path / "model", tmp_path / "bundle", {"ids": np.array([0, 49, 7])})
    np.testing.assert_array_equal(got["y"], want["y"])
    assert (tmp_path / "bundle" / "saved_model.pb").stat().st_size < 50 * 8 * 4 + 4000


class Dictionaries(tf.Module):
    """A mutable table of the given kind, filled before saving."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        if kind == "dense":
            self.table = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, -1, empty_key=-1, deleted_key=-2)
        else:
            self.table = tf.lookup.experimental.MutableHashTable(
                tf.int64, tf.int64, -1, experimental_is_anonymous=kind == "anonymous"
            )
        self.table.insert(tf.constant([5, 6], tf.int64), tf.constant([50, 60], tf.int64))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "ids")])
    def call(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"found": self.table.lookup(ids)}


@pytest.mark.parametrize("kind", ["plain", "dense", "anonymous"])
def test_mutable_tables_keep_their_contents(tmp_path: Path, kind: str) -> None:
    module = Dictionaries(kind)
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.call)
    report = graph_opt.convert(tmp_path / "model", tmp_path / "bundle", strict=True)
    assert [m["kind"] for m in report.manifest["mutable_state"]] == ["table"]
    loaded = tf.saved_model.load(str(tmp_path / "bundle")).signatures["serving_default"]
    assert loaded(ids=tf.constant([5, 6, 7], tf.int64))["found"].numpy().tolist() == [50, 60, -1]
    got = run_stock(tmp_path / "bundle", {"serving_default": {"ids": np.array([6, 9])}})
    assert got["serving_default"]["found"].tolist() == [60, -1]


def test_static_tables_of_other_kinds_stay(tmp_path: Path) -> None:
    class Names(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            pairs = tf.lookup.KeyValueTensorInitializer(tf.constant([1, 2], tf.int64), tf.constant(["one", "two"]))
            self.table = tf.lookup.StaticHashTable(pairs, "other")

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "ids")])
        def call(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"name": self.table.lookup(ids)}

    module = Names()
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.call)
    report = graph_opt.convert(tmp_path / "model", tmp_path / "bundle", strict=True)
    (refused,) = next(p for p in report.manifest["passes"] if p["name"] == "externalise_vocabularies")["refused"]
    assert "maps int64 to string" in refused["reason"]
    want, got = both(tmp_path / "model", tmp_path / "bundle", {"ids": np.array([2, 3])})
    assert got["name"].tolist() == want["name"].tolist() == [b"two", b"other"]


def test_nodes_on_a_gpu_go_through_unharmed(tmp_path: Path) -> None:
    def build() -> Any:
        with tf.device("/GPU:0"):
            x = tf.compat.v1.placeholder(tf.float32, [None, 2], "x")
            table = tf.compat.v1.get_variable("table", [10, 2])
            ids = tf.compat.v1.placeholder(tf.int64, [None], "ids")
            y = x + tf.nn.embedding_lookup(table, ids)
        return {"x": x, "ids": ids}, {"y": y}

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(allow_soft_placement=True)) as session:
        inputs, outputs = build()
        session.run(v1.global_variables_initializer())
        values = session.run(v1.global_variables()[0])
        signature = v1.saved_model.predict_signature_def(inputs, outputs)
        builder = v1.saved_model.Builder(str(tmp_path / "model"))  # simple_save would clear the placements
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()
    report = graph_opt.convert(tmp_path / "model", tmp_path / "bundle", strict=True)
    (lookup,) = report.manifest["signatures"]["serving_default"]["lookups"]
    assert (lookup["status"], lookup["reason"]) == ("left", reasons.ON_GPU)
    saved = saved_model_pb2.SavedModel.FromString((tmp_path / "bundle" / "saved_model.pb").read_bytes())
    devices = {n.op: n.device for n in saved.meta_graphs[0].graph_def.node if n.op in ("AddV2", "GatherV2")}
    assert devices == {"AddV2": "/device:GPU:0", "GatherV2": "/device:GPU:0"}
    inputs = {"x": np.ones((3, 2), np.float32), "ids": np.array([3, 9, 0])}
    function = tf.saved_model.load(str(tmp_path / "bundle")).signatures["serving_default"]
    value = function(**{name: tf.constant(v) for name, v in inputs.items()})["y"]
    np.testing.assert_array_equal(value, inputs["x"] + values[inputs["ids"]])


def test_a_variable_missing_from_the_checkpoint_is_named(tmp_path: Path) -> None:
    class One(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable([1.0])

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
        def call(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": x * self.weight}

    module = One()
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.call)
    with tf.init_scope():
        tf.raw_ops.SaveV2(
            prefix=str(tmp_path / "model" / "variables" / "variables"), tensor_names=["other"], shape_and_slices=[""],
            tensors=[tf.constant(1.0)],
        )  # fmt: skip
    with pytest.raises(UsageError, match=r"is needed for serving, but .*has no tensor 'weight"):
        graph_opt.convert(tmp_path / "model", tmp_path / "bundle")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_one_of_several_metagraphs(tmp_path: Path) -> None:
    """TF1: two MetaGraphs over one checkpoint; the chosen one becomes the bundle, under its own tags."""
    v1 = tf.compat.v1
    builder = v1.saved_model.Builder(str(tmp_path / "model"))
    for tags, factor in ((["serve"], 1.0), (["serve", "gpu"], 2.0)):
        with tf.Graph().as_default(), v1.Session() as session:
            ids = v1.placeholder(tf.int64, [None], "ids")
            start = np.arange(36, dtype=np.float32).reshape(9, 4)
            rows = tf.nn.embedding_lookup(v1.get_variable("table", initializer=start), ids) * factor
            session.run(v1.global_variables_initializer())
            signatures = {"serving_default": v1.saved_model.predict_signature_def({"ids": ids}, {"y": rows})}
            if factor == 1.0:
                builder.add_meta_graph_and_variables(session, tags, signatures)
            else:
                builder.add_meta_graph(tags, signatures)
    builder.save()
    with pytest.raises(UsageError, match="choose one with --tags"):
        graph_opt.convert(tmp_path / "model", tmp_path / "bundle")
    for tags, first in ((("serve",), [4, 5, 6, 7]), (("gpu", "serve"), [8, 10, 12, 14])):
        report = graph_opt.convert(tmp_path / "model", tmp_path / tags[0], tags=tags, strict=True)
        assert set(report.manifest["source"]["tags"]) == set(tags)
        with tfctr.ServingSession(tmp_path / tags[0], tags=tags) as session:
            assert session.predict({"ids": [1]})["y"].tolist() == [first]
