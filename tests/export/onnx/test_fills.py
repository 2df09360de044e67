"""Tensors of one number beside a mask: a number, where broadcasting does the rest."""

import numpy as np
import pytest
import tensorflow as tf

from export.onnx.exporter import to_onnx
from export.referee import judge
from tests.export.onnx.exports import exported, initializers, ops, small_tower, translated

X = ("float32", (None, 4))
MASK = ("bool", (None, 4))


def test_ones_like_in_din():
    """ones_like times the mask value: what is left of it is the mask value."""
    assert ops(translated("din"))["ConstantOfShape"] == 1
    model = exported("din").model
    assert ops(model)["ConstantOfShape"] == ops(model)["Shape"] == 0
    assert exported("din").report["fills_dropped"] == 1 and exported("din").report["shapes_left"] == []
    assert any(a.size == 1 and a.ravel()[0] == np.float32(-(2.0**32) + 1) for a in initializers(model))


@pytest.mark.parametrize("value", ["zeros", "fives"])
def test_beside_a_mask(value):
    def build(x, mask):
        fill = tf.zeros_like(x) if value == "zeros" else tf.ones_like(x) * 5.0
        return {"y": tf.where(mask, x, fill)}

    made = small_tower(build, x=X, mask=MASK)
    result = to_onnx(made)
    assert dict(ops(result.model)) == {"Where": 1} and "became that number" in result.notes[-1]
    assert judge(made, result.model).max_difference == 0


def test_what_gives_the_rows_stays():
    """Without it there would be one row."""
    made = small_tower(lambda x: {"y": tf.zeros_like(x) + tf.constant([[1.0, 2.0, 3.0, 4.0]])}, x=X)
    result = to_onnx(made)
    assert ops(result.model)["ConstantOfShape"] == 1 and result.report["fills_dropped"] == 0
    assert result.report["shapes_left"] and judge(made, result.model).max_difference == 0


def test_what_is_an_output_or_joined_stays():
    made = small_tower(lambda x: {"y": tf.concat([x, tf.zeros_like(x)], 1), "z": tf.ones_like(x)}, x=X)
    result = to_onnx(made)
    assert result.report["fills_dropped"] == 0
    assert judge(made, result.model).max_difference == 0


def test_one_of_two_goes():
    def build(x, mask):
        return {"y": tf.where(mask, x, tf.zeros_like(x)), "z": tf.concat([x, tf.ones_like(x)], 1)}

    made = small_tower(build, x=X, mask=MASK)
    result = to_onnx(made)
    assert result.report["fills_dropped"] == 1 and ops(result.model)["ConstantOfShape"] == 1
    assert judge(made, result.model).max_difference == 0
