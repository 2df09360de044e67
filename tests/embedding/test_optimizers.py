"""Every optimizer through the op: against NumPy (values and slots), and against stock TensorFlow and Keras."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.embedding.reference_optimizers import reference_of
from tests.embedding.reference_table import ReferenceTable
from tfctr.embedding.variable import EmbeddingVariable

Optimizers = tfctr.optimizers
KEYS = np.array([3, -1, 2**63 - 1, -(2**63), 0, 17, 10**12, -5, 8, 9], np.int64)

# (optimizer, bits: whether every float must be the reference's)
OURS = {
    "sgd": (Optimizers.SGD(0.1), True),
    "adagrad": (Optimizers.Adagrad(0.1), True),
    "adagrad_other": (Optimizers.Adagrad(0.3, initial_accumulator_value=0.0, epsilon=0.01), True),
    "rowwise_adagrad": (Optimizers.RowWiseAdagrad(0.1), False),
    "adam": (Optimizers.Adam(0.01), True),
    "adam_other": (Optimizers.Adam(0.1, beta_1=0.0, beta_2=0.5, epsilon=1e-3), True),
    "adamw": (Optimizers.AdamW(0.01, weight_decay=0.1), True),
    "lazy_adam": (Optimizers.LazyAdam(0.01), True),
    "ftrl": (Optimizers.Ftrl(0.1), True),
    "ftrl_other": (
        Optimizers.Ftrl(
            0.1,
            l1_regularization_strength=0.01,
            l2_regularization_strength=0.02,
            l2_shrinkage_regularization_strength=0.03,
            beta=0.4,
        ),
        True,
    ),
    "ftrl_power": (Optimizers.Ftrl(0.1, learning_rate_power=-0.7, l1_regularization_strength=0.01), False),
    "adagrad_decay": (Optimizers.AdagradDecay(0.1, accumulator_decay_steps=3, accumulator_decay_rate=0.5), True),
}


def gradients(random: np.random.Generator, rows: int, dim: int) -> np.ndarray:
    """Of ordinary size, with zeros, small and large ones among them."""
    made = random.normal(size=(rows, dim)).astype(np.float32)
    made[random.random(made.shape) < 0.1] = 0.0
    return (made * np.float32(10.0) ** random.integers(-4, 2, size=(rows, 1))).astype(np.float32)


@pytest.mark.parametrize("dim", [1, 3, 8, 16, 21])
@pytest.mark.parametrize("name", list(OURS))
def test_values_and_slots_equal_the_reference(name: str, dim: int) -> None:
    optimizer, bits = OURS[name]
    users = EmbeddingVariable(dim, optimizer=optimizer, shards=3, seed=5)
    reference = ReferenceTable({"dim": dim, "seed": 5, "initializer": UNIFORM}, reference_of(optimizer.config()))
    random = np.random.default_rng(dim)
    for step in [0, 1, 2, 3, 7, 8, 500]:
        keys = random.choice(KEYS, size=14)  # some twice or more, some not at all
        users.lookup(keys, training=True)
        reference.lookup(keys.tolist(), step, training=True)
        grads = gradients(random, len(keys), dim)
        users.apply_gradients(tf.IndexedSlices(grads, keys), step=step)
        reference.apply(keys.tolist(), grads, optimizer.learning_rate, step)
    rows = users.export(slots=True)
    assert sorted(rows.keys.tolist()) == sorted(reference.rows)
    for i, key in enumerate(rows.keys.tolist()):
        expected = {"value": reference.rows[key].value, **reference.rows[key].slots}
        actual = {"value": rows.values[i], **{slot: np.ravel(rows.slots[slot][i]) for slot in optimizer.slot_names}}
        for slot, numbers in expected.items():
            if bits:
                np.testing.assert_array_equal(actual[slot], numbers, err_msg=slot)
            else:
                np.testing.assert_allclose(actual[slot], numbers, rtol=2e-6, atol=1e-7, err_msg=slot)


UNIFORM = {"kind": "uniform", "low": -0.05, "high": 0.05}


# --- stock: the rows of a static variable that are in every batch --------------------------------------------------


def trained(optimizer: Any, batches: list[tuple[np.ndarray, np.ndarray]], dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns ([len(KEYS), dim] first values, [len(KEYS), dim] values after the batches)."""
    users = EmbeddingVariable(dim, optimizer=optimizer)
    first = users.lookup(KEYS, training=True).numpy()
    for step, (places, grads) in enumerate(batches):
        users.apply_gradients(tf.IndexedSlices(grads, KEYS[places]), step=step)
    return first, users.lookup(KEYS).numpy()


