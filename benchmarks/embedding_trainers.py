"""Contestants of the step benchmark: one training step of Adagrad on 26 tables, by five routes.

Every trainer does the same job: look up one row per feature and example, concatenate, loss = sum(rows * targets),
gradient, update. ``run(ids, targets) -> seconds``; ids are int64 [features, batch].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.embedding_duel import now
from benchmarks.embedding_keys import BATCH, keys_of

RATE, START, EPSILON = 0.05, 0.1, 1e-7


class Trainer:
    """``_step(ids, targets)`` is a tf.function made by each subclass."""

    name = ""
    _step: Any

    def batch(self, rows: np.ndarray) -> Any:
        """The ids of row numbers [features, batch]; the static ones take the numbers themselves."""
        import tensorflow as tf

        return tf.constant(rows)

    def run(self, ids: Any, targets: Any) -> float:
        begin = now()
        self._step(ids, targets).numpy()
        return now() - begin

    def close(self) -> None:
        """Drops what holds memory."""
        self.__dict__.clear()


def _variables(features: int, rows: int, dim: int) -> list[Any]:
    import tensorflow as tf

    return [tf.Variable(tf.random.uniform([rows, dim], -0.05, 0.05)) for _ in range(features)]


def _loss(looked: list[Any], targets: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_sum(tf.concat(looked, 1) * targets)


class HandWritten(Trainer):
    """tf.gather, tf.unique, unsorted_segment_sum, ResourceSparseApplyAdagradV2: the fastest that stock ops give."""

    name = "hand-written sparse apply"

    def __init__(self, features: int, rows: int, dim: int):
        import tensorflow as tf

        variables = _variables(features, rows, dim)
        accumulators = [tf.Variable(tf.fill([rows, dim], START)) for _ in range(features)]

        @tf.function
        def step(ids: Any, targets: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = _loss([tf.gather(v, ids[f]) for f, v in enumerate(variables)], targets)
            for v, a, g in zip(variables, accumulators, tape.gradient(loss, variables), strict=True):
                unique, index = tf.unique(g.indices)
                summed = tf.math.unsorted_segment_sum(g.values, index, tf.size(unique))
                tf.raw_ops.ResourceSparseApplyAdagradV2(
                    var=v.handle, accum=a.handle, lr=RATE, epsilon=EPSILON, grad=summed, indices=unique
                )
            return loss

        self._step = step
        self._kept = (variables, accumulators)


class TfKeras(Trainer):
    """tf_keras 2.21's Adagrad on tf.Variables."""

    name = "tf_keras Adagrad"

    def __init__(self, features: int, rows: int, dim: int):
        import tensorflow as tf
        import tf_keras

        variables = _variables(features, rows, dim)
        optimizer = tf_keras.optimizers.Adagrad(RATE, START, EPSILON, jit_compile=False)
        optimizer.build(variables)

        @tf.function
        def step(ids: Any, targets: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = _loss([tf.gather(v, ids[f]) for f, v in enumerate(variables)], targets)
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        self._step = step
        self._kept = (variables, optimizer)


class Keras3(Trainer):
    """Keras 3's Embedding layers and Adagrad: its update walks the whole table."""

    name = "Keras 3 Adagrad"

    def __init__(self, features: int, rows: int, dim: int):
        import keras
        import tensorflow as tf

        layers = [keras.layers.Embedding(rows, dim) for _ in range(features)]
        for layer in layers:
            layer.build()
        variables = [layer.embeddings for layer in layers]
        optimizer = keras.optimizers.Adagrad(RATE, START, EPSILON)
        optimizer.build(variables)

        @tf.function
        def step(ids: Any, targets: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = _loss([layer(ids[f]) for f, layer in enumerate(layers)], targets)
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        self._step = step
        self._kept = (layers, optimizer)


class Ours(Trainer):
    """EmbeddingVariables: one grouped training lookup, one fused dedup-and-apply."""

    name = "EmbeddingVariable"

    def __init__(self, features: int, rows: int, dim: int):
        import tensorflow as tf

        import tfctr

        made = tfctr.optimizers.Adagrad(RATE, initial_accumulator_value=START, epsilon=EPSILON)
        updates = tf.Variable(0, dtype=tf.int64)  # one step for all, as the tables of a model have it
        tables = [tfctr.EmbeddingVariable(dim, optimizer=made, step=updates) for _ in range(features)]

        @tf.function
        def step(ids: Any, targets: Any) -> Any:
            with tf.GradientTape() as tape:
                for table in tables:
                    tape.watch(table.handle)
                looked = tfctr.embedding_lookup_group(list(zip(tables, tf.unstack(ids), strict=True)), training=True)
                loss = _loss(looked, targets)
            gradients = tape.gradient(loss, [table.handle for table in tables])
            tfctr.apply_gradients(zip(gradients, tables, strict=True))
            updates.assign_add(1)
            return loss

        for table in tables:
            grow = tf.function(lambda keys, table=table: tfctr.embedding_lookup(table, keys, training=True))
            for start in range(0, rows, BATCH):
                grow(tf.constant(keys_of(np.arange(start, min(rows, start + BATCH)))))
        self._step = step
        self._kept = (tables,)

    def batch(self, rows: np.ndarray) -> Any:
        import tensorflow as tf

        return tf.constant(keys_of(rows))
