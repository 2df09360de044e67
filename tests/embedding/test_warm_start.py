"""Warm start from static variables, hashed tables, lookup tables, NumPy and Parquet; what does not fit is refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import tfctr
from tfctr import warm_start
from tfctr.embedding import parquet_rows
from tfctr.embedding.variable import EmbeddingVariable
from tfctr.errors import InputError, UsageError

DIM = 3
RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(50, DIM)).astype(np.float32)
SLOTS = RANDOM.uniform(0.1, 1, (50, DIM)).astype(np.float32)
KEYS = np.concatenate([[-(2**63), 2**63 - 1], np.arange(-24, 24)])


def table(name: str = "users", **options: Any) -> EmbeddingVariable:
    options.setdefault("optimizer", tfctr.optimizers.Adagrad(0.5))
    return tfctr.EmbeddingVariable(DIM, name, **options)


def check_rows(users: EmbeddingVariable, keys: Any, rows: np.ndarray, slots: np.ndarray | None = None) -> None:
    np.testing.assert_array_equal(users.lookup(keys), rows)
    if slots is not None:
        contents = users.export(slots=True)
        at = {key: k for k, key in enumerate(contents.keys.tolist())}
        order = [at[key] for key in users.as_keys(keys).numpy().tolist()]
        np.testing.assert_array_equal(contents.slots["accumulator"][order], slots)


def test_numpy_rows_with_slots_and_counts() -> None:
    users = table(
        admission=tfctr.CounterAdmission(5), eviction=tfctr.StepEviction(3), step=tf.Variable(7, dtype=tf.int64)
    )
    counts = np.arange(50)
    assert warm_start.from_numpy(users, KEYS, ROWS, slots={"accumulator": SLOTS}, frequency=counts) == 50
    check_rows(users, KEYS, ROWS, SLOTS)
    assert users.frequency(KEYS).tolist() == counts.tolist() and set(users.export().last_step.tolist()) == {7}
    assert warm_start.from_numpy(users, KEYS[:2], ROWS[:2] + 1) == 2  # again: overwritten, slots as at the beginning
    check_rows(users, KEYS[:2], ROWS[:2] + 1)
    assert users.size() == 50 and users.frequency(KEYS[:1]).tolist() == [5]


def test_of_equal_keys_the_last_row_counts() -> None:
    users = table()
    warm_start.from_numpy(users, [4, 5, 4], ROWS[:3])
    check_rows(users, [4, 5], ROWS[[2, 1]])


def test_training_goes_on_as_if_the_rows_had_been_trained_here() -> None:
    users, other = table(), table("other")
    gradient = tf.IndexedSlices(tf.ones([50, DIM]), tf.constant(KEYS))
    users.lookup(KEYS, training=True)
    users.apply_gradients(gradient)
    contents = users.export(slots=True)
    warm_start.from_numpy(other, contents.keys, contents.values, slots=contents.slots)
    for one in (users, other):
        one.apply_gradients(gradient)
    np.testing.assert_array_equal(users.lookup(KEYS), other.lookup(KEYS))


def test_a_static_variable_row_by_row_or_by_vocabulary() -> None:
    static, accumulator = tf.Variable(ROWS), tf.Variable(SLOTS)
    users, words = table(), table("words", key_dtype=tf.string)
    assert warm_start.from_variable(users, static, slots={"accumulator": accumulator}) == 50
    check_rows(users, np.arange(50), ROWS, SLOTS)
    vocabulary = [f"word {k}" for k in range(50)]
    assert warm_start.from_variable(words, static, keys=vocabulary) == 50
    check_rows(words, vocabulary, ROWS)
    with pytest.raises(InputError, match="'words': keys is None, expected the string of each row"):
        warm_start.from_variable(words, static)


def test_a_tensor_of_a_checkpoint(tmp_path: Path) -> None:
    path = tf.train.Checkpoint(static=tf.Variable(ROWS)).save(str(tmp_path / "model"))
    users = table()
    name = "static/.ATTRIBUTES/VARIABLE_VALUE"
    assert warm_start.from_variable(users, tf.train.load_checkpoint(path).get_tensor(name)) == 50
    check_rows(users, np.arange(50), ROWS)


def test_ids_of_a_hashed_table_keep_what_their_bucket_learned() -> None:
    words = [f"user {k}" for k in range(500)]
    users = table(key_dtype=tf.string)

    def bucket_of(ids: tf.Tensor) -> tf.Tensor:
        return tf.strings.to_hash_bucket_fast(ids, 50)

    slots = {"accumulator": tf.Variable(SLOTS)}
    assert warm_start.from_hashed_table(users, tf.Variable(ROWS), words, bucket_of, slots=slots) == 500
    buckets = bucket_of(tf.constant(words)).numpy()
    check_rows(users, words, ROWS[buckets], SLOTS[buckets])
    numbers = table("numbers")
    assert warm_start.from_hashed_table(numbers, ROWS, [-7, 3, 2**63 - 1], lambda ids: ids % 50) == 3
    check_rows(numbers, [-7, 3, 2**63 - 1], ROWS[[43, 3, (2**63 - 1) % 50]])
    with pytest.raises(InputError, match="bucket_of gave 50 to 50, expected buckets of the table, 0 to 49"):
        warm_start.from_hashed_table(numbers, ROWS, [1], lambda ids: ids * 0 + 50)
    with pytest.raises(InputError, match=r"bucket_of gave float32 \[1\], expected whole numbers \[1\]"):
        warm_start.from_hashed_table(numbers, ROWS, [1], lambda ids: tf.cast(ids, tf.float32))


def test_stock_lookup_tables() -> None:
    mutable = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, tf.zeros([DIM]))
    mutable.insert(tf.constant(KEYS), tf.constant(ROWS))
    users = table()
    assert warm_start.from_lookup_table(users, mutable) == 50
    check_rows(users, KEYS, ROWS)
    # Stock exports all buckets of this one, markers of empty and erased ones included.
    unused = (12345, 54321)
    dense = tf.lookup.experimental.DenseHashTable(tf.int64, tf.float32, tf.zeros([DIM]), *unused)
    dense.insert(tf.constant(KEYS), tf.constant(ROWS))
    dense.erase(tf.constant(KEYS[:3]))
    users = table()
    assert warm_start.from_lookup_table(users, dense) == users.size() == 47
    check_rows(users, KEYS[3:], ROWS[3:])
    words = tf.lookup.experimental.DenseHashTable(tf.string, tf.float32, tf.zeros([DIM]), "$empty", "$erased")
    words.insert(tf.constant(["tea", "milk"]), tf.constant(ROWS[:2]))
    named = table(key_dtype=tf.string)
    assert warm_start.from_lookup_table(named, words) == named.size() == 2
    np.testing.assert_array_equal(named.lookup(["tea", "milk"]), ROWS[:2])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Two files in a folder: ids, lists of values, lists of slots, columns of single numbers, counts."""
    for number, part in enumerate((slice(0, 30), slice(30, 50))):
        columns = {
            "user": pa.array(KEYS[part]),
            "name": pa.array([f"n{key}" for key in KEYS[part]]),
            "row": pa.array(ROWS[part].tolist(), pa.list_(pa.float32(), DIM)),
            "loose": pa.array(ROWS[part].astype(np.float64).tolist(), pa.list_(pa.float64())),
            "acc": pa.array(SLOTS[part].tolist(), pa.large_list(pa.float32())),
            "seen": pa.array(np.arange(50)[part].astype(np.int32)),
        } | {f"c{k}": pa.array(ROWS[part, k]) for k in range(DIM)}
        pq.write_table(pa.table(columns), tmp_path / f"part-{number}.parquet", row_group_size=11)
    return tmp_path


