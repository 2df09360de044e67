"""Small reference graphs with an embedding layer and a dense tower, for tests of the placement passes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from graph_opt.item import GraphItem
from graph_opt.testing import Tables, graph_item
from tests.graph_opt.graphs import ROWS, placeholder, table

WIDTH = 6


def weights(rows: int, columns: int, seed: int = 0) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32))


def ranker(work_dir: Path, scope: str = "") -> GraphItem:
    """Two lookups left as gathers, a bottom tower over dense inputs, a top tower; outputs ``click`` and ``rank``.

    Inputs: a, b int64 [B], dense float32 [B, 3].
    """

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        a, b = placeholder(tf.int64, [None], "a"), placeholder(tf.int64, [None], "b")
        dense = placeholder(tf.float32, [None, 3], "dense")
        with tf.name_scope(scope or "model"):
            bottom = tf.nn.relu(tf.matmul(dense, weights(3, 4)))
            wrapped = tf.math.floormod(b, tf.constant(ROWS, tf.int64))
            found = [tf.gather(tables["a"], a), tf.gather(tables["b"], wrapped)]
            known = tf.cast(tf.not_equal(a, 0), tf.float32)
            h = tf.concat([*found, bottom], 1) * known[:, tf.newaxis]
            h = tf.nn.relu(tf.matmul(h, weights(2 * WIDTH + 4, 8, 1)))
            return {"click": tf.sigmoid(tf.matmul(h, weights(8, 1, 2))), "rank": tf.argmax(h, 1)}

    arrays = {"a": table(ROWS, WIDTH, 1), "b": table(ROWS, WIDTH, 2)}
    return graph_item(build, tables=arrays, work_dir=work_dir)


def ranker_feeds(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "a": rng.integers(0, ROWS, rows),
        "b": rng.integers(0, 5 * ROWS, rows),
        "dense": rng.normal(size=(rows, 3)).astype(np.float32),
    }


def plain_mlp(work_dir: Path) -> GraphItem:
    """No embedding at all: x float32 [B, 4] -> y float32 [B, 1] and z float32 [B, 2]."""

    def build(_: Tables) -> dict[str, tf.Tensor]:
        x = placeholder(tf.float32, [None, 4], "x")
        h = tf.nn.relu(tf.matmul(x, weights(4, 8)))
        return {"y": tf.matmul(h, weights(8, 1, 1)), "z": tf.matmul(h, weights(8, 2, 2))}

    return graph_item(build, work_dir=work_dir)


def only_lookups(work_dir: Path) -> GraphItem:
    """No dense part: the rows themselves are the output."""

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        a = placeholder(tf.int64, [None], "a")
        return {"rows": tf.gather(tables["a"], tf.math.floormod(a, tf.constant(ROWS, tf.int64)))}

    return graph_item(build, tables={"a": table(ROWS, WIDTH)}, work_dir=work_dir)


def two_stages(work_dir: Path) -> GraphItem:
    """A lookup whose ids a tower has chosen: a int64 [B] -> gather -> matmul -> argmax -> gather -> matmul."""

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        a = placeholder(tf.int64, [None], "a")
        first = tf.gather(tables["a"], a)
        chosen = tf.argmax(tf.matmul(first, weights(WIDTH, ROWS)), 1)
        second = tf.gather(tables["b"], chosen)
        score = tf.matmul(tf.concat([first, second], 1), weights(2 * WIDTH, 1, 3))
        return {"score": score, "twice": score * 2.0}

    arrays = {"a": table(ROWS, WIDTH, 1), "b": table(ROWS, WIDTH, 2)}
    return graph_item(build, tables=arrays, work_dir=work_dir)
