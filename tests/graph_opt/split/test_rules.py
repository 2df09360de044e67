"""Each splitting rule on a graph of its own: where user rows are repeated, what is saved, and equal numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from graph_opt.item import GraphItem
from graph_opt.testing import graph_item
from tests.graph_opt.graphs import placeholder
from tests.graph_opt.split.helpers import assert_same_numbers, broadcast_ops, form_of, new_ops, split

RNG = np.random.default_rng(3)
USER = {
    "u": RNG.normal(size=(7, 6)).astype(np.float32),
    "p": RNG.normal(size=(7, 2, 4)).astype(np.float32),
    "h": RNG.normal(size=(7, 5, 4)).astype(np.float32),
}
ITEM = {
    "i": RNG.normal(size=(7, 5)).astype(np.float32),
    "q": RNG.normal(size=(7, 3, 4)).astype(np.float32),
    "c": RNG.normal(size=(7, 4)).astype(np.float32),
}


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def mlp(x: tf.Tensor) -> tf.Tensor:
    width = x.shape[-1]
    x = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, weights(width, 8)), weights(8, seed=1)))
    return tf.sigmoid(tf.matmul(x, weights(8, 1, seed=2)) + 0.5)


def ui(u: tf.Tensor, i: tf.Tensor, **_: Any) -> tf.Tensor:
    return tf.concat([u[:, :2], i, u[:, 2:]], 1)


def fields(p: tf.Tensor, q: tf.Tensor, **_: Any) -> tf.Tensor:
    return tf.concat([p[:, :1], q, p[:, 1:]], 1)  # [B, 5, 4]


def checked(u: tf.Tensor, i: tf.Tensor, **_: Any) -> tf.Tensor:
    """Waits for a check of the user's rows, through a node that groups checks."""
    check = tf.debugging.Assert(tf.reduce_all(u < 100.0), [u])
    with tf.control_dependencies([tf.group(check)]):
        return tf.concat([tf.identity(u), i], 1)


def attention(h: tf.Tensor, c: tf.Tensor, **_: Any) -> tf.Tensor:
    """DIN: scores of each position from [q, h, q - h, q * h], softmax, weighted sum."""
    query = tf.tile(c[:, tf.newaxis, :], tf.stack([1, tf.shape(h)[1], 1]))
    x = tf.concat([query, h, query - h, query * h], -1)
    hidden = tf.nn.relu(tf.tensordot(x, weights(16, 6), [[2], [0]]) + weights(6, seed=1))
    score = tf.tensordot(hidden, weights(6, 1, seed=2), [[2], [0]])
    return tf.reduce_sum(tf.nn.softmax(score, 1) * h, 1)


def bn(x: tf.Tensor) -> tf.Tensor:
    width = x.shape[-1]
    return (x - weights(width)) * tf.math.rsqrt(np.abs(weights(width, seed=1)) + 0.1) * weights(width, seed=2) + 1.0


def cross_v1(x: tf.Tensor) -> tf.Tensor:
    width = x.shape[-1]
    y = x
    for k in range(2):
        y = x * tf.matmul(y, weights(width, 1, seed=k)) + weights(width, seed=k) + y
    return y


def cross_v2(x: tf.Tensor) -> tf.Tensor:
    width = x.shape[-1]
    y = x
    for k in range(2):
        y = x * (tf.matmul(y, weights(width, width, seed=k) * np.float32(0.3)) + weights(width, seed=k)) + y
    return y


def fm(x: tf.Tensor) -> tf.Tensor:
    total = tf.square(tf.reduce_sum(x, 1)) - tf.reduce_sum(tf.square(x), 1)
    return 0.5 * tf.reduce_sum(total, 1, keepdims=True)


