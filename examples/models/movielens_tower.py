"""A ranker trained on MovieLens-100k in a few seconds: its dense tower, and the tower's inputs for the test rows.

tower, feeds, labels = trained_tower(folder)  # the folder as ``examples.movielens`` reads it
"""

import functools
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from examples import movielens
from export.tower import Tower, TowerTensor

_FEATURES = {"user_id": 1000, "item_id": 1700, "hour": 24, "weekday": 7}
_WIDTH = 16


class _Ranker(keras.Model):
    """Embeddings, then two cross layers beside a layer-normalised MLP."""

    def __init__(self) -> None:
        super().__init__(name="ranker")
        self.tables = [keras.layers.Embedding(rows, _WIDTH, name=f"emb_{name}") for name, rows in _FEATURES.items()]
        columns = len(_FEATURES) * _WIDTH
        self.cross = [keras.layers.Dense(columns, name=f"cross{k}") for k in range(2)]
        self.norm = keras.layers.LayerNormalization(name="norm")
        self.deep = [keras.layers.Dense(size, activation="relu", name=f"deep{size}") for size in (128, 64)]
        self.head = keras.layers.Dense(1, name="head")

    def embed(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.concat([table(ids[:, k]) for k, table in enumerate(self.tables)], 1)

    def tower(self, embeddings: tf.Tensor) -> tf.Tensor:
        x = embeddings
        for layer in self.cross:
            x = embeddings * layer(x) + x
        h = self.norm(embeddings)
        for layer in self.deep:
            h = layer(h)
        return tf.sigmoid(self.head(tf.concat([x, h], 1)))

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        return self.tower(self.embed(ids))


@functools.cache
def trained_tower(folder: Path) -> tuple[Tower, dict[str, np.ndarray], np.ndarray]:
    """(tower, inputs of the test rows, their labels): two epochs over the first 90 % of the ratings."""
    ratings = movielens.read(folder)  # in order of time
    ids = np.stack([ratings.user, ratings.item, ratings.time // 3600 % 24, ratings.time // 86400 % 7], 1)
    labels = (ratings.rating >= movielens.LIKED).astype(np.float32)
    test = len(labels) // 10
    keras.utils.set_random_seed(0)
    model = _Ranker()
    model.compile(keras.optimizers.Adam(2e-3), loss="binary_crossentropy")
    model.fit(ids[:-test], labels[:-test], batch_size=1024, epochs=2, verbose=0)
    embeddings = model.embed(tf.constant(ids[-test:])).numpy()
    spec = tf.TensorSpec((None, embeddings.shape[1]), tf.float32, "embeddings")
    frozen = convert_variables_to_constants_v2(tf.function(model.tower, autograph=False).get_concrete_function(spec))
    graph = frozen.graph.as_graph_def()
    shape = (None, embeddings.shape[1])
    source, output = frozen.inputs[0].name, frozen.outputs[0].name
    tower = Tower(
        signature="movielens",
        graph_def=graph,
        inputs=(
            TowerTensor(name="embeddings", tensor=source, source=source, dtype="float32", shape=shape, side="item"),
        ),
        outputs=(TowerTensor(name="click", tensor=output, source=output, dtype="float32", shape=(None, 1)),),
        nodes=frozenset(node.name for node in graph.node if node.op != "Placeholder"),
    )
    return tower, {"embeddings": embeddings}, labels[-test:]
