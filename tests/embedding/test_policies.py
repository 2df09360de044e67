"""Policies where the reference model cannot follow: max_bytes, and automatic eviction across a restore."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr


def table(**options: Any) -> tfctr.EmbeddingVariable:
    return tfctr.EmbeddingVariable(8, optimizer=tfctr.optimizers.SGD(1.0), **options)


def insert(variable: tfctr.EmbeddingVariable, ids: Any) -> None:
    variable.lookup(ids, training=True)
    variable.step.assign_add(1)


def test_a_capacity_policy_holds_max_bytes() -> None:
    step = tf.Variable(0, dtype=tf.int64)
    policy = tfctr.CapacityEviction(10**9, protected_keys=(3,), min_rows=100)
    limit = table().bytes() + 400_000
    variable = table(eviction=policy, max_bytes=limit, step=step)
    order: dict[int, tuple[int, int]] = {}  # (last step, key) of everything ever inserted
    random = np.random.default_rng(0)
    for batch in np.split(random.permutation(25_000), 25):
        order |= {int(key): (int(step.numpy()), int(key)) for key in batch}
        insert(variable, batch)
        assert variable.bytes() <= limit
        assert variable.contains(batch).all()  # a batch is younger than all before it
    size = variable.size()
    assert 2000 < size < 20_000
    assert variable.contains([3]) == (3 in order)
    # Least recently updated first, of equals the smaller key: the youngest are left, whatever was evicted when.
    youngest = sorted(set(order) - {3}, key=order.__getitem__)[-size + 1 :]
    assert set(variable.keys().tolist()) == {*youngest, 3}


def test_without_a_capacity_policy_max_bytes_is_an_error_and_counts_stay() -> None:
    admission = tfctr.CounterAdmission(2)
    limit = table(admission=admission).bytes() + 100_000
    variable = table(max_bytes=limit, name="bounded", admission=admission)
    variable.lookup([-1, -1], training=True)
    many = np.repeat(np.arange(4000), 2)
    with pytest.raises(tf.errors.ResourceExhaustedError, match=f"(?s)bounded.*bytes.*max_bytes = {limit}"):
        variable.lookup(many, training=True)
    assert variable.bytes() <= limit
    rows = variable.size()
    assert rows > 100  # what was inserted stays
    assert set(variable.frequency(np.arange(4000)).tolist()) == {2}
    np.testing.assert_array_equal(variable.lookup([-1]).numpy(), variable.lookup([-1], training=True).numpy())
    variable.erase(np.arange(4000))
    variable.lookup(np.repeat(np.arange(5000, 5100), 2), training=True)  # erased rows are used again
    assert variable.size() == 101


def test_ids_that_come_once_do_not_fill_a_bounded_table() -> None:
    policy = tfctr.CapacityEviction(10**9)
    limit = table(admission=tfctr.CounterAdmission(2)).bytes() + 300_000
    variable = table(max_bytes=limit, admission=tfctr.CounterAdmission(2), eviction=policy)
    insert(variable, np.repeat(np.arange(500), 2))
    for i in range(1, 60):
        insert(variable, np.arange(1000) + 1000 * i)
        assert variable.bytes() <= limit
    assert variable.size() == 500  # old counters went, no row did
    assert variable.counters() > 1000
    assert set(variable.frequency(np.arange(1000) + 59_000).tolist()) == {1}


def test_eviction_takes_the_same_rows_after_a_restore(tmp_path: Path) -> None:
    """Frequencies, ages and counters are in the checkpoint, so that what goes does not depend on a restart."""

    def make(shards: int) -> tfctr.EmbeddingVariable:
        policies = [tfctr.StepEviction(30, protected_keys=(3,)), tfctr.CapacityEviction(40, "lfu")]
        return table(admission=tfctr.CounterAdmission(2), eviction=policies, shards=shards)

    variable = make(4)
    random = np.random.default_rng(0)
    for step in range(60):
        ids = np.append(step // 2 + random.zipf(1.3, 60) % 90, 10_000 + step)  # one that comes once
        variable.lookup(ids, training=True)
        variable.apply_gradients(tf.IndexedSlices(tf.ones([30, 8]), ids[:30]))
    back = make(7)
    prefix = tf.train.Checkpoint(table=variable).write(str(tmp_path / "ckpt"))
    tf.train.Checkpoint(table=back).read(prefix).assert_consumed()
    expected = variable.evict()
    assert all(part.rows > 0 for part in expected.policies) and expected.counters > 0
    found = back.evict()
    assert (found.rows, found.counters) == (expected.rows, expected.counters)
    assert [(part.rows, part.counters) for part in found.policies] == [
        (part.rows, part.counters) for part in expected.policies
    ]
    assert sorted(back.keys().tolist()) == sorted(variable.keys().tolist())


def test_automatic_eviction_goes_on_after_a_restore_of_an_earlier_step(tmp_path: Path) -> None:
    step = tf.Variable(0, dtype=tf.int64)
    variable = table(eviction=tfctr.StepEviction(4), evict_every_steps=10, step=step)
    checkpoint = tf.train.Checkpoint(table=variable, step=step)

    def run_to(end: int) -> list[tuple[int, int]]:
        """Trains one key of its own in each step; returns (step, rows) where rows went."""
        evicted = []
        while step < end:
            now = int(step.numpy())
            variable.lookup([now], training=True)
            before = variable.size()
            variable.apply_gradients(tf.IndexedSlices(tf.ones([1, 8]), tf.constant([now], tf.int64)))
            step.assign_add(1)
            if variable.size() < before:
                evicted.append((now, variable.size()))
        return evicted

    assert run_to(15) == [(10, 5)]
    prefix = checkpoint.write(str(tmp_path / "early"))
    first = run_to(100)
    assert [at for at, _ in first] == list(range(20, 100, 10))
    checkpoint.read(prefix)
    assert step == 15
    assert run_to(100) == first
