"""Runs in .venv-tfra: TensorFlow Recommenders Addons' side of the benchmarks. See tfra_client.py.

Reads JSON lines ({"do": command, ...}) from standard input and answers each with one line ({"result": ...} or
{"error": ...}). Seconds are of the TensorFlow call alone.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import sys
from typing import Any

import numpy as np

from benchmarks.embedding_duel import CLOCKS, now, use_clock
from benchmarks.embedding_keys import BATCH, keys_of, lookup_rows, step_rows

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")


class Worker:
    """The commands. State of one measurement at a time; each set-up drops the one before."""

    def __init__(self, threads: int):
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
        self._tf = tf
        self._tfra = importlib.import_module("tensorflow_recommenders_addons")
        self._state: dict[str, Any] = {}
        self._made = 0

    def versions(self) -> dict[str, str]:
        return {"tfra": self._tfra.__version__, "tensorflow": self._tf.__version__}

    def clear(self) -> None:
        """Frees the tables."""
        for table in self._state.get("tables", ()):
            table.clear()
        self._state = {}
        gc.collect()

    def _table(self, dim: int, init_size: int = 0) -> Any:
        self._made += 1
        return self._tfra.dynamic_embedding.get_variable(
            f"table{self._made}",
            key_dtype=self._tf.int64,
            value_dtype=self._tf.float32,
            dim=dim,
            initializer=self._tf.random_uniform_initializer(-0.05, 0.05),
            init_size=init_size,
            devices=["/CPU:0"],
        )

    def lookup_setup(self, rows: int, dim: int) -> int:
        """A table with every row; returns its size."""
        self.clear()
        table = self._table(dim, rows)
        for start in range(0, rows, BATCH):
            keys = keys_of(np.arange(start, min(rows, start + BATCH)))
            table.upsert(self._tf.constant(keys), self._tf.random.uniform([len(keys), dim], -0.05, 0.05))
        self._state = {"tables": [table], "lookup": self._tf.function(lambda ids: table.lookup(ids))}
        return int(table.size())

    def lookup_batches(self, rows: int, exponent: float | None, batches: int, batch: int) -> None:
        drawn = lookup_rows(rows, exponent, batches, batch)
        self._state["batches"] = [self._tf.constant(keys_of(r)) for r in drawn]

    def lookup(self, batch: int) -> float:
        ids, call = self._state["batches"][batch], self._state["lookup"]
        begin = now()
        call(ids)
        return now() - begin

    def insert(self, rows: int, dim: int, slot: bool) -> float:
        """Seconds for inserting ``rows`` new keys into a new table; slot: Adagrad's table too."""
        self.clear()
        tf, tables = self._tf, [self._table(dim) for _ in range(1 + slot)]
        self._state = {"tables": tables}

        @tf.function
        def insert(keys: Any) -> None:
            tables[0].upsert(keys, tf.random.uniform([tf.size(keys), dim], -0.05, 0.05))
            if slot:
                tables[1].upsert(keys, tf.fill([tf.size(keys), dim], 0.1))

        batches = [tf.constant(keys_of(np.arange(s, min(rows, s + BATCH)))) for s in range(0, rows, BATCH)]
        insert.get_concrete_function(batches[0])
        begin = now()
        for keys in batches:
            insert(keys)
        seconds = now() - begin
        if int(tables[0].size()) != rows:
            raise AssertionError(f"{int(tables[0].size())} rows in the table, {rows} inserted")
        return seconds

    def step_setup(self, features: int, rows: int, dim: int) -> int:
        """Tables with every row and its slot, trained by TFRA's wrapper of Keras' Adagrad; returns all rows."""
        self.clear()
        tf, de = self._tf, self._tfra.dynamic_embedding
        keras = importlib.import_module("tf_keras")
        tables = [self._table(dim, rows) for _ in range(features)]
        shadows = [de.shadow_ops.ShadowVariable(t, name=f"shadow{i}_{self._made}") for i, t in enumerate(tables)]
        optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.legacy.Adagrad(0.05))

        @tf.function
        def step(ids: Any, targets: Any) -> Any:
            with tf.GradientTape() as tape:
                looked = [
                    de.shadow_ops.embedding_lookup_unique(s, ids[f], dim, with_unique=True)
                    for f, s in enumerate(shadows)
                ]
                loss = tf.reduce_sum(tf.concat(looked, 1) * targets)
            gradients = tape.gradient(loss, shadows)
            optimizer.apply_gradients(zip(gradients, shadows))  # noqa: B905 - as TFRA's documentation has it
            return loss

        self._state = {"tables": tables, "step": step, "shadows": shadows, "dim": dim, "optimizer": optimizer}
        # Slots are tables that the first step makes; fill both kinds in bulk.
        few = tf.constant(keys_of(np.arange(features * 8).reshape(features, 8) % rows))
        step(few, tf.ones([8, features * dim]))
        slots = [optimizer.get_slot(s, "accumulator") for s in shadows]
        for start in range(0, rows, BATCH):
            keys = tf.constant(keys_of(np.arange(start, min(rows, start + BATCH))))
            for table, slot in zip(tables, slots, strict=True):
                table.upsert(keys, tf.random.uniform([len(keys), dim], -0.05, 0.05))
                slot.params.upsert(keys, tf.fill([len(keys), dim], 0.1))
        return sum(int(t.size()) for t in tables)

    def step_batches(self, features: int, rows: int, exponent: float | None, batch: int, batches: int) -> None:
        tf = self._tf
        drawn = step_rows(rows, exponent, features, batch, batches)
        self._state["batches"] = [tf.constant(keys_of(r)) for r in drawn]
        self._state["targets"] = tf.random.stateless_normal([batch, features * self._state["dim"]], [1, 2])

    def step(self, batch: int) -> float:
        ids, targets, call = self._state["batches"][batch], self._state["targets"], self._state["step"]
        begin = now()
        call(ids, targets).numpy()
        return now() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    args = parser.parse_args()
    use_clock(args.clock)
    worker = Worker(args.threads)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print must not land between the answers
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": getattr(worker, request.pop("do"))(**request)}
        except Exception as error:  # told to the client, which raises it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
