"""Every admission with every eviction, 2,000 steps of lookups and updates: the table and the reference model agree to
the bit on returned rows, surviving keys, counts, steps, values and slots.
"""

import json
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.embedding.reference_policies import Report
from tests.embedding.reference_table import Adagrad, ReferenceTable
from tfctr.embedding import ops

STEPS = 2000
DIM = 3
KEYS_PER_STEP = 14
LEARNING_RATE = 0.3
EXTREMES = (-(2**63), 2**63 - 1, -1, -2, 0, 1)

ADMISSIONS = {
    "none": None,
    "counter": tfctr.CounterAdmission(3),
    # As small as it gets, so that most keys share cells with others; the reset falls between evictions.
    "bloom": tfctr.BloomAdmission(3, expected_keys=40, false_positive_rate=0.2, counter_bits=8, reset_every_steps=150),
}
EVICTIONS: dict[str, Any] = {
    "none": None,
    "step": tfctr.StepEviction(60),
    "ttl": tfctr.TtlEviction(2.5),
    "l2": tfctr.L2Eviction(0.55),
    "lru": tfctr.CapacityEviction(45),
    "lfu": tfctr.CapacityEviction(45, "lfu"),
    "protected": tfctr.StepEviction(20, min_rows=30, protected_keys=EXTREMES),
    "several": (
        tfctr.TtlEviction(4.0),
        tfctr.L2Eviction(0.5, min_rows=40, protected_keys=(5, 6)),
        tfctr.StepEviction(90, protected_keys=(7,)),
        tfctr.CapacityEviction(60, "lfu", protected_keys=EXTREMES),
    ),
}


class Traffic:
    """Ids as a stream has them: a few that always come, a window that moves on, one-offs, and the extremes."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        shape = (STEPS, KEYS_PER_STEP)
        draw = random.random(shape)
        hot = random.integers(0, 12, shape)
        moving = 1000 + np.arange(STEPS)[:, None] // 10 + random.integers(0, 25, shape)
        once = random.integers(-(2**63), 2**63 - 1, shape)
        extreme = random.choice(np.array(EXTREMES, np.int64), shape)
        self.keys = np.select([draw < 0.3, draw < 0.8, draw < 0.95], [hot, moving, once], extreme).astype(np.int64)
        self.only_read = self.keys[random.permutation(STEPS), :2] + random.integers(0, 2, (STEPS, 2))
        self.updated = random.integers(0, KEYS_PER_STEP + 1, STEPS)  # the gradients of so many come
        zero = random.random((*shape, 1)) < 0.1  # an update all the same
        self.gradients = np.where(zero, 0, random.normal(size=(*shape, DIM))).astype(np.float32)
        self.times_ms = np.cumsum(random.integers(0, 80, STEPS))


@tf.function
def steps_of_the_table(
    handle: tf.Tensor,
    first: tf.Tensor,
    keys: tf.Tensor,
    only_read: tf.Tensor,
    updated: tf.Tensor,
    gradients: tf.Tensor,
    times_ms: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Many steps in one graph; returns what the lookups of each returned. Traced once for all tables."""
    spec = [ops.LookupSpec(DIM)]
    count = tf.shape(keys)[0]
    read = tf.TensorArray(tf.float32, count, element_shape=[2, DIM])
    rows = tf.TensorArray(tf.float32, count, element_shape=[KEYS_PER_STEP, DIM])
    for i in tf.range(count):
        step = first + tf.cast(i, tf.int64)
        ops.set_clock(handle, times_ms[i])
        read = read.write(i, ops.lookup([handle], [only_read[i]], spec, step=step, training=False)[0])
        rows = rows.write(i, ops.lookup([handle], [keys[i]], spec, step=step, training=True)[0])
        n = updated[i]
        ops.apply([handle], [keys[i][:n]], [gradients[i][:n]], [LEARNING_RATE], step)
    return read.stack(), rows.stack()


