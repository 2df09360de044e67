"""A small ranker that tests save again with one thing changed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.models.base import SERVING, Arrays, save_module

BATCH = 9


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the model is made of. keys: of the vocabulary in front of table `tag`; tag_rows: of that table."""

    rows: int = 40
    width: int = 4
    hidden: int = 8
    activation: str = "relu"
    combiner: str = "mean"
    order: tuple[str, ...] = ("item", "tag", "dense")
    dense: int = 3
    scale: float = 2.0
    output: str = "score"
    second: bool = False
    table_dtype: str = "float32"
    extra_node: bool = False
    keys: tuple[str, ...] = tuple(f"w{k}" for k in range(12))
    tag_rows: int = 30
    offset: int = 3
    nan: str = ""


class Ranker(tf.Module):
    """item: ids plus an offset that is a variable. tag: strings through a vocabulary with 4 buckets for the rest."""

    def __init__(self, shape: Shape, seed: int) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        self.shape = shape
        self.item = tf.Variable(rng.normal(size=(shape.rows, shape.width)).astype(shape.table_dtype), name="emb_item")
        self.tag = tf.Variable(rng.normal(size=(shape.tag_rows, 5)).astype(np.float32), name="emb_tag")
        self.offset = tf.Variable(np.int64(shape.offset), trainable=False, name="offset")
        keys = tf.lookup.KeyValueTensorInitializer(list(shape.keys), np.arange(len(shape.keys), dtype=np.int64))
        self.vocabulary = tf.lookup.StaticVocabularyTable(keys, num_oov_buckets=4)
        columns = shape.width + 5 + shape.dense
        self.kernel = tf.Variable(rng.normal(size=(columns, shape.hidden)).astype(np.float32), name="kernel")
        self.bias = tf.Variable(rng.normal(size=shape.hidden).astype(np.float32), name="bias")
        self.out = tf.Variable(rng.normal(size=(shape.hidden, 1)).astype(np.float32), name="out")
        if shape.nan:
            value = getattr(self, shape.nan)
            value.assign(tf.where(tf.ones_like(value, tf.bool), np.float32("nan"), value))

    def serve(
        self, item: tf.Tensor, tag: tf.Tensor, tag_indices: tf.Tensor, tag_shape: tf.Tensor, dense: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        shape = self.shape
        tags = self.vocabulary.lookup(tf.SparseTensor(tag_indices, tag, tag_shape))
        parts = {
            "item": tf.cast(tf.nn.embedding_lookup(self.item, item + self.offset), tf.float32),
            "tag": tf.nn.safe_embedding_lookup_sparse(self.tag, tags, combiner=shape.combiner),
            "dense": dense * shape.scale,
        }
        x = tf.concat([parts[name] for name in shape.order], 1)
        hidden = getattr(tf.nn, shape.activation)(tf.matmul(x, self.kernel) + self.bias)
        score = tf.sigmoid(tf.matmul(hidden, self.out))
        return {shape.output: tf.abs(score) if shape.extra_node else score}


def specs(shape: Shape) -> dict[str, tf.TypeSpec]:
    return {
        "item": tf.TensorSpec([None], tf.int64, "item"),
        "tag": tf.TensorSpec([None], tf.string, "tag"),
        "tag_indices": tf.TensorSpec([None, 2], tf.int64, "tag_indices"),
        "tag_shape": tf.TensorSpec([2], tf.int64, "tag_shape"),
        "dense": tf.TensorSpec([None, shape.dense], tf.float32, "dense"),
    }


def save(folder: Path | str, seed: int = 0, **changed: Any) -> Path:
    """Saves the ranker with random weights; ``changed``: fields of :class:`Shape`."""
    shape = Shape(**changed)
    model = Ranker(shape, seed)
    extra = {"second": (model.serve, specs(shape))} if shape.second else None
    save_module(str(folder), model, model.serve, specs(shape), extra)
    return Path(folder)


def inputs(seed: int = 0, dense: int = 3) -> Arrays:
    """One batch: known and unknown tags, a row without any."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(np.arange(BATCH - 1), 2)
    count = len(rows)
    return {
        "item": rng.integers(0, 30, BATCH),
        "tag": np.array([f"w{k}".encode() for k in rng.integers(0, 20, count)], object),
        "tag_indices": np.stack([rows, np.arange(count) % 2], 1),
        "tag_shape": np.array([BATCH, 2]),
        "dense": rng.normal(size=(BATCH, dense)).astype(np.float32),
    }


__all__ = ["SERVING", "Shape", "inputs", "save"]
