"""Tables that remember their changes, what is in them, and what happens to them between saves: for tests of delta
checkpoints.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfctr
from tfctr.core import library


def make(shards: int = 5, clock: tfctr.ManualClock | None = None, **options: Any) -> tfctr.EmbeddingVariable:
    given: dict[str, Any] = {"optimizer": tfctr.optimizers.Adagrad(0.1), "seed": 3, "record_changes": True} | options
    return tfctr.EmbeddingVariable(4, "items", shards=shards, clock=clock, **given)


def contents(table: tfctr.EmbeddingVariable) -> dict[str, np.ndarray]:
    """Everything of a table, in order of its keys."""
    rows = table.export(slots=True)
    order = np.argsort(rows.keys)
    found = {"keys": rows.keys[order], "values": rows.values[order]}
    found |= {f"slots/{name}": slot[order] for name, slot in rows.slots.items()}
    for name in ("frequency", "last_step", "last_time_ms"):
        if getattr(rows, name) is not None:
            found[name] = getattr(rows, name)[order]
    counted = [part.numpy() for part in library.load().tfctr_ev_export_counters(table.handle)]
    order = np.argsort(counted[0])
    for name, part in zip(("keys", "counts", "last_step", "last_time"), counted, strict=False):
        found[f"counters/{name}"] = part[order] if len(part) else part
    found["bloom"] = counted[4]
    return found


def assert_same(table: tfctr.EmbeddingVariable, expected: dict[str, np.ndarray]) -> None:
    found = contents(table)
    assert found.keys() == expected.keys()
    for name, part in expected.items():
        np.testing.assert_array_equal(found[name], part, err_msg=name)


def train(table: tfctr.EmbeddingVariable, ids: Any) -> None:
    with tf.GradientTape() as tape:
        rows = table.lookup(np.asarray(ids, np.int64), training=True)
        loss = tf.reduce_sum((rows - 1.0) ** 2)
    if table.optimizer is not None:
        table.apply_gradients(tape.gradient(loss, table.handle))


def manager_of(table: Any, directory: Path, **options: Any) -> tfctr.DeltaCheckpointManager:
    return tfctr.DeltaCheckpointManager(tf.train.Checkpoint(table=table), directory, **options)


class Life:
    """What happens to a table between saves: everything that changes one, drawn at random."""

    def __init__(self, table: tfctr.EmbeddingVariable, clock: tfctr.ManualClock, seed: int) -> None:
        self.table, self.clock, self.random = table, clock, np.random.default_rng(seed)

    def ids(self, n: int) -> np.ndarray:
        extremes = np.array([-(2**63), 2**63 - 1, 0, -1])
        return np.where(self.random.random(n) < 0.1, self.random.choice(extremes, n), self.random.integers(0, 60, n))

    def go_on(self) -> None:
        for _ in range(self.random.integers(1, 6)):
            self.clock.advance(5.0)
            action = self.random.integers(0, 8)
            if action < 4:
                train(self.table, self.ids(12))
            elif action == 4:
                self.table.lookup(self.ids(8), training=True)  # counted, not updated
            elif action == 5:
                self.table.erase(self.ids(6))
            elif action == 6:
                ids = np.unique(self.ids(5))
                tfctr.warm_start.from_numpy(self.table, ids, self.random.normal(size=[len(ids), 4]).astype(np.float32))
            elif self.table.options.eviction:
                self.table.evict()


def live(folder: Path, rounds: int, seed: int, **options: Any) -> Iterator[tuple[Any, Any, dict[str, np.ndarray]]]:
    """Saves a life; yields (manager, save, contents) after each."""
    clock = tfctr.ManualClock(1_000_000)
    table = make(clock=clock, **options)
    life = Life(table, clock, seed)
    manager = manager_of(table, folder, max_delta_rows=1e9)
    for _ in range(rounds):
        life.go_on()
        save = manager.save()
        yield manager, save, contents(table)
    manager.close()
