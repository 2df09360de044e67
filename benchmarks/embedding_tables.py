"""TensorFlow contestants of the lookup and insert benchmarks: a static variable, stock's two hash tables, ours.

Each holds ``rows`` rows of ``dim`` floats and answers ``batch(row_numbers)`` (its own form of the ids) and
``run(ids) -> seconds``, one call of a tf.function that returns the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.embedding_duel import now
from benchmarks.embedding_keys import BATCH, keys_of

SLOT_START = 0.1


def configure(threads: int) -> Any:
    """TensorFlow with so many threads; call before anything runs."""
    import os

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    return tf


class Table:
    """What the four have in common; ``_lookup`` is made by each."""

    name = ""
    _lookup: Any

    def batch(self, rows: np.ndarray) -> Any:
        """The ids of these row numbers as a tensor."""
        import tensorflow as tf

        return tf.constant(keys_of(rows))

    def run(self, ids: Any) -> float:
        """Seconds of one lookup."""
        begin = now()
        self._lookup(ids)
        return now() - begin

    def values(self, ids: Any) -> np.ndarray:
        return self._lookup(ids).numpy()


class StaticTable(Table):
    """tf.Variable and tf.gather; its ids are row numbers."""

    name = "tf.gather"

    def __init__(self, rows: int, dim: int):
        import tensorflow as tf

        self._variable = variable = tf.Variable(tf.zeros([rows, dim]))
        for start in range(0, rows, 1_000_000):
            count = min(rows - start, 1_000_000)
            part = variable[start : start + count]
            part.assign(tf.random.uniform([count, dim], -0.05, 0.05))
        self._lookup = tf.function(lambda ids: tf.gather(variable, ids))

    def batch(self, rows: np.ndarray) -> Any:
        import tensorflow as tf

        return tf.constant(rows)


class DenseTable(Table):
    """tf.lookup.experimental.DenseHashTable at its default initial_num_buckets, grown by inserts; or pre-sized."""

    name = "DenseHashTable"

    def __init__(self, rows: int, dim: int, buckets: int | None = None):
        import tensorflow as tf

        sizes = {} if buckets is None else {"initial_num_buckets": buckets}
        self._table = table = tf.lookup.experimental.DenseHashTable(
            tf.int64, tf.float32, tf.zeros([dim]), empty_key=-1, deleted_key=-2, **sizes
        )
        self._lookup = tf.function(lambda ids: table.lookup(ids))
        fill(self._table, rows, dim)


class MutableTable(Table):
    """tf.lookup.experimental.MutableHashTable."""

    name = "MutableHashTable"

    def __init__(self, rows: int, dim: int):
        import tensorflow as tf

        self._table = table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, tf.zeros([dim]))
        self._lookup = tf.function(lambda ids: table.lookup(ids))
        fill(self._table, rows, dim)


def fill(table: Any, rows: int, dim: int) -> None:
    """Inserts every row into one of stock's tables."""
    import tensorflow as tf

    for start in range(0, rows, BATCH):
        keys = keys_of(np.arange(start, min(rows, start + BATCH)))
        table.insert(tf.constant(keys), tf.random.uniform([len(keys), dim], -0.05, 0.05))


class EvTable(Table):
    """tfctr.EmbeddingVariable with an Adagrad slot, grown by training lookups; measured by inference lookups."""

    name = "EmbeddingVariable"

    def __init__(self, rows: int, dim: int):
        import tensorflow as tf

        import tfctr

        self._ev = ev = tfctr.EmbeddingVariable(dim, optimizer=tfctr.optimizers.Adagrad(0.05))
        self._lookup = tf.function(lambda ids: tfctr.embedding_lookup(ev, ids))
        self._insert = tf.function(lambda ids: tfctr.embedding_lookup(ev, ids, training=True))
        for start in range(0, rows, BATCH):
            self._insert(tf.constant(keys_of(np.arange(start, min(rows, start + BATCH)))))

    def training(self, ids: Any) -> float:
        """Seconds of one training lookup; every key has a row."""
        begin = now()
        self._insert(ids)
        return now() - begin
