"""User rows beside many candidates: what the packer repeats, against tf.gather and NumPy; and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.test_packer import part, unpack
from tfctr.core import library
from tfctr.errors import InputError

HOSTILE = [2**62, -(2**63), 2**63 - 1]


def packer(parts, users, features=(), split=None):
    """A packer whose parts named in ``users`` may come once per user."""
    names = [p["name"] for p in parts]
    return library.native().Packer(
        {
            "context": "model 'm'",
            "parts": parts,
            "features": list(features),
            "packed": None,
            "outputs": [],
            "users": {"parts": [names.index(u) for u in users], "row_to_user": "row_to_user", "split": split},
        }
    )


def ragged_part(levels, dtype="int64", splits="int64"):
    names = ["row_splits", *(f"row_splits_{k}" for k in range(1, levels))]
    parts = [part("r/values", dtype, [-1]), *(part(f"r/{n}", splits, [-1]) for n in names)]
    feature = {"name": "r", "kind": "ragged", "values": 1, "row_splits": list(range(2, 2 + levels))}
    return parts, feature


ITEM = part("item", "int64", [-1])
SPARSE = [part("s/values", "int64", [-1]), part("s/indices", "int64", [-1, -1]), part("s/dense_shape", "int64", [-1])]
SPARSE_FEATURE = {"name": "s", "kind": "sparse", "values": 1, "indices": 2, "dense_shape": 3}


@st.composite
def rows_of_users(draw, max_users=5, max_rows=9):
    """(U, row_to_user) that a request may have."""
    users = draw(st.integers(1, max_users))
    rows = list(range(users)) if users > 1 else []
    rows += draw(st.lists(st.integers(0, users - 1), max_size=max_rows))
    return users, np.array(draw(st.permutations(rows)), np.int64)


@settings(max_examples=60, deadline=None)
@given(
    rows_of_users(),
    st.sampled_from(["float32", "int64", "bool", "float64", "string", "int8"]),
    st.lists(st.integers(0, 3), max_size=2),
)
def test_dense_rows_are_taken_as_numpy_takes_them(users_rows, dtype, inner):
    users, row_to_user = users_rows
    values = np.arange(users * int(np.prod(inner))).reshape(users, *inner)
    values = (
        np.array([b"v%d" % v for v in values.reshape(-1)], object).reshape(values.shape)
        if dtype == "string"
        else values.astype(dtype)
    )
    made = packer([ITEM, part("u", dtype, None)], ["u"]).pack(
        {"item": np.zeros(len(row_to_user), np.int64), "u": values, "row_to_user": row_to_user}
    )
    got = unpack(made, ["int64", dtype])[1]
    assert made.repeated
    assert not made.split
    assert got.shape == values[row_to_user].shape
    assert got.tolist() == values[row_to_user].tolist()


@st.composite
def nested(draw, users, levels, leaf):
    if levels == 0:
        return draw(st.lists(leaf, max_size=3))
    return draw(st.lists(nested(None, levels - 1, leaf), min_size=users or 0, max_size=3 if users is None else users))


@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(1, 3), st.sampled_from(["int64", "string"]), st.sampled_from(["int32", "int64"]))
def test_ragged_rows_are_taken_as_tf_gather_takes_them(data, levels, dtype, splits):
    users, row_to_user = data.draw(rows_of_users(3, 6))
    leaf = st.integers(0, 99) if dtype == "int64" else st.binary(max_size=30)
    rows = data.draw(nested(users, levels, leaf))
    ragged = tf.ragged.constant(rows, dtype, ragged_rank=levels, row_splits_dtype=splits)
    parts, feature = ragged_part(levels, dtype, splits)
    request = {"item": np.zeros(len(row_to_user), np.int64), "row_to_user": row_to_user}
    given_as = data.draw(st.sampled_from(["whole", "parts"]))
    if given_as == "whole":
        request["r"] = ragged
    else:
        request |= {p["name"]: s.numpy() for p, s in zip(parts[1:], ragged.nested_row_splits, strict=True)}
        request["r/values"] = ragged.flat_values.numpy()
    got = unpack(
        packer([ITEM, *parts], [p["name"] for p in parts], [feature]).pack(request),
        ["int64", dtype, *[splits] * levels],
    )
    want = tf.gather(ragged, row_to_user)
    assert got[1].tolist() == want.flat_values.numpy().tolist()
    for mine, theirs in zip(got[2:], want.nested_row_splits, strict=True):
        assert mine.tolist() == theirs.numpy().tolist()
        assert mine.dtype == theirs.numpy().dtype


@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(2, 3), st.booleans())
def test_sparse_rows_are_taken_in_any_order_of_indices(data, rank, shuffle):
    users, row_to_user = data.draw(rows_of_users())
    shape = [users, *data.draw(st.lists(st.integers(1, 3), min_size=rank - 1, max_size=rank - 1))]
    dense = np.array(data.draw(st.lists(st.integers(0, 5), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))))
    dense = dense.reshape(shape)
    indices = np.argwhere(dense)
    if shuffle:
        indices = indices[np.array(data.draw(st.permutations(range(len(indices)))), int)]
    request = {
        "item": np.zeros(len(row_to_user), np.int64),
        "row_to_user": row_to_user,
        "s/values": dense[tuple(indices.T)],
        "s/indices": indices.reshape(-1, rank),
        "s/dense_shape": np.array(shape),
    }
    made = packer([ITEM, *SPARSE], ["s/values", "s/indices", "s/dense_shape"], [SPARSE_FEATURE]).pack(request)
    _, values, got, got_shape = unpack(made, ["int64"] * 4)
    assert got_shape.tolist() == [len(row_to_user), *shape[1:]]
    assert got[:, 0].tolist() == sorted(got[:, 0].tolist())
    again = np.zeros(got_shape, int)
    again[tuple(got.T)] = values
    np.testing.assert_array_equal(again, dense[row_to_user])
    # Entries of one row keep the order in which they came.
    for b, user in enumerate(row_to_user):
        np.testing.assert_array_equal(got[got[:, 0] == b, 1:], indices[indices[:, 0] == user, 1:])


def test_weights_come_along_with_the_values_of_their_feature():
    weights = part("w", "float32", [-1]) | {"like": 1}
    request = {"item": [0, 0], "s": [[7, 8]], "w": np.array([0.5, 0.25], np.float32)}
    made = packer([ITEM, *SPARSE, weights], ["s/values", "s/indices", "s/dense_shape"], [SPARSE_FEATURE])
    _, values, _, shape, got = unpack(made.pack(request), ["int64"] * 4 + ["float32"])
    assert values.tolist() == [7, 8, 7, 8]
    assert got.tolist() == [0.5, 0.25, 0.5, 0.25]
    assert shape.tolist() == [2, 2]
    with pytest.raises(InputError, match="2 values and 1 in 'w', which goes with them"):
        made.pack(request | {"w": np.array([0.5], np.float32)})


def test_one_user_row_needs_no_row_to_user():
    made = packer([ITEM, part("u", "int64", [-1])], ["u"]).pack({"item": [1, 2, 3], "u": [9]})
    assert unpack(made, ["int64", "int64"])[1].tolist() == [9, 9, 9]


@pytest.mark.parametrize("item", [[], [1], [1, 2]])
def test_as_many_user_rows_as_others_are_left_alone(item):
    made = packer([ITEM, part("u", "int64", [-1])], ["u"]).pack({"item": item, "u": item})
    assert not made.repeated
    assert unpack(made, ["int64", "int64"])[1].tolist() == item


def test_no_candidates():
    made = packer([ITEM, part("u", "int64", [-1])], ["u"])
    for request in (
        {"item": [], "u": [9]},
        {"item": [], "u": [9], "row_to_user": []},
        {"item": [], "u": [], "row_to_user": []},
    ):
        assert unpack(made.pack(request), ["int64", "int64"])[1].tolist() == []


def split_form(order, once):
    return {"parts": order, "tensors": [f"t{k}:0" for k in order], "once": once, "packed": None, "outputs": []}


def test_the_split_form_takes_user_rows_once_and_repeats_the_rest():
    parts = [ITEM, part("kept", "int64", [-1]), part("u", "int64", [-1])]
    made = packer(parts, ["kept", "u"], split=split_form([0, 1, 3, 2], [2]))
    packed = made.pack({"item": [1, 2, 3], "u": [9, 8], "kept": [5, 6], "row_to_user": [1, 0, 1]})
    assert packed.split
    assert packed.repeated
    assert [a.tolist() for a in unpack(packed, ["int64"] * 4)] == [[1, 2, 3], [6, 5, 6], [1, 0, 1], [9, 8]]
    plain = made.pack({"item": [1, 2], "u": [9, 8], "kept": [5, 6]})
    assert not plain.split
    assert not plain.repeated
    assert [a.tolist() for a in unpack(plain, ["int64"] * 3)] == [[1, 2], [5, 6], [9, 8]]
    one = packer([ITEM, part("u", "int64", [-1])], ["u"], split=split_form([0, 2, 1], [1])).pack(
        {"item": [1, 2], "u": [9]}
    )
    assert one.split
    assert not one.repeated
    assert [a.tolist() for a in unpack(one, ["int64"] * 3)] == [[1, 2], [0, 0], [9]]


TWO = [ITEM, part("other", "int64", [-1]), part("u", "int64", [-1]), part("v", "int64", [-1])]


@pytest.mark.parametrize("split", [None, split_form([0, 1, 4, 2, 3], [2, 3])], ids=["repeat", "split"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"u": [1, 2]}, "user feature 'u' has 2 rows and user feature 'v' has 1"),
        ({"u": [1, 2], "v": [1, 2]}, "user feature 'u' has 2 rows and 'item' has 3; expected as many, or one row"),
        ({"u": [], "v": []}, "user feature 'u' has 0 rows and 'item' has 3"),
        ({"other": [1]}, "feature 'item' has 3 rows and feature 'other' has 1"),
        ({"row_to_user": [0, 0]}, "'row_to_user': got 2 numbers, expected one for each of the 3 rows of 'item'"),
        (
            {"row_to_user": [0, -1, 0]},
            r"'row_to_user': got -1 at \[1\], expected a user row: user feature 'u' has 1 row",
        ),
        ({"row_to_user": [0, 0, 1]}, r"'row_to_user': got 1 at \[2\]"),
        ({"row_to_user": [0.0, 0, 1]}, "'row_to_user': got the float 0.0"),
        ({"row_to_user": np.zeros(3, np.float32)}, r"'row_to_user': got float32 \[3\], expected int64 \[\?\]"),
        ({"row_to_user": [[0, 0, 0]]}, r"'row_to_user': got int64 \[1, 3\], expected int64 \[\?\]"),
        ({"row_to_user": 0}, r"'row_to_user': got int64 \[\], expected int64 \[\?\]"),
        ({"row_to_user": None}, "'row_to_user': got None"),
        ({"row_to_user": ["a"] * 3}, "'row_to_user'"),
        ({"row_to_user": [2**63] * 3}, "'row_to_user'.*does not fit"),
        (
            {"row_to_user": [0, 0, 0], "u": [1, 2], "v": [1, 2]},
            r"'u' has 2 rows, but the largest .* is 0; expected 1 row$",
        ),
        (
            {"row_to_user": [0, 1, 0], "u": [1, 2, 3], "v": [1, 2, 3]},
            "'u' has 3 rows, but the largest .* is 1; expected 2 or 1",
        ),
        ({"row_to_user": [], "item": [], "other": [], "u": [1, 2], "v": [1, 2]}, "is empty; expected 0 or 1 rows"),
    ],
)
def test_rows_that_do_not_fit_are_named(change: dict[str, Any], message: str, split: Any):
    made = packer(TWO, ["u", "v"], split=split)
    good = {"item": [1, 2, 3], "other": [1, 2, 3], "u": [7], "v": [8]}
    with pytest.raises(InputError, match=message) as caught:
        made.pack(good | change)
    assert str(caught.value).startswith("model 'm': ")
    assert made.pack(good).split == (split is not None)


def test_row_to_user_without_user_features_is_refused():
    plain = library.native().Packer(
        {"context": "model 'm'", "parts": [ITEM], "features": [], "packed": None, "outputs": []}
    )
    with pytest.raises(InputError, match="no user features are declared"):
        plain.pack({"item": [1], "row_to_user": [0]})


@pytest.mark.parametrize("bad", [[[1, 0], [0, 0]], [[-1, 0], [0, 0]], [[2**62, 0], [0, 0]]])
def test_sparse_rows_outside_the_users_are_refused(bad):
    made = packer([ITEM, *SPARSE], ["s/values", "s/indices", "s/dense_shape"], [SPARSE_FEATURE])
    request = {"item": [1, 2, 3], "s/values": [5, 6], "s/indices": np.array(bad), "s/dense_shape": [1, 4]}
    with pytest.raises(InputError, match="feature 's': got the row .* in 's/indices' at"):
        made.pack(request)


@pytest.mark.parametrize("rows", HOSTILE)
def test_a_sparse_tensor_that_claims_many_rows_is_refused(rows):
    users = packer([ITEM, *SPARSE], ["s/values", "s/indices", "s/dense_shape"], [SPARSE_FEATURE])
    request = {"s/values": [5], "s/indices": np.array([[0, 0]]), "s/dense_shape": np.array([rows, 4])}
    with pytest.raises(InputError, match="'s' has"):
        users.pack(request | {"item": [1, 2]})
    items = packer([part("u", "int64", [-1]), *SPARSE], ["u"], [SPARSE_FEATURE])
    with pytest.raises(InputError, match="'s' has|and 's' has"):
        items.pack(request | {"u": [1]})


@pytest.mark.parametrize("splits", [[1, 2], [0, 3], [0, -1, 2], [0, 2, 1, 2]])
def test_row_splits_that_do_not_rise_are_refused(splits):
    parts, feature = ragged_part(1)
    made = packer([ITEM, *parts], ["r/values", "r/row_splits"], [feature])
    users = len(splits) - 1
    request = {"item": np.zeros(6), "r/values": [5, 6], "r/row_splits": splits}
    request["item"] = np.zeros(6, np.int64)
    request["row_to_user"] = np.arange(6) % users
    with pytest.raises(InputError, match="feature 'r'"):
        made.pack(request)


def test_row_splits_of_two_levels_must_meet():
    parts, feature = ragged_part(2)
    made = packer([ITEM, *parts], [p["name"] for p in parts], [feature])
    request = {"item": [1, 2], "r/values": [5, 6], "r/row_splits": [0, 3], "r/row_splits_1": [0, 2]}
    with pytest.raises(InputError, match="'r/row_splits'.*do not rise from 0 to the 1 rows of the next level"):
        made.pack(request)


def test_a_repeat_beyond_memory_is_refused():
    made = packer([ITEM, part("u", "float64", [-1, -1])], ["u"])
    with pytest.raises(InputError, match="'u'.*more than 1 GiB once they are repeated"):
        made.pack({"item": np.zeros(100_000, np.int64), "u": np.zeros((1, 10_000))})


NUMBERS = st.one_of(st.integers(-3, 6), st.sampled_from([2**31, 2**62, -(2**62), 2**63 - 1, -(2**63)]))


def flat(draw, most=5):
    return np.array(draw(st.lists(NUMBERS, max_size=most)), np.int64)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_request_crashes(data):
    """Parts that contradict each other in any way: packed or refused, never a crash."""
    ragged, feature = ragged_part(2)
    feature = feature | {"values": 4, "row_splits": [5, 6]}
    weights = part("w", "float32", [-1]) | {"like": 1}
    split = data.draw(st.sampled_from([None, split_form([0, 8, *range(1, 8)], [4, 5, 6])]))
    users = data.draw(st.lists(st.sampled_from(["s/values", "r/values", "item"]), unique=True))
    made = packer([ITEM, *SPARSE, *ragged, weights], users, [SPARSE_FEATURE, feature], split)
    count = data.draw(st.integers(0, 4))
    request = {
        "item": flat(data.draw),
        "s/values": np.zeros(count, np.int64),
        "s/indices": np.array(data.draw(st.lists(NUMBERS, min_size=2 * count, max_size=2 * count)), np.int64).reshape(
            -1, 2
        ),
        "s/dense_shape": np.array(data.draw(st.lists(NUMBERS, min_size=2, max_size=2)), np.int64),
        "r/values": flat(data.draw),
        "r/row_splits": flat(data.draw),
        "r/row_splits_1": flat(data.draw),
        "w": np.zeros(data.draw(st.integers(0, 4)), np.float32),
    }
    # Half of the time what is near to right, so that the deeper checks are reached.
    if data.draw(st.booleans()):
        request["s/dense_shape"][0] = data.draw(st.integers(1, 2))
        request["s/indices"][:, 0] %= 2
        request["r/row_splits"] = np.array([0, data.draw(st.integers(0, 2))])
        request["r/row_splits_1"] = np.array(sorted(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))))
        request["r/values"] = np.arange(request["r/row_splits_1"][-1])
        request["w"] = np.zeros(count, np.float32)
    if data.draw(st.booleans()):
        request["row_to_user"] = flat(data.draw)
    try:
        packed = made.pack(request)
    except InputError:
        return
    assert packed.arena.size % 64 == 0
