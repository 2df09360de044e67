"""normalise: gathers in front of casts of whole tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from graph_opt.passes.fuse_lookups import fuse_lookups
from graph_opt.passes.normalise import normalise
from graph_opt.testing import Tables, apply, assert_rewrites, graph_item
from graph_opt.view import GraphView


@pytest.mark.parametrize("dtype", [tf.float16, tf.float64])
def test_a_table_that_is_cast_as_a_whole_is_read_by_rows_first(dtype: tf.DType, tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        ids = tf.compat.v1.placeholder(tf.int64, [None], "ids")
        wide = tf.cast(tables["emb"], tf.float32)
        return {"rows": tf.gather(wide, ids), "twice": tf.gather(wide, ids[::-1]) * 2.0}

    values = np.random.default_rng(0).normal(size=(20, 3)).astype(dtype.as_numpy_dtype)
    item = graph_item(build, tables={"emb": values}, work_dir=tmp_path)
    after = assert_rewrites(normalise, item, feeds={"ids": np.array([3, 0, 19, 3])})
    view = GraphView(after.graph_def)
    (table,) = [n.name for n in view if n.op == "TfctrTable"]
    assert {node.op for node, _ in view.data_consumers(table)} == {"GatherV2"}
    _, outcome = apply(fuse_lookups, after)
    assert outcome.fired == 2


def test_a_cast_table_that_is_read_as_a_whole_too_keeps_its_cast(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        wide = tf.cast(tables["emb"], tf.float32)
        ids = tf.compat.v1.placeholder(tf.int64, [None], "ids")
        return {"rows": tf.gather(wide, ids), "norm": tf.reduce_sum(wide), "columns": tf.gather(wide, ids, axis=1)}

    item = graph_item(build, tables={"emb": np.ones((6, 6), np.float16)}, work_dir=tmp_path)
    after = assert_rewrites(normalise, item, feeds={"ids": np.array([3, 0])})
    readers = {n.op for n in after.graph_def.node if any(i.startswith("Cast") for i in n.input)}
    assert readers == {"Sum", "GatherV2"}
