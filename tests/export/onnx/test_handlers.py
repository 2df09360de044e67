"""Erfc and Select: what tf2onnx does with them, and what our handlers make of them."""

import numpy as np
import onnx
import onnx.reference
import pytest
import tensorflow as tf

from export.onnx.checks import check_model, check_ops
from export.onnx.convert import convert
from export.onnx.exporter import to_onnx
from export.onnx.runtime import OnnxSession
from export.reasons import CannotExport
from export.referee import judge
from export.tower_session import TowerSession
from tests.export.onnx.exports import exported, ops, small_tower, translated
from tests.export.towers import TOWERS, tower


@pytest.mark.parametrize("name", TOWERS)
def test_five_towers_match(name):
    verdict = judge(tower(name), exported(name).model)
    assert verdict.max_difference <= 1e-5 and verdict.rows == (1, 7, 64)
    assert set(verdict.outputs) == {one.name for one in tower(name).outputs}


def test_erfc_passes_through_tf2onnx_unknown():
    """It returns a model all the same; ONNX Runtime, the checker and our list of ops refuse that."""
    model = translated("trf", own_handlers=False)
    assert ops(model)["Erfc"] == 1
    with pytest.raises(Exception, match="Erfc"):
        OnnxSession(model)
    with pytest.raises(CannotExport, match=r"onnx.checker refuses it: .*Erfc"):
        check_model(model)
    with pytest.raises(CannotExport, match=r"op Erfc \(node .*Erfc") as caught:
        check_ops(model)
    assert caught.value.node in tower("trf").nodes


def test_erfc_becomes_erf():
    assert ops(exported("trf").model)["Erfc"] == 0 and ops(exported("trf").model)["Erf"] == 1


@pytest.mark.parametrize("shape", [(None, 3), (None, 2, 3)])
def test_erfc_numbers(shape):
    made = small_tower(lambda x: {"y": tf.math.erfc(x)}, x=("float32", shape))
    model = to_onnx(made).model
    assert judge(made, model).max_difference < 1e-6
    wide = np.linspace(-12, 12, 60, dtype=np.float32).reshape(-1, *shape[1:])
    with TowerSession(made) as session:
        np.testing.assert_allclose(OnnxSession(model).run({"x": wide})["y"], session.run({"x": wide})["y"], atol=1e-6)


def test_select_is_arithmetic_in_tf2onnx():
    assert ops(translated("din", own_handlers=False))["Where"] == 0
    assert ops(translated("din"))["Where"] == 1
    assert ops(exported("din").model)["Where"] == 1


@pytest.mark.parametrize("own_handlers", [False, True])
def test_masks_in_half_precision(own_handlers):
    """-2^32 is infinite in FP16; the arithmetic form makes NaN of it in every position that is not masked."""
    made = small_tower(
        lambda x, mask: {"y": tf.where(mask, x, tf.constant(-(2.0**32) + 1))},
        x=("float32", (None, 4)), mask=("bool", (None, 4)),
    )  # fmt: skip
    model = to_onnx(made).model if own_handlers else convert(made, {})
    half = _as_half(model)
    names = [one.name for one in half.graph.input]
    mask = np.array([[True, True, False, False]])
    given = dict(zip(names, (np.ones((1, 4), np.float16), mask), strict=True))
    with np.errstate(invalid="ignore"):
        (found,) = onnx.reference.ReferenceEvaluator(half).run(None, given)
    if own_handlers:
        np.testing.assert_array_equal(found, [[1, 1, -np.inf, -np.inf]])
    else:
        assert np.isnan(found[0, :2]).all()


def test_select_of_what_is_not_finite():
    """In fp32 too: the value that is not chosen must not reach the result."""
    made = small_tower(lambda x: {"y": tf.where(x > 0, tf.math.log(x), 0.0)}, x=("float32", (None, 3)))
    x = np.array([[-1, 0, 2]], np.float32)
    expected = [[0, 0, np.log(np.float32(2))]]
    theirs = OnnxSession(convert(made, {}))
    assert np.isnan(theirs.run({"x:0": x})["SelectV2:0"]).any()
    np.testing.assert_allclose(OnnxSession(to_onnx(made).model).run({"x": x})["y"], expected, rtol=1e-6)


def test_old_select_takes_a_vector():
    """One condition per row, whatever the rank of the values."""

    def build(x, mask):
        return {
            "y": tf.raw_ops.Select(condition=mask, x=x, y=-x),
            "z": tf.raw_ops.Select(condition=mask, x=x[:, 0, 0], y=x[:, 1, 1]),
        }

    made = small_tower(build, x=("float32", (None, 2, 3)), mask=("bool", (None,)))
    model = to_onnx(made).model
    assert ops(model)["Where"] == 2 and ops(model)["Cast"] == 0
    assert judge(made, model).max_difference == 0


def test_a_handler_that_fails_is_the_reason():
    def broken(*_):
        raise ValueError("no such thing")

    made = small_tower(lambda x: {"y": tf.math.erfc(x)}, x=("float32", (None, 3)))
    with pytest.raises(CannotExport, match="tf2onnx can't translate it: .*Erfc"):
        convert(made, {"Erfc": (broken, [])})


def test_nothing_is_printed(capfd):
    convert(tower("trf"), {})
    out = capfd.readouterr()
    assert "Erfc" not in out.out + out.err and "deprecated" not in out.err


def _as_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every float32 a float16, as naive as can be."""
    half = onnx.ModelProto.FromString(model.SerializeToString())
    f32, f16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
    for one in (*half.graph.input, *half.graph.output):
        if one.type.tensor_type.elem_type == f32:
            one.type.tensor_type.elem_type = f16
    for one in half.graph.initializer:
        if one.data_type == f32:
            with np.errstate(over="ignore"):
                array = onnx.numpy_helper.to_array(one).astype(np.float16)
            one.CopyFrom(onnx.numpy_helper.from_array(array, one.name))
    for node in half.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == f32:
                attribute.i = f16
    return half
