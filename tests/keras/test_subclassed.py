"""Subclassed models, built by the first step of `fit`: their layers hear of training, `export` is told the inputs."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfctr


class Tower(keras.Model):
    """A model within the model: Keras has a default signature of it, too."""

    def __init__(self):
        super().__init__()
        self.city = tfctr.keras.Embedding(4, key_dtype="string", name="city")

    def call(self, city):
        return self.city(city)


class Ranker(keras.Model):
    def __init__(self, own_step):
        super().__init__()
        self.own_step = own_step
        self.user = tfctr.keras.Embedding(4, name="user")
        self.tags = tfctr.keras.Embedding(4, combiner="mean", name="tags")
        self.tower = Tower()
        self.deep = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1, "sigmoid")])

    def call(self, inputs, training=None):
        rows = [self.user(inputs["user"]), self.tags(inputs["tags"]), self.tower(inputs["city"])]
        return self.deep(keras.ops.concatenate(rows, 1))

    def train_step(self, data):
        if not self.own_step:
            return super().train_step(data)
        inputs, clicks = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.binary_crossentropy(clicks, self(inputs, training=True)))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


@pytest.mark.parametrize("own_step", [False, True])
def test_a_subclassed_model_is_trained_exported_and_loaded(own_step, tmp_path):
    user = np.arange(64) % 7 - 3
    tags = tf.RaggedTensor.from_row_lengths(np.arange(96) % 9, [1, 2] * 32)
    inputs = {"user": tf.constant(user), "tags": tags, "city": tf.constant([f"c{u % 5}" for u in user])}
    model = Ranker(own_step)
    model.compile("adam", "binary_crossentropy")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="embedding layer")  # "called under a gradient tape without saying..."
        model.fit(tf.data.Dataset.from_tensor_slices((inputs, user[:, None] > 0)).batch(16), verbose=0)
    tables = [model.user.table, model.tags.table, model.tower.city.table]
    assert [table.size() for table in tables] == [7, 9, 5] and int(model.user.table.step) == 4

    specs = {
        "user": tf.TensorSpec([None], tf.int64),
        "tags": tf.RaggedTensorSpec([None, None], tf.int64),
        "city": tf.TensorSpec([None], tf.string),
    }
    folder = tfctr.keras.export(model, tmp_path / "model", inputs=specs)
    loaded = tf.saved_model.load(str(folder))
    parts = {"tags/values": tags.values, "tags/row_splits": tags.row_splits}
    given = {"user": inputs["user"], "city": inputs["city"], **parts}
    scores = loaded.signatures["serving_default"](**given)["output_0"]
    np.testing.assert_array_equal(scores, model.predict(inputs, verbose=0, batch_size=64))


class Listed(keras.Model):
    """Its embedding layers are in a list, where checkpoints do not look."""

    def __init__(self):
        super().__init__()
        self.embeddings = [tfctr.keras.Embedding(4, name=name) for name in ("one", "two")]
        self.head = keras.layers.Dense(1)

    def call(self, ids, training=None):
        return self.head(self.embeddings[0](ids) + self.embeddings[1](ids + 1))


def trained_listed(ids):
    keras.utils.set_random_seed(4)
    model = Listed()
    model.compile("adam", "mse")
    model.fit(ids, np.sin(ids)[:, None], verbose=0)
    return model


def test_tables_of_layers_in_a_list_are_in_a_checkpoint_with_the_optimizer(tmp_path):
    ids = np.arange(40) % 9
    model = trained_listed(ids)
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(tmp_path / "model"))
    again = trained_listed(ids[:3])
    assert [layer.table.size() for layer in again.embeddings] == [3, 3]
    tf.train.Checkpoint(model=again, optimizer=again.optimizer).restore(path).assert_consumed()
    assert [layer.table.size() for layer in again.embeddings] == [9, 9]
    np.testing.assert_array_equal(again.predict(ids, verbose=0), model.predict(ids, verbose=0))