@pytest.mark.parametrize("value", ["row", "loose", ["c0", "c1", "c2"]])
def test_parquet_files(files: Path, value: Any) -> None:
    users = table(record_frequency=True)
    slots = {"accumulator": "acc"}
    options = {"key": "user", "value": value, "slots": slots, "frequency": "seen", "batch_rows": 7}
    assert warm_start.from_parquet(users, files, **options) == 50
    check_rows(users, KEYS, ROWS, SLOTS)
    assert users.frequency(KEYS).tolist() == list(range(50))


def test_parquet_files_of_string_keys_by_pattern_and_list(files: Path) -> None:
    words = table("words", key_dtype=tf.string)
    assert warm_start.from_parquet(words, str(files / "part-*.parquet"), key="name", value="row") == 50
    check_rows(words, [f"n{key}" for key in KEYS], ROWS)
    first = table("first", key_dtype=tf.string)
    assert warm_start.from_parquet(first, [files / "part-0.parquet"], key="name", value="row") == 30


def test_a_bad_row_at_the_end_of_the_last_file_changes_nothing(files: Path) -> None:
    rows = ROWS[:5].copy()
    rows[4, 1] = np.nan
    arrays = {"user": KEYS[:5], "row": pa.array(rows.tolist(), pa.list_(pa.float32()))}
    pq.write_table(pa.table(arrays), files / "z.parquet")
    users = table()
    with pytest.raises(InputError, match=r"z\.parquet.*'users': values hold nan in row 4, column 1"):
        warm_start.from_parquet(users, files, key="user", value="row")
    assert users.size() == 0


