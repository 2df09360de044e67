"""Lookups of frozen embedding variables in what models put around them: which are fused, from where, and what stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from graph_opt.embeddings.calls import EvLookup
from graph_opt.embeddings.lowering import lower
from graph_opt.item import GraphItem
from graph_opt.passes.fuse_lookups import fuse_lookups
from graph_opt.testing import Tables, apply, assert_rewrites, graph_item
from graph_opt.view import GraphView
from tfctr.embedding.keys import fingerprint
from tfctr.embedding.ops import row_splits_of

v1 = tf.compat.v1
DIM = 4
WORDS = [b"", b"a", b"news"]
PRINTS = fingerprint(tf.constant(WORDS)).numpy().tolist()
KEYS = [-3, 0, 1, 5, 2**62, *PRINTS]
ROWS = np.random.default_rng(2).normal(size=(len(KEYS) + 1, DIM)).astype(np.float32)
TABLE: dict[int | None, np.ndarray] = {**dict(zip(KEYS, ROWS, strict=False)), None: ROWS[-1]}


def item_of(folder: Path, build: Callable[[Tables], Any], **lookup: Any) -> GraphItem:
    """A graph made by ``build``; with ``lookup``, one more lookup of the tensors that it names, as the only output."""
    item = graph_item(build, embeddings={"t": TABLE}, tables={"static": ROWS}, work_dir=folder)
    if lookup:
        view = GraphView(item.graph_def)
        out = lower(view, "lookup", item.store_node, 1, EvLookup(handle="t", dim=DIM, **lookup))
        item.signatures["serving_default"].outputs["y"].name = f"{out}:0"
    return item


def entries(item: GraphItem) -> list[dict[str, Any]]:
    return apply(fuse_lookups, item)[1].details["lookups"]


def test_strings_are_fingerprinted_inside(tmp_path):
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        words = v1.placeholder(tf.string, [None, 2], "words")
        return {"y": tables.rows("t", fingerprint(words))}

    item = item_of(tmp_path, build)
    feeds = {"words": np.array([[b"a", b"none"], [b"news", b""]], object)}
    assert_rewrites(fuse_lookups, item, feeds=feeds, fired=1)
    (entry,) = entries(item)
    assert (entry["steps"], entry["name"]) == (["fingerprint", "find"], "words")


def test_one_fingerprint_of_several_texts_is_no_key_of_each(tmp_path):
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        words = v1.placeholder(tf.string, [None, 2], "words")
        keys = tf.bitcast(tf.fingerprint(words), tf.int64)
        return {"y": tables.rows("t", keys)}

    item = item_of(tmp_path, build)
    feeds = {"words": np.array([[b"a", b"none"], [b"news", b""]], object)}
    assert_rewrites(fuse_lookups, item, feeds=feeds, fired=1)
    (entry,) = entries(item)
    assert entry["steps"] == ["find"]  # it reads the keys where the graph has them


def test_id_steps_before_the_table(tmp_path):
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        ids = v1.placeholder(tf.int32, [None], "ids")
        return {"y": tables.rows("t", tf.cast(ids, tf.int64) % 7 - 3)}

    item = item_of(tmp_path, build)
    assert_rewrites(fuse_lookups, item, feeds={"ids": np.array([-9, 0, 3, 4, 2**31 - 1], np.int32)}, fired=1)
    (entry,) = entries(item)
    assert entry["steps"] == ["cast:int64", "mod:7", "add:-3", "find"]


def test_static_and_frozen_tables_go_into_one_op(tmp_path):
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        ids = v1.placeholder(tf.int64, [None], "ids")
        return {"y": tf.concat([tables.rows("t", ids), tf.gather(tables["static"], ids)], 1)}

    item = item_of(tmp_path, build)
    after = assert_rewrites(fuse_lookups, item, feeds={"ids": np.array([0, 1, 5, 2])}, fired=2)
    assert len(after.groups) == 1 and len(after.groups[0].outputs) == 1
    assert {(e["table_name"], e.get("hashed", False)) for e in entries(item)} == {("t", True), ("static", False)}


def test_masked_rows_of_a_sequence(tmp_path):
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        ids = v1.placeholder(tf.int64, [None, 3], "ids")
        mask = tf.cast(tf.not_equal(ids, 0), tf.float32)
        total = tf.reduce_sum(tables.rows("t", ids) * mask[:, :, tf.newaxis], 1)
        return {"y": total / tf.maximum(tf.reduce_sum(mask, 1, keepdims=True), 1.0)}

    item = item_of(tmp_path, build)
    feeds = {"ids": np.array([[0, 1, 5], [0, 0, 0], [7, -3, 0]])}
    assert_rewrites(fuse_lookups, item, feeds=feeds, fired=1, exact=False)
    (entry,) = entries(item)
    assert (entry["combiner"], entry["mask_value"], entry["denominator"]) == ("mean", "0", "max1")


def test_padding_that_becomes_sparse(tmp_path):
    """tf.sparse.from_dense of a padded matrix, then a combined lookup."""

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        sparse = tf.sparse.from_dense(v1.placeholder(tf.int64, [None, 3], "ids"))
        tf.identity(sparse.values, "values")
        return {"y": tf.identity(row_splits_of(sparse.indices, sparse.dense_shape), "splits")}

    item = item_of(tmp_path, build, keys="values:0", splits="splits:0", combiner="mean")
    feeds = {"ids": np.array([[0, 1, 5], [0, 0, 0], [7, -3, 0]])}
    assert_rewrites(fuse_lookups, item, feeds=feeds, fired=1, exact=False)
    (entry,) = entries(item)
    assert entry["status"] == "fused" and entry["combiner"] == "mean", entry
    assert (entry["form"], entry["steps"]) == ("dense", ["prune_equal:0", "find"])


def test_filled_rows_find_the_key_that_fills_them(tmp_path):
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        indices = v1.placeholder(tf.int64, [None, 2], "indices")
        values, shape = v1.placeholder(tf.int64, [None], "values"), v1.placeholder(tf.int64, [2], "shape")
        filled, _ = tf.sparse.fill_empty_rows(tf.SparseTensor(indices, values, shape), tf.constant(5, tf.int64))
        tf.identity(filled.values, "filled")
        return {"y": tf.identity(row_splits_of(filled.indices, filled.dense_shape), "splits")}

    item = item_of(tmp_path, build, keys="filled:0", splits="splits:0", combiner="sum")
    feeds = {"indices": np.array([[0, 0], [2, 0], [2, 1]]), "values": np.array([1, 9, -3]), "shape": np.array([4, 2])}
    assert_rewrites(fuse_lookups, item, feeds=feeds, fired=1, exact=False)
    (entry,) = entries(item)
    assert entry["status"] == "fused" and entry["combiner"] == "sum", entry


def test_constant_keys_stay(tmp_path):
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        ids = v1.placeholder(tf.int64, [None], "ids")
        return {"y": tables.rows("t", ids), "fixed": tables.rows("t", tf.constant([0, 5], tf.int64))}

    found = {e["status"]: e for e in entries(item_of(tmp_path, build))}
    assert "do not depend on the request" in found["left"]["reason"] and found["left"]["table_name"] == "t"
    assert found["fused"]["name"] == "ids"


def test_two_lookups_of_one_table_by_the_same_ids_are_one_stream(tmp_path):
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        ids = v1.placeholder(tf.int64, [None], "ids")
        return {"y": tables.rows("t", ids), "again": tables.rows("t", ids) * 2.0}

    outcome = apply(fuse_lookups, item_of(tmp_path, build))[1]
    assert len({e["node"] for e in outcome.details["lookups"]}) == 1
    assert [e.get("same_as") for e in outcome.details["lookups"]] == [None, "ids"]


@pytest.mark.parametrize("rank", [1, 3])
def test_indices_of_other_ranks_are_read_through_row_splits(tmp_path, rank):
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        indices, shape = v1.placeholder(tf.int64, [None, rank], "indices"), v1.placeholder(tf.int64, [rank], "shape")
        v1.placeholder(tf.int64, [None], "values")
        return {"y": tf.identity(row_splits_of(indices, shape), "splits")}

    item = item_of(tmp_path, build, keys="values:0", splits="splits:0", combiner="sum")
    at = np.array([[0] * rank, [2] + [0] * (rank - 1)])
    feeds = {"indices": at, "values": np.array([1, -3]), "shape": np.array([3] + [1] * (rank - 1))}
    assert_rewrites(fuse_lookups, item, feeds=feeds, fired=1, exact=False)
    (entry,) = entries(item)
    assert entry["form"] == "ragged"
