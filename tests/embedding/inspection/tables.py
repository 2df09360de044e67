"""Tables with everything that can be kept, filled with any numbers, for the tests of the tools."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfctr
from tfctr.core import library

DIM = 4


def make(name: str = "users", dim: int = DIM, **options: Any) -> tfctr.EmbeddingVariable:
    """A table; by default with slots, counters, frequencies, steps and times."""
    everything: dict[str, Any] = {
        "optimizer": tfctr.optimizers.Adagrad(0.1),
        "admission": tfctr.CounterAdmission(2),
        "eviction": (tfctr.StepEviction(10_000), tfctr.TtlEviction(1e9)),
        "seed": 11,
        "clock": tfctr.ManualClock(5000.0),
    }
    return tfctr.EmbeddingVariable(dim, name, **(everything | options))


def fill(
    table: tfctr.EmbeddingVariable,
    keys: np.ndarray,
    *,
    seed: int = 0,
    values: np.ndarray | None = None,
    frequency: np.ndarray | None = None,
    last_step: np.ndarray | None = None,
    last_time: np.ndarray | None = None,
    counters: dict[int, tuple[int, int, int]] | None = None,
) -> None:
    """Gives keys rows, admitted or not; what is not given is random. counters: key -> (count, last step, last time)."""
    random = np.random.default_rng(seed)
    n = len(keys)
    names = table.optimizer.slot_names if table.optimizer else ()
    widths = tfctr.warm_start.slot_widths(table)
    values = random.normal(size=(n, table.dim)) * 10.0 ** random.integers(-5, 2, (n, 1)) if values is None else values
    library.load().tfctr_ev_import(
        handle=table.handle,
        step=tf.constant(0, tf.int64),
        keys=tf.constant(keys, tf.int64),
        values=tf.constant(values, tf.float32),
        slots=[tf.constant(random.uniform(size=(n, widths[name])), tf.float32) for name in names],
        frequency=tf.constant(random.integers(1, 1000, n) if frequency is None else frequency, tf.int64),
        last_step=tf.constant(random.integers(0, 100, n) if last_step is None else last_step, tf.int64),
        last_time=tf.constant(random.integers(0, 5_000_000, n) if last_time is None else last_time, tf.int64),
        slot_names=list(names),
        replace=True,
    )
    if counters:
        counted = [tf.constant([one[k] for one in counters.values()], tf.int64) for k in range(3)]
        library.load().tfctr_ev_import_counters(
            table.handle, tf.constant(0, tf.int64), tf.constant(list(counters), tf.int64), *counted,
            tf.zeros([0], tf.uint8),
        )  # fmt: skip


def save(folder: Path, step: int = 100, **tables: tfctr.EmbeddingVariable) -> str:
    """A checkpoint of tables, each by its keyword, with their step."""
    for table in tables.values():
        if isinstance(table.step, tf.Variable):
            table.step.assign(step)
    return str(tf.train.Checkpoint(**tables).write(str(folder)))


def contents(table: tfctr.EmbeddingVariable) -> dict[str, np.ndarray]:
    """All of a table, rows and counters each in order of their keys."""
    rows = table.export(slots=True)
    order = np.argsort(rows.keys)
    found = {"keys": rows.keys[order], "values": rows.values[order]}
    found |= {f"slots/{name}": slot[order] for name, slot in rows.slots.items()}
    for name, column in (
        ("frequency", rows.frequency),
        ("last_step", rows.last_step),
        ("last_time", rows.last_time_ms),
    ):
        if column is not None:
            found[name] = column[order]
    counted = [part.numpy() for part in library.load().tfctr_ev_export_counters(table.handle)]
    order = np.argsort(counted[0])
    names = ("keys", "counts", "last_step", "last_time")
    found |= {f"counters/{name}": part[order] for name, part in zip(names, counted, strict=False) if len(part)}
    return found | {"bloom": counted[4]}


def assert_equal(table: tfctr.EmbeddingVariable, other: tfctr.EmbeddingVariable) -> None:
    """Both tables hold the same, to the bit."""
    one, two = contents(table), contents(other)
    assert one.keys() == two.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name], name)


def tensors(prefix: str) -> dict[str, Any]:
    """Every tensor of a checkpoint but its object graph."""
    reader = tf.train.load_checkpoint(prefix)
    names = sorted(reader.get_variable_to_shape_map())
    return {name: reader.get_tensor(name) for name in names if name != "_CHECKPOINTABLE_OBJECT_GRAPH"}
