"""`EmbeddingVariable` in eager mode and `tf.function`: keys, training, steps, bad input. What looks after a table is in
test_variable_admin.py.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tfctr.embedding import training
from tfctr.embedding.variable import EmbeddingVariable
from tfctr.errors import InputError, UsageError

EXTREMES = [-(2**63), 2**63 - 1, -1, 0, 1, -2]


def table(dim: int = 4, name: str | None = "users", rate: Any = 0.1, **options: Any) -> EmbeddingVariable:
    options.setdefault("optimizer", tfctr.optimizers.SGD(rate))
    return EmbeddingVariable(dim, name, **options)


def slices(keys: list[int], rows: Any) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.constant(rows, tf.float32), tf.constant(keys, tf.int64))


def test_every_id_of_the_key_dtype_is_an_ordinary_key() -> None:
    users = table()
    rows = users.lookup(EXTREMES, training=True).numpy()
    assert rows.shape == (6, 4) and rows.dtype == np.float32 and len(np.unique(rows, axis=0)) == 6
    assert users.size() == 6 and sorted(users.keys().tolist()) == sorted(EXTREMES)
    users.apply_gradients(slices(EXTREMES, np.ones([6, 4])))
    np.testing.assert_array_equal(users.lookup(EXTREMES), rows - np.float32(0.1))


def test_inference_neither_inserts_nor_counts() -> None:
    users = table(default_value=0.5, record_frequency=True)
    for _ in range(2):  # an id that is not trained reads the same every time
        np.testing.assert_array_equal(users.lookup([3, 4]), np.full([2, 4], 0.5, np.float32))
    assert users.size() == 0 and users.frequency([3, 4]).tolist() == [0, 0]
    first = users.lookup([[3, 3], [4, 3]], training=True).numpy()
    assert users.frequency([[3], [4]]).tolist() == [[3], [1]]
    np.testing.assert_array_equal(users.lookup([[3, 3], [4, 3]], training=True), first)


def test_first_values_depend_on_seed_and_key_alone() -> None:
    one, other, seeded = table(shards=1), table(shards=7), table(seed=1)
    keys = np.arange(-50, 50)
    rows = one.lookup(keys, training=True).numpy()
    np.testing.assert_array_equal(other.lookup(keys[::-1].copy(), training=True).numpy()[::-1], rows)
    assert (seeded.lookup(keys, training=True).numpy() != rows).any(axis=1).all()
    assert (np.abs(rows) <= 0.05).all() and rows.std() > 0.02


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint32])
def test_ids_of_narrower_dtypes_are_the_same_keys(dtype: Any) -> None:
    users = table()
    users.lookup(np.array([1, 2, 3], dtype), training=True)
    assert users.contains([1, 2, 3]).all() and users.size() == 3


def test_int32_keys() -> None:
    users = table(key_dtype=tf.int32)
    users.lookup(tf.constant([-(2**31), 2**31 - 1, 7]), training=True)
    assert sorted(users.keys().tolist()) == [-(2**31), 7, 2**31 - 1]
    assert users.contains([7, 8]).tolist() == [True, False]


def test_string_keys_are_farmhash_fingerprints() -> None:
    words = ["tea", "", "ä", "tea", "x" * 100]
    users = table(key_dtype=tf.string, record_frequency=True)
    rows = users.lookup([words], training=True).numpy()
    np.testing.assert_array_equal(rows[0, 0], rows[0, 3])
    assert rows.shape == (1, 5, 4) and users.size() == 4
    hashed = tf.strings.to_hash_bucket_fast(words, 2**63 - 1).numpy()
    keys = [int(key) % 2**64 % (2**63 - 1) for key in users.as_keys(words).numpy()]
    assert keys == hashed.tolist()
    assert users.frequency(["tea", "milk"]).tolist() == [2, 0]
    np.testing.assert_array_equal(users.lookup([b"tea"])[0], rows[0, 0])


def test_protected_strings_and_numbers() -> None:
    policy = tfctr.CapacityEviction(1, protected_keys=["b", b"c"])
    users = table(key_dtype=tf.string, eviction=policy)
    users.lookup(["a", "b", "c", "d"], training=True)
    assert users.evict().rows == 2 and users.contains(["a", "b", "c", "d"]).tolist() == [False, True, True, False]


@pytest.mark.parametrize(
    ("key_dtype", "ids", "words"),
    [
        (tf.int64, [1.0], "ids are float64, expected int64, int32"),
        (tf.int64, tf.constant([1.0]), "ids are float32"),
        (tf.int64, ["a"], "ids are string, expected int64"),
        (tf.int64, [2**63], "expected"),
        (tf.int64, [True], "ids are bool"),
        (tf.int64, [[1], [2, 3]], "ids are no tensor"),
        (tf.int64, np.array([1], np.uint64), "ids are uint64"),
        (tf.int32, tf.constant([1], tf.int64), "ids are int64, expected int32, int16, int8, uint8, uint16"),
        (tf.int32, [2**31], "ids hold 2147483648 to 2147483648, expected int32"),
        (tf.string, [1], "expected string"),
    ],
)
def test_ids_of_another_dtype_are_refused(key_dtype: Any, ids: Any, words: str) -> None:
    users = table(key_dtype=key_dtype)
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        users.lookup(ids, training=True)
    assert "embedding variable 'users'" in str(caught.value)
    assert users.size() == 0
    good = ["a"] if key_dtype == tf.string else [1]
    assert users.lookup(good, training=True).shape == (1, 4)


def test_an_empty_list_is_an_empty_batch() -> None:
    for dtype in (tf.int64, tf.int32, tf.string):
        assert table(key_dtype=dtype).lookup([], training=True).shape == (0, 4)


def train(
    users: EmbeddingVariable, items: EmbeddingVariable, batches: list[tuple[Any, Any, Any]], wrap: Any
) -> list[float]:
    """Some steps of matrix factorisation with one op for both tables."""

    def step(user: tf.Tensor, item: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            score = tf.reduce_sum(users.lookup(user, training=True) * items.lookup(item, training=True), 1)
            loss = tf.reduce_mean((score - label) ** 2)
        gradients = tape.gradient(loss, [users.handle, items.handle])
        tfctr.apply_gradients(zip(gradients, [users, items], strict=True))
        return loss

    step = wrap(step)
    return [float(step(*map(tf.constant, batch))) for batch in batches]


@pytest.mark.parametrize(
    "optimizer", [tfctr.optimizers.Adagrad(0.5), tfctr.optimizers.Adam(0.05), tfctr.optimizers.Ftrl(0.5)], ids=repr
)
def test_functions_train_as_eager_code_does(optimizer: Any) -> None:
    random = np.random.default_rng(0)
    users, items = random.integers(-20, 20, [20, 64]), random.integers(0, 30, [20, 64])
    labels = (users * items % 5).astype(np.float32)
    batches = [(users[0], items[0], labels[0])] * 10 + list(zip(users, items, labels, strict=True))[1:11]
    eager = [table(name=name, optimizer=optimizer) for name in ("users", "items")]
    traced = [table(name=name, optimizer=optimizer) for name in ("users", "items")]
    losses = train(*eager, batches, lambda step: step)
    # TensorFlow optimises the dense part of a function, so the last bits of gradients may differ.
    np.testing.assert_allclose(losses, train(*traced, batches, tf.function), rtol=1e-5)
    assert losses[9] < losses[0]
    for one, other in zip(eager, traced, strict=True):
        assert int(one.step) == int(other.step) == 20
        keys = np.sort(one.keys())
        np.testing.assert_allclose(one.lookup(keys), other.lookup(keys), rtol=1e-3, atol=1e-5)


def test_equal_keys_are_summed_and_unknown_ones_left_out() -> None:
    users = table(dim=1, optimizer=tfctr.optimizers.Adagrad(1.0, initial_accumulator_value=1, epsilon=1e-30))
    before = users.lookup([7], training=True).numpy()
    users.apply_gradients(slices([7, 8, 7], [[1.0], [5.0], [2.0]]))
    np.testing.assert_allclose(users.lookup([7]), before - 3 / np.sqrt(10), rtol=1e-6)
    assert users.size() == 1 and not users.contains([8])[0]


def test_the_gradients_of_one_variable_given_twice_are_one_update() -> None:
    users = table(dim=1, optimizer=tfctr.optimizers.Adagrad(1.0, initial_accumulator_value=1, epsilon=1e-30))
    before = users.lookup([7], training=True).numpy()
    tfctr.apply_gradients([(slices([7], [[1.0]]), users), (slices([7], [[2.0]]), users)])
    np.testing.assert_allclose(users.lookup([7]), before - 3 / np.sqrt(10), rtol=1e-6)


def test_the_learning_rate_may_be_a_number_a_tensor_or_a_schedule() -> None:
    def moved(rate: Any, given: Any = None, step: int = 0) -> float:
        users = table(dim=1, rate=rate, initializer=tfctr.Constant(0.0), step=tf.Variable(step, dtype=tf.int64))
        users.lookup([1], training=True)
        users.apply_gradients(slices([1], [[1.0]]), learning_rate=given)
        return -float(users.lookup([1])[0, 0])

    assert moved(0.25) == 0.25
    assert moved(0.25, 0.5) == 0.5
    assert moved("model", tf.constant(0.75)) == 0.75
    assert moved(lambda step: 2.0 ** -tf.cast(step, tf.float32), step=3) == 0.125
    assert moved(tf.keras.optimizers.schedules.PiecewiseConstantDecay([5], [1.0, 0.5]), step=9) == 0.5


@pytest.mark.parametrize(
    ("gradient", "words"),
    [
        (None, "'users': no gradient came"),
        (tf.zeros([2, 4]), "the gradient is EagerTensor, expected tf.IndexedSlices of rows [n, 4]"),
        (slices([1], [[1.0, 2.0]]), "rows (1, 2) by keys (1,), expected [n, 4] by [n]"),
        (tf.IndexedSlices(tf.zeros([1, 4], tf.float64), tf.constant([1], tf.int64)), "float64 rows by int64 keys"),
        (tf.IndexedSlices(tf.zeros([1, 4]), tf.constant([1])), "float32 rows by int32 keys, expected float32 by int64"),
    ],
)
def test_gradients_that_do_not_fit_are_refused(gradient: Any, words: str) -> None:
    users = table()
    users.lookup([1], training=True)
    with pytest.raises(InputError, match=re.escape(words)):
        users.apply_gradients(gradient)
    assert int(users.step) == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: table(optimizer=None), "has no optimizer, expected optimizer=tfctr.optimizers"),
        (lambda: table(rate="model"), 'its learning_rate is "model"'),
    ],
)
def test_variables_that_can_not_be_updated_say_so(make: Callable[[], EmbeddingVariable], words: str) -> None:
    users = make()
    users.lookup([1], training=True)
    with pytest.raises(UsageError, match=re.escape(words)):
        users.apply_gradients(slices([1], [[1.0] * 4]))


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"step": 1.5}, InputError, "'users': step is 1.5, expected a whole number, or an int64 or int32 scalar"),
        ({"step": "now"}, InputError, "'users': step is 'now'"),
        ({"step": tf.constant([1])}, InputError, "'users': step is int32 (1,)"),
        ({"step": -1}, tf.errors.InvalidArgumentError, "'users': "),
        ({"learning_rate": "fast"}, UsageError, "'users': learning_rate is 'fast', expected a number or scalar tensor"),
        ({"learning_rate": np.nan}, tf.errors.InvalidArgumentError, "'users': "),
        ({"learning_rate": np.inf}, tf.errors.InvalidArgumentError, "'users': "),
        (
            {"learning_rate": [0.1, 0.2]},
            tf.errors.InvalidArgumentError,
            "a learning rate must be a scalar, got shape [2]",
        ),
    ],
)
def test_steps_and_rates_that_make_no_sense_change_nothing(given: dict[str, Any], error: type, words: str) -> None:
    users = table()
    rows = users.lookup([1], training=True).numpy()
    with pytest.raises(error, match=re.escape(words)):
        users.apply_gradients(slices([1], [[1.0] * 4]), **given)
    np.testing.assert_array_equal(users.lookup([1]), rows)


def test_a_limit_without_room_for_an_empty_table_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="'users': .*max_bytes = 10"):
        table(max_bytes=10)
    with pytest.raises(UsageError, match="'users': dry_run is 3, expected True or False"):
        table(eviction=tfctr.StepEviction(1)).evict(dry_run=3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    users = table(name="users", optimizer=tfctr.optimizers.Adam(0.1))
    rows = users.lookup([1, -2], training=True).numpy()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"'users'.*-2"):
        users.apply_gradients(slices([1, -2], [[1.0] * 4, [0.0, bad, 0.0, 0.0]]))
    np.testing.assert_array_equal(users.lookup([1, -2]), rows)
    assert int(users.step) == 0
    users.apply_gradients(slices([1, -2], [[1.0] * 4] * 2))
    assert (users.lookup([1, -2]).numpy() != rows).all()


def test_an_own_step_moves_and_a_given_one_is_only_read() -> None:
    step = tf.Variable(5, dtype=tf.int64)
    own, given = table(name="own"), table(name="given", step=step, eviction=tfctr.StepEviction(3))
    for variable in (own, given):
        variable.lookup([1], training=True)
        variable.apply_gradients(slices([1], [[1.0] * 4]))
    assert int(own.step) == 1 and own.owns_step and int(step) == 5 and not given.owns_step
    assert given.export().last_step.tolist() == [5]
    tfctr.apply_gradients([(slices([1], [[1.0] * 4]), own), (slices([1], [[1.0] * 4]), given)])
    assert int(own.step) == 6 and int(step) == 5  # together: the largest of theirs, then one further
    assert int(training.common_step([own, given])) == 6


def test_the_step_may_be_a_keras_optimizers() -> None:
    optimizer = tf.keras.optimizers.SGD(0.1)
    users = table(step=optimizer.iterations, eviction=tfctr.StepEviction(3))
    optimizer.iterations.assign(8)
    users.lookup([1], training=True)
    assert users.export().last_step.tolist() == [8]


@pytest.mark.parametrize("step", [3, tf.Variable(0), tf.Variable([0], dtype=tf.int64), tf.constant(0, tf.int64)])
def test_other_steps_are_refused(step: Any) -> None:
    with pytest.raises(UsageError, match="'users': step is .*, expected an int64 scalar tf.Variable"):
        table(step=step)


def test_minimize_moves_tables_and_ordinary_variables() -> None:
    optimizer = tf.keras.optimizers.SGD(0.5)
    weight = tf.Variable([[1.0], [1.0]])
    users = table(dim=2, initializer=tfctr.Constant(1.0), rate=0.25, step=optimizer.iterations)
    fixed = table(dim=2, name="fixed", initializer=tfctr.Constant(1.0))
    fixed.lookup([1], training=True)
    fixed.freeze()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((users.lookup([1], training=True) + fixed.lookup([1], training=True)) @ weight)
    tfctr.minimize(loss, [users, weight, fixed], optimizer, tape=tape)
    np.testing.assert_allclose(users.lookup([1]), [[0.75, 0.75]])
    np.testing.assert_allclose(weight, [[0.0], [0.0]])
    np.testing.assert_allclose(fixed.lookup([1]), [[1.0, 1.0]])
    assert int(optimizer.iterations) == 1
    with pytest.raises(UsageError, match="optimizer is None, expected one for the 1 variables"):
        tfctr.minimize(loss, [users, weight], tape=tape)


def test_the_step_is_saved_and_restored(tmp_path: Path) -> None:
    users = table(eviction=tfctr.StepEviction(3))
    for _ in range(5):
        users.lookup([1], training=True)
        users.apply_gradients(slices([1], [[1.0] * 4]))
    path = tf.train.Checkpoint(users=users).save(str(tmp_path / "model"))
    again = table(eviction=tfctr.StepEviction(3))
    tf.train.Checkpoint(users=again).restore(path).assert_consumed()
    assert int(again.step) == 5 and again.export().last_step.tolist() == [4]
    np.testing.assert_array_equal(again.lookup([1]), users.lookup([1]))
    assert again.evict(step=8).rows == 1


def test_a_group_counts_and_steps_together() -> None:
    users, items = table(record_frequency=True), table(name="items", admission=tfctr.CounterAdmission(3))
    rows = tfctr.embedding_lookup_group([(users, [1, 2]), (items, [5]), (users, [1]), (items, [5, 5])], training=True)
    assert [part.shape[0] for part in rows] == [2, 1, 1, 2]
    assert users.frequency([1, 2]).tolist() == [2, 1] and items.frequency([5]).tolist() == [3]
    np.testing.assert_array_equal(rows[1][0], rows[3][1])
    assert np.abs(rows[1]).max() > 0


def test_a_lookup_in_a_branch_has_a_gradient_where_it_is_taken() -> None:
    users = table(initializer=tfctr.Constant(1.0), rate=1.0)

    @tf.function
    def train(taken: tf.Tensor, ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            rows = tf.cond(taken, lambda: users.lookup(ids, training=True), lambda: tf.zeros([tf.size(ids), 4]))
            loss = tf.reduce_sum(rows)
        tfctr.minimize(loss, [users], tape=tape)

    for taken in (True, False, True):
        train(tf.constant(taken), tf.constant([1, -2], tf.int64))
    np.testing.assert_array_equal(users.lookup([1, -2]), np.full([2, 4], -1.0))


def test_the_gradient_of_a_lookup_in_a_loop_is_refused() -> None:
    users = table()
    ids = tf.constant([1, -2], tf.int64)

    @tf.function
    def train() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(
                tf.map_fn(lambda one: users.lookup(one, training=True), ids, fn_output_signature=tf.float32)
            )
        tfctr.minimize(loss, [users], tape=tape)

    with pytest.raises(UsageError, match="a gradient came for a lookup within a loop"):
        train()
    assert tf.map_fn(users.lookup, ids, fn_output_signature=tf.float32).shape == [2, 4]
