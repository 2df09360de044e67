"""Models that tests of the split take apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.passes.fuse_lookups import fuse_lookups
from graph_opt.pipeline import LOOKUP_PASSES, REFERENCE_PASSES, run_passes
from graph_opt.saved_model import load_inlined
from graph_opt.testing import Tables, apply, graph_item
from tests.graph_opt.graphs import placeholder, sparse_input, table


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def ranker(tmp_path: Path, sparse: bool = False) -> GraphItem:
    """Users' and items' ids interleaved, a dense input of each, and with ``sparse`` a history of the user, fused."""

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        ids = {name: placeholder(tf.int64, [None], name) for name in ("u0", "i0", "u1", "i1")}
        parts = [tf.gather(tables[name], ids[name]) for name in ids]
        if sparse:
            parts.append(tf.nn.safe_embedding_lookup_sparse(tables["u1"], sparse_input("uh"), combiner="mean"))
        parts += [placeholder(tf.float32, [None, 3], "ud"), placeholder(tf.float32, [None, 2], "id")]
        x = tf.concat(parts, 1)
        hidden = tf.nn.relu(tf.matmul(x, weights(x.shape[1], 8)) + weights(8))
        return {"score": tf.sigmoid(tf.matmul(hidden, weights(8, 1)))}

    tables = {name: table(seed=k) for k, name in enumerate(("u0", "i0", "u1", "i1"))}
    item = graph_item(build, tables=tables, work_dir=tmp_path)
    return apply(fuse_lookups, item)[0]


def small(build: Any, tmp_path: Path, shape: int | None = None) -> GraphItem:
    def graph(tables: Tables) -> dict[str, tf.Tensor]:
        u, i = placeholder(tf.float32, [shape, 4], "u"), placeholder(tf.float32, [None, 3], "i")
        return {"y": build(u, i)}

    return graph_item(graph, work_dir=tmp_path)


def product(u: tf.Tensor, i: tf.Tensor) -> tf.Tensor:
    return tf.nn.relu(tf.matmul(tf.concat([u, i], 1), weights(7, 2)))


def reference(path: Path, folder: Path) -> GraphItem:
    """A saved model up to its fused lookups."""
    item = load_inlined(path)
    item.store_name, item.work_dir = f"test/{folder.name}", folder
    run_passes(item, REFERENCE_PASSES + LOOKUP_PASSES, ConvertOptions(strict=True))
    return item