def batches_of(dim: int, whole: bool, count: int = 12) -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches of (row numbers, gradients); with `whole`, every row is in every batch."""
    random = np.random.default_rng(7)
    made = []
    for _ in range(count):
        places = np.arange(len(KEYS)) if whole else random.choice(len(KEYS), size=6, replace=False)
        made.append((places, gradients(random, len(places), dim)))
    return made


def raw_adagrad(variable: tf.Variable, slots: dict[str, tf.Variable], places: Any, grads: Any) -> None:
    tf.raw_ops.ResourceSparseApplyAdagradV2(
        var=variable.handle, accum=slots["a"].handle, lr=0.1, epsilon=1e-7, grad=grads, indices=places
    )


def raw_ftrl(variable: tf.Variable, slots: dict[str, tf.Variable], places: Any, grads: Any) -> None:
    tf.raw_ops.ResourceSparseApplyFtrlV2(
        var=variable.handle, accum=slots["a"].handle, linear=slots["z"].handle, grad=grads, indices=places,
        lr=0.1, l1=0.01, l2=0.02, l2_shrinkage=0.03, lr_power=-0.5,
    )  # fmt: skip


def raw_sgd(variable: tf.Variable, slots: dict[str, tf.Variable], places: Any, grads: Any) -> None:
    tf.raw_ops.ResourceScatterSub(resource=variable.handle, indices=places, updates=grads * tf.constant(0.1))


RAW: dict[str, tuple[Any, Callable[..., None]]] = {
    "sgd": (Optimizers.SGD(0.1), raw_sgd),
    "adagrad": (Optimizers.Adagrad(0.1), raw_adagrad),
    "ftrl": (
        Optimizers.Ftrl(
            0.1,
            l1_regularization_strength=0.01,
            l2_regularization_strength=0.02,
            l2_shrinkage_regularization_strength=0.03,
        ),
        raw_ftrl,
    ),
}


@pytest.mark.parametrize("dim", [1, 3, 8, 16, 21])
@pytest.mark.parametrize("name", list(RAW))
def test_equal_bits_with_the_stock_sparse_ops(name: str, dim: int) -> None:
    optimizer, apply = RAW[name]
    batches = batches_of(dim, whole=False)
    first, ours = trained(optimizer, batches, dim)
    variable = tf.Variable(first)
    slots = {"a": tf.Variable(tf.fill(first.shape, 0.1)), "z": tf.Variable(tf.zeros(first.shape))}
    for places, grads in batches:
        apply(variable, slots, tf.constant(places), tf.constant(grads))
    if (name, dim) == ("ftrl", 1):  # the stock op has another order of additions for rows of one number
        np.testing.assert_allclose(ours, variable.numpy(), rtol=1e-6, atol=1e-7)
    else:
        np.testing.assert_array_equal(ours, variable.numpy())


KERAS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "sgd": (Optimizers.SGD(0.1), lambda: keras.optimizers.SGD(0.1)),
    "adagrad": (Optimizers.Adagrad(0.1), lambda: keras.optimizers.Adagrad(0.1)),
    "adam": (Optimizers.Adam(0.01), lambda: keras.optimizers.Adam(0.01)),
    "adam_other": (
        Optimizers.Adam(0.1, beta_1=0.5, beta_2=0.9, epsilon=1e-3),
        lambda: keras.optimizers.Adam(0.1, beta_1=0.5, beta_2=0.9, epsilon=1e-3),
    ),
    "adamw": (Optimizers.AdamW(0.01, weight_decay=0.1), lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1)),
    "ftrl": (
        Optimizers.Ftrl(0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.02, beta=0.4),
        lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.02, beta=0.4),
    ),
}


@pytest.mark.parametrize("name", list(KERAS))
def test_agrees_with_keras_where_every_row_is_in_every_batch(name: str) -> None:
    optimizer, stock = KERAS[name]
    batches = batches_of(8, whole=True, count=30)
    first, ours = trained(optimizer, batches, 8)
    variable, theirs = keras.Variable(first), stock()
    theirs.build([variable])
    for places, grads in batches:
        theirs.apply_gradients([(tf.IndexedSlices(tf.constant(grads), tf.constant(places), first.shape), variable)])
    np.testing.assert_allclose(ours, variable.numpy(), rtol=1e-5, atol=1e-6)


def test_defaults_are_those_of_keras() -> None:
    for ours, theirs in [
        (Optimizers.SGD(), keras.optimizers.SGD()),
        (Optimizers.Adagrad(), keras.optimizers.Adagrad()),
        (Optimizers.Adam(), keras.optimizers.Adam()),
        (Optimizers.AdamW(), keras.optimizers.AdamW()),
        (Optimizers.Ftrl(), keras.optimizers.Ftrl()),
    ]:
        stock = theirs.get_config()
        for name, value in ours.config().items():
            if name != "kind":
                assert value == pytest.approx(stock[name]), (type(ours).__name__, name)
        assert ours.learning_rate == pytest.approx(stock["learning_rate"])


# --- gradients before they reach a row -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "stock"),
    [
        ({"clip_value": 0.5}, lambda g: tf.clip_by_value(g, -0.5, 0.5)),
        ({"clip_row_norm": 0.5}, lambda g: tf.clip_by_norm(g, 0.5, axes=[1])),
        ({"clip_norm": 0.5}, lambda g: tf.clip_by_norm(g, 0.5)),
    ],
)
def test_clipping_of_summed_gradients(option: dict[str, float], stock: Callable[..., tf.Tensor]) -> None:
    random = np.random.default_rng(1)
    places = np.array([0, 1, 0, 2, 2, 3])
    grads = gradients(random, 6, 8)
    first, ours = trained(Optimizers.SGD(1.0, **option), [(places, grads)], 8)
    sums = tf.math.unsorted_segment_sum(grads, places, 4)
    np.testing.assert_allclose(ours[:4], first[:4] - stock(sums).numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", list(OURS))
def test_a_gradient_that_is_not_finite_changes_nothing(name: str) -> None:
    users = EmbeddingVariable(4, optimizer=OURS[name][0])
    users.lookup(KEYS, training=True)
    before = users.export(slots=True)
    grads = np.ones([len(KEYS), 4], np.float32)
    grads[7, 2] = np.nan
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"gradient of key -5 is not finite \(nan in column 2\)"):
        users.apply_gradients(tf.IndexedSlices(grads, KEYS))
    after = users.export(slots=True)
    np.testing.assert_array_equal(after.values, before.values)
    for slot in OURS[name][0].slot_names:
        np.testing.assert_array_equal(after.slots[slot], before.slots[slot])


@pytest.mark.parametrize(("rate", "name"), [(np.nan, "adagrad"), (np.inf, "sgd"), (0.0, "ftrl")])
def test_a_learning_rate_that_ruins_rows_is_refused(rate: float, name: str) -> None:
    users = EmbeddingVariable(4, "rates", optimizer=OURS[name][0])
    before = users.lookup(KEYS, training=True).numpy()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"'rates'.*learning rate"):
        users.apply_gradients(tf.IndexedSlices(np.ones([len(KEYS), 4], np.float32), KEYS), learning_rate=rate)
    np.testing.assert_array_equal(users.lookup(KEYS), before)