Graph = Callable[..., tf.Tensor]
# name -> (graph, ops before which user rows are repeated)
CASES: dict[str, tuple[Graph, list[str]]] = {
    "dense layer": (lambda **x: mlp(ui(**x)), ["Relu"]),
    "nested concats": (lambda u, i, c, **_: mlp(tf.concat([tf.concat([i, u], 1), c, u[:, 1:2]], -1)), ["Relu"]),
    "transposed weights": (
        lambda **x: tf.nn.relu(tf.matmul(ui(**x), weights(3, 11), transpose_b=True)),
        ["Relu"],
    ),
    "normalised input": (lambda **x: mlp(bn(ui(**x))), ["Relu"]),
    "normalised layer": (
        lambda **x: tf.nn.relu(bn(tf.matmul(ui(**x), weights(11, 8)))),
        ["Relu"],
    ),
    "element-wise before the layer": (lambda **x: mlp(tf.tanh(-ui(**x) * 2.0)), ["Relu"]),
    "constant minus sum": (lambda **x: tf.tanh(weights(8) - tf.matmul(ui(**x), weights(11, 8))), ["Tanh"]),
    # Adding a constant to one side of a sum must not make it wider than the other.
    "constant wider than the sum": (lambda **x: tf.tanh(tf.matmul(ui(**x), weights(11, 1)) + weights(5)), ["AddV2"]),
    "sum wider than the constant": (lambda **x: tf.tanh(tf.matmul(ui(**x), weights(11, 5)) + weights(1)), ["Tanh"]),
    "two dense layers in a row": (
        lambda **x: tf.tanh(tf.matmul(tf.matmul(ui(**x), weights(11, 8)) + 1.0, weights(8, 3))),
        ["Tanh"],
    ),
    "wide and deep": (
        lambda u, i, **x: tf.sigmoid(
            tf.matmul(u, weights(6, 1)) + tf.matmul(i, weights(5, 1)) + tf.matmul(ui(u, i), weights(11, 1))
        ),
        ["Sigmoid"],
    ),
    "sum of several": (
        lambda u, i, **_: tf.sigmoid(tf.add_n([u[:, :1], i[:, :1], u[:, 1:2], i[:, 1:2] - u[:, 2:3]])),
        ["Sigmoid"],
    ),
    "factorisation machine": (lambda **x: fm(fields(**x)), ["Square", "output"]),
    "stacked fields": (
        lambda p, q, **_: fm(tf.stack([p[:, 0], q[:, 0], p[:, 1], q[:, 2]], 1)),
        ["Square", "output"],
    ),
    "flattened fields": (lambda **x: mlp(tf.reshape(fields(**x), [-1, 20])), ["Relu"]),
    "flattened by shape": (
        lambda u, p, q, **_: mlp(tf.reshape(fields(p, q), tf.stack([tf.shape(u)[0], 20]))),
        ["Relu"],
    ),
    "flattened with the item's shape": (
        lambda p, q, **_: mlp(tf.reshape(fields(p, q), tf.stack([tf.shape(q)[0], 20]))),
        ["Relu"],
    ),
    "fields unstacked": (
        lambda **x: mlp(tf.concat(tf.unstack(fields(**x), axis=1), 1)),
        ["Relu"],
    ),
    "fields split": (lambda **x: mlp(tf.concat(tf.split(ui(**x), [3, 4, 4], 1)[::-1], 1)), ["Relu"]),
    "slice over both": (lambda **x: mlp(ui(**x)[:, 1:9]), ["Relu"]),
    "slices of nothing": (
        lambda **x: mlp(tf.concat([ui(**x), tf.slice(ui(**x), [0, 3], [-1, 0]), *tf.split(ui(**x), [0, 11], 1)], 1)),
        ["Slice", "SplitV", "Relu"],
    ),
    "fields side by side": (lambda **x: tf.tanh(tf.concat([fields(**x), fields(**x)], 2)), ["ConcatV2"] * 2),
    "mean of fields": (lambda **x: mlp(tf.reduce_mean(fields(**x), 1)), ["Relu"]),
    "largest of entries": (lambda **x: mlp(tf.reduce_max(fields(**x), 2)), ["Relu"]),
    # Fields lie side by side within each row, so rows of both sides would alternate.
    "dense per field": (lambda **x: tf.nn.relu(tf.tensordot(fields(**x), weights(4, 3), [[2], [0]])), ["Reshape"]),
    "transposed fields": (
        lambda **x: mlp(tf.reshape(tf.transpose(fields(**x), [0, 2, 1]), [-1, 20])),
        ["Reshape"],
    ),
    "einsum over entries": (lambda **x: tf.tanh(tf.einsum("bfd,dk->bfk", fields(**x), weights(4, 3))), ["output"]),
    "einsum over fields": (lambda **x: tf.tanh(tf.einsum("bfd,fk->bdk", fields(**x), weights(5, 3))), ["Tanh"]),
    "einsum per field": (lambda **x: tf.tanh(tf.einsum("bfd,fdk->bfk", fields(**x), weights(5, 4, 3))), ["output"]),
    "attention over a history": (lambda **x: attention(**x), ["Mul", "Relu"]),
    "attention and tower": (
        lambda u, i, **x: mlp(tf.concat([u, i, attention(**x)], 1)),
        ["Mul", "Relu", "Relu"],
    ),
    "cross layers": (lambda **x: mlp(cross_v1(ui(**x))), ["Mul", "Mul"]),
    "cross layers with matrices": (lambda **x: mlp(cross_v2(ui(**x))), ["Mul", "Mul"]),
    "products of both sides": (lambda u, i, **_: u[:, :5] * i, ["Mul"]),
    "batch matmul of both sides": (lambda h, q, **_: tf.matmul(q, h, transpose_b=True), ["BatchMatMulV2"]),
    "zeros of the user's shape": (
        lambda u, i, **_: mlp(tf.concat([u, tf.zeros(tf.stack([tf.shape(u)[0], 2])), i], 1)),
        ["Relu"],
    ),
    "zeros of the item's shape": (
        lambda u, i, **_: mlp(tf.concat([u + tf.zeros(tf.stack([tf.shape(i)[0], 6])), i], 1)),
        ["Relu"],
    ),
    "statistics of the batch": (lambda u, i, **_: mlp(tf.concat([u - tf.reduce_mean(u, 0), i], 1)), ["Mean"]),
    "count of rows": (lambda u, i, **_: mlp(tf.concat([u / tf.cast(tf.shape(u)[0], tf.float32), i], 1)), ["RealDiv"]),
    "largest of the batch": (
        lambda u, i, **_: mlp(tf.concat([u / tf.reduce_max(i), i], 1)),
        ["RealDiv"],
    ),
    "checked inputs": (lambda **x: mlp(checked(**x)), ["All", "If", "Relu"]),
    "user's part is an output": (lambda u, **_: tf.tanh(u), ["output"]),
}


