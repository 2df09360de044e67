"""NaN and Inf: a table refuses them before a row changes; check_finite refuses the whole step."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.keras.models import batches, ids_model, rows_of, table
from tfctr.errors import UsageError


def poisoned(value):
    x, y = batches(rows=8)
    y = y.copy()
    y[3] = value
    return x, y


def trained(optimizer, **compiled):
    model = ids_model()
    model.compile(optimizer, "mse", **compiled)
    model.fit(*batches(rows=8), batch_size=8, epochs=2, verbose=0)
    return model


@pytest.mark.parametrize(("value", "eager"), [(np.nan, False), (np.inf, True)])
def test_a_table_refuses_it_before_any_row_changes(value, eager):
    model = trained(keras.optimizers.SGD(0.1), run_eagerly=eager)
    before = rows_of(table(model))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)items.*(NaN|[Ii]nf|finite)"):
        model.fit(*poisoned(value), batch_size=8, verbose=0)
    assert rows_of(table(model)) == before


@pytest.mark.parametrize(("value", "eager"), [(-np.inf, False), (np.nan, True)])
def test_check_finite_refuses_the_whole_step(value, eager):
    model = trained(tfctr.keras.check_finite(keras.optimizers.Adam(0.1)), run_eagerly=eager)
    rows, dense = rows_of(table(model)), model.get_weights()
    steps = int(model.optimizer.iterations.numpy())
    with pytest.raises(tf.errors.InvalidArgumentError, match="the gradient of .* holds NaN or Inf; the step was not"):
        model.fit(*poisoned(value), batch_size=8, verbose=0)
    assert rows_of(table(model)) == rows
    assert all(np.array_equal(*pair) for pair in zip(dense, model.get_weights(), strict=True))
    assert int(model.optimizer.iterations.numpy()) == steps
    model.fit(*batches(rows=8), batch_size=8, verbose=0)
    assert rows_of(table(model)) != rows


def test_a_dense_gradient_alone_is_enough():
    optimizer = tfctr.keras.check_finite(keras.optimizers.SGD(1.0))
    one, two = keras.Variable([1.0], name="one"), keras.Variable([2.0], name="two")
    with pytest.raises(tf.errors.InvalidArgumentError, match="the gradient of two holds NaN or Inf"):
        optimizer.apply([tf.constant([1.0]), tf.constant([np.nan])], [one, two])
    assert (float(one[0]), float(two[0])) == (1.0, 2.0)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([tf.constant([1.0]), None], [one, two])
    assert float(one[0]) == 0.0


def test_it_is_the_same_optimizer_and_wraps_once():
    adam = keras.optimizers.Adam()
    assert tfctr.keras.check_finite(adam) is adam
    apply = adam.apply
    assert tfctr.keras.check_finite(adam).apply is apply
    assert keras.optimizers.deserialize(keras.optimizers.serialize(adam)).get_config() == adam.get_config()
    with pytest.raises(UsageError, match="check_finite: got str, expected a Keras optimizer"):
        tfctr.keras.check_finite("adam")
