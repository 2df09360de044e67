"""Wide & Deep (Cheng et al., 2016) on Keras 3 over any list of ``schema.Feature``: training, SavedModel, requests.

Single ids go through Keras' own preprocessing and Embedding layers. Multi-valued features are ``SparseBag`` layers
around ``tf.nn.safe_embedding_lookup_sparse``; sequences are an Embedding, a mask and an average. The wide part is the
same with tables of one column, plus hashed crosses.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from examples.schema import BAGS, Bag, ClickData, Columns, Feature, take

SIGNATURE = "serving_default"
OUTPUT = "click"
LEARNING_RATE = 0.3


@keras.saving.register_keras_serializable("tfctr_examples")
class SparseBag(keras.layers.Layer):
    """Sparse ids [B, None] (and weights of the same form) to [B, width]: rows of one table, combined."""

    def __init__(self, rows: int, width: int, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.rows, self.width = rows, width
        # Made here, not in build: features that share the layer may have weights or none.
        start = keras.initializers.RandomNormal(stddev=0.05)
        self.table = self.add_weight(shape=(rows, width), initializer=start, name="embeddings")

    def call(self, ids, weights=None, combiner="mean"):  # type: ignore[no-untyped-def]
        found = tf.nn.safe_embedding_lookup_sparse(self.table.value, ids, weights, combiner=combiner)
        return tf.ensure_shape(found, [None, self.width])

    def compute_output_spec(self, ids, weights=None, combiner="mean"):  # type: ignore[no-untyped-def]
        return keras.KerasTensor((ids.shape[0], self.width), dtype="float32")

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "rows": self.rows, "width": self.width}


def build(
    features: Sequence[Feature], crosses: Sequence[tuple[str, str]] = (), hidden: Sequence[int] = (128, 64)
) -> keras.Model:
    """The untrained model; ``crosses`` are pairs of id or string features whose combination enters the wide part."""
    layers = keras.layers
    inputs, ids = _inputs(features), {}
    tables: dict[str, keras.layers.Layer] = {}
    deep, wide = [], []
    for f in features:
        ids[f.name] = _row_ids(f, inputs[f.name])
        deep.append(_lookup(f, tables, f.table or f.name, f.width, ids[f.name], inputs))
        if f.wide:
            wide.append(_lookup(f, tables, f"wide_{f.name}", 1, ids[f.name], inputs))
    for one, other in crosses:
        name = f"{one}_x_{other}"
        crossed = layers.HashedCrossing(1000, name=f"hash_{name}")((inputs[one], inputs[other]))
        wide.append(layers.Embedding(1000, 1, name=f"wide_{name}")(crossed))
    h = layers.Concatenate(name="deep_input")(deep)
    for k, size in enumerate(hidden):
        h = layers.Dense(size, activation="relu", name=f"hidden{k}")(h)
    logit = layers.Add(name="logit")([layers.Dense(1, name="deep_logit")(h), *wide])
    return keras.Model(inputs, {OUTPUT: layers.Activation("sigmoid", name=OUTPUT)(logit)}, name="wide_deep")


def _inputs(features: Sequence[Feature]) -> dict[str, keras.KerasTensor]:
    found = {}
    for f in features:
        dtype = {"hashed": "string", "vocabulary": "string", "hashed_bag": "string", "buckets": "float32"}.get(
            f.kind, "int64"
        )
        shape = (None,) if f.kind in (*BAGS, "sequence") else ()
        found[f.name] = keras.Input(shape, dtype=dtype, sparse=f.kind in BAGS, name=f.name)
        if f.kind == "weighted_bag":
            found[f"{f.name}_weights"] = keras.Input((None,), dtype="float32", sparse=True, name=f"{f.name}_weights")
    return found


def _row_ids(f: Feature, value: keras.KerasTensor) -> keras.KerasTensor:
    """The table row of each value."""
    layers = keras.layers
    name = f"row_of_{f.name}"
    if f.kind in ("hashed", "hashed_bag"):
        return layers.Hashing(f.rows, name=name)(value)
    if f.kind == "vocabulary":
        return layers.StringLookup(vocabulary=list(f.vocabulary), name=name)(value)
    if f.kind == "integers":
        return layers.IntegerLookup(vocabulary=list(f.vocabulary), name=name)(value)
    if f.kind == "buckets":
        return layers.Discretization(bin_boundaries=list(f.boundaries), name=name)(value)
    return value


def _lookup(
    f: Feature,
    tables: dict[str, keras.layers.Layer],
    table: str,
    width: int,
    ids: keras.KerasTensor,
    inputs: dict[str, keras.KerasTensor],
) -> keras.KerasTensor:
    """[B, width] of one feature; ``tables`` keeps the layer of each table, so that features can share it."""
    if table not in tables:
        if f.kind in BAGS:
            tables[table] = SparseBag(f.table_rows, width, name=f"table_{table}")
        else:
            tables[table] = keras.layers.Embedding(f.table_rows, width, name=f"table_{table}")
    if f.kind in BAGS:
        return tables[table](ids, inputs.get(f"{f.name}_weights"), combiner=f.combiner)
    found = tables[table](ids)
    return MaskedMean(name=f"mean_{f.name}_{width}")(ids, found) if f.kind == "sequence" else found


@keras.saving.register_keras_serializable("tfctr_examples")
class MaskedMean(keras.layers.Layer):
    """Ids [B, T] and their rows [B, T, D] to [B, D]: the mean of the rows whose id is not 0; zeros where all are."""

    def call(self, ids, rows):  # type: ignore[no-untyped-def]
        mask = keras.ops.cast(keras.ops.not_equal(ids, 0), rows.dtype)[:, :, None]
        return keras.ops.sum(rows * mask, axis=1) / keras.ops.maximum(keras.ops.sum(mask, axis=1), 1.0)

    def compute_output_spec(self, ids, rows):  # type: ignore[no-untyped-def]
        return keras.KerasTensor((rows.shape[0], rows.shape[-1]), dtype=rows.dtype)


def batches(columns: Columns, labels: np.ndarray, batch: int, shuffle: bool = False) -> tf.data.Dataset:
    """(inputs by name, labels [B, 1]) in the columns' order, or its batches shuffled; bags become SparseTensors."""
    dense = {k: tf.constant(v) for k, v in columns.items() if not isinstance(v, Bag)}
    bags = {k: tf.RaggedTensor.from_row_splits(v.values, v.splits) for k, v in columns.items() if isinstance(v, Bag)}
    for k, v in columns.items():
        if isinstance(v, Bag) and v.weights is not None:
            bags[f"{k}_weights"] = tf.RaggedTensor.from_row_splits(v.weights, v.splits)
    targets = tf.constant(labels[:, None])
    steps = -(-len(labels) // batch)

    def rows(k: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        here = slice(k * batch, (k + 1) * batch)
        found = {name: value[here] for name, value in dense.items()}
        found |= {name: value[here].to_sparse() for name, value in bags.items()}
        return found, targets[here]

    numbers = tf.data.Dataset.range(steps)
    if shuffle:
        numbers = numbers.shuffle(steps, seed=1)
    return numbers.map(rows, num_parallel_calls=2).prefetch(2)


def train(model: keras.Model, data: ClickData, epochs: int, batch: int = 512, callbacks: Sequence[object] = ()) -> None:
    """Fits the model on the training rows."""
    order = np.random.default_rng(1).permutation(len(data.train_labels))
    dataset = batches(take(data.train, order), data.train_labels[order], batch, shuffle=True)
    optimizer = keras.optimizers.Adagrad(LEARNING_RATE)
    # Built here: a train step that creates variables is traced twice.
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, keras.losses.BinaryCrossentropy(), jit_compile=False)
    model.fit(dataset, epochs=epochs, verbose=0, callbacks=list(callbacks), shuffle=False)


def save(model: keras.Model, features: Sequence[Feature], folder: str) -> None:
    """Writes a SavedModel that takes plain tensors; a bag is NAME_values, NAME_indices, NAME_shape and NAME_weights."""
    specs: dict[str, tf.TensorSpec] = {}
    for f in features:
        value = model.input[f.name]
        if f.kind not in BAGS:
            specs[f.name] = tf.TensorSpec([None] * len(value.shape), value.dtype, f.name)
            continue
        specs[f"{f.name}_values"] = tf.TensorSpec([None], value.dtype, f"{f.name}_values")
        specs[f"{f.name}_indices"] = tf.TensorSpec([None, 2], tf.int64, f"{f.name}_indices")
        specs[f"{f.name}_shape"] = tf.TensorSpec([2], tf.int64, f"{f.name}_shape")
        if f.kind == "weighted_bag":
            specs[f"{f.name}_weights"] = tf.TensorSpec([None], tf.float32, f"{f.name}_weights")

    def serve(parts: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        found = {}
        for f in features:
            if f.kind not in BAGS:
                found[f.name] = parts[f.name]
                continue
            indices, shape = parts[f"{f.name}_indices"], parts[f"{f.name}_shape"]
            found[f.name] = tf.SparseTensor(indices, parts[f"{f.name}_values"], shape)
            if f.kind == "weighted_bag":
                found[f"{f.name}_weights"] = tf.SparseTensor(indices, parts[f"{f.name}_weights"], shape)
        return model(found, training=False)

    archive = keras.export.ExportArchive()
    # Layer by layer: tracking a functional model also traces it on dense inputs, which these are not.
    for layer in model.layers:
        archive.track(layer)
    archive.add_endpoint(SIGNATURE, serve, input_signature=[specs])
    archive.write_out(folder, verbose=False)


def request(columns: Columns) -> dict[str, np.ndarray]:
    """The rows as arrays by signature input name, as ``save`` declares them."""
    found: dict[str, np.ndarray] = {}
    for name, value in columns.items():
        if not isinstance(value, Bag):
            found[name] = value
            continue
        lengths = np.diff(value.splits)
        rows = np.repeat(np.arange(len(value)), lengths)
        position = np.arange(len(value.values)) - np.repeat(value.splits[:-1], lengths)
        found[f"{name}_values"] = value.values
        found[f"{name}_indices"] = np.stack([rows, position], 1).astype(np.int64)
        found[f"{name}_shape"] = np.array([len(value), max(1, int(lengths.max(initial=0)))], np.int64)
        if value.weights is not None:
            found[f"{name}_weights"] = value.weights
    return found
