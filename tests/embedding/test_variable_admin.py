"""`EmbeddingVariable` in eager mode: eviction and its reports, clocks, freezing, contents, memory, names, lifetime."""

import copy
import gc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tfctr.embedding import ops
from tfctr.embedding.variable import EmbeddingVariable
from tfctr.errors import UsageError


def table(dim: int = 4, name: str | None = "users", rate: Any = 0.1, **options: Any) -> EmbeddingVariable:
    options.setdefault("optimizer", tfctr.optimizers.SGD(rate))
    return EmbeddingVariable(dim, name, **options)


def slices(keys: list[int], rows: Any) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.constant(rows, tf.float32), tf.constant(keys, tf.int64))


def test_evictions_are_reported_and_dry_runs_change_nothing() -> None:
    clock = tfctr.ManualClock(1000)
    policies = [tfctr.TtlEviction(60, protected_keys=[2]), tfctr.L2Eviction(0.5), tfctr.CapacityEviction(3)]
    users = table(initializer=tfctr.Constant(1.0), eviction=policies, clock=clock, admission=tfctr.CounterAdmission(2))
    users.lookup([1, 2, 1, 2, 50], training=True)
    clock.advance(60.001)
    users.lookup([3, 3, 4, 4, 5, 5, 6, 6, 7, 7], training=True)
    users.apply_gradients(slices([3], [[9.8] * 4]))  # 1 - 0.98: a norm of 0.04
    expected = users.evict(dry_run=True)
    assert users.size() == 7 and users.counters() == 1
    report = users.evict()
    assert report == expected
    assert (report.rows, report.counters) == (4, 1) and report.bytes > 4 * 16
    assert [(part.policy, part.rows, part.counters) for part in report.policies] == [
        (policies[0], 1, 1),
        (policies[1], 1, 0),
        (policies[2], 2, 0),
    ]
    assert sum(part.bytes for part in report.policies) == report.bytes
    assert sorted(users.keys().tolist()) == [5, 6, 7]
    with pytest.raises(UsageError, match="'items': it has no eviction policy"):
        table(name="items").evict()


def test_a_clock_moves_all_its_variables_and_may_go_back() -> None:
    clock = tfctr.ManualClock()
    tables = [table(name=f"t{k}", eviction=tfctr.TtlEviction(10), clock=clock) for k in range(2)]
    for users in tables:
        users.lookup([1], training=True)
    clock.set(10)
    assert [users.evict().rows for users in tables] == [0, 0]
    clock.set(5)
    assert [users.evict().rows for users in tables] == [0, 0]
    clock.advance(5.001)
    assert [users.evict().rows for users in tables] == [1, 1]
    assert tables[0].evict().rows == 0 and clock.seconds == pytest.approx(10.001)
    with pytest.raises(UsageError, match="'users': clock is 5, expected a tfctr.ManualClock or None"):
        table(clock=5)


def test_frozen_variables_hold_still_in_functions_traced_before() -> None:
    users = table(record_frequency=True)

    @tf.function
    def look(ids: tf.Tensor) -> tf.Tensor:
        return users.lookup(ids, training=True)

    @tf.function
    def update(ids: tf.Tensor) -> None:
        users.apply_gradients(tf.IndexedSlices(tf.ones([tf.size(ids), 4]), ids))

    first = look(tf.constant([1], tf.int64)).numpy()
    users.freeze()
    np.testing.assert_array_equal(look(tf.constant([1, 2], tf.int64)), np.stack([first[0], np.zeros(4)]))
    assert users.size() == 1 and users.frequency([1]).tolist() == [1] and users.frozen
    with pytest.raises(UsageError, match="'users': it is frozen"):
        users.apply_gradients(slices([1], [[1.0] * 4]))
    users.freeze(False)
    update(tf.constant([1], tf.int64))
    users.freeze()
    with pytest.raises(tf.errors.FailedPreconditionError, match="'users' is frozen"):
        update(tf.constant([1], tf.int64))
    users.freeze(False)
    look(tf.constant([2], tf.int64))
    assert users.size() == 2


def test_what_a_table_holds_can_be_read() -> None:
    users = table(dim=2, optimizer=tfctr.optimizers.Adam(0.1), admission=tfctr.CounterAdmission(2))
    users.lookup([[1, 2], [2, 3]], training=True)
    assert (users.size(), users.counters()) == (1, 2)
    assert users.contains([[1, 2]]).tolist() == [[False, True]]
    users.lookup([1, 2], training=True)
    users.apply_gradients(slices([2], [[1.0, -1.0]]))
    contents = users.export(slots=True)
    order = np.argsort(contents.keys)
    assert contents.keys[order].tolist() == [1, 2] and contents.frequency[order].tolist() == [2, 3]
    assert list(contents.slots) == ["momentum", "velocity"]
    np.testing.assert_allclose(contents.slots["momentum"][order], [[0, 0], [0.1, -0.1]], rtol=1e-6)
    np.testing.assert_array_equal(contents.values[order], users.lookup([1, 2]))
    assert contents.last_step is None and contents.last_time_ms is None and users.export().slots == {}
    assert users.erase([2, 3, 99]) == 1 and (users.size(), users.counters()) == (1, 0)
    with pytest.raises(UsageError, match="'items': it keeps no frequency, expected record_frequency=True"):
        table(name="items").frequency([1])


