"""Training through Keras: every stock optimizer for the dense part, all ways to run a step, the table beside it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.keras.models import SEED, batches, ids_model, rows_of, table, train

OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "muon": lambda: keras.optimizers.Muon(0.01),
    "lion": lambda: keras.optimizers.Lion(0.003),
    "lamb": lambda: keras.optimizers.Lamb(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, clipnorm=1.0),
    "global_clipnorm": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5),
    "clipvalue": lambda: keras.optimizers.Adam(0.01, clipvalue=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_stock_optimizers_train_the_dense_part_beside_the_table(name):
    model, optimizer = ids_model(optimizer=tfctr.optimizers.Adagrad(0.3), hidden=(8,)), OPTIMIZERS[name]()
    dense = model.get_weights()
    x, y = batches()
    losses = train(model, optimizer, x, y, steps=12, function=False)
    assert losses[-1] < losses[1]  # Ftrl starts by forgetting the initial weights
    assert table(model).size() == len(np.unique(x))
    assert all(not np.array_equal(*pair) for pair in zip(dense[1:], model.get_weights()[1:], strict=True))
    assert int(tf.convert_to_tensor(table(model).step).numpy()) == int(optimizer.iterations.numpy()) == 12


def test_fit_trains_both_parts():
    model = ids_model(optimizer=tfctr.optimizers.Adagrad(0.3), hidden=(8,))
    model.compile(keras.optimizers.Adam(0.01, global_clipnorm=0.5), "mse")
    dense = model.get_weights()
    losses = model.fit(*batches(), batch_size=16, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    assert all(not np.array_equal(*pair) for pair in zip(dense[1:], model.get_weights()[1:], strict=True))
    assert int(tf.convert_to_tensor(table(model).step).numpy()) == int(model.optimizer.iterations.numpy()) == 32


def test_the_dense_optimizers_clipping_and_decay_leave_the_table_alone():
    """Rows are the same whatever the model's optimizer does to dense gradients, as long as those don't move."""
    rows = []
    for optimizer in (
        keras.optimizers.SGD(0.0),
        keras.optimizers.SGD(0.0, global_clipnorm=1e-3),
        keras.optimizers.AdamW(0.0, weight_decay=0.9, clipvalue=1e-4),
    ):
        model = ids_model(optimizer=tfctr.optimizers.SGD(0.1), seed=5)
        model.compile(optimizer, "mse")
        model.fit(*batches(), shuffle=False, verbose=0)
        rows.append(rows_of(table(model)))
    assert rows[0] == rows[1] == rows[2]


def test_a_tables_own_clipping():
    free, clipped = (
        ids_model(optimizer=tfctr.optimizers.SGD(1.0, clip_row_norm=limit), seed=5) for limit in (None, 1e-4)
    )
    moved = []
    for model in (free, clipped):
        model.compile(keras.optimizers.SGD(0.0), "mse")
        x, y = batches(rows=8)
        table(model).lookup(x, training=True)
        before = rows_of(table(model))
        model.fit(x, y + 100, batch_size=8, verbose=0)
        after = rows_of(table(model))
        moved.append(max(np.linalg.norm(np.subtract(after[k], before[k])) for k in after))
    assert moved[0] > 0.1
    assert moved[1] == pytest.approx(1e-4, rel=1e-2)


def same_training(**compiled):
    model = ids_model(optimizer=tfctr.optimizers.Adam(0.01), seed=5)
    model.compile(keras.optimizers.Adam(0.01), "mse", **compiled)
    model.fit(*batches(), batch_size=16, epochs=3, shuffle=False, verbose=0)
    return model


def assert_same(one, two):
    left, right = rows_of(table(one)), rows_of(table(two))
    assert left.keys() == right.keys()
    np.testing.assert_allclose([left[k] for k in left], [right[k] for k in left], rtol=2e-5, atol=1e-6)
    for a, b in zip(one.get_weights(), two.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.fixture(scope="module")
def plain():
    return same_training()


@pytest.mark.parametrize("compiled", [{"steps_per_execution": 3}, {"run_eagerly": True}])
def test_ways_to_run_a_step_give_the_same_model(plain, compiled):
    assert_same(plain, same_training(**compiled))


class OwnStep(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
        )
        return {"loss": loss}


def test_a_custom_train_step_gives_the_same_model(plain):
    functional = ids_model(optimizer=tfctr.optimizers.Adam(0.01), seed=5)
    own = OwnStep(functional.inputs, functional.outputs)
    own.compile(keras.optimizers.Adam(0.01), "mse")
    own.fit(*batches(), batch_size=16, epochs=3, shuffle=False, verbose=0)
    assert_same(plain, own)


@pytest.mark.parametrize("function", [True, False])
def test_a_custom_loop_gives_the_same_model(plain, function):
    loop, optimizer = ids_model(optimizer=tfctr.optimizers.Adam(0.01), seed=5), keras.optimizers.Adam(0.01)
    x, y = batches()

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((loop(x, training=True) - y) ** 2)
        optimizer.apply(tape.gradient(loss, loop.trainable_variables), loop.trainable_variables)

    run = tf.function(step) if function else step
    for _ in range(3):
        for start in range(0, len(x), 16):
            run(tf.constant(x[start : start + 16]), tf.constant(y[start : start + 16]))
    assert_same(plain, loop)


def test_a_tape_around_a_traced_forward_pass():
    model = ids_model(optimizer=tfctr.optimizers.SGD(0.5))
    optimizer = keras.optimizers.SGD(0.1)
    forward = tf.function(lambda x: model(x, training=True))
    x, y = (tf.convert_to_tensor(part) for part in batches())
    losses = []
    for _ in range(5):
        with tf.GradientTape() as tape:
            losses.append(tf.reduce_mean((forward(x) - y) ** 2))
        optimizer.apply(tape.gradient(losses[-1], model.trainable_variables), model.trainable_variables)
    assert losses[-1] < losses[0] and int(tf.convert_to_tensor(table(model).step).numpy()) == 5


def test_two_optimizers_each_with_its_own_variables():
    keras.utils.set_random_seed(SEED)
    ids = keras.Input((3,), dtype="int64")
    wide = tfctr.keras.Embedding(1, combiner="sum", name="wide", optimizer=tfctr.optimizers.SGD("model"))
    deep = tfctr.keras.Embedding(4, combiner="mean", name="deep", optimizer=tfctr.optimizers.Adagrad("model"))
    model = keras.Model(ids, wide(ids) + keras.layers.Dense(1)(deep(ids)))
    parts = {
        "wide": (keras.optimizers.SGD(0.0), wide.trainable_variables),
        "deep": (
            keras.optimizers.SGD(0.2),
            [v for v in model.trainable_variables if v is not wide.trainable_variables[0]],
        ),
    }
    x, y = (tf.convert_to_tensor(part) for part in batches())
    wide.table.lookup(x, training=True)
    before = rows_of(wide.table)

    @tf.function
    def step():
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        for optimizer, variables in parts.values():
            optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    losses = [float(step()) for _ in range(4)]
    assert losses[-1] < losses[0]
    assert rows_of(wide.table) == before  # its rate is 0


class Wrapper(keras.Model):
    """Trains a model that it holds, and calls that one directly."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.net(x, training=True) - y) ** 2)
        variables = self.net.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def test_the_step_is_that_of_the_optimizer_which_trains():
    """Not of one that a model was compiled with for its metrics; and known where the model is not compiled."""
    x, y = batches()
    metrics_only = ids_model(eviction=tfctr.StepEviction(100))
    metrics_only.compile("rmsprop", "mse")
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.iterations.assign(40)
    train(metrics_only, optimizer, x, y, steps=2)
    train(metrics_only, optimizer, x + 1000, y, steps=1)
    assert int(table(metrics_only).step.numpy()) == int(optimizer.iterations.numpy()) == 43
    told = table(metrics_only).export()
    assert {int(step) for step in told.last_step[told.keys >= 1000]} == {42}

    wrapped = Wrapper(ids_model(optimizer=tfctr.optimizers.SGD("model")))
    wrapped.compile(keras.optimizers.SGD(0.1))
    wrapped.fit(x, y, batch_size=16, verbose=0)
    assert int(table(wrapped.net).step.numpy()) == 4


