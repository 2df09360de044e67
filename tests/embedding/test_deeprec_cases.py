"""What went wrong in an older system with dynamic embeddings, case by case: the numbers are those of its study. Here:
keys, dtypes, admission, eviction and optimizers (1, 3-6, 8-11, 13, 33); what saves is in the file of checkpoint cases.
Out of scope: 15 (delta checkpoints); tiers and GPU tables (parts of 19) do not exist.
"""

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.embedding.reference_table import Adagrad, ReferenceTable
from tfctr.errors import InputError, UsageError

EXTREMES = [-1, -2, 0, 1, -(2**63), 2**63 - 1]
RATE = 0.1


def table(dim: int = 4, **options: Any) -> tfctr.EmbeddingVariable:
    options.setdefault("optimizer", tfctr.optimizers.Adagrad(RATE))
    return tfctr.EmbeddingVariable(dim, **options)


def train(variable: tfctr.EmbeddingVariable, ids: Any, factor: float = 1.0) -> np.ndarray:
    """One step with the gradient `factor` for every number of every row; returns the rows of the lookup."""
    with tf.GradientTape() as tape:
        rows = variable.lookup(ids, training=True)
        loss = tf.reduce_sum(rows) * factor
    variable.apply_gradients(tape.gradient(loss, variable.handle))
    return rows.numpy()


def slices(rows: Any, keys: Any) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.convert_to_tensor(rows, tf.float32), tf.convert_to_tensor(keys, tf.int64))


