"""Dense lookups: one id, sequences, masks and pooling, stacked and partitioned tables, dense feature columns."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.graph_opt.recognise.support import Model, differs_from_default, only_spec, recognise


def wrapped(ids: tf.Tensor, rows: int) -> tf.Tensor:
    """Keras 3's handling of negative ids."""
    return tf.where(tf.less(ids, 0), ids + tf.constant(rows, ids.dtype), ids)


def bucketize(values: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.Bucketize(input=values, boundaries=[0.5, 1.0])


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize("shape", [[None], [None, 1], [None, None], [None, 5]])
def test_plain_gather(dtype: tf.DType, shape: list[int | None]) -> None:
    spec = only_spec(lambda m: tf.gather(m.table(), m.input("ids", shape, dtype)))
    assert differs_from_default(spec) == {"form": "dense", "ids": "ids:0"}


def test_keras_3_wraps_negative_ids() -> None:
    spec = only_spec(lambda m: tf.gather(m.table(50), wrapped(m.input("ids", [None]), 50)))
    assert differs_from_default(spec) == {"form": "dense", "ids": "ids:0", "steps": ["wrap_negative:50"]}


@pytest.mark.parametrize(("columns", "flatten"), [(1, "reshape"), (1, "squeeze"), (4, "reshape")])
def test_flattened_columns(columns: int, flatten: str) -> None:
    def build(m: Model) -> tf.Tensor:
        rows = tf.gather(m.table(width=6), m.input("ids", [None, columns]))
        return tf.squeeze(rows, [1]) if flatten == "squeeze" else tf.reshape(rows, [-1, columns * 6])

    assert only_spec(build).ids_per_row == columns


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (lambda m: tf.math.floormod(m.input("x", [None]), 101), ["mod:101"]),
        (lambda m: m.input("x", [None]) // 3, ["divide:3"]),
        (lambda m: (m.input("x", [None]) - 5) * 2, ["add:-5", "mul:2"]),
        (lambda m: tf.cast(m.input("x", [None], tf.uint64) % np.uint64(64), tf.int64), ["mod:64", "cast:int64"]),
        (lambda m: tf.cast(m.input("x", [None], tf.float32), tf.int32), ["cast:int32"]),
        (lambda m: tf.strings.to_hash_bucket_fast(tf.as_string(m.input("x", [None])), 9), ["as_string", "hash_fast:9"]),
        (lambda m: tf.strings.to_hash_bucket_strong(m.input("x", [None], tf.string), 9, [7, 8]), ["hash_strong:9;7;8"]),
        (lambda m: bucketize(m.input("x", [None], tf.float32)), ["bucketize:0.5;1.0"]),
        (lambda m: m.find(m.input("x", [None], tf.string), 9, 0), ["vocab:9;0"]),
        (lambda m: tf.abs(m.input("x", [None])), None),
    ],
)  # fmt: skip
def test_id_transforms(make, steps) -> None:  # type: ignore[no-untyped-def]
    spec = only_spec(lambda m: tf.gather(m.table(), make(m)))
    if steps is None:  # not in the language: the transform stays in the graph
        assert spec.ids != "x:0"
        assert spec.steps == ()
    else:
        assert (spec.ids, [s.text() for s in spec.steps]) == ("x:0", steps)


def test_out_of_range_ids_get_the_default() -> None:
    def build(m: Model) -> tf.Tensor:
        ids = m.input("x", [None])
        outside = tf.logical_or(tf.less(ids, 0), tf.greater_equal(ids, 25))
        return tf.gather(m.table(), tf.where(outside, tf.fill(tf.shape(ids), tf.constant(3, tf.int64)), ids))

    assert [s.text() for s in only_spec(build).steps] == ["select_out_of_range:0;25;3"]


@pytest.mark.parametrize("dtype", [tf.string, tf.int64])
def test_vocabulary_with_hash_buckets(dtype: tf.DType) -> None:
    def build(m: Model) -> tf.Tensor:
        keys = m.input("x", [None], dtype)
        found = m.find(keys, 9)
        text = keys if dtype == tf.string else tf.as_string(keys)
        hashed = tf.strings.to_hash_bucket_fast(text, 5) + 90
        return tf.gather(m.table(100), tf.where(tf.not_equal(found, -1), found, hashed))

    assert [s.text() for s in only_spec(build).steps] == ["vocab_oov:9;90;5"]


def test_stacked_tables_add_an_offset_per_column() -> None:
    spec = only_spec(lambda m: tf.gather(m.table(100), m.input("ids", [None, 3]) + tf.constant([0, 50, 70], tf.int64)))
    assert differs_from_default(spec) == {"form": "dense", "ids": "ids:0", "steps": ["addcol:0;50;70"]}


