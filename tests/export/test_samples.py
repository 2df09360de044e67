"""Samples at a tower's boundary: what the model's own form computes there, or random numbers where it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from export.cut import cut_tower
from export.samples import Sampler
from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.testing import SIGNATURE, Tables, graph_item

V1 = tf.compat.v1
ROWS = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)


def ranker(folder: Path, most: int = 8) -> GraphItem:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        ids = V1.placeholder(tf.int64, [None], "ids")
        with tf.control_dependencies([V1.assert_less_equal(ids, tf.constant(most, tf.int64))]):
            rows = tf.gather(tables["emb"], tf.identity(ids))
        return {"y": tf.matmul(rows, tf.constant(np.ones((4, 2), np.float32)))}

    return graph_item(build, tables={"emb": ROWS}, work_dir=folder)


def test_what_the_model_computes_is_given(tmp_path: Path) -> None:
    item = ranker(tmp_path)
    tower = cut_tower(item, SIGNATURE)
    given = {"ids": np.array([3, 1, 8, 3])}
    options = ConvertOptions(samples_path="rows.npz", read_samples=lambda info: given)
    with Sampler(item, options) as sampler:
        found = sampler.of(tower)
    (name,) = [one.name for one in tower.inputs]
    np.testing.assert_array_equal(found.feeds[name], ROWS[given["ids"]])
    assert found.rows(tower) == 4 and found.labels is None and "the samples of rows.npz" in found.told
    np.testing.assert_array_equal(found.take(tower, 6)[name], ROWS[[3, 1, 8, 3, 3, 1]])  # from the start again
    assert found.take(tower, 0)[name].shape == (0, 4)


def test_random_numbers_where_it_refuses(tmp_path: Path) -> None:
    item = ranker(tmp_path, most=-1)
    tower = cut_tower(item, SIGNATURE)
    with Sampler(item, ConvertOptions()) as sampler:
        found = sampler.of(tower)
    assert found.rows(tower) == 1024
    assert "random numbers at the tower's inputs, 1024 rows" in found.told
    assert "the model refuses generated inputs" in found.told
