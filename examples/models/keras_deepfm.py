"""DeepFM as a Keras 3 functional model."""

from __future__ import annotations

from collections.abc import Sequence

import keras


def deepfm(
    vocabularies: dict[str, int], dense: int, width: int = 8, hidden: Sequence[int] = (64, 32), name: str = "deepfm"
) -> keras.Model:
    """DeepFM (Guo et al., 2017) on Keras 3.

    ``vocabularies``: rows of each categorical feature; inputs int32 [B] by feature name, and ``dense``
    float32 [B, ``dense``] (left out when 0). Returns ``click`` float32 [B, 1], a probability.
    """
    layers = keras.layers
    inputs = {k: keras.Input((), dtype="int32", name=k) for k in vocabularies}
    first = [layers.Embedding(rows, 1, name=f"linear_{k}")(inputs[k]) for k, rows in vocabularies.items()]
    second = [layers.Embedding(rows, width, name=f"embedding_{k}")(inputs[k]) for k, rows in vocabularies.items()]
    deep_parts = list(second)
    if dense:
        inputs["dense"] = keras.Input((dense,), name="dense")
        first.append(layers.Dense(1, use_bias=False, name="linear_dense")(inputs["dense"]))
        deep_parts.append(inputs["dense"])
    # (sum of vectors)^2 - sum of squares: all pairwise products in one pass.
    total, squares = layers.Add()(second), layers.Add()([keras.ops.square(v) for v in second])
    pairs = 0.5 * keras.ops.sum(keras.ops.square(total) - squares, axis=1, keepdims=True)
    h = layers.Concatenate()(deep_parts)
    for k, size in enumerate(hidden):
        h = layers.Dense(size, activation="relu", name=f"hidden{k}")(h)
    logit = layers.Add()([*first, pairs, layers.Dense(1, name="deep")(h)])
    return keras.Model(inputs, {"click": layers.Activation("sigmoid", name="click")(logit)}, name=name)
