"""The referee: equal numbers, or the reason for which the tower stays on TensorFlow."""

import dataclasses

import numpy as np
import onnx
import pytest
import tensorflow as tf

from export.feeds import Sizes, random_feeds
from export.onnx.exporter import to_onnx
from export.reasons import CannotExport
from export.referee import ATOL, judge
from tests.export.onnx.exports import small_tower

W = np.random.default_rng(0).standard_normal((4, 2)).astype(np.float32)


def dense(x):
    return {"y": tf.sigmoid(tf.matmul(x, W))}


def refused(made, model, reason):
    with pytest.raises(CannotExport, match=reason):
        judge(made, model)


def exported(build, **inputs):
    made = small_tower(build, **inputs)
    return made, to_onnx(made).model


def test_equal():
    made, model = exported(dense, x=("float32", (None, 4)))
    verdict = judge(made, model, samples=[{"x": np.ones((5, 4), np.float32)}])
    assert verdict.rows == (1, 7, 64, 5) and verdict.samples == 1 and verdict.max_difference < 1e-6
    assert verdict.as_dict()["atol"] == ATOL and verdict.as_dict()["outputs"] == verdict.outputs


def test_other_numbers_are_named():
    made, model = exported(dense, x=("float32", (None, 4)))
    weight = next(one for one in model.graph.initializer if tuple(one.dims) == (4, 2))
    weight.CopyFrom(onnx.numpy_helper.from_array(W * np.float32(1.01), weight.name))
    refused(made, model, r"ONNX Runtime at \d+ rows: \d+ of \d+ numbers of output y differ, by up to 0\.0")


def test_other_shapes_and_types():
    _, model = exported(lambda x: {"y": x + 1.0}, x=("float32", (None, 4)))
    other, _ = exported(lambda x: {"y": tf.reduce_sum(x, 1) + 1.0}, x=("float32", (None, 4)))
    refused(other, model, r"output y is float32\[1, 4\], in TensorFlow float32\[1\]")


def test_integers_must_be_equal():
    made, model = exported(lambda x: {"y": tf.cast(x > 0, tf.int32)}, x=("float32", (None, 4)))
    assert judge(made, model).max_difference == 0
    other, _ = exported(lambda x: {"y": tf.cast(x >= 0.1, tf.int32)}, x=("float32", (None, 4)))
    refused(other, model, r"\d+ of \d+ elements of output y differ from TensorFlow's")


def test_rows_that_depend_on_each_other():
    """An engine may run a batch filled up to a fixed size."""
    made, model = exported(lambda x: {"y": x - tf.reduce_mean(x, 0)}, x=("float32", (None, 4)))
    refused(made, model, "its rows depend on each other")
    made, model = exported(lambda x: {"y": tf.cumsum(x)}, x=("float32", (None, 4)))
    refused(made, model, "its rows depend on each other")


def test_users_that_depend_on_each_other():
    def build(user_x, row_to_user, item):
        users = user_x - tf.reduce_mean(user_x, 0)
        return {"y": tf.gather(users, row_to_user) + item}

    inputs = {"user_x": ("float32", (None, 4)), "row_to_user": ("int64", (None,)), "item": ("float32", (None, 4))}
    made, model = exported(build, **inputs)
    refused(made, model, "its rows depend on each other")
    made, model = exported(lambda user_x, row_to_user, item: {"y": tf.gather(user_x, row_to_user) * item}, **inputs)
    assert judge(made, model).max_difference == 0


def test_outputs_without_rows():
    made, model = exported(lambda x: {"y": tf.reduce_sum(x, 0)}, x=("float32", (None, 4)))
    refused(made, model, "rows")


def test_nothing_finite():
    made, model = exported(lambda x: {"y": tf.math.log(-tf.abs(x) - 1.0)}, x=("float32", (None, 4)))
    refused(made, model, "its output y is not finite in TensorFlow either")


def test_nan_on_both_sides_is_equal():
    made, model = exported(lambda x: {"y": tf.math.log(x)}, x=("float32", (None, 4)))
    assert judge(made, model).max_difference < 1e-6


def test_rows_masked_throughout():
    """A softmax over nothing but -inf is NaN, and has to be that on both sides."""
    made, model = exported(
        lambda x, mask: {"y": tf.nn.softmax(tf.where(mask, x, -np.inf))},
        x=("float32", (None, 2)), mask=("bool", (None, 2)),
    )  # fmt: skip
    assert judge(made, model).max_difference < 1e-6
    (infinite,) = (one for one in model.graph.initializer if one.data_type == onnx.TensorProto.FLOAT)
    infinite.CopyFrom(onnx.numpy_helper.from_array(np.array(-1e30, np.float32), infinite.name))
    refused(made, model, r"ONNX Runtime at 7 rows: (\d+) of 14 numbers of output y differ, \1 are NaN on one side only")


def test_models_that_do_not_run():
    made, model = exported(dense, x=("float32", (None, 4)))
    model.graph.node[0].op_type = "Erfc"
    refused(made, model, "ONNX Runtime refuses it: .*Erfc")


def test_inputs_that_do_not_fit_together():
    """Two open dimensions that must be equal and are not at random: no engine without a comparison."""
    made = small_tower(
        lambda a, b: {"y": tf.reduce_sum(tf.matmul(a, b), [1, 2])},
        a=("float32", (None, 3, None)), b=("float32", (None, 5, 3)),
    )  # fmt: skip
    with pytest.raises(CannotExport, match="can't be run|can't run it"):
        judge(made, to_onnx(made).model)


def test_feeds():
    made = small_tower(
        lambda user_x, row_to_user, mask, n: {"y": tf.cast(mask, tf.float32)},
        user_x=("float32", (None, None, 2)), row_to_user=("int64", (None,)), mask=("bool", (None, 3)), n=("int32", ()),
    )  # fmt: skip
    feeds = random_feeds(made, Sizes(rows=7, user_rows=3, inner=5))
    assert {name: (array.shape, str(array.dtype)) for name, array in feeds.items()} == {
        "user_x": ((3, 5, 2), "float32"), "row_to_user": ((7,), "int64"), "mask": ((7, 3), "bool"), "n": ((), "int32"),
    }  # fmt: skip
    assert set(feeds["row_to_user"]) == {0, 1, 2}
    again = random_feeds(made, Sizes(rows=7, user_rows=3, inner=5))
    assert all(np.array_equal(array, again[name]) for name, array in feeds.items())
    small = random_feeds(made, Sizes(rows=7, user_rows=3, inner=5), scale=0.1)
    np.testing.assert_allclose(small["user_x"], feeds["user_x"] * 0.1, rtol=1e-6)


def test_tower_is_data():
    made = small_tower(dense, x=("float32", (None, 4)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.signature = "other"
