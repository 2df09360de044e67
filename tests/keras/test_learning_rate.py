"""The learning rate of a table: a number, a schedule, or the model's with its schedules and callbacks."""

import keras
import numpy as np
import pytest

import tfctr
from tests.keras.models import batches, ids_model, rows_of, table
from tfctr.errors import UsageError


def moved(rate, optimizer, *, epochs=1, callbacks=(), prepare=lambda model: None):
    """How far SGD moved the table's rows in each epoch of one step: for one gradient that is the rate."""
    model = ids_model(optimizer=tfctr.optimizers.SGD(rate), seed=5, combiner="sum")
    model.compile(optimizer, keras.losses.MeanAbsoluteError())
    x = np.array([[1, 2, 3]])
    table(model).lookup(x, training=True)
    model.layers[-1].set_weights([np.ones((4, 1)), np.zeros(1)])
    model.layers[-1].trainable = False
    model.compile(optimizer, keras.losses.MeanAbsoluteError())
    prepare(model)
    told = []

    class Watch(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.before = rows_of(table(model))

        def on_epoch_end(self, epoch, logs=None):
            after = rows_of(table(model))
            told.append(abs(np.mean(np.subtract(after[1], self.before[1]))))
            self.before = after

    model.fit(x, np.array([[1000.0]]), epochs=epochs, callbacks=[*callbacks, Watch()], verbose=0)
    return told


def test_a_number_is_its_own():
    assert moved(0.25, keras.optimizers.SGD(7.0)) == pytest.approx([0.25], rel=1e-4)


def test_a_schedule_is_followed_by_the_model_wide_step():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1, 2], [0.5, 0.25, 0.125])
    # Steps 0, 1 are <= 1; step 2 is the second value; then the third.
    assert moved(schedule, keras.optimizers.SGD(7.0), epochs=4) == pytest.approx([0.5, 0.5, 0.25, 0.125], rel=1e-4)


def test_any_callable_of_the_step():
    assert moved(lambda step: 0.5 / (1.0 + float(1)), keras.optimizers.SGD(7.0)) == pytest.approx([0.25], rel=1e-4)


def test_model_follows_the_compiled_optimizer():
    assert moved("model", keras.optimizers.SGD(0.125)) == pytest.approx([0.125], rel=1e-4)


def test_model_follows_its_schedule():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.5, 0.25])
    assert moved("model", keras.optimizers.SGD(schedule), epochs=3) == pytest.approx([0.5, 0.25, 0.25], rel=1e-4)


def test_model_follows_callbacks():
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: [0.5, 0.125][epoch])
    assert moved("model", keras.optimizers.SGD(7.0), epochs=2, callbacks=[scheduler]) == pytest.approx(
        [0.5, 0.125], rel=1e-4
    )
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=1e9, cooldown=0)
    got = moved("model", keras.optimizers.SGD(0.5), epochs=3, callbacks=[plateau])
    assert got[0] == pytest.approx(0.5, rel=1e-4) and got[2] < got[0]


def test_model_follows_what_is_set_by_hand():
    def prepare(model):
        model.optimizer.learning_rate = 0.0625

    assert moved("model", keras.optimizers.SGD(7.0), prepare=prepare) == pytest.approx([0.0625], rel=1e-4)


def test_a_rate_of_zero_moves_nothing():
    for optimizer in (keras.optimizers.SGD(0.0), keras.optimizers.Adam(0.0)):
        assert moved("model", optimizer) == [0.0]
    model = ids_model(optimizer=tfctr.optimizers.Adagrad("model"))
    model.compile(keras.optimizers.Adam(0.0), "mse")
    x, y = batches()
    table(model).lookup(x, training=True)
    before = rows_of(table(model))
    model.fit(x, y, verbose=0)
    assert rows_of(table(model)) == before


def test_model_needs_a_model():
    layer = tfctr.keras.Embedding(4, optimizer=tfctr.optimizers.SGD("model"))
    import tensorflow as tf

    gradient = tf.IndexedSlices(tf.ones((1, 4)), tf.constant([1], tf.int64))
    with pytest.raises(UsageError, match='learning_rate is "model", which a Keras model gives it'):
        layer.table.apply_gradients(gradient)
