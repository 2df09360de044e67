"""Any sequence of operations, found by hypothesis: the table does what the reference model does.

Where test_policies_exact.py runs long and regular traffic, this mixes several lookups of one table in a call, pooled
lookups, updates of keys that never had a row, erasing, freezing, eviction, and saving into another number of shards.
"""

import itertools
import json
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import tfctr
from tests.embedding.reference_table import Adagrad, ReferenceTable

DIM = 3
RATE = 0.5
ALL_KEYS = [-(2**63), 2**63 - 1, -1, 0, 1, 2, 3, 4]
KEYS = st.sampled_from(ALL_KEYS)
BATCH = st.lists(KEYS, max_size=6)
PROTECTED = st.lists(KEYS, max_size=4).map(tuple)
ADMISSIONS = st.one_of(
    st.none(),
    st.integers(1, 4).map(tfctr.CounterAdmission),
    st.builds(
        tfctr.BloomAdmission,
        st.integers(1, 4),
        expected_keys=st.integers(1, 20),
        false_positive_rate=st.sampled_from([0.5, 0.1]),
        reset_every_steps=st.sampled_from([0, 3]),
    ),
)
EVICTIONS = st.lists(
    st.one_of(
        st.builds(tfctr.StepEviction, st.integers(0, 3), min_rows=st.integers(0, 3), protected_keys=PROTECTED),
        st.builds(tfctr.TtlEviction, st.integers(0, 3), protected_keys=PROTECTED),
        st.builds(tfctr.L2Eviction, st.sampled_from([0.3, 0.8]), min_rows=st.integers(0, 3)),
        st.builds(tfctr.CapacityEviction, st.integers(1, 4), st.sampled_from(["lru", "lfu"]), protected_keys=PROTECTED),
    ),
    min_size=1,
    max_size=3,
)


class Operations(RuleBasedStateMachine):
    """One table beside its reference."""

    @initialize(admission=ADMISSIONS, eviction=EVICTIONS, every=st.integers(0, 4), shards=st.integers(1, 5))
    def start(self, admission: Any, eviction: list[Any], every: int, shards: int) -> None:
        self.clock = tfctr.ManualClock()
        self.step = tf.Variable(0, dtype=tf.int64)
        self.options = {
            "optimizer": tfctr.optimizers.Adagrad(RATE),
            "admission": admission,
            "eviction": eviction,
            "evict_every_steps": every,
            "default_value": 7.0,
            "seed": 1,
            "initializer": tfctr.Uniform(-0.5, 0.5),
            "record_frequency": True,
            "step": self.step,
            "clock": self.clock,
        }
        self.table = tfctr.EmbeddingVariable(DIM, shards=shards, **self.options)
        self.reference = ReferenceTable(json.loads(self.table.config), Adagrad())

    @property
    def now(self) -> tuple[int, int]:
        return int(self.step.numpy()), self.clock.time_ms

    @rule(ids=BATCH, training=st.booleans())
    def look_up(self, ids: list[int], training: bool) -> None:
        got = self.table.lookup(np.array(ids, np.int64), training=training).numpy()
        want = self.reference.lookup(ids, *self.now, training=training and not self.table.frozen)
        np.testing.assert_array_equal(got, want)

    @rule(first=BATCH, second=BATCH)
    def look_up_twice_in_one_call(self, first: list[int], second: list[int]) -> None:
        parts = [np.array(ids, np.int64) for ids in (first, second)]
        got = tfctr.embedding_lookup_group([(self.table, part) for part in parts], training=True)
        want = self.reference.lookup(first + second, *self.now, training=not self.table.frozen)
        np.testing.assert_array_equal(np.concatenate([part.numpy() for part in got]), want)

    @rule(rows=st.lists(BATCH, max_size=3))
    def look_up_pooled(self, rows: list[list[int]]) -> None:
        ids = tf.ragged.constant(rows, tf.int64, ragged_rank=1)
        got = tfctr.embedding_lookup_sparse(self.table, ids, combiner="sum", training=True).numpy()
        flat = [key for row in rows for key in row]
        values = self.reference.lookup(flat, *self.now, training=not self.table.frozen)
        splits = np.cumsum([0, *map(len, rows)])
        want = [values[a:b].sum(axis=0) for a, b in itertools.pairwise(splits)]
        np.testing.assert_allclose(got, np.reshape(want, [len(rows), DIM]), rtol=1e-6, atol=1e-6)

    @rule(ids=BATCH, seed=st.integers(0, 99))
    def update(self, ids: list[int], seed: int) -> None:
        if self.table.frozen:
            return
        gradients = np.random.default_rng(seed).normal(size=(len(ids), DIM)).astype(np.float32)
        slices = tf.IndexedSlices(tf.constant(gradients), tf.constant(ids, tf.int64))
        self.table.apply_gradients(slices)
        self.reference.apply(ids, gradients, RATE, *self.now)
        self.step.assign_add(1)

    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.step.assign_add(seconds)

    @rule(seconds=st.integers(0, 4), dry_run=st.booleans())
    def evict(self, seconds: int, dry_run: bool) -> None:
        self.wait(seconds)
        got = self.table.evict(dry_run=dry_run)
        want = self.reference.evict(*self.now, dry_run=dry_run)
        assert [(policy.rows, policy.counters) for policy in got.policies] == list(
            zip(want.rule_rows, want.rule_counters, strict=True)
        )

    @rule(ids=BATCH)
    def erase(self, ids: list[int]) -> None:
        assert self.table.erase(np.array(ids, np.int64)) == self.reference.erase(ids)

    @rule()
    def freeze(self) -> None:
        self.table.freeze(not self.table.frozen)

    @rule(shards=st.integers(1, 5))
    def save_and_restore(self, shards: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            prefix = tf.train.Checkpoint(table=self.table).write(f"{folder}/ckpt")
            restored = tfctr.EmbeddingVariable(DIM, shards=shards, **self.options)
            tf.train.Checkpoint(table=restored).read(prefix).assert_consumed()
        restored.freeze(self.table.frozen)
        self.table = restored
        self.reference.forget_periods()

    @invariant()
    def same_contents(self) -> None:
        rows = self.table.export(slots=True)
        order = np.argsort(rows.keys)
        want = [self.reference.rows[key] for key in sorted(self.reference.rows)]
        assert rows.keys[order].tolist() == sorted(self.reference.rows)
        assert rows.frequency[order].tolist() == [row.frequency for row in want]
        np.testing.assert_array_equal(rows.values[order], np.reshape([row.value for row in want], [-1, DIM]))
        slots = [row.slots["accumulator"] for row in want]
        np.testing.assert_array_equal(rows.slots["accumulator"][order], np.reshape(slots, [-1, DIM]))
        if rows.last_step is not None:
            assert rows.last_step[order].tolist() == [row.last_step for row in want]
        if rows.last_time_ms is not None:
            assert rows.last_time_ms[order].tolist() == [row.last_time_ms for row in want]
        assert self.table.frequency(np.array(ALL_KEYS)).tolist() == self.reference.frequency(ALL_KEYS)
        assert self.table.counters() == len(self.reference.admission.counters())


def test_any_sequence_of_operations() -> None:
    run_state_machine_as_test(
        Operations,
        settings=settings(
            max_examples=50,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
