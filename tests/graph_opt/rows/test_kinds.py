"""Each rule: the kind of the result, and, where it says that rows stay apart, that they do: T(x[r]) = T(x)[r]."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from graph_opt.rows import rows_of_signature
from graph_opt.testing import SIGNATURE, Tables, graph_item, run_item
from tests.graph_opt.graphs import placeholder, table

Build = Callable[..., Any]
N = 6
CHOSEN = [4, 0, 0, 5, 2, 2, 1]
RNG = np.random.default_rng(0)
FEEDS = {
    "x": RNG.normal(size=(N, 3, 4)).astype(np.float32),  # [B, 3, 4]
    "y": RNG.normal(size=(N, 4)).astype(np.float32),  # [B, 4]
    "h": RNG.normal(size=(N, 5, 4)).astype(np.float32),  # [B, T, 4]
    "v": RNG.normal(size=(N,)).astype(np.float32),  # [B]
    "k": RNG.integers(0, 3, (N, 2)),  # [B, 2] ids
    "s": np.array([[b"a"], [b"bb"], [b"c"], [b"d"], [b"a"], [b"f"]], object),  # [B, 1]
}
W = RNG.normal(size=(4, 2)).astype(np.float32)
C = np.arange(4, dtype=np.float32) + 1


def make(build: Build, tmp_path: Path) -> Any:
    def graph(tables: Tables) -> Mapping[str, tf.Tensor]:
        x = placeholder(tf.float32, [None, 3, 4], "x")
        y = placeholder(tf.float32, [None, 4], "y")
        h = placeholder(tf.float32, [None, None, 4], "h")
        v = placeholder(tf.float32, [None], "v")
        k = placeholder(tf.int64, [None, 2], "k")
        s = placeholder(tf.string, [None, 1], "s")
        t = placeholder(tf.float32, [], "t")
        return {"out": build(x=x, y=y, h=h, v=v, k=k, s=s, t=t, e=tables["e"])}

    item = graph_item(graph, tables={"e": table(10, 4)}, work_dir=tmp_path)
    # TensorFlow forgets that a placeholder is a scalar; the signature of a SavedModel does not.
    item.signatures[SIGNATURE].inputs["t"].tensor_shape.unknown_rank = False
    return item


ROW_WISE: dict[str, Build] = {
    "unary": lambda y, **_: tf.nn.relu(tf.exp(y)) + tf.math.log1p(tf.abs(y)),
    "constants": lambda x, **_: (x * C - 1.0) / np.ones((1, 3, 4), np.float32),
    "scalar input": lambda y, t, **_: y * t,
    "two rows": lambda y, h, **_: h + y[:, tf.newaxis, :],
    "matmul": lambda y, **_: tf.matmul(y, W) + C[:2],
    "matmul transposed": lambda y, **_: tf.matmul(y, W.T, transpose_b=True),
    "bias": lambda y, **_: tf.nn.bias_add(y, C),
    "batch matmul": lambda x, h, **_: tf.matmul(x, h, transpose_b=True),
    "batch matmul by a constant": lambda x, **_: tf.linalg.matmul(x, np.tile(W, (1, 1, 1))),
    "dense on three axes": lambda h, **_: tf.tensordot(h, W, [[2], [0]]),
    "dense on known axes": lambda x, **_: tf.tensordot(x, W, [[2], [0]]),
    "einsum": lambda x, h, **_: tf.einsum("bij,btj->bit", x, h) + tf.einsum("bij,jk->bik", x, W)[:, :, :1],
    "softmax": lambda x, **_: tf.nn.softmax(x) + tf.nn.log_softmax(x),
    "reduce": lambda x, **_: tf.reduce_sum(x, 1) + tf.reduce_max(x, [-2]) + tf.reduce_mean(x, 1, keepdims=True)[:, 0],
    "argmax": lambda x, **_: tf.argmax(x, 2),
    "cumsum": lambda h, **_: tf.cumsum(h, 1),
    "reverse": lambda h, **_: tf.reverse(h, [1]),
    "top": lambda y, **_: tf.math.top_k(y, 2)[0],
    "concat": lambda x, h, **_: tf.concat([x, h], 1),
    "concat and flatten": lambda x, y, **_: tf.concat([tf.reshape(x, [-1, 12]), y], 1),
    "flatten by shape": lambda x, **_: tf.reshape(x, tf.stack([tf.shape(x)[0], 12])),
    "flatten with another's shape": lambda x, y, **_: tf.reshape(x, tf.stack([tf.shape(y)[0], -1])),
    "flatten of unknown positions": lambda h, **_: tf.reshape(h, tf.stack([tf.shape(h)[0], -1])),
    "stack": lambda y, **_: tf.stack([y, y * 2], 1),
    "unstack": lambda x, **_: tf.unstack(x, axis=1)[1],
    "split": lambda x, **_: tf.concat(tf.split(x, [1, 2], 1)[::-1], 1) + tf.concat(tf.split(x, 3, 1), 1),
    "slice": lambda x, **_: tf.slice(x, [0, 1, 0], [-1, 2, 4]),
    "strided slice": lambda x, **_: x[:, 1:, ::2] + x[..., :2][:, :2],
    "slice with ellipsis": lambda x, **_: x[..., 0],
    "new axis": lambda y, **_: y[:, tf.newaxis],
    "expand and squeeze": lambda y, **_: tf.squeeze(tf.expand_dims(y, -1), [2]),
    "transpose": lambda x, **_: tf.transpose(x, [0, 2, 1]),
    "tile": lambda y, h, **_: tf.tile(y[:, tf.newaxis, :], tf.stack([1, tf.shape(h)[1], 1])),
    "pad": lambda x, **_: tf.pad(x, [[0, 0], [1, 0], [0, 2]]),
    "one hot": lambda k, **_: tf.one_hot(k, 3),
    "gather": lambda k, e, **_: tf.gather(e, k),
    "gather of rows' own": lambda x, k, **_: tf.gather(x, k, axis=1, batch_dims=1),
    "gather of columns": lambda y, **_: tf.gather(y, [2, 0], axis=1),
    "text": lambda s, **_: tf.strings.to_hash_bucket_fast(tf.strings.lower(s), 7),
    "bucketize": lambda y, **_: tf.raw_ops.Bucketize(input=y, boundaries=[0.0, 1.0]),
    "select": lambda y, **_: tf.where(y > 0, y, tf.zeros_like(y)),
    "old select by row": lambda y, v, **_: tf.raw_ops.Select(condition=v > 0, x=y, y=-y),
    "clip": lambda y, **_: tf.clip_by_value(y, -1.0, 0.5),
    "sequence mask": lambda h, k, **_: tf.cast(tf.sequence_mask(k[:, 0], tf.shape(h)[1]), tf.float32),
    "zeros": lambda y, **_: tf.zeros(tf.stack([tf.shape(y)[0], 4])) + y,
    "tiled constant": lambda y, **_: tf.tile(tf.constant(C[None]), tf.stack([tf.shape(y)[0], 1])) + y,
    "broadcast to rows": lambda y, **_: tf.broadcast_to(C, tf.shape(y)) + y,
    "batch norm": lambda y, **_: (y - C) * tf.math.rsqrt(C + 0.1) * C + 1.0,
    "fused batch norm": lambda x, **_: tf.compat.v1.nn.fused_batch_norm(
        x[:, :, tf.newaxis, :], C, C, C, C + 1, is_training=False
    )[0],
    "layer norm": lambda y, **_: (
        (y - tf.reduce_mean(y, -1, keepdims=True)) * tf.math.rsqrt(tf.math.reduce_variance(y, -1, keepdims=True) + 1e-3)
    ),
    "convolution": lambda h, **_: tf.nn.conv1d(h, np.ones((2, 4, 3), np.float32), 1, "SAME"),
    "cross layer": lambda y, **_: y * tf.matmul(y, W[:, :1]) + C + y,
}

MIXING: dict[str, tuple[Build, str]] = {
    "mean over rows": (lambda y, **_: y - tf.reduce_mean(y, 0), "Mean"),
    "count of rows": (lambda y, **_: y / tf.cast(tf.shape(y)[0], tf.float32), "RealDiv"),
    "row numbers": (lambda v, **_: v + tf.cast(tf.range(tf.shape(v)[0]), tf.float32), "AddV2"),
    "concat of rows": (lambda y, **_: tf.concat([y, y], 0), "ConcatV2"),
    "stack of rows": (lambda y, **_: tf.stack([y, y], 0), "Pack"),
    "transpose of rows": (lambda y, **_: tf.transpose(y), "Transpose"),
    "rows by rows": (lambda y, **_: tf.matmul(y, y, transpose_b=True), "MatMul"),
    "first row": (lambda y, **_: y[:1], "StridedSlice"),
    "shrunk first row": (lambda x, **_: x[0], "StridedSlice"),
    "some rows": (lambda y, **_: tf.slice(y, [1, 0], [2, 4]), "Slice"),
    "reverse of rows": (lambda y, **_: tf.reverse(y, [0]), "ReverseV2"),
    "sum over rows": (lambda y, **_: tf.cumsum(y, 0), "Cumsum"),
    "softmax of rows": (lambda v, **_: tf.nn.softmax(v), "Softmax"),
    "squeeze of anything": (lambda s, **_: tf.squeeze(s), "Squeeze"),
    "constant with rows": (lambda v, **_: v + tf.constant(C), "AddV2"),
    "vector beside matrix": (lambda v, y, **_: v + y, "AddV2"),
    "pairs of rows": (lambda y, **_: tf.reshape(y, [-1, 8]), "Reshape"),
    "padding rows": (lambda y, **_: tf.pad(y, [[1, 0], [0, 0]]), "Pad"),
    "repeated rows": (lambda y, **_: tf.tile(y, [2, 1]), "Tile"),
    "where": (lambda v, **_: tf.where(v > 0), "Where"),
    "random": (lambda y, **_: y + tf.random.uniform(tf.shape(y)), "RandomUniform"),
    "unknown": (lambda y, **_: tf.linalg.inv(tf.matmul(y[:, :, tf.newaxis], y[:, tf.newaxis, :])), "MatrixInverse"),
    "loop": (
        lambda y, **_: tf.compat.v1.while_loop(
            lambda i, z: i < 2, lambda i, z: (i + 1, z * 2.0), (0, y), return_same_structure=True
        )[1],
        "",
    ),
}


@pytest.mark.parametrize("name", ROW_WISE)
def test_rows_stay_apart(name: str, tmp_path: Path) -> None:
    item = make(ROW_WISE[name], tmp_path)
    rows = rows_of_signature(item, SIGNATURE)
    kind = rows.kind(item.signatures[SIGNATURE].outputs["out"].name)
    assert kind.name == "row" and kind.has_rows, f"{kind.op} {kind.node}: {kind.reason}"
    feeds = {**FEEDS, "t": np.float32(2)}
    whole = run_item(item, feeds)["out"]
    some = run_item(item, {n: v[CHOSEN] if n != "t" else v for n, v in feeds.items()})["out"]
    if whole.dtype.kind == "f":
        np.testing.assert_allclose(some, whole[CHOSEN], 1e-5, 1e-6)
    else:
        np.testing.assert_array_equal(some, whole[CHOSEN])


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_rows_is_named(name: str, tmp_path: Path) -> None:
    build, op = MIXING[name]
    item = make(build, tmp_path)
    kind = rows_of_signature(item, SIGNATURE).kind(item.signatures[SIGNATURE].outputs["out"].name)
    assert kind.name == "opaque" and not kind.has_rows
    assert op in ("", kind.op) and kind.reason


def test_a_scalar_input_is_the_same_for_all_rows(tmp_path: Path) -> None:
    item = make(lambda y, t, **_: y * t, tmp_path)
    rows = rows_of_signature(item, SIGNATURE)
    assert rows.kind("t").name == "shared"
    assert rows.kind(item.signatures[SIGNATURE].outputs["out"].name).sources == {"y"}


def test_shapes_are_counts_with_known_elements(tmp_path: Path) -> None:
    item = make(lambda h, **_: tf.stack([tf.shape(h)[0] * tf.shape(h)[1], tf.shape(h)[2]]), tmp_path)
    kind = rows_of_signature(item, SIGNATURE).kind(item.signatures[SIGNATURE].outputs["out"].name)
    assert kind.name == "count" and kind.by_rows and kind.dual
    assert kind.value is not None
    assert [(d.coef, d.rows, len(d.symbols)) for d in kind.value if d is not None] == [(1, 1, 1), (4, 0, 0)]


def test_positions_depend_on_no_row(tmp_path: Path) -> None:
    item = make(lambda h, **_: tf.range(tf.shape(h)[1]), tmp_path)
    assert rows_of_signature(item, SIGNATURE).kind(item.signatures[SIGNATURE].outputs["out"].name).fixed


def test_flattened_positions_are_several_entries_per_row(tmp_path: Path) -> None:
    item = make(lambda x, **_: tf.reshape(x, [-1, 4]), tmp_path)
    kind = rows_of_signature(item, SIGNATURE).kind(item.signatures[SIGNATURE].outputs["out"].name)
    assert kind.name == "row" and not kind.has_rows
    assert kind.fold is not None and kind.fold.coef == 3
