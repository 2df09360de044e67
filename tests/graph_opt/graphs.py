"""Small reference graphs by hand, for tests of the prover and of the fusing pass."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from graph_opt.item import GraphItem
from graph_opt.testing import Tables, graph_item

ROWS, WIDTH = 100, 4


def placeholder(dtype: tf.DType, shape: list[int | None], name: str) -> tf.Tensor:
    return tf.compat.v1.placeholder(dtype, shape, name)


def table(rows: int = ROWS, width: int = WIDTH, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def sparse_input(name: str) -> tf.SparseTensor:
    """Placeholders NAME_indices, NAME_ids, NAME_shape."""
    return tf.SparseTensor(
        placeholder(tf.int64, [None, 2], f"{name}_indices"),
        placeholder(tf.int64, [None], f"{name}_ids"),
        placeholder(tf.int64, [2], f"{name}_shape"),
    )


def sparse_feeds(name: str, lengths: list[int], rows: int = ROWS, seed: int = 0) -> dict[str, np.ndarray]:
    """Feeds of ``sparse_input(name)`` with so many random ids per row."""
    rng = np.random.default_rng(seed)
    of_row = np.repeat(np.arange(len(lengths)), lengths)
    column = np.concatenate([np.arange(n) for n in lengths] or [np.zeros(0)])
    return {
        f"{name}_indices": np.stack([of_row, column], 1).astype(np.int64),
        f"{name}_ids": rng.integers(0, rows, len(of_row)),
        f"{name}_shape": np.asarray([len(lengths), max([1, *lengths])], np.int64),
    }


def safe_sparse(work_dir, names=("a",), combiner: str = "mean", values: np.ndarray | None = None) -> GraphItem:
    """safe_embedding_lookup_sparse per name, each in its table, one output per name."""

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        return {
            name: tf.nn.safe_embedding_lookup_sparse(tables[name], sparse_input(name), combiner=combiner)
            for name in names
        }

    arrays = {name: table(seed=k) if values is None else values for k, name in enumerate(names)}
    return graph_item(build, tables=arrays, work_dir=work_dir)


def one_hot_gather(
    work_dir, wrap: bool = False, dtype: tf.DType = tf.int64, values: np.ndarray | None = None
) -> GraphItem:
    """Gather of ids [B], with Keras 3's wrapping of negative ids or without."""

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        ids = placeholder(dtype, [None], "ids")
        rows = tf.where(ids < 0, ids + ROWS, ids) if wrap else ids
        return {"rows": tf.gather(tables["emb"], rows, name="gather")}

    return graph_item(build, tables={"emb": table() if values is None else values}, work_dir=work_dir)


def output_of(item: GraphItem, name: str) -> str:
    """The graph tensor behind an output of the signature, without the identity that carries its name."""
    node = next(n for n in item.graph_def.node if n.name == f"output/{name}")
    return node.input[0] if ":" in node.input[0] else node.input[0] + ":0"
