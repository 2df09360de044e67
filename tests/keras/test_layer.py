"""`tfctr.keras.Embedding` as a layer: kinds of ids, shapes, dtypes, configuration, what it refuses."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.keras.models import ids_model, rows_of, table
from tfctr.errors import InputError, UsageError, VersionError

IDS = [[3, -1, 7], [7, 7, 2**62]]


def layer(**options):
    return tfctr.keras.Embedding(4, **options)


def known(made, ids=(3, -1, 7, 2**62)):
    """Gives the ids rows and returns them by id."""
    made.table.lookup(list(ids), training=True)
    return {key: np.array(row, np.float32) for key, row in rows_of(made.table).items()}


def test_one_row_per_id():
    made = layer()
    rows = known(made)
    got = made(tf.constant(IDS, tf.int64))
    assert got.shape == (2, 3, 4)
    np.testing.assert_array_equal(got, [[rows[i] for i in line] for line in IDS])
    np.testing.assert_array_equal(made(np.array(IDS)), got)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_dense_ragged_and_sparse_ids_combine_alike(combiner):
    made = layer(combiner=combiner)
    rows = known(made)
    divide = {"sum": 1, "mean": 3, "sqrtn": np.sqrt(3)}[combiner]
    want = np.stack([sum(rows[i] for i in line) for line in IDS]) / np.float32(divide)
    dense = tf.constant(IDS, tf.int64)
    for ids in (dense, tf.RaggedTensor.from_tensor(dense), tf.sparse.from_dense(dense)):
        got = made(ids)
        assert got.shape == (2, 4)
        np.testing.assert_allclose(got, want, rtol=1e-6)
    cube = made(tf.reshape(dense, [1, 2, 3]))
    assert cube.shape == (1, 2, 4)
    np.testing.assert_allclose(cube[0], want, rtol=1e-6)


def test_weights_of_ids():
    made = layer(combiner="mean")
    rows = known(made)
    weights = np.array([[1, 2, 3], [0.5, 0, 2]], np.float32)
    want = np.stack([sum(rows[i] * w for i, w in zip(*pair, strict=True)) for pair in zip(IDS, weights, strict=True)])
    want /= weights.sum(axis=1, keepdims=True)
    dense, floats = tf.constant(IDS, tf.int64), tf.constant(weights)
    np.testing.assert_allclose(made(dense, weights=floats), want, rtol=1e-6)
    np.testing.assert_allclose(made(dense, weights=tf.cast(floats, tf.float64)), want, rtol=1e-6)
    ragged = tf.RaggedTensor.from_tensor
    np.testing.assert_allclose(made(ragged(dense), weights=ragged(floats)), want, rtol=1e-6)


def test_weights_get_a_gradient():
    made = layer(combiner="sum")
    rows = known(made)
    weights = tf.Variable([[1.0, 2.0, 3.0]])
    with tf.GradientTape() as tape:
        out = tf.reduce_sum(made(tf.constant(IDS[:1], tf.int64), weights=weights.read_value(), training=True))
    np.testing.assert_allclose(tape.gradient(out, weights), [[rows[i].sum() for i in IDS[0]]], rtol=1e-5)


def test_ragged_rows_stay_ragged():
    made = layer()
    rows = known(made)
    got = made(tf.ragged.constant([[3], [], [-1, 7]], dtype=tf.int64))
    assert got.shape.as_list() == [3, None, 4]
    want = np.array([rows[3], rows[-1], rows[7]])
    np.testing.assert_array_equal(got.flat_values, want)
    np.testing.assert_array_equal(got.row_splits, [0, 1, 1, 3])


def test_empty_rows_are_zeros():
    made = layer(combiner="mean")
    known(made)
    np.testing.assert_array_equal(made(tf.ragged.constant([[], []], dtype=tf.int64)), np.zeros((2, 4)))


def test_int32_and_string_ids():
    made = layer()
    rows = known(made)
    np.testing.assert_array_equal(made(tf.constant([3, 7])), [rows[3], rows[7]])
    words = tfctr.keras.Embedding(4, key_dtype="string", combiner="sum", record_frequency=True)
    words(tf.constant([["a", "b"], ["b", "b"]]), training=True)
    assert words.table.size() == 2
    assert words.table.frequency(["a", "b"]).tolist() == [1, 3]
    assert tfctr.keras.Embedding(4, key_dtype="int32")(tf.constant([[1]])).shape == (1, 1, 4)


def test_symbolic_and_real_outputs_agree():
    kinds = [{}, {"ragged": True}, {"sparse": True}]
    real = tf.constant(IDS, tf.int64)
    given = [real, tf.RaggedTensor.from_tensor(real), tf.sparse.from_dense(real)]
    for combiner in (None, "sum"):
        for kind, ids in zip(kinds, given, strict=True):
            if combiner is None and "sparse" in kind:
                continue
            made = layer(combiner=combiner)
            symbol = made(keras.Input((None,), dtype="int64", **kind))
            got = made(ids)
            assert symbol.ragged == isinstance(got, tf.RaggedTensor)
            assert tf.TensorShape(symbol.shape).is_compatible_with(got.shape)
            assert symbol.dtype == got.dtype
    assert layer(combiner="sum").compute_output_shape((None, 7, 3)) == (None, 7, 4)


def test_compute_dtype_under_mixed_policies():
    for policy in ("mixed_float16", "mixed_bfloat16"):
        made = layer(dtype=policy, combiner="sum")
        assert made(tf.constant(IDS, tf.int64)).dtype == policy.removeprefix("mixed_")
        assert made(keras.Input((3,), dtype="int64")).dtype == policy.removeprefix("mixed_")


def test_a_shared_layer_is_one_table_and_counts_each_occurrence_once():
    keras.utils.set_random_seed(1)
    first, second = (keras.Input((2,), dtype="int64", name=name) for name in ("first", "second"))
    shared = tfctr.keras.Embedding(4, combiner="sum", name="shared", record_frequency=True)
    model = keras.Model([first, second], keras.layers.Dense(1)(shared(first) + shared(second)))
    model.compile("sgd", "mse")
    before = dict(known(shared, [5, 6]))
    model.fit([np.array([[5, 5]]), np.array([[5, 6]])], np.array([[1.0]]), verbose=0)
    np.testing.assert_array_equal(shared.table.frequency([5, 6]), [4, 2])  # one each from `known`
    assert all(not np.array_equal(before[key], np.array(row, np.float32)) for key, row in rows_of(shared.table).items())


def test_summary_shows_the_layer(capsys):
    ids_model().summary()
    shown = capsys.readouterr().out
    assert "items" in shown and "(None, 4)" in shown


OPTIONS = {
    "admission": tfctr.CounterAdmission(3),
    "eviction": [tfctr.StepEviction(9, protected_keys=(1, -5)), tfctr.CapacityEviction(100, "lfu")],
    "optimizer": tfctr.optimizers.AdamW(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5), weight_decay=0.1),
    "initializer": tfctr.TruncatedNormal(0.0, 0.1),
    "default_value": [1.0, 2.0, 3.0, 4.0],
    "max_norm": 2.5,
    "combiner": "sqrtn",
    "seed": 2**60 + 1,
    "max_bytes": 10_000_000,
    "evict_every_steps": 7,
}


@pytest.mark.parametrize("through_json", [False, True])
def test_configuration_makes_the_same_layer(through_json):
    made = layer(name="everything", **OPTIONS)
    if through_json:
        text = keras.saving.serialize_keras_object(made)
        again = keras.saving.deserialize_keras_object(text)
    else:
        again = tfctr.keras.Embedding.from_config(made.get_config())
    assert again.table.config == made.table.config
    assert (again.name, again.combiner, again.max_norm, again.dim) == ("everything", "sqrtn", 2.5, 4)
    rate = again.table.optimizer.learning_rate
    assert rate.get_config() == OPTIONS["optimizer"].learning_rate.get_config()
    assert again.get_config() == made.get_config()


def test_every_option_class_survives_the_configuration():
    made = [
        tfctr.Uniform(-1, 1), tfctr.Normal(), tfctr.Constant(2), tfctr.BloomAdmission(3, 1000), tfctr.TtlEviction(5.5),
        tfctr.L2Eviction(0.1, min_rows=3), tfctr.optimizers.SGD("model"), tfctr.optimizers.Ftrl(0.1, clip_norm=3.0),
        tfctr.optimizers.RowWiseAdagrad(), tfctr.optimizers.LazyAdam(), tfctr.optimizers.AdagradDecay(),
    ]  # fmt: skip
    from tfctr.keras import options_config

    for option in made:
        assert options_config.from_config(options_config.to_config(option)) == option
    with pytest.raises(UsageError, match="option 'Nonsense' of an embedding layer: expected one of Adagrad, "):
        options_config.from_config({"option": "Nonsense"})


def test_two_layers_of_one_name_have_two_tables():
    one, two = layer(name="same"), layer(name="same")
    one(tf.constant([1], tf.int64), training=True)
    assert (one.table.size(), two.table.size()) == (1, 0)


REFUSED = {
    'ids are float32, expected int64 or int32; keras.Input is float32 unless told otherwise: .*dtype="int64"': (
        {},
        keras.KerasTensor((None, 3)),
    ),
    'ids are string, expected int64 or int32; strings need key_dtype="string"': (
        {},
        keras.KerasTensor((None, 3), "string"),
    ),
    "ids are int64, expected string": ({"key_dtype": "string"}, keras.KerasTensor((None, 3), "int64")),
    "ids are int64, expected int32": ({"key_dtype": "int32"}, keras.KerasTensor((None, 3), "int64")),
    "sparse ids need a combiner": ({}, keras.KerasTensor((None, 3), "int64", sparse=True)),
    "sparse ids have rank 3, expected 2": (
        {"combiner": "sum"},
        keras.KerasTensor((None, 3, 3), "int64", sparse=True),
    ),
    "ragged ids have rank 3, expected 2 with a combiner": (
        {"combiner": "sum"},
        keras.KerasTensor((None, None, None), "int64", ragged=True),
    ),
    r"ids have rank 1, expected \[batch, ids\] or more": ({"combiner": "sum"}, keras.KerasTensor((None,), "int64")),
}


@pytest.mark.parametrize("message", REFUSED)
def test_ids_that_do_not_fit_are_refused_by_the_layers_name(message):
    options, ids = REFUSED[message]
    with pytest.raises(InputError, match=f"embedding layer 'named': {message}"):
        layer(name="named", **options)(ids)


def test_weights_that_do_not_fit():
    ids = tf.constant(IDS, tf.int64)
    cases = [
        ({}, ids, tf.ones((2, 3)), "weights need a combiner"),
        ({"combiner": "sum"}, ids, tf.ones((2, 2)), "one weight per id"),
        ({"combiner": "sum"}, ids, tf.RaggedTensor.from_tensor(tf.ones((2, 3))), "expected the same kind"),
        ({"combiner": "sum"}, ids, ids, "weights are int64, expected float32"),
    ]
    for options, given, weights, message in cases:
        with pytest.raises(InputError, match=message):
            layer(**options)(given, weights=weights)


def test_bad_options_are_refused_when_the_layer_is_made():
    for options, message in [
        ({"combiner": "max"}, "combiner is 'max', expected sum, mean, sqrtn or None"),
        ({"admission": 3}, "admission is 3"),
        ({"eviction": "old"}, "eviction is 'old'"),
        ({"optimizer": "adam"}, "optimizer is 'adam'"),
        ({"key_dtype": "words"}, "key_dtype is 'words', expected tf.int64, tf.int32 or tf.string"),
        ({"step": tf.Variable(0, dtype=tf.int64)}, "step is the optimizer's iterations"),
    ]:
        with pytest.raises(UsageError, match=message):
            layer(**options)
    with pytest.raises(TypeError, match="admision"):
        layer(admision=3)


def test_a_frozen_table_is_only_read():
    model = ids_model()
    model.compile("sgd", "mse")
    ids = np.array([[1, 2, 3]])
    model.fit(ids, np.array([[0.0]]), verbose=0)
    table(model).freeze()
    before = rows_of(table(model))
    model.compile("sgd", "mse")
    dense = model.get_weights()
    model.fit(ids + 100, np.array([[1.0]]), verbose=0)
    assert rows_of(table(model)) == before
    assert not all(np.array_equal(*pair) for pair in zip(dense, model.get_weights(), strict=True))


def test_another_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(VersionError, match="this is Keras 3.* with jax: set KERAS_BACKEND=tensorflow before"):
        importlib.reload(tfctr.keras)


def test_wide_ids_stay_exact_on_their_way_through_fit():
    model = ids_model()
    model.compile("sgd", "mse")
    ids = np.array([[2**62, 2**62 + 1, -(2**63)], [2**63 - 1, -1, 0]])
    model.fit(ids, np.zeros((2, 1)), verbose=0)
    assert set(rows_of(table(model))) == set(ids.ravel().tolist())
