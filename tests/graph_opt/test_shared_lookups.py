"""Lookups that are the same, or read the same hashed ids: done once, reported, equal to the bit under any threads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from graph_opt.fusing.shared import find_shared_work
from graph_opt.item import GraphItem
from graph_opt.lookup_spec import LookupSpec, Step
from graph_opt.passes.fuse_lookups import fuse_lookups
from graph_opt.testing import Tables, apply, assert_rewrites, graph_item, run_item
from tests.graph_opt.graphs import placeholder, sparse_feeds, sparse_input, table

BATCH = [2, 0, 1, 9, 0, 3]
WORDS = np.array([b"a", b"bb", b"", b"a", b"a long string, more than sixteen bytes", b"c"], object)


def text_sparse(name: str) -> tf.SparseTensor:
    return tf.SparseTensor(
        placeholder(tf.int64, [None, 2], f"{name}_indices"),
        placeholder(tf.string, [None], f"{name}_ids"),
        placeholder(tf.int64, [2], f"{name}_shape"),
    )


def text_feeds(name: str) -> dict[str, np.ndarray]:
    found = sparse_feeds(name, BATCH, seed=3)
    found[f"{name}_ids"] = np.array([b"w%d" % k for k in found[f"{name}_ids"]], object)
    return found


def hashed(sparse: tf.SparseTensor, buckets: int) -> tf.SparseTensor:
    ids = tf.strings.to_hash_bucket_fast(sparse.values, buckets)
    return tf.SparseTensor(sparse.indices, ids, sparse.dense_shape)


def details(item: GraphItem) -> tuple[GraphItem, list[dict[str, Any]], str]:
    after, outcome = apply(fuse_lookups, item)
    return after, outcome.details["lookups"], "; ".join(outcome.notes)


def test_wide_and_deep_parts_hash_their_strings_once(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        # Each part hashes for itself, as layers and feature columns do.
        return {
            part: tf.nn.safe_embedding_lookup_sparse(tables[part], hashed(sparse, 100), combiner=combiner)
            for sparse in [text_sparse("f")]
            for part, combiner in (("wide", "sum"), ("deep", "mean"))
        }

    arrays = {"wide": table(width=1, seed=1), "deep": table(width=8, seed=2)}
    item = graph_item(build, tables=arrays, work_dir=tmp_path)
    after = assert_rewrites(fuse_lookups, item, feeds=text_feeds("f"), fired=2)
    assert not any(n.op.startswith("StringToHash") for n in after.graph_def.node)
    _, entries, notes = details(item)
    assert [e["ids_shared_with"] for e in entries] == ["f", "f"]
    assert "2 lookups read 1 streams of hashed or looked-up ids" in notes


def test_vocabularies_are_searched_once_for_several_tables(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        text = placeholder(tf.string, [None], "text")
        return {name: tf.gather(tables[name], tables.find("words", text, default=0)) for name in ("a", "b", "c")}

    arrays = {name: table(rows=5, seed=k) for k, name in enumerate(("a", "b", "c"))}
    vocabularies = {"words": {b"a": 1, b"bb": 2, b"a long string, more than sixteen bytes": 4}}
    item = graph_item(build, tables=arrays, vocabularies=vocabularies, work_dir=tmp_path)
    assert_rewrites(fuse_lookups, item, feeds={"text": WORDS}, fired=3)
    _, entries, _ = details(item)
    assert [e.get("ids_shared_with") for e in entries] == ["text"] * 3


def twice(join: bool) -> Callable[[Tables], dict[str, tf.Tensor]]:
    """The same lookup made twice: alone each, or each beside another one in a concat."""

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        sparse = sparse_input("f")
        first, second = (tf.nn.safe_embedding_lookup_sparse(tables["a"], sparse, combiner="mean") for _ in range(2))
        if not join:
            return {"first": first, "second": second * 2.0}
        third, fourth = (
            tf.nn.safe_embedding_lookup_sparse(tables["b"], sparse_input(name), combiner="sum") for name in ("g", "h")
        )
        return {"first": tf.concat([first, third], 1), "second": tf.concat([fourth, second], 1)}

    return build


def test_a_block_that_is_there_twice_is_one_output(tmp_path: Path) -> None:
    item = graph_item(twice(join=False), tables={"a": table()}, work_dir=tmp_path)
    after = assert_rewrites(fuse_lookups, item, feeds=sparse_feeds("f", BATCH), fired=2)
    (group,) = after.groups
    assert len(group.outputs) == 1
    assert len(group.lookups) == 1
    assert [name for name, _ in group.repeats] == ["f"]
    _, entries, notes = details(item)
    assert [e.get("same_as") for e in entries] == [None, "f"]
    assert {e["status"] for e in entries} == {"fused"}
    assert "2 lookups became 1 fused op" in notes
    assert "1 lookups equal another one" in notes


def test_equal_lookups_in_different_blocks_are_computed_once(tmp_path: Path) -> None:
    arrays = {"a": table(), "b": table(width=3, seed=1)}
    item = graph_item(twice(join=True), tables=arrays, work_dir=tmp_path)
    feeds = {k: v for n, f in enumerate("fgh") for k, v in sparse_feeds(f, BATCH, seed=n).items()}
    after = assert_rewrites(fuse_lookups, item, feeds=feeds, fired=4)
    (group,) = after.groups
    assert len(find_shared_work([spec for spec, _ in group.lookups]).copied) == 1
    _, entries, notes = details(item)
    assert sum("same_as" in e for e in entries) == 1
    assert "1 lookups equal another one" in notes


def test_an_error_is_said_of_the_first_of_equal_lookups(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        sparse, other = sparse_input("f"), sparse_input("g")
        first, second = (tf.nn.embedding_lookup_sparse(tables["a"], sparse, None, combiner="sum") for _ in range(2))
        third, fourth = (tf.nn.embedding_lookup_sparse(tables["a"], other, None, combiner=c) for c in ("sum", "mean"))
        return {"x": tf.concat([first, third], 1), "y": tf.concat([fourth, second], 1)}

    item = graph_item(build, tables={"a": table()}, work_dir=tmp_path)
    after, entries, _ = details(item)
    assert sum("same_as" in e for e in entries) == 1
    feeds = sparse_feeds("f", [1, 2, 1]) | sparse_feeds("g", [1, 2, 1], seed=1)
    feeds["f_ids"][2] = 100
    with pytest.raises(tf.errors.InvalidArgumentError, match="lookup 'f_ids'.*id 100 at row 1 is not in"):
        run_item(after, feeds)
    feeds["f_ids"][2] = 99
    np.testing.assert_array_equal(run_item(after, feeds)["x"], run_item(item, feeds)["x"])


BASE = LookupSpec(
    name="f", table=0, table_rows=9, table_width=4, table_dtype="float32", form="sparse", ids="i:0", rows="r:0",
    shape="s:0", steps=(Step("hash_fast", ("9",)),), combiner="sum", empty="zeros", sort_rows=True,
)  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"table": 1}, {"ids": "j:0"}, {"rows": "q:0"}, {"shape": "t:0"}, {"weights": "w:0"}, {"combiner": "mean"},
        {"steps": (Step("hash_fast", ("8",)),)}, {"steps": (*BASE.steps, Step("prune_negative"))},
        {"max_norm": 1.0}, {"fill_id": 0}, {"empty": "natural"}, {"accumulation": "sequential"}, {"sort_rows": False},
        {"denominator": "max1"}, {"prune_weights": True},
    ],
)  # fmt: skip
def test_lookups_that_differ_in_anything_but_the_name_are_not_the_same(change: dict[str, Any]) -> None:
    other = dataclasses.replace(BASE, name="g", **change)
    assert not find_shared_work([BASE, other]).copied
    assert find_shared_work([BASE, dataclasses.replace(BASE, name="g")]).copied == {1: 0}


def test_a_single_gather_is_not_copied() -> None:
    """Copying one row costs what gathering it costs."""
    plain = dataclasses.replace(BASE, form="dense", rows=None, shape=None, steps=(), combiner="none", empty="natural")
    assert not find_shared_work([plain, plain]).copied