def item_of(graph: Graph, tmp_path: Path) -> GraphItem:
    def build(_: object) -> dict[str, tf.Tensor]:
        x = {
            "u": placeholder(tf.float32, [None, 6], "u"),
            "p": placeholder(tf.float32, [None, 2, 4], "p"),
            "h": placeholder(tf.float32, [None, None, 4], "h"),
            "i": placeholder(tf.float32, [None, 5], "i"),
            "q": placeholder(tf.float32, [None, 3, 4], "q"),
            "c": placeholder(tf.float32, [None, 4], "c"),
        }
        # A second output that gains keeps graphs that gain nothing from being refused.
        return {"out": graph(**x), "gain": tf.matmul(tf.concat([x["u"], x["i"]], 1), weights(11, 2))}

    return graph_item(build, work_dir=tmp_path)


# Cases that show every way of joining with stock operations.
STOCK = ("dense layer", "factorisation machine", "attention and tower", "cross layers", "einsum per field")


@pytest.mark.parametrize(("name", "device"), [(n, "/CPU:0") for n in CASES] + [(n, "/GPU:0") for n in STOCK])
def test_rule(name: str, device: str, tmp_path: Path) -> None:
    graph, expected = CASES[name]
    item = item_of(graph, tmp_path)
    after, outcome = split(item, *USER, device_map={"dense": device})
    assert outcome.fired == 1, outcome.refused
    assert_same_numbers(after, USER, ITEM)
    found = broadcast_ops(after)
    found.remove("output")  # of "gain"
    assert found == expected
    custom = {op for op in new_ops(after) if op.startswith("Tfctr")}
    assert (not custom) == (device == "/GPU:0")
    again, second = split(after, *USER)
    assert second.fired == 0 and again.graph_def == after.graph_def


def test_a_dense_layer_is_taken_apart_by_the_rows_of_its_weights(tmp_path: Path) -> None:
    after, _ = split(item_of(lambda **x: mlp(ui(**x)), tmp_path), *USER)
    ops = new_ops(after)
    assert ops["user/MatMul"] == 2 and ops["MatMul"] == 3  # one each of both outputs, and the second layer
    assert ops["user/BiasAdd"] == 1 and "BiasAdd" not in ops
    assert "Relu" not in ops  # done where user rows are added
    flops = form_of(after).details["flops"]
    assert flops["before_per_row"] == 2 * (11 * 8 + 8 + 11 * 2)
    assert flops["user_per_row"] == 2 * (6 * 8 + 6 * 2)
    assert flops["item_per_row"] == 2 * (5 * 8 + 8 + 5 * 2)


def test_the_parts_that_a_concat_puts_between_are_multiplied_at_once(tmp_path: Path) -> None:
    """Rows of the weights are sorted by side once, at conversion: no slices or concats per feature."""

    def graph(u: tf.Tensor, i: tf.Tensor, **_: Any) -> tf.Tensor:
        return mlp(tf.concat([u, i], 1))

    ops = new_ops(split(item_of(graph, tmp_path), *USER)[0])
    assert not set(ops) & {"ConcatV2", "Slice", "GatherV2", "TfctrJoinUserRows"}


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda d: d.name)
def test_half_towers_are_compared_at_their_own_resolution(dtype: tf.DType, tmp_path: Path) -> None:
    def graph(**x: Any) -> tf.Tensor:
        return tf.matmul(tf.cast(ui(**x), dtype), tf.cast(weights(11, 64), dtype))

    after, outcome = split(item_of(graph, tmp_path), *USER)
    assert outcome.fired == 1 and new_ops(after)["MatMul"] == 2


def test_what_moved_how_far_is_said(tmp_path: Path) -> None:
    after, outcome = split(item_of(lambda **x: mlp(bn(ui(**x))), tmp_path), *USER)
    entry = next(e for e in form_of(after).details["broadcasts"] if e["at"].startswith("Relu"))
    assert entry["moved_past"] == ["StridedSlice", "ConcatV2", "Sub", "Mul", "AddV2", "MatMul", "BiasAdd"]
    assert any("user rows are repeated at Relu" in note for note in outcome.notes)
