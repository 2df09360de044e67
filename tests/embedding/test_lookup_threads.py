"""Eight threads at one table through TensorFlow: lookups, updates, evictions, erasing and saving at the same time."""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tfctr.embedding import ops

KEYS, BATCH, SECONDS = 3000, 500, 2.0


def run_together(works: list[Callable[[np.random.Generator], Any]]) -> None:
    """Each work in a thread of its own, over and over for SECONDS; the first error of any is raised."""
    stop = time.monotonic() + SECONDS
    errors: list[BaseException] = []

    def loop(seed: int, work: Callable[[np.random.Generator], Any]) -> None:
        rng = np.random.default_rng(seed)
        try:
            while True:  # each once at least, however late it gets its turn
                work(rng)
                if time.monotonic() >= stop or errors:
                    break
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=loop, args=(seed, work)) for seed, work in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("admission", [None, tfctr.CounterAdmission(3)], ids=["all", "counter"])
def test_a_row_is_whole_whatever_goes_on(admission, tmp_path):
    """Gradients are 0, so a row has its initial value whenever it is read, or the default value if it has no row."""
    step = tf.Variable(0, dtype=tf.int64)
    variable = tfctr.EmbeddingVariable(
        8,
        optimizer=tfctr.optimizers.Adagrad(0.1),
        admission=admission,
        eviction=tfctr.StepEviction(20),
        default_value=9.0,
        step=step,
        seed=1,
    )
    initial = tfctr.EmbeddingVariable(8, seed=1)
    values = np.concatenate([initial.lookup(np.arange(KEYS), training=True).numpy(), np.full([1, 8], 9.0)])
    names = {row.tobytes(): i for i, row in enumerate(values.astype(np.float32))}
    checkpoint = tf.train.Checkpoint(variable=variable)
    saved = []

    def check(ids: np.ndarray, rows: Any) -> None:
        for key, row in zip(ids, rows.numpy(), strict=True):
            assert names[row.tobytes()] in (key, KEYS)

    def train(rng: np.random.Generator) -> None:
        ids = rng.integers(0, KEYS, BATCH)
        rows = variable.lookup(ids, training=True)
        check(ids, rows)
        variable.apply_gradients(tf.IndexedSlices(tf.zeros([BATCH, 8]), tf.constant(ids)))
        step.assign_add(1)

    def read(rng: np.random.Generator) -> None:
        ids = rng.integers(0, KEYS, BATCH)
        check(ids, variable.lookup(ids))

    def evict(rng: np.random.Generator) -> None:
        variable.evict()

    def erase(rng: np.random.Generator) -> None:
        ops.erase(variable.handle, tf.constant(rng.integers(0, KEYS, 100)))

    def save(rng: np.random.Generator) -> None:
        saved.append(checkpoint.write(str(tmp_path / f"save-{len(saved)}")))

    run_together([train, train, train, read, read, evict, erase, save])
    assert saved
    rows = variable.size()
    assert rows == int(np.sum(variable.contains(np.arange(KEYS))))
    reader = tf.train.load_checkpoint(saved[-1])
    shapes = reader.get_variable_to_shape_map()
    keys = next(reader.get_tensor(name) for name in shapes if name.endswith("/keys") and "counters" not in name)
    found = next(reader.get_tensor(name) for name in shapes if name.endswith("/values"))
    assert len(keys) == len(found) == len(set(keys))
    np.testing.assert_array_equal(found, values[keys].astype(np.float32))


def test_thirty_two_threads_with_batches_of_any_size():
    """Other systems' lookups mix up shapes and rows of concurrent requests: here by one traced function."""
    variable = tfctr.EmbeddingVariable(8, default_value=9.0, seed=1)
    values = np.full([2 * KEYS, 8], 9.0, np.float32)  # half of the ids have no row
    values[:KEYS] = variable.lookup(np.arange(KEYS), training=True).numpy()
    assert (values[:KEYS] != 9.0).all()

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int64)])
    def serve(ids: tf.Tensor) -> tf.Tensor:
        return variable.lookup(ids)

    def read(rng: np.random.Generator) -> None:
        ids = rng.integers(0, 2 * KEYS, rng.integers(0, 20, 2))
        np.testing.assert_array_equal(serve(tf.constant(ids)).numpy(), values[ids])

    run_together([read] * 32)
    assert variable.size() == KEYS


def test_counts_are_exact():
    """Eight threads count the same keys; nothing is lost, and every key is admitted once."""
    variable = tfctr.EmbeddingVariable(4, admission=tfctr.CounterAdmission(50), record_frequency=True)
    calls = [0] * 8

    def count(thread: int) -> Callable[[np.random.Generator], None]:
        def work(rng: np.random.Generator) -> None:
            variable.lookup(np.repeat(np.arange(100), 2), training=True)
            calls[thread] += 1

        return work

    run_together([count(thread) for thread in range(8)])
    assert variable.frequency(np.arange(100)).tolist() == [2 * sum(calls)] * 100
    assert variable.size() == 100
    assert ops.size(variable.handle).counters == 0


def test_evict_every_steps_runs_when_a_multiple_is_crossed():
    step = tf.Variable(0, dtype=tf.int64)
    variable = tfctr.EmbeddingVariable(
        2,
        optimizer=tfctr.optimizers.SGD(0.1),
        eviction=tfctr.StepEviction(5),
        evict_every_steps=10,
        step=step,
    )
    variable.lookup([1], training=True)
    left = []
    for now in (0, 3, 9, 10, 11, 27, 29):
        step.assign(now)
        variable.lookup([100 + now], training=True)
        variable.apply_gradients(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([100 + now], tf.int64)))
        left.append([key for key in (1, *range(100, 130)) if variable.contains([key])[0]])
    assert left == [
        [1, 100],
        [1, 100, 103],
        [1, 100, 103, 109],
        [109, 110],  # step 10: what was updated before step 5 goes
        [109, 110, 111],
        [127],  # step 27 is past 20
        [127, 129],
    ]
