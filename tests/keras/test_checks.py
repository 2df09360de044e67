"""What a table can't do inside Keras is refused before anything has changed, and the message says what to do."""

import contextlib
import os
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.keras.models import batches, ids_model, rows_of, table, train
from tfctr.errors import UsageError

OPTIMIZERS = {
    "use_ema=True.*leave use_ema out": lambda: keras.optimizers.Adam(use_ema=True),
    "gradient_accumulation_steps=2.*use batches that many times as large": lambda: keras.optimizers.SGD(
        0.1, gradient_accumulation_steps=2
    ),
    "loss_scale_factor=8.*leave loss_scale_factor out": lambda: keras.optimizers.Adam(loss_scale_factor=8.0),
    "LossScaleOptimizer scales the loss.*auto_scale_loss=False": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam()
    ),
}


def untouched(model, dense):
    ev = table(model)
    return ev.size() == 0 and all(np.array_equal(*pair) for pair in zip(dense, model.get_weights(), strict=True))


@pytest.mark.parametrize("message", OPTIMIZERS)
@pytest.mark.parametrize("eager", [False, True])
def test_compiled_optimizers_are_refused_by_fit(message, eager):
    model = ids_model()
    dense = model.get_weights()
    model.compile(OPTIMIZERS[message](), "mse", run_eagerly=eager)
    with pytest.raises(UsageError, match=f"(?s)embedding layer 'items': .*{message}"):
        model.fit(*batches(), verbose=0)
    assert untouched(model, dense)


@pytest.mark.parametrize("message", OPTIMIZERS)
@pytest.mark.parametrize("built", [False, True])
def test_custom_loops_are_refused_before_any_variable_changes(message, built):
    model = ids_model()
    optimizer = OPTIMIZERS[message]()
    dense = model.get_weights()
    with pytest.raises(UsageError, match=f"(?s){message}"):
        if built:
            optimizer.build(model.trainable_variables)
        train(model, optimizer, *batches(), steps=1)
    assert untouched(model, dense)


def test_refused_eagerly_too():
    model = ids_model()
    dense = model.get_weights()
    with pytest.raises(UsageError, match="use_ema=True"):
        train(model, keras.optimizers.Adam(use_ema=True), *batches(), steps=1, function=False)
    assert all(np.array_equal(*pair) for pair in zip(dense, model.get_weights(), strict=True))


@contextlib.contextmanager
def policy(name):
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy("float32")


def test_mixed_float16_names_auto_scale_loss():
    with policy("mixed_float16"):
        model = ids_model()
        model.compile("adam", "mse")
        with pytest.raises(UsageError, match=r"auto_scale_loss=False.*under mixed_float16"):
            model.fit(*batches(), verbose=0)


@pytest.mark.parametrize(("name", "options"), [("mixed_float16", {"auto_scale_loss": False}), ("mixed_bfloat16", {})])
def test_mixed_policies_train_without_loss_scaling(name, options):
    with policy(name):
        model = ids_model(optimizer=tfctr.optimizers.Adagrad(0.1))
        model.compile(keras.optimizers.SGD(0.1), "mse", **options)
        history = model.fit(*batches(), epochs=10, verbose=0).history["loss"]
    assert history[-1] < 0.9 * history[0]
    assert table(model).export().values.dtype == np.float32


def test_jit_compile_is_refused():
    model = ids_model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras says that it takes jit_compile back
        model.compile("adam", "mse", jit_compile=True)
    with pytest.raises(UsageError, match="jit_compile=True does not work; compile the model with jit_compile=False"):
        model.fit(*batches(), verbose=0)
    assert table(model).size() == 0
    with pytest.raises(UsageError, match="make a tf.function without jit_compile"):
        tf.function(lambda x: model(x, training=False), jit_compile=True)(tf.constant([[1, 2, 3]], tf.int64))


def test_jit_compile_auto_is_false():
    model = ids_model()
    model.compile("adam", "mse", jit_compile="auto")
    assert model.jit_compile is False
    assert not model.get_layer("items").supports_jit


REPLICAS = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras, numpy as np, tfctr

outside = tfctr.keras.Embedding(4, name="outside")
two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
for attempt in ("make", "call"):
    try:
        if attempt == "make":
            with two.scope():
                tfctr.keras.Embedding(4, name="inside")
        else:
            two.run(lambda: outside(tf.constant([[1]], tf.int64), training=True))
    except tfctr.errors.UsageError as error:
        print(attempt, "refused:", str(error).replace("\\n", " "))
print("rows", int(outside.table.size()))