def test_parquet_files_that_do_not_fit_are_refused(files: Path) -> None:
    users = table()

    def refused(words: str, path: Any = files, **options: Any) -> None:
        with pytest.raises((InputError, UsageError), match=words):
            warm_start.from_parquet(users, path, **({"key": "user", "value": "row"} | options))

    refused("has no column 'id', expected one of user, name, row", key="id")
    refused("has no column 'nope'", slots={"accumulator": "nope"})
    refused("slots hold 'momentum', expected accumulator", slots={"momentum": "acc"})
    refused(r"values are \[11, 2\], expected \[11, 3\], a row for each key", value=["c0", "c1"])
    refused(r"keys are object \[11\], expected int64 \[n\]", key="name")
    refused("column 'name' holds .*, expected numbers", value=["c0", "c1", "name"])
    refused("column 'name' is string, expected numbers or lists of numbers", value="name")
    refused("it keeps no frequency", frequency="seen")
    refused("is no Parquet file, no folder", path=files / "none")
    (files / "broken.parquet").write_bytes(b"PAR1 no file of that kind")
    refused("broken.parquet can't be read as Parquet", path=files / "broken.parquet")
    for name, column, words in (
        ("lengths", pa.array([[1.0, 2.0, 3.0], [1.0]]), "lists of 1 to 3 numbers, expected one length"),
        ("nulls", pa.array([[1.0, 2.0, 3.0], None]), "column 'row' holds 1 nulls"),
        ("inner", pa.array([[1.0, 2.0, 3.0], [1.0, None, 3.0]]), "column 'row' holds 1 nulls"),
    ):
        pq.write_table(pa.table({"user": [1, 2], "row": column}), files / f"{name}.bad")
        refused(words, path=files / f"{name}.bad")
    assert users.size() == 0


