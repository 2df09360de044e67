"""A reading that is too bold is refused by its proof, and a lookup that ends nearer to the gather takes its place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
from tensorflow.python.grappler import tf_optimizer

from graph_opt.passes.fuse_lookups import fuse_lookups
from graph_opt.recognise import find_lookups
from graph_opt.testing import Tables, assert_rewrites, graph_item
from graph_opt.view import GraphView


def clipped_to_the_wrong_norm(tables: Tables) -> dict[str, tf.Tensor]:
    """Looks like ``max_norm``, but divides by the sum of absolute values."""
    rows = tf.gather(tables["emb"], tf.compat.v1.placeholder(tf.int64, [None], name="ids"))
    norm = tf.reduce_sum(tf.abs(rows), 1, keepdims=True)
    return {"rows": rows * 2.0 / tf.maximum(norm, 2.0)}


def test_a_wrong_norm_is_refused_and_the_gather_still_fused(tmp_path: Path) -> None:
    table = np.random.default_rng(3).normal(size=(40, 6)).astype(np.float32)
    item = graph_item(clipped_to_the_wrong_norm, tables={"emb": table}, work_dir=tmp_path)
    view = GraphView(item.graph_def)
    candidates, _ = find_lookups(view, item.fetches(), {n: item.files[k] for n, k in item.tables.items()})
    assert candidates[0].spec.max_norm == 2.0
    after = assert_rewrites(fuse_lookups, item, feeds={"ids": np.array([0, 39, 5, 5])}, fired=1)
    ((spec, _),) = after.groups[0].lookups
    assert (spec.max_norm, spec.combiner) == (None, "none")


def test_the_graph_after_grappler_is_read_the_same_way(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        def given(name: str, shape: list[int | None], dtype: tf.DType = tf.int64) -> tf.Tensor:
            return tf.compat.v1.placeholder(dtype, shape, name=name)

        ids = tf.SparseTensor(given("indices", [None, 2]), given("values", [None]), given("shape", [2]))
        weights = tf.SparseTensor(ids.indices, given("weights", [None], tf.float32), ids.dense_shape)
        ragged = tf.RaggedTensor.from_row_splits(given("ragged", [None]), given("splits", [None]), validate=False)
        lookup = tf.nn.safe_embedding_lookup_sparse
        return {
            "mean": lookup(tables["mean"], ids),
            "weighted": lookup(tables["weighted"], ids, weights, combiner="sqrtn", max_norm=1.0),
            "ragged": lookup(tables["ragged"], ragged, None, combiner="sum"),
        }

    table = np.ones((40, 6), np.float32)
    item = graph_item(build, tables=dict.fromkeys(("mean", "weighted", "ragged"), table), work_dir=tmp_path)
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    meta_graph = meta_graph_pb2.MetaGraphDef(graph_def=item.graph_def)
    meta_graph.collection_def["train_op"].node_list.value.extend(item.fetches())
    optimised = tf_optimizer.OptimizeGraph(config, meta_graph)
    assert {n.op for n in optimised.node} != {n.op for n in item.graph_def.node}
    specs = []
    for graph_def in (item.graph_def, optimised):
        view = GraphView(graph_def)
        tables = {n: item.files[k] for n, k in item.tables.items() if n in view}
        candidates, refusals = find_lookups(view, item.fetches(), tables)
        assert refusals == []
        specs.append({c.spec.table: (c.spec.form, c.spec.combiner, c.spec.empty, c.spec.max_norm) for c in candidates})
    assert specs[0] == specs[1]
    assert len(specs[0]) == 3