with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
    ids = keras.Input((3,), dtype="int64")
    layer = tfctr.keras.Embedding(4, combiner="sum")
    model = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))
    model.compile(keras.optimizers.Adam(0.01), "mse")
x = np.arange(60).reshape(20, 3)
losses = model.fit(x, np.ones((20, 1)), batch_size=10, epochs=5, verbose=0).history["loss"]
print("one replica", int(layer.table.size()), losses[-1] < losses[0], int(layer.table.step.numpy()))
"""


def test_more_than_one_replica_is_refused_and_one_trains():
    done = subprocess.run(
        [sys.executable, "-c", REPLICAS], capture_output=True, text=True, timeout=600, env=dict(os.environ), check=False
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done.stderr[-2000:]
    assert "make refused: embedding layer 'inside': MirroredStrategy has 2 replicas" in lines[0]
    assert "use one replica (one device), or parameter servers" in lines[0]
    assert "call refused:" in lines[1] and "embedding layer 'outside': MirroredStrategy has 2 replicas" in lines[1]
    assert lines[2] == "rows 0"
    assert lines[3] == "one replica 60 True 10"


def test_unset_training_under_a_tape_warns_once():
    model = ids_model()
    x = tf.constant([[1, 2, 3]], tf.int64)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model(x)  # no tape: nothing is being trained
        for _ in range(3):
            with tf.GradientTape():
                model(x)
        with tf.GradientTape():
            model(x, training=False)
    told = [str(one.message) for one in seen if "embedding layer" in str(one.message)]
    assert len(told) == 1
    assert "embedding layer 'items'" in told[0] and "training=True" in told[0]
    assert table(model).size() == 0


def test_unset_training_does_not_warn_where_nothing_could_be_trained():
    frozen = ids_model(trainable=False)
    with warnings.catch_warnings(), tf.GradientTape() as tape:
        warnings.simplefilter("error", UserWarning)
        frozen(tf.constant([[1, 2, 3]], tf.int64))
    del tape


def test_explicit_training_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model = ids_model()
        model.compile("adam", "mse")
        model.fit(*batches(), verbose=0)
        model.evaluate(*batches(), verbose=0)


class NoTrainingArgument(keras.Model):
    def __init__(self):
        super().__init__()
        self.rows, self.head = tfctr.keras.Embedding(4, combiner="sum", name="inner"), keras.layers.Dense(1)

    def call(self, ids):
        return self.head(self.rows(ids))


def test_a_subclassed_model_without_a_training_argument_is_told():
    model = NoTrainingArgument()
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="embedding layer 'inner': .*fit says it to a subclassed model whose call"):
        model.fit(*batches(), verbose=0)


def test_a_frozen_layer_neither_inserts_nor_counts_nor_updates():
    model = ids_model(admission=tfctr.CounterAdmission(2))
    model.compile("sgd", "mse")
    x, y = batches()
    model.fit(x, y, epochs=2, verbose=0)
    ev = table(model)
    before, counts = rows_of(ev), ev.frequency(np.arange(80)).tolist()
    size = ev.size()
    model.get_layer("items").trainable = False
    model.compile("sgd", "mse")
    model.fit(np.concatenate([x, x + 40]), np.concatenate([y, y]), epochs=2, verbose=0)
    assert rows_of(ev) == before
    assert ev.frequency(np.arange(80)).tolist() == counts
    assert ev.size() == size
    model.get_layer("items").trainable = True
    model.compile("sgd", "mse")
    model.fit(x, y, verbose=0)
    assert rows_of(ev) != before


def test_a_frozen_model_freezes_its_tables():
    model = ids_model()
    model.trainable = False
    with tf.GradientTape():
        model(tf.constant([[1, 2, 3]], tf.int64), training=True)
    assert table(model).size() == 0


def test_inference_neither_inserts_nor_counts():
    model = ids_model(admission=tfctr.CounterAdmission(1))
    model.compile("sgd", "mse")
    x, y = batches()
    model.predict(x, verbose=0)
    model.evaluate(x, y, verbose=0)
    assert table(model).size() == 0 and not table(model).frequency(x.ravel()).any()


def test_weights_of_a_model_leave_tables_out_and_say_so():
    model = ids_model()
    with pytest.raises(UsageError, match=r"copy them with save_weights\(\) and load_weights\(\)"):
        model.set_weights(model.get_weights())


def test_only_a_keras_optimizer_updates_a_table_through_its_variable():
    model = ids_model()
    variable = model.get_layer("items").trainable_variables[0]
    gradient = tf.IndexedSlices(tf.ones((1, 4)), tf.constant([1], tf.int64))
    with pytest.raises(UsageError, match=r"call layer.table.apply_gradients\(gradient"):
        variable.assign(gradient)
