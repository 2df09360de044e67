"""The NumPy reading of id steps against the stock ops that the steps stand for."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_opt.lookup_spec import Step
from graph_opt.prove.steps import Vocabulary, run_steps

INT64 = st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=20)


def run(steps, raw):
    return run_steps([Step(kind, tuple(args)) for kind, *args in steps], raw, {})


@settings(deadline=None, max_examples=30)
@given(ids=INT64, modulus=st.integers(1, 1 << 40))
def test_mod_is_floor_mod(ids, modulus):
    raw = np.asarray(ids, np.int64)
    np.testing.assert_array_equal(run([("mod", str(modulus))], raw).values, tf.math.floormod(raw, modulus).numpy())


@settings(deadline=None, max_examples=30)
@given(ids=INT64, target=st.sampled_from(["int32", "int64", "uint32", "uint64"]))
def test_cast_wraps_as_tensorflow_does(ids, target):
    raw = np.asarray(ids, np.int64)
    np.testing.assert_array_equal(run([("cast", target)], raw).values, tf.cast(raw, target).numpy())


@settings(deadline=None, max_examples=30)
@given(ids=INT64, number=st.integers(-(1 << 62), 1 << 62))
def test_add_and_mul_wrap(ids, number):
    raw = np.asarray(ids, np.int64)
    np.testing.assert_array_equal(run([("add", str(number))], raw).values, (tf.constant(raw) + number).numpy())
    np.testing.assert_array_equal(run([("mul", str(number))], raw).values, (tf.constant(raw) * number).numpy())


@settings(deadline=None, max_examples=30)
@given(texts=st.lists(st.binary(max_size=20), min_size=1, max_size=10), buckets=st.integers(1, 1 << 40))
def test_hashes_of_strings(texts, buckets):
    raw = np.array([*texts, None], object)[:-1]
    np.testing.assert_array_equal(
        run([("hash_fast", str(buckets))], raw).values, tf.strings.to_hash_bucket_fast(raw, buckets).numpy()
    )
    np.testing.assert_array_equal(
        run([("hash_strong", str(buckets), "3", "5")], raw).values,
        tf.strings.to_hash_bucket_strong(raw, buckets, [3, 5]).numpy(),
    )


@settings(deadline=None, max_examples=30)
@given(ids=INT64)
def test_hash_of_decimal_text(ids):
    raw = np.asarray(ids, np.int64)
    expected = tf.strings.to_hash_bucket_fast(tf.strings.as_string(raw), 1000).numpy()
    np.testing.assert_array_equal(run([("as_string",), ("hash_fast", "1000")], raw).values, expected)


@settings(deadline=None, max_examples=30)
# TensorFlow's threads take subnormal floats as 0, the op's too; NumPy does not.
@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_subnormal=False), min_size=1, max_size=20))
def test_bucketize(values):
    raw = np.asarray(values, np.float32)
    expected = tf.raw_ops.Bucketize(input=raw, boundaries=[-1.5, 0.0, 0.1, 7.25]).numpy()
    np.testing.assert_array_equal(run([("bucketize", "-1.5", "0.0", "0.1", "7.25")], raw).values, expected)


def test_selects_and_prunes():
    raw = np.asarray([-3, -1, 0, 5, 9], np.int64)
    assert run([("wrap_negative", "10")], raw).values.tolist() == [7, 9, 0, 5, 9]
    assert run([("select_negative", "2")], raw).values.tolist() == [2, 2, 0, 5, 9]
    assert run([("select_out_of_range", "0", "6", "1")], raw).values.tolist() == [1, 1, 0, 5, 1]
    assert run([("prune_negative",)], raw).dropped.tolist() == [True, True, False, False, False]
    assert run([("add", "1"), ("select_equal", "9", "-1")], raw).values.tolist() == [-2, 9, 1, 6, 10]
    assert run([("prune_equal", "-1"), ("add", "1")], raw).dropped.tolist() == [False, True, False, False, False]


def test_prune_looks_at_the_value_where_it_stands():
    raw = np.asarray([-1, 0], np.int64)
    assert run([("add", "1"), ("prune_negative",)], raw).dropped.tolist() == [False, False]


@pytest.mark.parametrize("step", [("vocab", "0", "-1"), ("vocab_oov", "0", "2", "5")])
def test_vocabulary(step):
    raw = np.array([b"a", b"zz", b"b"], object)
    result = run_steps([Step(step[0], step[1:])], raw, {0: Vocabulary.of({b"a": 0, b"b": 1})}).values
    unknown = -1 if step[0] == "vocab" else 2 + int(tf.strings.to_hash_bucket_fast("zz", 5))
    assert result.tolist() == [0, unknown, 1]


def test_addcol_adds_by_column():
    raw = np.asarray([[0, 0, 0], [1, 2, 3]], np.int32)
    assert run([("addcol", "0", "10", "30")], raw).values.tolist() == [[0, 10, 30], [1, 12, 33]]
