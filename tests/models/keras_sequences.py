"""Keras 3 sequences: mask_zero + GlobalAveragePooling1D, masks by hand, unpooled sequences (family D)."""

from __future__ import annotations

import keras
import numpy as np

from tests.models.base import BATCH, SERVING, Arrays, ModelBuilder
from tests.models.keras_onehot import export, randomise

LENGTH = 9


class MaskedSum(keras.layers.Layer):
    """[B, T] ids and [B, T, D] rows to [B, D]: sum of the rows whose id is not 0, or mean over max(count, 1)."""

    def __init__(self, mean: bool, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.mean = mean

    def call(self, ids, rows):  # type: ignore[no-untyped-def]
        mask = keras.ops.cast(keras.ops.not_equal(ids, 0), "float32")[:, :, None]
        total = keras.ops.sum(rows * mask, axis=1)
        return total / keras.ops.maximum(keras.ops.sum(mask, axis=1), 1.0) if self.mean else total

    def compute_output_shape(self, ids_shape, rows_shape):  # type: ignore[no-untyped-def]
        return (rows_shape[0], rows_shape[-1])


def _sequence(rng: np.random.Generator, vocabulary: int, dtype: str, empty: bool) -> np.ndarray:
    """Padded ids [B, LENGTH]; ``empty``: some rows are all padding."""
    ids = rng.integers(1, vocabulary, (BATCH, LENGTH))
    lengths = rng.integers(0 if empty else 1, LENGTH + 1, (BATCH, 1))
    return np.where(np.arange(LENGTH) < lengths, ids, 0).astype(dtype)


def _save(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    layers = keras.layers
    arrays = {
        "gap": _sequence(rng, 120, "int32", empty=False),
        "gap_shared": _sequence(rng, 120, "int32", empty=False),
        "masked_mean": _sequence(rng, 340, "int64", empty=True),
        "masked_sum": _sequence(rng, 77, "int32", empty=True),
        "plain_mean": _sequence(rng, 51, "int32", empty=True),
    }
    x = {k: keras.Input((LENGTH,), dtype=v.dtype.name, name=k) for k, v in arrays.items()}
    shared = layers.Embedding(120, 6, mask_zero=True, name="embedding_shared")
    pooled = [
        layers.GlobalAveragePooling1D()(shared(x["gap"])),
        layers.GlobalAveragePooling1D()(shared(x["gap_shared"])),
    ]
    for name, vocabulary, width in (("masked_mean", 340, 9), ("masked_sum", 77, 4)):
        rows = layers.Embedding(vocabulary, width, name=f"embedding_{name}")(x[name])
        pooled.append(MaskedSum(name == "masked_mean", name=f"pool_{name}")(x[name], rows))
    pooled.append(layers.GlobalAveragePooling1D()(layers.Embedding(51, 5, name="embedding_plain")(x["plain_mean"])))
    hidden = layers.Dense(16, activation="relu", name="hidden")(layers.Concatenate()(pooled))
    model = keras.Model(x, {"click": layers.Dense(1, activation="sigmoid", name="click")(hidden)})
    randomise(model, rng)
    export(model, path, arrays)
    return {SERVING: arrays}


def _save_unpooled(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    """[B, T, D] sequences that reach the tower unreduced: a convolution over one, Flatten over the other."""
    layers = keras.layers
    arrays = {
        "clicks": _sequence(rng, 200, "int64", empty=True),
        "slots": rng.integers(0, 90, (BATCH, 4)).astype("int32"),
    }
    x = {k: keras.Input(v.shape[1:], dtype=v.dtype.name, name=k) for k, v in arrays.items()}
    clicks = layers.Embedding(200, 8, name="embedding_clicks")(x["clicks"])
    parts = [
        layers.GlobalMaxPooling1D()(layers.Conv1D(6, 3, name="convolution")(clicks)),
        layers.Flatten()(layers.Embedding(90, 5, name="embedding_slots")(x["slots"])),
    ]
    hidden = layers.Dense(16, activation="relu", name="hidden")(layers.Concatenate()(parts))
    model = keras.Model(x, {"click": layers.Dense(1, activation="sigmoid", name="click")(hidden)})
    randomise(model, rng)
    export(model, path, arrays)
    return {SERVING: arrays}


BUILDERS = [
    ModelBuilder("d_keras_seq_pool", "D Keras sequences", _save),
    ModelBuilder("d_keras_seq_unpooled", "D Keras sequences", _save_unpooled),
]
