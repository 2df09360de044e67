"""Small models with tables, and batches for them."""

import keras
import numpy as np
import tensorflow as tf

import tfctr

SEED = 11


def ids_model(*, hidden=(), **layer):
    """ids [batch, 3] int64 -> mean of their rows -> one number."""
    keras.utils.set_random_seed(SEED)
    ids = keras.Input((3,), dtype="int64", name="ids")
    rows = tfctr.keras.Embedding(4, **{"combiner": "mean", "name": "items", **layer})(ids)
    for units in hidden:
        rows = keras.layers.Dense(units, activation="relu")(rows)
    return keras.Model(ids, keras.layers.Dense(1)(rows))


def kept_model():
    """Compiled: a table whose admission, eviction and powers of Adam all go by what a save must keep."""
    model = ids_model(
        admission=tfctr.CounterAdmission(2),
        optimizer=tfctr.optimizers.Adam(0.01),
        eviction=tfctr.StepEviction(3),
        evict_every_steps=3,
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def table(model, name="items"):
    return model.get_layer(name).table


def batches(rows=64, keys=40, seed=0):
    """(ids int64 [rows, 3], targets float32 [rows, 1]): a number that each id adds to."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, keys, (rows, 3))
    return ids, np.sin(ids).mean(axis=1, keepdims=True).astype(np.float32)


def rows_of(ev):
    """Key -> row, of the whole table."""
    told = ev.export()
    return dict(zip(told.keys.tolist(), told.values.tolist(), strict=True))


def train(model, optimizer, x, y, steps, *, function=True, training=True):
    """A custom loop over one batch; returns the losses."""

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_mean((model(x, training=training) - y) ** 2))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    run = tf.function(step) if function else step
    x, y = tf.convert_to_tensor(x), tf.convert_to_tensor(y)
    return [float(run(x, y)) for _ in range(steps)]
