"""Sparse and ragged lookups: which spec each public TensorFlow function is read as."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.graph_opt.recognise.support import Model, differs_from_default, only_spec, recognise

SAFE = {"form": "sparse", "ids": "f_values:0", "rows": "f_indices:0", "shape": "f_shape:0", "sort_rows": True}
WEIGHTED = SAFE | {"weights": "w:0", "accumulation": "sequential"}


def weights(model: Model, ids: tf.SparseTensor) -> tf.SparseTensor:
    return tf.SparseTensor(ids.indices, model.input("w", [None], tf.float32), ids.dense_shape)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_safe_lookup(combiner: str) -> None:
    spec = only_spec(lambda m: tf.nn.safe_embedding_lookup_sparse(m.table(70, 5), m.sparse(), combiner=combiner))
    assert differs_from_default(spec) == SAFE | {"steps": ["prune_negative"], "combiner": combiner, "empty": "zeros"}
    assert (spec.table, spec.table_rows, spec.table_width, spec.table_dtype) == (0, 70, 5, "float32")
    assert spec.name == "f_values"


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_safe_lookup_with_weights_prunes_by_weight_except_for_sum(combiner: str) -> None:
    def build(m: Model) -> tf.Tensor:
        ids = m.sparse()
        return tf.nn.safe_embedding_lookup_sparse(m.table(), ids, weights(m, ids), combiner=combiner)

    expected = WEIGHTED | {"steps": ["prune_negative"], "combiner": combiner, "empty": "zeros"}
    if combiner != "sum":
        expected |= {"prune_weights": True, "denominator": "no_nan"}
    assert differs_from_default(only_spec(build)) == expected


@pytest.mark.parametrize("default_id", [0, 7])
def test_default_id_is_a_fill_and_not_zeros(default_id: int) -> None:
    spec = only_spec(lambda m: tf.nn.safe_embedding_lookup_sparse(m.table(), m.sparse(), default_id=default_id))
    assert (spec.fill_id, spec.empty, spec.combiner) == (default_id, "natural", "mean")


@pytest.mark.parametrize("weighted", [False, True])
def test_max_norm(weighted: bool) -> None:
    def build(m: Model) -> tf.Tensor:
        ids = m.sparse()
        return tf.nn.safe_embedding_lookup_sparse(
            m.table(), ids, weights(m, ids) if weighted else None, max_norm=1.5, combiner="sum"
        )

    spec = only_spec(build)
    assert (spec.max_norm, spec.weights) == (1.5, "w:0" if weighted else None)


def test_plain_lookup_is_short() -> None:
    spec = only_spec(lambda m: tf.nn.embedding_lookup_sparse(m.table(), m.sparse(), None, combiner="sqrtn"))
    assert differs_from_default(spec) == {
        "form": "sparse", "ids": "f_values:0", "rows": "f_indices:0", "combiner": "sqrtn", "empty": "short",
    }  # fmt: skip


def test_segment_sum_straight_on_the_table_as_grappler_leaves_it() -> None:
    def build(m: Model) -> tf.Tensor:
        ids = m.sparse()
        return tf.raw_ops.SparseSegmentMean(data=m.table(), indices=ids.values, segment_ids=ids.indices[:, 0])

    spec = only_spec(build)
    assert (spec.form, spec.rows, spec.combiner, spec.empty) == ("sparse", "f_indices:0", "mean", "short")


def test_rank_three_keeps_the_rank_restoring_reshape_outside() -> None:
    candidates, refusals = recognise(lambda m: tf.nn.safe_embedding_lookup_sparse(m.table(), m.sparse(rank=3)))
    assert refusals == []
    assert candidates[0].spec.shape == "f_shape:0"
    assert candidates[0].output == "embedding_lookup:0"


def test_id_transforms_in_front() -> None:
    def build(m: Model) -> tf.Tensor:
        raw = m.sparse(dtype=tf.string)
        ids = tf.SparseTensor(raw.indices, tf.strings.to_hash_bucket_fast(raw.values, 40) + 3, raw.dense_shape)
        return tf.nn.safe_embedding_lookup_sparse(m.table(), ids)

    assert differs_from_default(only_spec(build))["steps"] == ["hash_fast:40", "add:3", "prune_negative"]


def test_ids_used_elsewhere_keep_their_transform_in_the_graph() -> None:
    def build(m: Model) -> list[tf.Tensor]:
        raw = m.sparse(dtype=tf.string)
        hashed = tf.strings.to_hash_bucket_fast(raw.values, 40, name="hashed")
        ids = tf.SparseTensor(raw.indices, hashed, raw.dense_shape)
        return [tf.nn.safe_embedding_lookup_sparse(m.table(), ids), hashed]

    candidates, _ = recognise(build)
    assert candidates[0].spec.ids == "hashed:0"
    assert [s.text() for s in candidates[0].spec.steps] == ["prune_negative"]


@pytest.mark.parametrize("splits", [tf.int32, tf.int64])
def test_ragged_plain(splits: tf.DType) -> None:
    spec = only_spec(lambda m: tf.nn.embedding_lookup_sparse(m.table(), m.ragged(splits=splits), None, combiner="sum"))
    assert differs_from_default(spec) == {
        "form": "ragged", "ids": "f_values:0", "rows": "f_row_splits:0", "combiner": "sum", "empty": "short",
    }  # fmt: skip


def test_ragged_safe() -> None:
    spec = only_spec(lambda m: tf.nn.safe_embedding_lookup_sparse(m.table(), m.ragged(), None, combiner="mean"))
    assert differs_from_default(spec) == {
        "form": "ragged", "ids": "f_values:0", "rows": "f_row_splits:0", "steps": ["prune_negative"],
        "combiner": "mean", "empty": "zeros",
    }  # fmt: skip


def test_ragged_gather_and_mean_with_nan_replaced() -> None:
    def build(m: Model) -> tf.Tensor:
        mean = tf.reduce_mean(tf.nn.embedding_lookup(m.table(), m.ragged()), axis=1)
        return tf.where(tf.math.is_nan(mean), tf.zeros_like(mean), mean)

    spec = only_spec(build)
    assert (spec.form, spec.combiner, spec.accumulation, spec.empty) == ("ragged", "mean", "sequential", "zeros")


def test_given_segment_ids() -> None:
    def build(m: Model) -> tf.Tensor:
        rows = tf.gather(m.table(), m.input("ids", [None]))
        return tf.math.segment_sum(rows, m.input("segments", [None]))

    spec = only_spec(build)
    assert (spec.form, spec.rows, spec.combiner, spec.empty) == ("segments", "segments:0", "sum", "short")


def test_unsorted_segments_may_leave_values_out_so_only_the_rows_are_taken() -> None:
    def build(m: Model) -> tf.Tensor:
        rows = tf.gather(m.table(), m.input("ids", [None]))
        return tf.math.unsorted_segment_sum(rows, m.input("segments", [None]), m.input("count", [], tf.int32))

    assert only_spec(build).combiner == "none"


def test_alternatives_describe_the_same_output() -> None:
    candidates, _ = recognise(lambda m: tf.nn.safe_embedding_lookup_sparse(m.table(), m.sparse(), default_id=3))
    later = candidates[0].alternatives
    assert later
    assert all(s.combiner == "mean" and s.ids != "f_values:0" for s in later)


def test_an_avoided_output_gives_way_to_a_nearer_one() -> None:
    def build(m: Model) -> tf.Tensor:
        return tf.reshape(tf.nn.safe_embedding_lookup_sparse(m.table(), m.sparse()), [-1, 4], name="last")

    outputs: list[str] = []
    for _ in range(3):
        candidates, _ = recognise(build, avoid=outputs)
        outputs.append(candidates[0].output)
    assert outputs[0] == "last:0"
    assert len(set(outputs)) == 3
