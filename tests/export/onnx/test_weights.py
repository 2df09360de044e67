"""What becomes of a model's variables: folded batch norms, epsilons, PReLU, NaN."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import tensor_util

from export.onnx.exporter import to_onnx
from export.reasons import CannotExport
from export.referee import judge
from export.tower import Tower
from tests.export.onnx.exports import exported, initializers, ops, small_tower, translated
from tests.export.towers import tower, tower_inputs


def constants(made: Tower) -> dict[str, np.ndarray]:
    return {n.name: tensor_util.MakeNdarray(n.attr["value"].tensor) for n in made.graph_def.node if n.op == "Const"}


def changed(made: Tower, name: str, value: np.ndarray) -> Tower:
    """The tower with another value of one constant."""
    graph_def = type(made.graph_def)()
    graph_def.CopyFrom(made.graph_def)
    node = next(n for n in graph_def.node if n.name == name)
    node.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto(value.astype(np.float32)))
    return Tower(signature=made.signature, graph_def=graph_def, inputs=made.inputs, outputs=made.outputs)


def moving_variances(made: Tower) -> list[str]:
    """Constants that batch norms take the inverse root of (plus epsilon)."""
    readers = {n.name: n for n in made.graph_def.node}
    rsqrt_of = [readers[n.input[0]] for n in made.graph_def.node if n.op == "Rsqrt"]
    found = []
    for add in rsqrt_of:
        for source in add.input:
            while readers[source.split(":")[0]].op in ("Identity", "ReadVariableOp"):
                source = readers[source.split(":")[0]].input[0]
            node = readers[source.split(":")[0]]
            if node.op == "Const" and tensor_util.MakeNdarray(node.attr["value"].tensor).ndim == 1:
                found.append(node.name)
    return found


@pytest.mark.parametrize("name", ["din", "mmoe"])
def test_a_variable_is_no_initializer(name):
    """The inverse root of a batch norm's variance is folded: new weights must be exported anew."""
    made = tower(name)
    (variance, *_) = moving_variances(made)
    value = constants(made)[variance]
    assert not any(a.shape == value.shape and np.array_equal(a, value) for a in initializers(exported(name).model))
    other = changed(made, variance, value * 3)
    before, after = exported(name), to_onnx(other)
    assert before.model.graph.node == after.model.graph.node
    assert judge(other, after.model).max_difference <= 1e-5
    with pytest.raises(CannotExport, match="differ"):
        judge(other, before.model)


def test_epsilon_is_folded_in_fp32():
    """Dice's epsilon is 1e-8, which is 0 in FP16: its inverse root is a constant of the exported model."""
    assert np.float16(1e-8) == 0
    made = tower("din")
    folded = [a.ravel() for a in initializers(exported("din").model)]
    assert not any(a.dtype == np.float32 and a.size and (np.abs(a - 1e-8) < 1e-12).any() for a in folded)
    assert not {"Sqrt", "Reciprocal", "Rsqrt"} & set(ops(exported("din").model))
    value = constants(made)[moving_variances(made)[0]]
    expected = 1 / np.sqrt(value + np.float32(1e-8))
    assert any(a.shape == expected.shape and np.allclose(a, expected, rtol=1e-6) for a in folded)


def test_tiny_variance_survives():
    """Variance 0 and epsilon 1e-8: the factor is 1e4, as in TensorFlow."""
    made = tower("din")
    other = changed(made, moving_variances(made)[0], np.zeros_like(constants(made)[moving_variances(made)[0]]))
    verdict = judge(other, to_onnx(other).model)
    assert verdict.max_difference <= 1e-5


def test_prelu_is_relu_neg_relu_mul():
    assert ops(exported("din").model)["PRelu"] == 0 and ops(exported("din").model)["Neg"] == 2
    assert ops(translated("din"))["Neg"] == 2


@pytest.mark.parametrize(
    ("bad", "message"),
    [(np.nan, "weight w has 1 NaN among its 12"), (np.inf, "weight w has 1 infinite among its 12 numbers")],
)
def test_weights_that_are_no_numbers(bad, message):
    weight = np.ones((4, 3), np.float32)
    weight[1, 2] = bad
    made = small_tower(lambda x: {"y": tf.matmul(x, tf.constant(weight, name="w"))}, x=("float32", (None, 4)))
    with pytest.raises(CannotExport, match=message):
        to_onnx(made)


def test_one_infinite_number_is_a_mask():
    first = np.arange(4) == 0
    made = small_tower(
        lambda x, mask: {"y": tf.nn.softmax(tf.where(mask | first, x, -np.inf))},
        x=("float32", (None, 4)), mask=("bool", (None, 4)),
    )  # fmt: skip
    assert judge(made, to_onnx(made).model).max_difference < 1e-5


def test_feeds_of_the_examples_match():
    """On the towers' own inputs too, not only on the referee's."""
    for name in ("din", "mmoe"):
        samples = [tower_inputs(name, rows=100, seed=9)]
        verdict = judge(tower(name), exported(name).model, samples=samples)
        assert verdict.samples == 1 and verdict.rows[-1] == 100
