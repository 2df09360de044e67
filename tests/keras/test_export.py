"""`tfctr.keras.export`: signatures in parts, recorded for ServingSession and convert. The model has no table here."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tfctr.errors import UsageError

PARTS = {"tags/values", "tags/row_splits", "words/indices", "words/values", "words/dense_shape", "d"}


@keras.saving.register_keras_serializable(package="tests")
class Bag(keras.layers.Layer):
    """Sum of static rows of ragged int64 or sparse string ids."""

    def build(self, shape):
        self.rows = self.add_weight(shape=(50, 4), name="rows")

    def call(self, ids):
        if isinstance(ids, tf.SparseTensor):
            ids = tf.strings.to_hash_bucket_fast(tf.RaggedTensor.from_sparse(ids), 50)
        return tf.reduce_sum(tf.gather(self.rows, ids), 1)

    def compute_output_spec(self, ids):
        return keras.KerasTensor((ids.shape[0], 4))


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    tags = keras.Input((None,), dtype="int64", ragged=True, name="tags")
    words = keras.Input((None,), dtype="string", sparse=True, name="words")
    dense = keras.Input((3,), name="d")
    joined = keras.layers.Concatenate()([Bag()(tags), Bag()(words), dense])
    outputs = {"score": keras.layers.Dense(1)(joined), "more": keras.layers.Dense(2)(joined)}
    return keras.Model({"tags": tags, "words": words, "d": dense}, outputs)


@pytest.fixture(scope="module")
def batch():
    return {
        "tags": tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int64),
        "words": tf.SparseTensor([[0, 0], [2, 0], [2, 1]], ["a", "b", "a"], [3, 2]),
        "d": tf.ones((3, 3)),
    }


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    return tfctr.keras.export(model, tmp_path_factory.mktemp("export") / "model")


def as_arrays(batch):
    return {
        "tags": tf.compat.v1.ragged.RaggedTensorValue(batch["tags"].values.numpy(), batch["tags"].row_splits.numpy()),
        "words": tf.compat.v1.SparseTensorValue(*(part.numpy() for part in parts(batch["words"]))),
        "d": batch["d"].numpy(),
    }


def parts(sparse):
    return sparse.indices, sparse.values, sparse.dense_shape


def assert_scores(got, model, batch):
    for name, want in model(batch, training=False).items():
        np.testing.assert_allclose(got[name], want, rtol=1e-6, atol=1e-6)


def test_the_signature_takes_parts(folder, model, batch):
    run = tf.saved_model.load(folder).signatures["serving_default"]
    assert {spec.name for spec in run.structured_input_signature[1].values()} == PARTS
    indices, values, shape = parts(batch["words"])
    flat = {"words/indices": indices, "words/values": values, "words/dense_shape": shape, "d": batch["d"]}
    flat |= {"tags/values": batch["tags"].values, "tags/row_splits": batch["tags"].row_splits}
    assert_scores(run(**flat), model, batch)


def test_the_loader_of_tf1_takes_it(folder, model, batch):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        signature = tf.compat.v1.saved_model.load(session, ["serve"], str(folder)).signature_def["serving_default"]
        assert set(signature.inputs) == PARTS
        indices, values, shape = parts(batch["words"])
        given = {"words/indices": indices, "words/values": values, "words/dense_shape": shape, "d": batch["d"]}
        given |= {"tags/values": batch["tags"].values, "tags/row_splits": batch["tags"].row_splits}
        feeds = {signature.inputs[name].name: value.numpy() for name, value in given.items()}
        got = session.run({name: info.name for name, info in signature.outputs.items()}, feeds)
    assert_scores(got, model, batch)


def test_a_serving_session_pairs_them(folder, model, batch):
    session = tfctr.ServingSession(folder)
    assert {f.name: f.kind for f in session.features} == {"tags": "ragged", "words": "sparse"}
    assert_scores(session.predict(as_arrays(batch)), model, batch)


def test_a_conversion_pairs_them(folder, model, batch, tmp_path):
    tfctr.convert(folder, tmp_path / "bundle")
    manifest = json.loads((tmp_path / "bundle/assets.extra/tfctr_manifest.json").read_text())
    features = manifest["signatures"]["serving_default"]["features"]
    assert {f["name"]: f["kind"] for f in features} == {"d": "dense", "tags": "ragged", "words": "sparse"}
    assert_scores(tfctr.ServingSession(tmp_path / "bundle").predict(as_arrays(batch)), model, batch)


def test_another_signature_name(model, batch, tmp_path):
    folder = tfctr.keras.export(model, tmp_path / "m", signature="score")
    for signature in ("score", "serving_default"):
        assert_scores(tfctr.ServingSession(folder, signature=signature).predict(as_arrays(batch)), model, batch)


def test_outputs_that_are_no_dict(tmp_path):
    ids = keras.Input((None,), dtype="int64", ragged=True, name="ids")
    model = keras.Model(ids, [Bag()(ids), keras.layers.Dense(1)(Bag()(ids))])
    got = tfctr.ServingSession(tfctr.keras.export(model, tmp_path / "m")).predict(
        {"ids": tf.compat.v1.ragged.RaggedTensorValue(np.array([1, 2]), np.array([0, 2, 2]))}
    )
    assert {name: value.shape for name, value in got.items()} == {"output_0": (2, 4), "output_1": (2, 1)}


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.bag, self.head = Bag(), keras.layers.Dense(1)

    def call(self, inputs, training=None):
        return self.head(self.bag(inputs["ids"]))


def test_a_subclassed_model_is_told_its_inputs(tmp_path):
    model = Subclassed()
    model({"ids": tf.ragged.constant([[1], [2, 3]], dtype=tf.int64)})
    with pytest.raises(UsageError, match=r"inputs are not known to Keras; say what it is called with: export\("):
        tfctr.keras.export(model, tmp_path / "m")
    folder = tfctr.keras.export(model, tmp_path / "m", inputs={"ids": tf.RaggedTensorSpec([None, None], tf.int64)})
    assert [f.name for f in tfctr.ServingSession(folder).features] == ["ids"]


def test_inputs_that_cannot_be_told_apart(model, tmp_path):
    ragged = tf.RaggedTensorSpec([None, None, None], tf.int64)
    cases = {
        r"ragged input 'x' of shape .* is ragged in more than": {"x": ragged},
        r"input 'x' is a int, expected keras.Input": {"x": 3},
        r"an input has no name": [tf.RaggedTensorSpec([None, None], tf.int64)],
        r"two inputs go by the name 'x/values'": {
            "x": tf.RaggedTensorSpec([None, None], tf.int64),
            "x/values": tf.TensorSpec([None], tf.int64),
        },
        r"input 'x' has no rank": {"x": tf.TensorSpec(None, tf.int64)},
    }
    for message, inputs in cases.items():
        with pytest.raises(UsageError, match=message):
            tfctr.keras.export(model, tmp_path / "m", inputs=inputs)
    assert not list(tmp_path.iterdir())


def test_what_exists_is_kept(model, folder, batch, tmp_path):
    with pytest.raises(UsageError, match=r"exists already; overwrite=True replaces it"):
        tfctr.keras.export(model, folder)
    (tmp_path / "notes").mkdir()
    with pytest.raises(UsageError, match=r"holds no saved_model.pb; overwrite=True replaces SavedModels only"):
        tfctr.keras.export(model, tmp_path / "notes", overwrite=True)
    target = tfctr.keras.export(model, tmp_path / "m")
    tfctr.keras.export(model, target, overwrite=True)
    assert_scores(tfctr.ServingSession(target).predict(as_arrays(batch)), model, batch)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "notes"]


def test_what_a_killed_export_left_is_put_right(model, tmp_path):
    dead = 2**22 + 12345  # above any process id
    (tmp_path / f".m.tfctr-tmp-{dead}").mkdir()
    target = tfctr.keras.export(model, tmp_path / "m")
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    target.rename(tmp_path / f".m.tfctr-old-{dead}")
    with pytest.raises(UsageError, match="it is back in place. Run again"):
        tfctr.keras.export(model, tmp_path / "m")
    assert tfctr.ServingSession(target).features


def test_a_failing_export_leaves_nothing(model, tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tfctr.bundle.input_features, "write", full)
    with pytest.raises(UsageError, match="the disk is full"):
        tfctr.keras.export(model, tmp_path / "m")
    assert not list(tmp_path.iterdir())
