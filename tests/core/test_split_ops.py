"""TfctrAddUserRows and TfctrJoinUserRows against NumPy: dtypes, folded positions, empty requests, bad input."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfctr.core import library

ops = library.load()
DTYPES = (tf.float32, tf.float64, tf.float16, tf.bfloat16)
USER, ITEM, BOTH = 0, 1, 2


def randoms(shape: tuple[int, ...], seed: int = 0, dtype: tf.DType = tf.float32) -> tf.Tensor:
    return tf.cast(np.random.default_rng(seed).normal(size=shape), dtype)


def blocks(x: tf.Tensor, rows: int) -> tf.Tensor:
    """[rows * K, ...] as [rows, K, ...]."""
    return tf.reshape(x, [rows, x.shape[0] // rows, *x.shape[1:]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("relu", [False, True])
def test_each_item_row_gets_the_row_of_its_user(dtype: tf.DType, relu: bool) -> None:
    item, user, of_row = randoms((6, 5), dtype=dtype), randoms((3, 5), 1, dtype), [2, 0, 0, 1, 2, 0]
    want = item + tf.gather(user, of_row)
    got = ops.tfctr_add_user_rows(item, user, of_row, relu=relu)
    np.testing.assert_array_equal(got, tf.nn.relu(want) if relu else want)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 9),
    users=st.integers(1, 4),
    entries=st.integers(1, 3),
    tail=st.lists(st.integers(0, 5), max_size=2),
    data=st.data(),
)
def test_positions_of_a_row_lie_behind_each_other(
    rows: int, users: int, entries: int, tail: list[int], data: st.DataObject
) -> None:
    of_row = data.draw(st.lists(st.integers(0, users - 1), min_size=rows, max_size=rows))
    item, user = randoms((rows * entries, *tail)), randoms((users * entries, *tail), 1)
    got = ops.tfctr_add_user_rows(item, user, np.array(of_row, np.int64))
    if rows == 0:
        assert got.shape == item.shape
        return
    want = blocks(item, rows) + tf.gather(blocks(user, users), of_row)
    np.testing.assert_array_equal(got, tf.reshape(want, item.shape))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 6),
    users=st.integers(1, 3),
    entries=st.integers(1, 2),
    middle=st.lists(st.integers(1, 3), max_size=1),
    inner=st.lists(st.integers(1, 3), max_size=1),
    segments=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=5),
    data=st.data(),
)
def test_segments_are_joined_in_their_order(
    rows: int,
    users: int,
    entries: int,
    middle: list[int],
    inner: list[int],
    segments: list[tuple[int, int]],
    data: st.DataObject,
) -> None:
    of_row = data.draw(st.lists(st.integers(0, users - 1), min_size=rows, max_size=rows))
    axis = 1 + len(middle)
    width = {side: sum(w for w, s in segments if s in (side, BOTH)) for side in (USER, ITEM)}
    item = randoms((rows * entries, *middle, width[ITEM], *inner))
    user = randoms((users * entries, *middle, width[USER], *inner), 1)
    got = ops.tfctr_join_user_rows(
        item, user, of_row, axis=axis, widths=[w for w, _ in segments], sides=[s for _, s in segments]
    )
    mine = tf.reshape(tf.gather(blocks(user, users), of_row), [rows * entries, *user.shape[1:]])
    start = {USER: 0, ITEM: 0}
    parts = []
    for size, side in segments:
        taken = []
        for one, tensor in ((USER, mine), (ITEM, item)):
            if side in (one, BOTH):
                taken.append(tf.gather(tensor, range(start[one], start[one] + size), axis=axis))
                start[one] += size
        parts.append(tf.add_n(taken))
    np.testing.assert_array_equal(got, tf.concat(parts, axis))


def test_the_buffer_of_a_shared_input_is_not_overwritten() -> None:
    item, user = randoms((4, 3)), randoms((1, 3), 1)
    before = item.numpy().copy()
    ops.tfctr_add_user_rows(item, user, [0, 0, 0, 0])
    np.testing.assert_array_equal(item, before)


def test_nan_stays_nan_through_relu() -> None:
    got = ops.tfctr_add_user_rows([[np.nan, 1.0]], [[1.0, -3.0]], [0], relu=True)
    assert np.isnan(got[0, 0]) and got[0, 1] == 0


@pytest.mark.parametrize(
    ("item", "user", "row_to_user", "message"),
    [
        ((4, 3), (2, 3), [0, 1, 2, 0], r"row_to_user\[2\] = 2 is not in \[0, 2\)"),
        ((4, 3), (2, 3), [0, -1, 0, 0], r"row_to_user\[1\] = -1 is not in \[0, 2\)"),
        ((4, 3), (0, 3), [0, 0, 0, 0], r"is not in \[0, 0\)"),
        ((4, 3), (2, 3), [0, 0, 0], "same number of entries for each of the 3 rows"),
        ((4, 3), (3, 3), [0, 0], "same number of entries for each of the 2 rows"),
        ((4, 3), (2, 3), [], "has rows, row_to_user has none"),
        ((4, 3), (2, 4), [0, 0, 0, 0], "."),
        ((4, 3), (2, 3, 1), [0, 0, 0, 0], "."),
    ],
)
def test_what_does_not_fit_is_an_error(
    item: tuple[int, ...], user: tuple[int, ...], row_to_user: list[int], message: str
) -> None:
    arguments = (randoms(item), randoms(user), np.array(row_to_user, np.int64))
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
        ops.tfctr_add_user_rows(*arguments)


def test_segments_must_cover_both_inputs() -> None:
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="must have 2 and 1 entries on axis 1"):
        ops.tfctr_join_user_rows(randoms((2, 3)), randoms((1, 1)), [0, 0], axis=1, widths=[1, 2], sides=[USER, ITEM])


@pytest.mark.parametrize("widths", [[1], [1, -1]])
def test_segments_must_make_sense(widths: list[int]) -> None:
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        ops.tfctr_join_user_rows(randoms((2, 1)), randoms((1, 1)), [0, 0], axis=1, widths=widths, sides=[USER, ITEM])


def test_shapes_are_known_without_running() -> None:
    with tf.Graph().as_default():
        item = tf.compat.v1.placeholder(tf.float32, [None, 3])
        user = tf.compat.v1.placeholder(tf.float32, [None, 3])
        rows = tf.compat.v1.placeholder(tf.int64, [None])
        assert ops.tfctr_add_user_rows(item, user, rows).shape.as_list() == [None, 3]
        joined = ops.tfctr_join_user_rows(item, user, rows, axis=1, widths=[2, 3, 1], sides=[USER, ITEM, USER])
        assert joined.shape.as_list() == [None, 6]
        with pytest.raises(ValueError, match="axis 2"):
            ops.tfctr_join_user_rows(item, user, rows, axis=2, widths=[3], sides=[BOTH])