def test_parquet_without_pyarrow_says_what_to_install(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match=r"needs pyarrow, expected `pip install 'tfctr\[parquet\]'`"):
        next(parquet_rows.batches("x", files / "part-0.parquet", "user", {}, {}, 5))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda users: warm_start.from_numpy(users, [1, 2], ROWS[:3]), "values are [3, 3], expected [2, 3]"),
        (lambda users: warm_start.from_numpy(users, [1], ROWS[:1, :2]), "values are [1, 2], expected [1, 3]"),
        (lambda users: warm_start.from_numpy(users, [1.5], ROWS[:1]), "keys are float64 [1], expected int64 [n]"),
        (lambda users: warm_start.from_numpy(users, [[1]], ROWS[:1]), "keys are int64 [1, 1], expected int64 [n]"),
        (lambda users: warm_start.from_numpy(users, ["a"], ROWS[:1]), "expected int64 [n]"),
        (lambda users: warm_start.from_numpy(users, [2**63], ROWS[:1]), "expected int64 values"),
        (lambda users: warm_start.from_numpy(users, [1], [["a", "b", "c"]]), "expected numbers [1, 3]"),
        (lambda users: warm_start.from_numpy(users, [1], [[1, np.inf, 1]]), "values hold inf in row 0, column 1"),
        (
            lambda users: warm_start.from_numpy(users, [1], ROWS[:1], slots={"m": ROWS[:1]}),
            "slots hold 'm', expected acc",
        ),
        (
            lambda users: warm_start.from_numpy(users, [1], ROWS[:1], slots={"accumulator": [[1]]}),
            "slots['accumulator'] are [1, 1], expected [1, 3]",
        ),
        (lambda users: warm_start.from_numpy(users, [1], ROWS[:1], frequency=[1]), "it keeps no frequency"),
        (lambda users: warm_start.from_variable(users, users), "expected a static table"),
        (
            lambda users: tf.function(lambda: warm_start.from_numpy(users, [1], ROWS[:1]))(),
            "a graph is being built, expected session= (TF1)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(call: Callable[[EmbeddingVariable], Any], words: str) -> None:
    users = table()
    with pytest.raises((InputError, UsageError), match=re.escape(words)) as caught:
        call(users)
    assert "'users'" in str(caught.value) and users.size() == 0


def test_counts_must_be_counts() -> None:
    with pytest.raises(InputError, match=r"frequency is int64 \[1\], expected counts \[1\]"):
        warm_start.from_numpy(table(record_frequency=True), [1], ROWS[:1], frequency=[-1])


def test_narrow_slots() -> None:
    users = table(optimizer=tfctr.optimizers.RowWiseAdagrad(0.5))
    warm_start.from_numpy(users, KEYS, ROWS, slots={"accumulator": SLOTS[:, :1]})
    check_rows(users, KEYS, ROWS, SLOTS[:, :1])


def test_in_a_session_of_a_tf1_graph(files: Path) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        static = tf.compat.v1.get_variable("static", initializer=ROWS)
        users, words = table(), table("words", key_dtype=tf.string)
        look, size = users.lookup(np.arange(50)), words.size()
        session.run(tf.compat.v1.global_variables_initializer())
        slots = {"accumulator": SLOTS}
        assert warm_start.from_variable(users, static, slots=slots, session=session) == 50
        np.testing.assert_array_equal(session.run(look), ROWS)
        assert warm_start.from_parquet(words, files, key="name", value="row", batch_rows=8, session=session) == 50
        hashed = warm_start.from_hashed_table(
            words, static, ["x", "y"], lambda i: tf.strings.length(i), session=session
        )
        assert hashed == 2 and session.run(size) == 52


def test_many_blocks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_start, "BLOCK_ROWS", 7)
    users = table(record_frequency=True)
    keys = np.concatenate([KEYS, KEYS[:3]])
    rows, slots = np.concatenate([ROWS, ROWS[10:13]]), np.concatenate([SLOTS, SLOTS[10:13]])
    assert warm_start.from_numpy(users, keys, rows, slots={"accumulator": slots}, frequency=np.arange(53)) == 53
    check_rows(users, keys[3:], rows[3:], slots[3:])
    assert users.frequency(keys[3:]).tolist() == list(range(3, 53))
    hashed = table("hashed")
    assert warm_start.from_hashed_table(hashed, ROWS, KEYS, lambda ids: ids % 50, slots={"accumulator": SLOTS}) == 50
    check_rows(hashed, KEYS, ROWS[KEYS % 50], SLOTS[KEYS % 50])


def test_a_hashed_table_with_a_bad_bucket_changes_nothing() -> None:
    users, rows = table(), ROWS.copy()
    rows[49, 0] = np.nan
    with pytest.raises(InputError, match="values hold nan in row 49, column 0"):
        warm_start.from_hashed_table(users, rows, KEYS, lambda ids: ids % 50)
    assert users.size() == 0