class Pair:
    """A real table and its reference; every method does the same to both and compares."""

    def __init__(self, admission: Any, eviction: Any, every: int) -> None:
        self.clock = tfctr.ManualClock()
        self.table = tfctr.EmbeddingVariable(
            DIM,
            optimizer=tfctr.optimizers.Adagrad(LEARNING_RATE),
            admission=admission,
            eviction=eviction,
            evict_every_steps=every if eviction else 0,
            default_value=[0.5, -1.0, 2.0],
            initializer=tfctr.Uniform(-0.7, 0.7),
            seed=2**64 - 3,
            clock=self.clock,
            record_frequency=True,
        )
        self.reference = ReferenceTable(json.loads(self.table.config), Adagrad())
        self.spec = [ops.LookupSpec(DIM)]
        self.gone = 0

    def lookup(self, keys: np.ndarray, step: int, training: bool = True) -> None:
        (rows,) = ops.lookup([self.table.handle], [keys], self.spec, step=step, training=training)
        want = self.reference.lookup(keys.tolist(), step, self.clock.time_ms, training)
        np.testing.assert_array_equal(rows.numpy(), want, strict=True)

    def apply(self, keys: np.ndarray, gradients: np.ndarray, step: int) -> None:
        ops.apply([self.table.handle], [keys], [gradients], [LEARNING_RATE], step)
        self.reference_apply(keys, gradients, step, self.clock.time_ms)

    def reference_apply(self, keys: np.ndarray, gradients: np.ndarray, step: int, time_ms: int) -> None:
        report = self.reference.apply(keys.tolist(), gradients, LEARNING_RATE, step, time_ms)
        self.gone += report.rows if report else 0

    def steps(self, traffic: Traffic, begin: int, end: int) -> None:
        """Steps [begin, end): a lookup that only reads, one that trains, an update."""
        part = slice(begin, end)
        columns = [traffic.keys, traffic.only_read, traffic.updated, traffic.gradients, traffic.times_ms]
        read, rows = steps_of_the_table(
            self.table.handle, tf.constant(begin, tf.int64), *(tf.constant(column[part]) for column in columns)
        )
        for step, got_read, got_rows in zip(range(begin, end), read.numpy(), rows.numpy(), strict=True):
            time_ms = int(traffic.times_ms[step])
            want_read = self.reference.lookup(traffic.only_read[step].tolist(), step, time_ms)
            want_rows = self.reference.lookup(traffic.keys[step].tolist(), step, time_ms, training=True)
            assert np.array_equal(got_read, want_read), f"step {step}: {got_read} is not {want_read}"
            assert np.array_equal(got_rows, want_rows), f"step {step}: {got_rows} is not {want_rows}"
            n = traffic.updated[step]
            self.reference_apply(traffic.keys[step, :n], traffic.gradients[step, :n], step, time_ms)

    def evict(self, step: int) -> None:
        dry = self.table.evict(dry_run=True, step=step)
        real = self.table.evict(step=step)
        want = self.reference.evict(step, self.clock.time_ms)
        assert dry == real
        assert (real.rows, real.counters) == (want.rows, want.counters)
        assert [policy.rows for policy in real.policies] == want.rule_rows
        assert [policy.counters for policy in real.policies] == want.rule_counters
        self.gone += want.rows

    def compare(self, seen: set[int]) -> None:
        rows = self.table.export(slots=True)
        order = np.argsort(rows.keys)
        want = [self.reference.rows[key] for key in sorted(self.reference.rows)]
        np.testing.assert_array_equal(rows.keys[order], np.array(sorted(self.reference.rows), np.int64))
        if want:
            np.testing.assert_array_equal(rows.values[order], np.stack([row.value for row in want]))
            slots = rows.slots["accumulator"][order]
            np.testing.assert_array_equal(slots, np.stack([row.slots["accumulator"] for row in want]))
        options = self.table.options
        assert rows.frequency[order].tolist() == [row.frequency for row in want]
        if options.keeps_last_step:
            assert rows.last_step[order].tolist() == [row.last_step for row in want]
        if options.keeps_last_time:
            assert rows.last_time_ms[order].tolist() == [row.last_time_ms for row in want]
        keys = sorted(seen)  # counters are compared through the counts of every key that ever came
        counts = self.table.frequency(np.array(keys, np.int64))
        assert counts.tolist() == self.reference.frequency(keys)
        assert self.table.size() == len(want)
        assert self.table.counters() == len(self.reference.admission.counters())


@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.parametrize("admission", ADMISSIONS)
def test_2000_steps(admission: str, eviction: str) -> None:
    pair = Pair(ADMISSIONS[admission], EVICTIONS[eviction], every=70)
    traffic = Traffic(seed=list(EVICTIONS).index(eviction))
    for begin in range(0, STEPS, 100):
        middle = begin + 50
        pair.steps(traffic, begin, middle)
        pair.clock.set(int(traffic.times_ms[middle]) / 1000)
        pair.lookup(traffic.keys[middle], middle)
        if eviction != "none":
            pair.evict(middle)  # between lookup and update: gradients of what goes are dropped
        pair.apply(traffic.keys[middle], traffic.gradients[middle], middle)
        pair.steps(traffic, middle + 1, begin + 100)
        if begin % 300 == 0:
            pair.compare(set(traffic.keys[: begin + 100].ravel().tolist()))
    pair.compare(set(traffic.keys.ravel().tolist()))
    if eviction != "none":
        assert pair.gone > 50, "the traffic must give the policy something to do"
    assert len(pair.reference.rows) > 20


def test_the_reference_model_can_fail() -> None:
    # The comparison sees a single wrong count, bit or key.
    pair = Pair(tfctr.CounterAdmission(2), tfctr.StepEviction(5), every=0)
    pair.lookup(np.array([1, 1, 2], np.int64), 0)
    pair.apply(np.array([1], np.int64), np.ones((1, DIM), np.float32), 0)
    pair.compare({1, 2})
    row = pair.reference.rows[1]
    for attribute, wrong in (("frequency", 3), ("last_step", 1), ("value", np.nextafter(row.value, np.float32(9)))):
        right = getattr(row, attribute)
        setattr(row, attribute, wrong)
        with pytest.raises(AssertionError):
            pair.compare({1, 2})
        setattr(row, attribute, right)
    pair.reference.admission.forget(2)
    with pytest.raises(AssertionError):
        pair.compare({1, 2})


def test_a_dry_run_changes_nothing() -> None:
    pair = Pair(tfctr.CounterAdmission(2), (tfctr.StepEviction(5), tfctr.CapacityEviction(1)), every=0)
    pair.lookup(np.array([1, 1, 2, 3, 3, 4], np.int64), 0)
    report = pair.table.evict(dry_run=True, step=100)
    assert (report.rows, report.counters) == (2, 2)
    want: Report = pair.reference.evict(100, 0, dry_run=True)
    assert (want.rows, want.counters) == (2, 2)
    pair.compare({1, 2, 3, 4})
    assert isinstance(report.bytes, int)
    assert report.bytes > 0
    assert tf.reduce_all(pair.table.contains([1, 3]))
