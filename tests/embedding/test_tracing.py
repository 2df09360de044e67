"""What autograph does within a user's `tf.function`: it converts the user's code, and leaves ours alone."""

from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl import api

import tfctr
from tfctr.embedding.variable import EmbeddingVariable


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules of the functions that autograph converts while the test runs, as `module.function`."""
    seen: list[str] = []
    convert = api._convert_actual

    def watched(entity: Any, *args: Any) -> Any:
        seen.append(f"{entity.__module__}.{entity.__name__}")
        return convert(entity, *args)

    monkeypatch.setattr(api, "_convert_actual", watched)
    return seen


def table(name: str, **options: Any) -> EmbeddingVariable:
    return EmbeddingVariable(4, name, **{"optimizer": tfctr.optimizers.SGD(0.5), **options})


def test_our_code_is_not_converted(converted: list[str]) -> None:
    step = tf.Variable(0, dtype=tf.int64)
    users, tags = table("users", step=step, eviction=tfctr.StepEviction(5)), table("tags", step=step)
    bag = tf.RaggedTensor.from_row_lengths(tf.constant([1, 2, 3], tf.int64), [2, 1])

    @tf.function
    def train(ids: tf.Tensor) -> tf.Tensor:
        scale = 1.0 if tf.size(ids) > 1 else 2.0  # converted: Python can't branch on a tensor
        with tf.GradientTape(persistent=True) as tape:
            user, tag = tfctr.embedding_lookup_group([(users, ids), tfctr.Lookup(tags, bag, "sum")], training=True)
            other = tfctr.embedding_lookup(users, ids) + users.lookup(ids, training=True)
            other += tfctr.embedding_lookup_sparse(tags, bag)
            loss = scale * tf.reduce_sum(user * tag + other)
        tfctr.minimize(loss, [users, tags], tape=tape)
        tfctr.apply_gradients([(tape.gradient(loss, users.handle), users)])
        users.apply_gradients(tape.gradient(loss, users.handle))
        report = users.evict()
        return loss + tf.cast(report.rows + users.size() + users.counters() + users.bytes(), tf.float32)

    train(tf.constant([3, 4], tf.int64))
    assert any(name.endswith(".train") for name in converted)
    assert [name for name in converted if name.startswith("tfctr")] == []


class HalvedAt(tf.keras.optimizers.schedules.LearningRateSchedule):
    """1.0, and 0.5 from step `at` on; a branch that only autograph makes work in a graph."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return tf.constant(1.0) if step < self.at else tf.constant(0.5)


def halved_at_two(step: tf.Tensor) -> tf.Tensor:
    if step < 2:
        return tf.constant(1.0)
    return tf.constant(0.5)


@pytest.mark.parametrize("schedule", [HalvedAt(2), halved_at_two])
def test_a_schedule_of_the_user_is_converted(schedule: Any) -> None:
    step = tf.Variable(0, dtype=tf.int64)
    users = table("users", optimizer=tfctr.optimizers.SGD(schedule), initializer=tfctr.Constant(0.0), step=step)

    @tf.function
    def train(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(users.lookup(ids, training=True))
        tfctr.minimize(loss, [users], tape=tape)
        step.assign_add(1)

    values = []
    for _ in range(4):
        train(tf.constant([3], tf.int64))
        values.append(float(users.lookup([3])[0, 0]))
    assert values == [-1.0, -2.0, -2.5, -3.0]


def test_where_autograph_is_off_it_is_off_for_schedules() -> None:
    users = table("users", optimizer=tfctr.optimizers.SGD(halved_at_two))

    @tf.function(autograph=False)
    def train(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(users.lookup(ids, training=True))
        tfctr.minimize(loss, [users], tape=tape)

    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError, match="autograph"):
        train(tf.constant([3], tf.int64))


def test_a_function_returns_reports_and_rows() -> None:
    users = table("users", eviction=[tfctr.StepEviction(5), tfctr.CapacityEviction(1)], record_frequency=True)
    users.lookup([3, 4], training=True)
    planned, rows = tf.function(lambda: (users.evict(dry_run=True), users.export()))()
    assert int(planned.rows) == 1 and [int(part.rows) for part in planned.policies] == [0, 1]
    assert planned.policies[1].policy == tfctr.CapacityEviction(1)
    assert sorted(rows.keys.numpy()) == [3, 4] and rows.slots == {} and rows.last_time_ms is None
