"""The model behind the server's tests: one signature per thing that a protocol must carry."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

VOCABULARY = 100


class ServedModel(tf.Module):
    """serving_default: user_id int64 [B], price float32 [B, 2], name string [B], tags ragged int64 -> score [B],
    pair [B, 2]. one: x float32 [B] -> y = x * scale. echo: text string [B] -> text. slow: steps int64 [B] -> done.
    classify: x -> classes, scores. ragged: tags -> doubled. rows: id int64 [B] below VOCABULARY -> row [B, 8]."""

    def __init__(self, scale: float = 1.0):
        super().__init__()
        rng = np.random.default_rng(5)
        self.table = tf.Variable(rng.normal(size=(VOCABULARY, 8)).astype(np.float32), name="table")
        self.scale = tf.Variable(np.float32(scale), name="scale")
        self.square = tf.constant(np.eye(192, dtype=np.float32))

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64, "user_id"),
            tf.TensorSpec([None, 2], tf.float32, "price"),
            tf.TensorSpec([None], tf.string, "name"),
            tf.RaggedTensorSpec([None, None], tf.int64),
        ]
    )
    def score(self, user_id, price, name, tags):
        user = tf.gather(self.table, tf.math.floormod(user_id, VOCABULARY))
        tag = tf.reduce_sum(tf.gather(self.table, tf.math.floormod(tags, VOCABULARY)), axis=1)
        length = tf.cast(tf.strings.length(name), tf.float32)
        score = (tf.reduce_sum(user + tag, axis=1) + tf.reduce_sum(price, axis=1) + length) * self.scale
        return {"score": score, "pair": tf.stack([score, -score], axis=1)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    def one(self, x):
        return {"y": x * self.scale}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def echo(self, text):
        return {"text": tf.identity(text)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "steps")])
    def slow(self, steps):
        left, value = tf.reduce_max(steps), self.square
        _, value = tf.while_loop(
            lambda k, _: k < left, lambda k, m: (k + 1, tf.matmul(m, m)), [tf.constant(0, tf.int64), value]
        )
        return {"done": tf.cast(steps, tf.float32) * value[0, 0]}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    def classify(self, x):
        names = tf.repeat(tf.constant([["no", "yes"]]), tf.size(x), axis=0)
        return {"classes": names, "scores": tf.stack([1.0 - x, x], axis=1)}

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int64)])
    def ragged(self, tags):
        return {"doubled": tags * 2}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "id")])
    def rows(self, id):
        return {"row": tf.gather(self.table, id)}


def save(folder: Path, scale: float = 1.0) -> Path:
    """The SavedModel."""
    model = ServedModel(scale)
    signatures = {
        "serving_default": model.score,
        **{name: getattr(model, name) for name in ("one", "echo", "slow", "classify", "ragged", "rows")},
    }
    tf.saved_model.save(model, str(folder), signatures=signatures)
    return folder