def test_memory_is_counted_and_can_be_reserved_and_limited() -> None:
    users = table(dim=16)
    empty = users.bytes()
    users.reserve(10_000)
    reserved = users.bytes()
    users.lookup(np.arange(10_000), training=True)
    assert empty < reserved and users.bytes() >= 10_000 * 16 * 4
    with pytest.raises(UsageError, match="rows is -1"):
        users.reserve(-1)
    limited = table(dim=16, name="limited", max_bytes=empty + 200_000)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="limited"):
        limited.lookup(np.arange(100_000), training=True)
    assert limited.bytes() <= empty + 200_000


def test_reports_and_sizes_are_tensors_while_a_function_is_traced() -> None:
    users = table(eviction=tfctr.CapacityEviction(2))

    @tf.function
    def look(ids: tf.Tensor) -> tuple[tf.Tensor, ...]:
        users.lookup(ids, training=True)
        report = users.evict()
        return users.size(), report.rows, report.policies[0].rows, users.keys()

    size, rows, policy_rows, keys = look(tf.range(5, dtype=tf.int64))
    assert (int(size), int(rows), int(policy_rows)) == (2, 3, 3) and sorted(keys.numpy().tolist()) == [3, 4]


def test_equal_names_have_tables_of_their_own() -> None:
    one, other, unnamed, another = table(), table(), table(name=None), table(name=None)
    one.lookup([1, 2], training=True)
    assert (one.size(), other.size()) == (2, 0) and one.name == other.name == "users"
    assert unnamed.name != another.name


def test_a_shared_name_is_for_one_variable_of_a_process() -> None:
    one = table(shared_name="tables/shared_once")
    with pytest.raises(UsageError, match="another variable of this process has the shared_name 'tables/shared_once'"):
        table(name="other", shared_name="tables/shared_once")
    with pytest.raises(UsageError, match="another variable of this process has the shared_name"):
        table(shared_name="tables/shared_once")
    one.lookup([1], training=True)
    del one
    gc.collect()
    # The table stays, as other processes may use it.
    with pytest.raises(UsageError, match="^embedding variable 'users': there is .*'tables/shared_once' already, with"):
        table(dim=5, shared_name="tables/shared_once")
    assert table(shared_name="tables/shared_once").size() == 1


def test_a_table_goes_with_its_variable() -> None:
    users = table()
    users.lookup([1], training=True)
    handle = users.handle
    del users
    gc.collect()
    with pytest.raises(tf.errors.NotFoundError, match="does not exist any more"):
        ops.size(handle)


def test_tables_made_inside_a_function_live_on() -> None:
    made: list[EmbeddingVariable] = []

    @tf.function
    def look(ids: tf.Tensor) -> tf.Tensor:
        if not made:
            made.append(table())
        return made[0].lookup(ids, training=True)

    look(tf.constant([1, 2], tf.int64))
    assert made[0].size() == 2
    look(tf.constant([3], tf.int64))
    assert made[0].size() == 3


def test_a_variable_says_what_it_is() -> None:
    users = table(key_dtype="string")
    assert repr(users) == "<tfctr.EmbeddingVariable 'users' dim=4 key_dtype=string>"
    assert (users.dim, users.dtype, users.key_dtype) == (4, tf.float32, tf.string)
    with pytest.raises(UsageError, match="'users': key_dtype is .*float32.*, expected tf.int64, tf.int32 or tf.string"):
        table(key_dtype=tf.float32)
    with pytest.raises(UsageError, match="protected_keys hold 'a', expected whole numbers"):
        table(eviction=tfctr.StepEviction(1, protected_keys=["a"]))


def test_several_replicas_are_refused() -> None:
    strategy = tf.distribute.MirroredStrategy(["/CPU:0"])
    with strategy.scope():
        assert table().size() == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(strategy), "num_replicas_in_sync", property(lambda self: 2))
        with strategy.scope(), pytest.raises(UsageError, match="'users': the strategy has 2 replicas, expected one"):
            table()


def test_copies_do_not_take_the_table_along() -> None:
    users = table()
    users.lookup([1], training=True)
    with pytest.raises(UsageError, match="'users': it can't be copied"):
        copy.deepcopy({"users": users})
    shallow = copy.copy(users)
    assert shallow.size() == 1
    del shallow
    gc.collect()
    assert users.size() == 1