def within(seconds: float, work: Callable[[], None]) -> None:
    """Runs `work` on a thread of its own: a hang fails the test."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"not finished in {seconds} s"
    if errors:
        raise errors[0]


def test_case_1_no_key_is_a_sentinel() -> None:
    def work() -> None:
        variable = table()
        first = train(variable, EXTREMES)
        assert len(np.unique(first, axis=0)) == len(EXTREMES)  # each has a row of its own
        assert sorted(variable.keys().tolist()) == sorted(EXTREMES)
        for key, before in zip(EXTREMES, first, strict=True):
            train(variable, [key])
            after = variable.lookup(EXTREMES).numpy()
            moved = [k for k, old, new in zip(EXTREMES, first, after, strict=True) if not np.array_equal(old, new)]
            assert key in moved
            assert (variable.lookup([key]).numpy()[0] < before).all()
        assert variable.erase([-1, -(2**63)]) == 2
        assert variable.contains(EXTREMES).tolist() == [False, True, True, True, False, True]

    within(60, work)


@pytest.mark.parametrize("dtype", ["int32", "int64", "string"])
def test_case_3_every_key_dtype_looks_up_and_trains(dtype: str) -> None:
    # Saving and restoring every dtype: test_deeprec_checkpoint_cases.py.
    ids = np.array([5, -7, 5, 2**31 - 1, -(2**31)], dtype="int64")
    given = ids.astype(str) if dtype == "string" else ids.astype(dtype)
    variable = table(2, key_dtype=tf.as_dtype(dtype), initializer=tfctr.Constant(1.0))
    want = {key: [np.ones(2, np.float32), np.full(2, 0.1, np.float32)] for key in set(ids.tolist())}
    for _ in range(3):
        np.testing.assert_array_equal(train(variable, given), np.stack([want[key][0] for key in ids.tolist()]))
        for key, (value, accumulator) in want.items():
            gradient = np.full(2, np.count_nonzero(ids == key), np.float32)
            Adagrad().update(value, {"accumulator": accumulator}, gradient, RATE, 0)
    assert variable.size() == 4
    if dtype != "string":
        assert set(variable.keys().tolist()) == set(ids.tolist())


def test_case_4_a_default_value_of_another_dtype() -> None:
    for value in (np.full(4, 0.1, np.float64), [0.1] * 4, 0.1, np.float16(0.1), 3):
        variable = table(default_value=value, admission=tfctr.CounterAdmission(9))
        want = np.broadcast_to(np.asarray(value, np.float32), (1, 4))
        np.testing.assert_array_equal(variable.lookup([1], training=True).numpy(), want)
    for wrong in ("zero", [0.1] * 3, np.ones((2, 4)), 1e300, float("nan"), 1j):
        with pytest.raises(UsageError, match="default_value"):
            table(default_value=wrong)


def test_case_5_malformed_requests_name_what_is_wrong_and_hurt_nobody() -> None:
    variable = table(name="case_5")
    ones = tf.ones([1, 4])
    calls: list[tuple[Callable[[], Any], type[Exception] | tuple[type[Exception], ...], str]] = [
        (lambda: variable.lookup([0.5], training=True), InputError, "case_5"),
        (lambda: variable.lookup(["a"], training=True), InputError, "case_5"),
        (lambda: variable.lookup(None, training=True), (InputError, ValueError, TypeError), ""),
        (lambda: variable.apply_gradients(None), InputError, "case_5"),
        (lambda: variable.apply_gradients(ones), InputError, "case_5"),
        (lambda: variable.apply_gradients(slices(tf.ones([1, 3]), [1])), Exception, "case_5"),
        (lambda: variable.apply_gradients(slices(tf.ones([2, 4]), [1])), Exception, "case_5"),
        (lambda: variable.apply_gradients(slices(ones * np.nan, [1])), Exception, "case_5.*key 1"),
        (lambda: variable.apply_gradients(slices(ones / 0.0, [1])), Exception, "case_5.*key 1"),
    ]
    before = train(variable, [1, 2])
    kept = variable.lookup([1, 2]).numpy()
    for call, kind, words in calls:
        with pytest.raises(kind, match=f"(?s){words}"):
            call()
        np.testing.assert_array_equal(variable.lookup([1, 2]).numpy(), kept)
        assert variable.size() == 2
    assert variable.lookup(np.zeros([0, 7], np.int64), training=True).shape == (0, 7, 4)
    assert train(variable, np.zeros([0], np.int64)).shape == (0, 4)
    assert before.shape == (2, 4)
    assert not np.array_equal(train(variable, [1, 2]), variable.lookup([1, 2]).numpy())  # the next step trains


def test_case_6_a_shared_table_counts_each_occurrence_once() -> None:
    for grouped in (False, True):
        variable = table(admission=tfctr.CounterAdmission(5))
        first, second = tf.constant([7, 7, 8], tf.int64), tf.constant([[7, 9], [9, 9]], tf.int64)
        with tf.GradientTape() as tape:
            if grouped:
                rows = tfctr.embedding_lookup_group([(variable, first), (variable, second)], training=True)
            else:
                rows = [variable.lookup(first, training=True), variable.lookup(second, training=True)]
            loss = tf.add_n([tf.reduce_sum(part) for part in rows])
        variable.apply_gradients(tape.gradient(loss, variable.handle))
        assert variable.frequency([7, 8, 9]).tolist() == [3, 1, 3]
        variable.lookup([7, 7], training=True)
        assert variable.frequency([7, 8, 9, 10]).tolist() == [5, 1, 3, 0]
        assert variable.contains([7, 8, 9]).tolist() == [True, False, False]
        variable.lookup([7, 8, 7, 7], training=True)  # a key that has a row counts on, each occurrence once
        assert variable.frequency([7, 8]).tolist() == [8, 2]


def test_case_6_occurrences_in_one_call_admit_in_all_of_its_lookups() -> None:
    variable = table(admission=tfctr.CounterAdmission(2), initializer=tfctr.Constant(1.0))
    ids = tf.constant([3], tf.int64)
    rows = tfctr.embedding_lookup_group([(variable, ids), (variable, ids)], training=True)
    for part in rows:
        np.testing.assert_array_equal(part.numpy(), np.ones([1, 4]))


BLOOM = tfctr.BloomAdmission(3, expected_keys=1000)


@pytest.mark.parametrize("admission", [tfctr.CounterAdmission(3), BLOOM], ids=["counter", "bloom"])
def test_case_8_both_filters_admit_at_the_same_occurrence(admission: Any) -> None:
    def trainable_at(batches: list[list[int]]) -> list[bool]:
        variable = table(2, admission=admission, initializer=tfctr.Constant(1.0))
        moved = []
        for batch in batches:
            returned = train(variable, batch)
            after = variable.lookup(batch).numpy()
            moved.append(not np.array_equal(returned, after))
            # The call that admits returns the initial row already, calls before it the default value.
            assert (returned != 0).all() == moved[-1]
        return moved

    assert trainable_at([[5]]) == [False]
    assert trainable_at([[5], [5], [5], [5]]) == [False, False, True, True]
    assert trainable_at([[5, 5, 5]]) == [True]
    assert trainable_at([[5, 5], [5]]) == [False, True]
    assert trainable_at([[5, 5, 5, 5]]) == [True]


def test_case_9_narrow_bloom_counters_stop_at_their_largest_value() -> None:
    admission = tfctr.BloomAdmission(200, expected_keys=100, counter_bits=8)
    variable = table(admission=admission, initializer=tfctr.Constant(1.0))
    rows = train(variable, [3] * 300)  # 300 would wrap to 44
    assert (rows == 1).all()
    assert variable.frequency([3]).tolist() == [255]
    variable.erase([3])
    np.testing.assert_array_equal(train(variable, [3]), np.ones([1, 4]))
    with pytest.raises(UsageError, match="min_count"):
        tfctr.BloomAdmission(256, expected_keys=100, counter_bits=8)


def test_case_10_eviction_beside_lookups_and_updates() -> None:
    # The same under ThreadSanitizer: tfctr/core/embedding/eviction_test.cc.
    variable = table(
        admission=tfctr.CounterAdmission(2),
        eviction=[tfctr.StepEviction(30), tfctr.CapacityEviction(200, "lfu")],
        initializer=tfctr.Constant(1.0),
        optimizer=tfctr.optimizers.SGD(1.0),
    )
    stop = threading.Event()
    errors: list[Exception] = []

    def work(number: int) -> None:
        random = np.random.default_rng(number)
        while not stop.is_set():
            try:
                if number == 0:
                    variable.evict()
                    continue
                ids = random.integers(-300, 300, 40)
                rows = variable.lookup(ids, training=True).numpy()
                # A row is the default, or 1 less a whole number of updates: never freed memory.
                assert ((rows == 0) | ((rows <= 1) & (rows == np.round(rows)))).all()
                variable.apply_gradients(slices(tf.ones([40, 4]), ids))
            except Exception as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    stop.wait(2.0)
    stop.set()
    for thread in threads:
        thread.join(20)
    assert not errors, errors[0]
    assert variable.size() == len(variable.keys()) == len(set(variable.keys().tolist()))


def test_case_11_eviction_is_deterministic() -> None:
    survivors = set()
    for run in range(50):
        variable = table(2, eviction=[tfctr.L2Eviction(0.02), tfctr.CapacityEviction(40)], seed=3, shards=1 + run % 5)
        ids = np.arange(-100, 100) * 7919
        np.random.default_rng(run).shuffle(ids)  # another order of arrival every time
        for part in np.split(ids, 4):
            variable.lookup(part, training=True)
        variable.apply_gradients(slices(tf.ones([100, 2]), np.arange(-50, 50) * 7919))
        variable.evict()
        survivors.add(tuple(sorted(variable.keys().tolist())))
    assert len(survivors) == 1
    assert len(survivors.pop()) == 40


def test_case_13_boundaries_of_step_and_time() -> None:
    clock = tfctr.ManualClock(100.0)
    step = tf.Variable(10, dtype=tf.int64)
    for policy, move in (
        (tfctr.StepEviction(5), lambda: step.assign_add(1)),
        (tfctr.TtlEviction(5.0), lambda: clock.advance(1.0)),
    ):
        variable = table(eviction=policy, step=step, clock=clock)
        train(variable, [1, 2])
        variable.lookup([3], training=True)  # never trained: as old as its insertion
        for _ in range(5):
            move()
            variable.lookup([2, 3], training=True)  # being looked up keeps no key alive
            assert variable.evict().rows == 0  # age == limit
        train(variable, [1])
        move()
        report = variable.evict(dry_run=True)
        assert (report.rows, report) == (2, variable.evict())
        assert variable.keys().tolist() == [1]


def test_case_13_l2_is_the_norm_and_a_key_that_returns_starts_afresh() -> None:
    variable = table(2, eviction=tfctr.L2Eviction(0.5), initializer=tfctr.Constant(1.0), record_frequency=True)
    train(variable, [1, 1, 2])
    rows = np.array([[0.3, 0.399], [0.3, 0.401]], np.float32)  # norms of 0.4992 and 0.5008; half their squares 0.125
    for key, row in zip((1, 2), rows, strict=True):
        now = variable.lookup([key]).numpy()[0]
        for _ in range(200):  # Adagrad steps towards the row
            variable.apply_gradients(slices([now - row], [key]), learning_rate=0.3)
            now = variable.lookup([key]).numpy()[0]
        np.testing.assert_allclose(now, row, atol=1e-5)
    assert variable.evict().rows == 1
    assert variable.keys().tolist() == [2]
    np.testing.assert_array_equal(variable.lookup([1, 9], training=True).numpy(), np.ones([2, 2]))
    slots = variable.export(slots=True)
    by_key = dict(zip(slots.keys.tolist(), slots.slots["accumulator"], strict=True))
    np.testing.assert_array_equal(by_key[1], by_key[9])  # the initial value, as of a key that is really new
    assert variable.frequency([1, 9]).tolist() == [1, 1]


def test_case_33_adagrad_with_duplicate_ids_and_a_static_shape() -> None:
    # Every optimizer against NumPy and stock: test_optimizers.py.
    variable = table(3, seed=1)
    reference = ReferenceTable(json.loads(variable.config), Adagrad())
    random = np.random.default_rng(0)
    for step in range(50):
        ids = random.integers(0, 5, 12)
        gradients = random.normal(size=(12, 3)).astype(np.float32)
        got = variable.lookup(ids, training=True).numpy()
        np.testing.assert_array_equal(got, reference.lookup(ids.tolist(), step, training=True))
        variable.apply_gradients(slices(gradients, ids))
        reference.apply(ids.tolist(), gradients, RATE, step)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 4], tf.int64)])
    def shapes(vector: tf.Tensor, matrix: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            rows = variable.lookup(vector, training=True)
            assert rows.shape.as_list() == [None, 3]
            assert variable.lookup(matrix, training=True).shape.as_list() == [None, 4, 3]
            loss = tf.reduce_sum(rows)
        gradient = tape.gradient(loss, variable.handle)
        assert gradient.values.shape.as_list() == [None, 3]
        assert gradient.dense_shape.shape.as_list() == [2]
        return [rows]

    assert shapes(tf.constant([1], tf.int64), tf.zeros([1, 4], tf.int64))[0].shape == (1, 3)
