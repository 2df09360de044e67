"""Keras 3 Embedding over single ids (family C)."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.models.base import BATCH, SERVING, Arrays, ModelBuilder


def export(model: keras.Model, path: str, inputs: Arrays) -> None:
    """Saves ``model`` as a SavedModel that takes exactly the dtypes of ``inputs``, with a free batch dimension."""
    specs = {k: tf.TensorSpec([None, *v.shape[1:]], _dtype(v), k) for k, v in inputs.items()}

    def serve(features: dict[str, tf.Tensor]) -> object:
        return model(features, training=False)

    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(SERVING, serve, input_signature=[specs])
    archive.write_out(path, verbose=False)


def _dtype(value: np.ndarray) -> tf.DType:
    return tf.string if value.dtype == object else tf.as_dtype(value.dtype)


def randomise(model: keras.Model, rng: np.random.Generator) -> None:
    """Distinct random values in every table and kernel: Keras starts with tables of +-0.05, too small to see."""
    for weight in model.weights:
        shape = tuple(weight.shape)
        scale = 0.5 if "embedding" in weight.path else (2.0 / max(shape[0], 1)) ** 0.5 if len(shape) > 1 else 0.1
        if np.issubdtype(np.dtype(weight.dtype), np.floating):
            weight.assign(rng.normal(0, scale, shape))


def _features(count: int) -> list[tuple[str, int, int, bool, str]]:
    """(name, vocabulary, width, [B, 1] instead of [B], dtype)."""
    return [
        (f"c{k}", 50 + (k * 83) % 951, 4 + k % 14, k % 2 == 1, ("int32", "int64")[k // 2 % 2]) for k in range(count)
    ]


def _save(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    inputs, parts, arrays = {}, [], {}
    for name, vocabulary, width, column, dtype in _features(12):
        shape = (1,) if column else ()
        inputs[name] = keras.Input(shape, dtype=dtype, name=name)
        found = keras.layers.Embedding(vocabulary, width, name=f"embedding_{name}")(inputs[name])
        parts.append(keras.layers.Flatten()(found) if column else found)
        arrays[name] = rng.integers(0, vocabulary, (BATCH, *shape)).astype(dtype)
    inputs["dense"] = keras.Input((3,), name="dense")
    arrays["dense"] = rng.normal(size=(BATCH, 3)).astype(np.float32)
    joined = keras.layers.Concatenate()([*parts, inputs["dense"]])
    hidden = keras.layers.Dense(16, activation="relu", name="hidden")(joined)
    model = keras.Model(inputs, {"click": keras.layers.Dense(1, activation="sigmoid", name="click")(hidden)})
    randomise(model, rng)
    # Keras 3 wraps negative ids (-1 is the last row): part of what must be kept.
    arrays["c0"][:3] = -1
    arrays["c1"][3:5] = -2
    export(model, path, arrays)
    return {SERVING: arrays}


def _save_float_ids(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    """Ids that arrive as float32, as a numeric pipeline gives them: Keras casts them to int32 (toward zero)."""
    arrays = {name: rng.integers(0, 80, BATCH).astype(np.float32) for name in ("shop", "brand")}
    arrays["shop"] += rng.choice([0.0, 0.25], BATCH).astype(np.float32)
    inputs = {name: keras.Input((), dtype="float32", name=name) for name in arrays}
    parts = [keras.layers.Embedding(80, 6 + k, name=f"embedding_{k}")(x) for k, x in enumerate(inputs.values())]
    hidden = keras.layers.Dense(16, activation="relu", name="hidden")(keras.layers.Concatenate()(parts))
    model = keras.Model(inputs, {"click": keras.layers.Dense(1, activation="sigmoid", name="click")(hidden)})
    randomise(model, rng)
    export(model, path, arrays)
    return {SERVING: arrays}


BUILDERS = [
    ModelBuilder("c_keras_onehot", "C Keras one-hot", _save),
    ModelBuilder("c_keras_float_ids", "C Keras one-hot", _save_float_ids),
]
