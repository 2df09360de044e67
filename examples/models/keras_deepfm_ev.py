"""DeepFM whose tables grow with the ids they meet: no vocabularies, no hashing, int64 and string ids alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras

import tfctr
from tfctr.embedding.options import Admission, Eviction


@dataclasses.dataclass(frozen=True)
class Field:
    """One categorical feature. dtype: "int64" or "string". several: any number of ids per row, averaged."""

    name: str
    dtype: str
    several: bool = False
    admission: Admission | None = None
    eviction: Eviction | None = None


def deepfm_ev(
    fields: Sequence[Field], width: int = 8, hidden: Sequence[int] = (64, 32), learning_rate: float = 0.05
) -> keras.Model:
    """DeepFM (Guo et al., 2017), compiled: Adam for the dense part, Adagrad for the tables.

    Inputs by field name: [B] for one id per row, ragged [B, (n)] for several. Output: `click` float32 [B, 1], a
    probability. A row of a field's table holds its weight in the linear part and its `width` factors.
    """
    layers, ops = keras.layers, keras.ops
    inputs, first, second = {}, [], []
    for field in fields:
        shape = (None,) if field.several else ()
        inputs[field.name] = keras.Input(shape, dtype=field.dtype, ragged=field.several, name=field.name)
        table = tfctr.keras.Embedding(
            1 + width,
            key_dtype=field.dtype,
            combiner="mean" if field.several else None,
            admission=field.admission,
            eviction=field.eviction,
            optimizer=tfctr.optimizers.Adagrad(learning_rate),
            name=f"table_{field.name}",
        )
        row = table(inputs[field.name])
        first.append(row[:, :1])
        second.append(row[:, 1:])
    # (sum of vectors)^2 - sum of squares: all pairwise products in one pass.
    total, squares = layers.Add()(second), layers.Add()([ops.square(v) for v in second])
    pairs = 0.5 * ops.sum(ops.square(total) - squares, axis=1, keepdims=True)
    h = layers.Concatenate()(second)
    for k, size in enumerate(hidden):
        h = layers.Dense(size, activation="relu", name=f"hidden{k}")(h)
    logit = layers.Add()([*first, pairs, layers.Dense(1, name="deep")(h)])
    model = keras.Model(inputs, {"click": layers.Activation("sigmoid", name="click")(logit)}, name="deepfm_ev")
    model.compile(keras.optimizers.Adam(1e-3), "binary_crossentropy", jit_compile=False)
    return model


def tables(model: keras.Model) -> dict[str, Any]:
    """The embedding variables of a model, by field name."""
    return {
        layer.name.removeprefix("table_"): layer.table
        for layer in model.layers
        if isinstance(layer, tfctr.keras.Embedding)
    }
