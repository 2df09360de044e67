"""Feature columns (family F): serialized Examples into tf_keras DenseFeatures, and v1 input_layer with linear_model.

Imported only by ``legacy.py``: needs TF_USE_LEGACY_KERAS=1.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.models.base import BATCH, SERVING, Arrays, ModelBuilder, Tower, row_lengths, save_module, sparse_parts
from tests.models.partitioned import save_v1, v1_tower
from tests.models.vocabularies import words

fc = tf.feature_column
v1 = tf.compat.v1
CITIES = [f"city {k}" for k in range(40)]


def _initialiser(seed: int) -> object:
    return v1.random_normal_initializer(stddev=0.5, seed=seed)


def _columns() -> list[object]:
    """Nine columns: vocabulary list, hash, identity, bucketized, crossed, weighted, numeric, multi-hot."""
    city = fc.categorical_column_with_vocabulary_list("city", CITIES, num_oov_buckets=2)
    device = fc.categorical_column_with_hash_bucket("device", 60)
    slot = fc.categorical_column_with_identity("slot", 25, default_value=0)
    age = fc.numeric_column("age")
    buckets = fc.bucketized_column(age, [18.0, 25.0, 35.0, 50.0, 65.0])
    crossed = fc.crossed_column([buckets, "device"], 90)
    tags = fc.categorical_column_with_hash_bucket("tags", 110)
    weighted = fc.weighted_categorical_column(fc.categorical_column_with_identity("items", 80), "item_weights")
    widths = ((city, 6, "mean"), (device, 5, "sum"), (slot, 4, "mean"), (buckets, 7, "mean"), (crossed, 8, "sqrtn"))
    widths += ((tags, 9, "mean"), (weighted, 10, "mean"))
    found = [
        fc.embedding_column(c, width, combiner=how, initializer=_initialiser(k))
        for k, (c, width, how) in enumerate(widths)
    ]
    return [age, *found, fc.indicator_column(city)]


def _examples(rng: np.random.Generator) -> np.ndarray:
    """Serialized tf.train.Examples [B]; some features are missing, as in logs."""
    found = []
    for k in range(BATCH):
        example = tf.train.Example()
        features = example.features.feature
        features["age"].float_list.value.append(float(rng.uniform(10, 80)))
        if k % 5:
            features["city"].bytes_list.value.append(words(rng, CITIES, (1,))[0])
        features["device"].bytes_list.value.append(f"device {rng.integers(30)}".encode())
        if k % 7:
            features["slot"].int64_list.value.append(int(rng.integers(-3, 30)))
        features["tags"].bytes_list.value.extend(f"t{v}".encode() for v in rng.integers(0, 70, rng.integers(0, 5)))
        count = int(rng.integers(0, 4))
        features["items"].int64_list.value.extend(int(v) for v in rng.integers(0, 80, count))
        features["item_weights"].float_list.value.extend(float(v) for v in rng.uniform(0.1, 2, count))
        found.append(example.SerializeToString())
    return np.array(found, object)


class ExampleModel(tf.Module):
    """One string tensor of serialized Examples into DenseFeatures and a tower."""

    def __init__(self, rng: np.random.Generator) -> None:
        import tf_keras

        super().__init__()
        columns = _columns()
        self.spec = fc.make_parse_example_spec(columns)
        self.layer = tf_keras.layers.DenseFeatures(columns)
        self.layer(tf.io.parse_example(_examples(rng), self.spec))
        width = 1 + 6 + 5 + 4 + 7 + 8 + 9 + 10 + len(CITIES) + 2
        self.tower = Tower(rng, width)

    def serve(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"score": self.tower(self.layer(tf.io.parse_example(examples, self.spec)) * 0.5)}


def _save_examples(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    model = ExampleModel(rng)
    model.tower.hidden.assign(tf.concat([model.tower.hidden[:1] * 0.02, model.tower.hidden[1:]], 0))  # age is 10 to 80
    save_module(path, model, model.serve, {"examples": tf.TensorSpec([None], tf.string, "examples")})
    return {SERVING: {"examples": _examples(rng)}}


def _save_input_layer(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    """TF1: input_layer with shared embeddings over dense and sparse inputs, linear_model as the wide part."""
    arrays: Arrays = {
        "age": rng.uniform(10, 80, (BATCH, 1)).astype(np.float32),
        "city": words(rng, CITIES, (BATCH, 1)),
        "slot": rng.integers(-1, 25, (BATCH, 1)),
        "clicked": rng.integers(0, 70, (BATCH, 1)),
    }
    with tf.Graph().as_default(), v1.Session() as session:
        features: dict[str, object] = {
            k: v1.placeholder(tf.string if v.dtype == object else v.dtype, [None, 1], name=k) for k, v in arrays.items()
        }
        for name in ("history", "tags"):
            features[name] = v1.sparse_placeholder(
                tf.int64 if name == "history" else tf.string, [None, None], name=name
            )
            indices, shape = sparse_parts(row_lengths(rng, BATCH, 5))
            values = rng.integers(0, 70, len(indices)) if name == "history" else words(rng, CITIES, (len(indices),))
            arrays |= {f"{name}/indices": indices, f"{name}/values": values, f"{name}/dense_shape": shape}
        city = fc.categorical_column_with_vocabulary_list("city", CITIES, default_value=-1)
        tags = fc.categorical_column_with_hash_bucket("tags", 120)
        slot = fc.categorical_column_with_identity("slot", 25)
        buckets = fc.bucketized_column(fc.numeric_column("age"), [18.0, 30.0, 45.0, 60.0])
        crossed = fc.crossed_column([buckets, city], 75)
        pair = [fc.categorical_column_with_identity(name, 70) for name in ("clicked", "history")]
        columns = [
            fc.embedding_column(city, 6, initializer=_initialiser(1)),
            fc.embedding_column(tags, 9, combiner="sqrtn", initializer=_initialiser(2)),
            fc.embedding_column(slot, 4, combiner="sum", initializer=_initialiser(3)),
            fc.embedding_column(buckets, 5, initializer=_initialiser(4)),
            *v1.feature_column.shared_embedding_columns(pair, 8, combiner="mean", initializer=_initialiser(5)),
        ]
        deep = v1.feature_column.input_layer(features, columns)
        wide = v1.feature_column.linear_model(features, [city, tags, slot, buckets, crossed])
        score = v1_tower(rng, deep, use_resource=False) + wide
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        # The wide part starts as zeros in linear_model: give it weights as training would.
        for k, variable in enumerate(v1.trainable_variables()):
            if "linear_model" in variable.name:
                shape = variable.shape.as_list()
                session.run(variable.assign(np.random.default_rng(k).normal(0, 0.5, shape).astype(np.float32)))
        save_v1(path, session, features, {"score": score}, main_op=v1.tables_initializer())
    return {SERVING: arrays}


BUILDERS = [
    ModelBuilder("f_densefeatures_example", "F feature columns", _save_examples, legacy=True),
    ModelBuilder("f_input_layer_v1", "F feature columns", _save_input_layer, legacy=True),
]
