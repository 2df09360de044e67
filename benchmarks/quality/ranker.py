"""A factorisation machine over dynamic or hashed tables, trained in one process: ids in, AUC and sizes out.

A row is [linear weight, factors]: logit = bias + sum of weights + sum over pairs of features of dot products. All
tables are trained by Adagrad at equal rates, with initial values from the same distribution.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.embedding_keys import keys_of
from benchmarks.quality.churn import Clicks
from tfctr.profiling.auc import auc

FACTORS, BATCH, RATE, START, SPREAD = 8, 500, 0.1, 0.1, 0.05
DIM = 1 + FACTORS


@dataclasses.dataclass(frozen=True)
class Trained:
    """Of one run. bytes_by_table: rows, index and counters, of values and slots; rows: all tables together."""

    auc: float
    rows: int
    bytes_by_table: list[int]

    @property
    def bytes(self) -> int:
        return sum(self.bytes_by_table)


class DynamicTables:
    """One EmbeddingVariable per feature; ``options``: admission, eviction, evict_every_steps."""

    def __init__(self, features: int, seed: int, step: Any, **options: Any):
        import tfctr

        optimizer = tfctr.optimizers.Adagrad(RATE, START)
        self._tables = [
            tfctr.EmbeddingVariable(DIM, optimizer=optimizer, seed=seed * 100 + f, step=step, **options)
            for f in range(features)
        ]

    def ids(self, ids: np.ndarray) -> np.ndarray:
        """What ``lookup`` takes for these ids [examples, features]."""
        return ids

    def watch(self, tape: Any) -> list[Any]:
        """What the tape differentiates by."""
        handles = [table.handle for table in self._tables]
        tape.watch(handles)
        return handles

    def lookup(self, ids: Any, training: bool) -> list[Any]:
        """Rows of every feature, float32 [batch, DIM] each."""
        import tfctr

        columns = [ids[:, f] for f in range(len(self._tables))]
        return tfctr.embedding_lookup_group(list(zip(self._tables, columns, strict=True)), training=training)

    def apply(self, gradients: Sequence[Any]) -> None:
        import tfctr

        tfctr.apply_gradients(zip(gradients, self._tables, strict=True))

    def sizes(self) -> tuple[int, list[int]]:
        """Rows of all tables, bytes of each; policies run first, so that what is due to go has gone."""
        for table in self._tables:
            if table.options.eviction:
                table.evict()
        return sum(int(table.size()) for table in self._tables), [int(table.bytes()) for table in self._tables]


class HashedTables:
    """One static variable per feature, ids hashed into its rows: the same bytes as ``bytes_by_table``."""

    def __init__(self, bytes_by_table: Sequence[int], seed: int):
        import tensorflow as tf

        self._rows = [max(1, size // (2 * 4 * DIM)) for size in bytes_by_table]
        rng = np.random.default_rng(seed)
        self._tables = [tf.Variable(rng.uniform(-SPREAD, SPREAD, (n, DIM)).astype(np.float32)) for n in self._rows]
        self._slots = [tf.Variable(tf.fill([n, DIM], START)) for n in self._rows]

    def ids(self, ids: np.ndarray) -> np.ndarray:
        return keys_of(ids) % np.array(self._rows)

    def watch(self, tape: Any) -> list[Any]:
        del tape  # watches variables by itself
        return self._tables

    def lookup(self, ids: Any, training: bool) -> list[Any]:
        import tensorflow as tf

        del training
        return [tf.gather(table, ids[:, f]) for f, table in enumerate(self._tables)]

    def apply(self, gradients: Sequence[Any]) -> None:
        import tensorflow as tf

        for table, slot, gradient in zip(self._tables, self._slots, gradients, strict=True):
            unique, index = tf.unique(gradient.indices)
            summed = tf.math.unsorted_segment_sum(gradient.values, index, tf.size(unique))
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=table.handle, accum=slot.handle, lr=RATE, epsilon=1e-7, grad=summed, indices=unique
            )

    def sizes(self) -> tuple[int, list[int]]:
        return sum(self._rows), [2 * 4 * DIM * n for n in self._rows]


def train(clicks: Clicks, make: Callable[[Any], Any], seed: int, epochs: int = 1) -> Trained:
    """Trains on everything but the test set, in order of time (shuffled by ``seed`` where there are several epochs).

    Args:
      make: gives the tables for the model-wide step variable.
    """
    import tensorflow as tf

    step, bias = tf.Variable(0, dtype=tf.int64), tf.Variable(0.0)
    tables = make(step)

    def logits(looked: list[Any]) -> Any:
        total = tf.add_n(looked)
        squares = tf.add_n([rows[:, 1:] ** 2 for rows in looked])
        return bias + total[:, 0] + 0.5 * tf.reduce_sum(total[:, 1:] ** 2 - squares, 1)

    @tf.function
    def run_epoch(ids: Any, labels: Any) -> None:
        for k in tf.range(tf.shape(ids)[0]):
            with tf.GradientTape() as tape:
                sources = tables.watch(tape)
                scores = logits(tables.lookup(ids[k], training=True))
                losses = tf.nn.sigmoid_cross_entropy_with_logits(labels[k], scores)
                loss = tf.reduce_sum(losses)  # a sum: a row's step must not depend on the batch size
            *gradients, slope = tape.gradient(loss, [*sources, bias])
            tables.apply(gradients)
            bias.assign_sub(0.0002 * slope)
            step.assign_add(1)

    score = tf.function(lambda ids: logits(tables.lookup(ids, training=False)))
    ids = tables.ids(clicks.ids)
    rng = np.random.default_rng(seed)
    steps = clicks.train // BATCH
    for _ in range(epochs):
        order = rng.permutation(clicks.train) if epochs > 1 else np.arange(clicks.train)
        order = order[: steps * BATCH].reshape(steps, BATCH)
        run_epoch(tf.constant(ids[order]), tf.constant(clicks.labels[order]))
    rows, sizes = tables.sizes()
    scores = score(tf.constant(ids[clicks.train :])).numpy()
    found = auc(clicks.labels[clicks.train :], scores)
    assert found is not None
    return Trained(found, rows, sizes)