def masked_rows(m: Model, kind: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Rows [B, T, D] under a padding mask, and the mask as numbers [B, T, 1]."""
    ids = m.input("ids", [None, 7])
    rows = tf.gather(m.table(), ids)
    mask = tf.sequence_mask(m.input("lengths", [None]), 7) if kind == "given" else tf.not_equal(ids, 0)
    if kind == "select":
        return tf.where(mask[:, :, tf.newaxis], rows, 0.0), tf.cast(mask, tf.float32)[:, :, tf.newaxis]
    numbers = tf.expand_dims(tf.cast(mask, tf.float32), 2)
    return rows * (tf.tile(numbers, [1, 1, 4]) if kind == "tiled" else numbers), numbers


@pytest.mark.parametrize("kind", ["product", "select", "tiled", "given"])
@pytest.mark.parametrize("rule", ["sum", "count", "max1", "eps", "no_nan"])
def test_masked_pooling(kind: str, rule: str) -> None:
    def build(m: Model) -> tf.Tensor:
        rows, mask = masked_rows(m, kind)
        total, count = tf.reduce_sum(rows, 1), tf.reduce_sum(mask, 1)
        if rule == "sum":
            return total
        if rule == "no_nan":
            return tf.math.divide_no_nan(total, count)
        return total / {"count": count, "max1": tf.maximum(count, 1.0), "eps": count + 1e-8}[rule]

    spec = only_spec(build)
    assert (spec.combiner, spec.accumulation) == ("sum" if rule == "sum" else "mean", "sequential")
    assert spec.denominator == ("count" if rule == "sum" else rule)
    assert spec.denominator_eps == (pytest.approx(1e-8) if rule == "eps" else 0.0)
    assert spec.mask_value == (None if kind == "given" else "0")
    assert (spec.mask is not None) == (kind == "given")


def test_mean_over_all_positions() -> None:
    spec = only_spec(lambda m: tf.reduce_mean(tf.gather(m.table(), m.input("ids", [None, 7])), 1))
    assert (spec.combiner, spec.denominator) == ("mean", "positions")


def test_weighted_sequence() -> None:
    def build(m: Model) -> tf.Tensor:
        rows, w = tf.gather(m.table(), m.input("ids", [None, 7])), m.input("w", [None, 7], tf.float32)
        return tf.reduce_sum(rows * tf.expand_dims(w, -1), 1) / tf.reduce_sum(w, 1, keepdims=True)

    spec = only_spec(build)
    assert (spec.weights, spec.combiner, spec.denominator) == ("w:0", "mean", "count")


def test_attention_weights_computed_from_the_rows_leave_the_pooling_outside() -> None:
    def build(m: Model) -> tf.Tensor:
        rows = tf.gather(m.table(), m.input("ids", [None, 7]), name="rows")
        return tf.reduce_sum(rows * tf.nn.softmax(tf.reduce_sum(rows, 2, keepdims=True), 1), 1)

    candidates, _ = recognise(build)
    assert [c.output for c in candidates] == ["rows:0"]
    assert candidates[0].spec.combiner == "none"


def test_rows_that_are_also_an_output_are_not_swallowed() -> None:
    def build(m: Model) -> list[tf.Tensor]:
        rows = tf.gather(m.table(), m.input("ids", [None, 7]), name="rows")
        return [tf.reduce_sum(rows, 1), rows]

    candidates, _ = recognise(build)
    assert [c.output for c in candidates] == ["rows:0"]


@pytest.mark.parametrize("strategy", ["mod", "div"])
@pytest.mark.parametrize("sparse", [False, True])
def test_partitioned_table(strategy: str, sparse: bool) -> None:
    def build(m: Model) -> tf.Tensor:
        parts = [m.table(rows, 4) for rows in (13, 12, 12)]
        if sparse:
            v1 = tf.compat.v1.nn.safe_embedding_lookup_sparse
            return v1(parts, m.sparse(), partition_strategy=strategy)
        return tf.compat.v1.nn.embedding_lookup(parts, m.input("ids", [None]), partition_strategy=strategy)

    candidates, refusals = recognise(build)
    assert (len(candidates), refusals) == (1, [])
    found = candidates[0]
    assert (found.parts, found.strategy) == (("TfctrTable", "TfctrTable_1", "TfctrTable_2"), strategy)
    assert (found.spec.table, found.spec.table_rows, found.spec.form) == (-1, 37, "sparse" if sparse else "dense")
    assert found.spec.ids == ("f_values:0" if sparse else "ids:0")


@pytest.mark.parametrize("dtype", [tf.string, tf.int64])
def test_dense_to_sparse_of_feature_columns(dtype: tf.DType) -> None:
    def build(m: Model) -> tf.Tensor:
        x = m.input("x", [None, 3], dtype)
        indices = tf.where(tf.not_equal(x, "" if dtype == tf.string else tf.constant(-1, tf.int64)))
        values = tf.gather_nd(x, indices)
        values = tf.strings.to_hash_bucket_fast(values, 40) if dtype == tf.string else values
        sparse = tf.SparseTensor(indices, values, tf.shape(x, out_type=tf.int64))
        return tf.nn.safe_embedding_lookup_sparse(m.table(), sparse, combiner="mean")

    spec = only_spec(build)
    first = ["prune_equal:", "hash_fast:40"] if dtype == tf.string else ["prune_equal:-1"]
    assert differs_from_default(spec) == {
        "form": "dense", "ids": "x:0", "steps": [*first, "prune_negative"], "combiner": "mean", "empty": "zeros",
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_table_dtypes(dtype: tf.DType) -> None:
    spec = only_spec(lambda m: tf.nn.safe_embedding_lookup_sparse(m.table(dtype=dtype), m.sparse(), combiner="sum"))
    assert (spec.table_dtype, spec.combiner, spec.empty) == (dtype.name, "sum", "zeros")
