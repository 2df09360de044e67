"""Every admission with every eviction, 2,000 steps of lookups and updates: the table and the reference model agree to
the bit on returned rows, surviving keys, counts, steps, values and slots.
"""

import itertools
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
        self.random = np.random.default_rng(seed)

    def keys(self, step: int) -> np.ndarray:
        draw = self.random.random(KEYS_PER_STEP)
        hot = self.random.integers(0, 12, KEYS_PER_STEP)
        moving = 1000 + step // 10 + self.random.integers(0, 25, KEYS_PER_STEP)
        once = self.random.integers(-(2**63), 2**63 - 1, KEYS_PER_STEP)
        extreme = self.random.choice(np.array(EXTREMES, np.int64), KEYS_PER_STEP)
        return np.select([draw < 0.3, draw < 0.8, draw < 0.95], [hot, moving, once], extreme).astype(np.int64)

    def gradients(self, rows: int) -> np.ndarray:
        # Some are zero: an update all the same.
        zero = self.random.random((rows, 1)) < 0.1
        return np.where(zero, 0, self.random.normal(size=(rows, DIM))).astype(np.float32)


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
        report = self.reference.apply(keys.tolist(), gradients, LEARNING_RATE, step, self.clock.time_ms)
        self.gone += report.rows if report else 0

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


@pytest.mark.parametrize(
    ("admission", "eviction"), itertools.product(ADMISSIONS, EVICTIONS), ids=lambda name: str(name)
)
def test_2000_steps(admission: str, eviction: str) -> None:
    pair = Pair(ADMISSIONS[admission], EVICTIONS[eviction], every=70)
    traffic = Traffic(seed=list(EVICTIONS).index(eviction))
    random = traffic.random
    seen: set[int] = set()
    for step in range(STEPS):
        pair.clock.advance(float(random.integers(0, 80)) / 1000)
        keys = traffic.keys(step)
        seen.update(keys.tolist())
        if step % 9 == 0:
            pair.lookup(traffic.keys(step), step, training=False)  # neither counts nor inserts
        pair.lookup(keys, step)
        if eviction != "none" and step % 110 == 50:
            pair.evict(step)  # between lookup and update: gradients of what goes are dropped
        updated = keys[: random.integers(0, KEYS_PER_STEP + 1)]
        pair.apply(updated, traffic.gradients(len(updated)), step)
        if step % 200 == 199:
            pair.compare(seen)
    pair.compare(seen)
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
