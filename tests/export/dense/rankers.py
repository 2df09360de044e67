"""Small rankers on disk with a dense tower worth an engine, or with something that keeps it from one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

USERS, ITEMS, WIDTH, PRICES = 40, 60, 8, 3
SIZES = (48, 24)


class Ranker(tf.Module):
    """Embeddings of a user and an item and three numbers -> an MLP with two outputs.

    weight_scale: of the first layer's weights. hostile: "" or what is wrong: "nan" (a NaN among the weights), "lgamma"
    (an op without ONNX translation between the first and the second layer), "rows" (rows that depend on each other).
    larger: how many times more rows the tables have than ``USERS`` and ``ITEMS``.
    """

    def __init__(self, *, weight_scale: float = 1.0, hostile: str = "", larger: int = 1) -> None:
        super().__init__()
        rng = np.random.default_rng(7)
        self.hostile = hostile
        self.user = tf.Variable(rng.standard_normal((larger * USERS, WIDTH)).astype(np.float32), name="user_table")
        self.item = tf.Variable(rng.standard_normal((larger * ITEMS, WIDTH)).astype(np.float32), name="item_table")
        columns = 2 * WIDTH + PRICES
        self.kernels, self.biases = [], []
        for number, size in enumerate((*SIZES, 1)):
            kernel = rng.standard_normal((columns, size)).astype(np.float32) / np.float32(np.sqrt(columns))
            if number == 0:
                kernel *= np.float32(weight_scale)
            if number == 1 and hostile == "nan":
                kernel[3, 5] = np.nan
            self.kernels.append(tf.Variable(kernel, name=f"kernel_{number}"))
            self.biases.append(tf.Variable(rng.standard_normal(size).astype(np.float32) * 0.1, name=f"bias_{number}"))
            columns = size

    def logit(self, user: tf.Tensor, item: tf.Tensor, price: tf.Tensor) -> tf.Tensor:
        x = tf.concat([tf.gather(self.user, user), tf.gather(self.item, item), price], axis=1)
        for number, (kernel, bias) in enumerate(zip(self.kernels, self.biases, strict=True)):
            x = tf.matmul(x, kernel) + bias
            if number < len(SIZES):
                x = tf.nn.relu(x)
            if number == 0 and self.hostile == "lgamma":
                x = tf.math.lgamma(x + 1.5)
            if number == 0 and self.hostile == "rows":
                x = x - tf.reduce_mean(x, axis=0, keepdims=True)
        return x

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64, "user"),
            tf.TensorSpec([None], tf.int64, "item"),
            tf.TensorSpec([None, PRICES], tf.float32, "price"),
        ]
    )
    def scores(self, user: tf.Tensor, item: tf.Tensor, price: tf.Tensor) -> dict[str, tf.Tensor]:
        logit = self.logit(user, item, price)
        return {"score": tf.reshape(tf.sigmoid(logit), [-1]), "logit": logit}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64, "user"),
            tf.TensorSpec([None], tf.int64, "item"),
            tf.TensorSpec([None, PRICES], tf.float32, "price"),
        ]
    )
    def same(self, user: tf.Tensor, item: tf.Tensor, price: tf.Tensor) -> dict[str, tf.Tensor]:
        logit = self.logit(user, item, price)
        return {"score": tf.reshape(tf.sigmoid(logit), [-1]), "logit": logit}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "user")])
    def embed(self, user: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"vector": tf.gather(self.user, user)}


def save(folder: Path, *, more: tuple[str, ...] = (), **kind: Any) -> Path:
    """Saves a ranker. more: further signatures: "same" (the same tower), "embed" (none), or any name for one that has
    that name and the scores.
    """
    model = Ranker(**kind)
    known = {"same": model.same, "embed": model.embed}
    signatures = {"serving_default": model.scores, **{name: known.get(name, model.scores) for name in more}}
    tf.saved_model.save(model, str(folder), signatures=signatures)
    return folder


def request(rows: int, seed: int = 3) -> dict[str, np.ndarray]:
    """Inputs of a ranker, as a file of samples has them."""
    rng = np.random.default_rng(seed)
    return {
        "user": rng.integers(0, USERS, rows),
        "item": rng.integers(0, ITEMS, rows),
        "price": rng.standard_normal((rows, PRICES)).astype(np.float32),
    }


def write_samples(path: Path, rows: int = 600, **more: Any) -> Path:
    """An .npz of requests; ``more``: further columns, as ``label=...``."""
    np.savez(path, **request(rows), **more)
    return path