def test_multi_optimizer():
    model = ids_model(optimizer=tfctr.optimizers.SGD("model"))
    chosen = {True: keras.optimizers.SGD(0.5), False: keras.optimizers.Adam(0.01)}
    model.compile(keras.optimizers.MultiOptimizer(lambda v: chosen["items" in v.path]), "mse")
    losses = model.fit(*batches(), batch_size=16, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert int(chosen[True].iterations.numpy()) == int(tf.convert_to_tensor(table(model).step).numpy()) == 20


def test_adam_in_the_table_is_stock_adam_where_every_row_is_in_every_batch():
    """The step is the optimizer's, so the powers are; the rate is the optimizer's, so a schedule is followed."""
    x = np.random.default_rng(1).permutation(120).reshape(40, 3)
    y = batches(rows=40)[1]
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.7)
    ours = ids_model(optimizer=tfctr.optimizers.Adam("model"), combiner="sum", seed=3)
    table(ours).lookup(np.arange(120), training=True)
    rows = rows_of(table(ours))

    keras.utils.set_random_seed(SEED)
    ids = keras.Input((3,), dtype="int64")
    stock_rows = keras.layers.Embedding(120, 4, name="items")
    stock = keras.Model(ids, keras.layers.Dense(1)(keras.ops.sum(stock_rows(ids), axis=1)))
    stock_rows.set_weights([np.array([rows[k] for k in range(120)])])
    stock.layers[-1].set_weights(ours.layers[-1].get_weights())

    for model in (ours, stock):
        model.compile(keras.optimizers.Adam(schedule), "mse")
        model.fit(x, y, batch_size=40, epochs=8, shuffle=False, verbose=0)
    got = rows_of(table(ours))
    np.testing.assert_allclose([got[k] for k in range(120)], stock_rows.get_weights()[0], rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(ours.predict(x, verbose=0), stock.predict(x, verbose=0), rtol=1e-3, atol=1e-4)


def test_a_layer_that_a_step_does_not_use_is_left_alone():
    keras.utils.set_random_seed(SEED)
    used, unused = (tfctr.keras.Embedding(4, combiner="mean", name=name) for name in ("used", "unused"))
    head = keras.layers.Dense(1)
    head.build((None, 4))
    optimizer = keras.optimizers.SGD(0.1)
    variables = [*used.trainable_variables, *unused.trainable_variables, *head.trainable_variables]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(head(used(tf.constant([[1, 2]], tf.int64), training=True)))
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply(tape.gradient(loss, variables), variables)
    assert (used.table.size(), unused.table.size()) == (2, 0)


def test_admission_and_eviction_in_fit():
    model = ids_model(admission=tfctr.CounterAdmission(3), eviction=tfctr.StepEviction(2), evict_every_steps=1)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    one, other = np.array([[1, 1, 2]]), np.array([[9, 9, 9]])
    model.fit(one, np.array([[1.0]]), verbose=0)
    assert rows_of(table(model)).keys() == set()
    model.fit(one, np.array([[1.0]]), verbose=0)  # the third occurrence of 1, the second of 2
    assert rows_of(table(model)).keys() == {1}
    model.fit(other, np.array([[1.0]]), epochs=2, verbose=0)
    assert rows_of(table(model)).keys() == {1, 9}
    model.fit(other, np.array([[1.0]]), epochs=3, verbose=0)
    assert rows_of(table(model)).keys() == {9}
