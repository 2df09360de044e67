"""Which device each node gets: structure, numbers, twice = once, a fresh session, and every refusal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.passes.place_devices import place_devices
from graph_opt.testing import Tables, apply, assert_refused, assert_rewrites, graph_item, run_item
from graph_opt.view import GraphView
from tests.graph_opt.graphs import placeholder, safe_sparse, sparse_feeds, table
from tests.graph_opt.placement.small_models import (
    WIDTH,
    only_lookups,
    plain_mlp,
    ranker,
    ranker_feeds,
    two_stages,
    weights,
)  # fmt: skip
from tests.graph_opt.placement.two_devices import OPTIONS, TwoDevices, assert_same, crossed, devices_of

GPU = ConvertOptions(device_map={"sparse": "/CPU:0", "dense": "/GPU:0"})


def ops_on(item: GraphItem, side: str) -> set[str]:
    found = devices_of(item)
    return {n.op for n in item.graph_def.node if found[n.name] == side}


def test_lookups_and_what_they_need_are_sparse_the_tower_is_dense(tmp_path: Path) -> None:
    item = ranker(tmp_path)
    after = assert_rewrites(place_devices, item, feeds=[ranker_feeds(n) for n in (5, 1, 0)], options=OPTIONS)
    sparse, dense = ops_on(after, "sparse"), ops_on(after, "dense")
    assert {"Placeholder", "TfctrTable", "TfctrStore", "GatherV2", "FloorMod", "NotEqual"} <= sparse
    assert {"MatMul", "Relu", "ConcatV2", "Sigmoid", "ArgMax", "Cast"} <= dense
    assert not {"MatMul", "Relu", "Sigmoid"} & sparse
    assert not {"GatherV2", "TfctrTable", "Placeholder"} & dense
    with TwoDevices(after) as session:
        for rows in (7, 1):
            got, metadata = session.run(ranker_feeds(rows))
            assert_same(got, run_item(item, ranker_feeds(rows)))
    to_dense, back = crossed(metadata)
    assert to_dense.transfers > 1
    assert back.transfers == 2


def test_no_constant_crosses(tmp_path: Path) -> None:
    """One constant is read on both sides, one on each."""

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        a, x = placeholder(tf.int64, [None], "a"), placeholder(tf.float32, [None, WIDTH], "x")
        shared = tf.constant([1.5] * WIDTH, tf.float32)
        found = tf.gather(tables["a"], a)
        weighted = tf.gather(tables["a"], tf.cast(tf.reduce_sum(x * shared, 1) > 0, tf.int64))
        return {"y": tf.matmul(found + weighted * shared, weights(WIDTH, 2))}

    item = graph_item(build, tables={"a": table(width=WIDTH)}, work_dir=tmp_path)
    feeds = {"a": np.array([2, 4, 1]), "x": np.float32(np.random.default_rng(0).normal(size=(3, WIDTH)))}
    after = assert_rewrites(place_devices, item, feeds=feeds, options=OPTIONS)
    view, found = GraphView(after.graph_def), devices_of(after)
    constants = [n.name for n in view if n.op == "Const"]
    assert all(found[u] == found[name] for name in constants for u in view.users(name))
    outcome = apply(place_devices, item, OPTIONS)[1]
    assert len(outcome.details["placement"]["on_both"]) == 1
    with TwoDevices(after) as session:
        got, metadata = session.run(feeds)
    assert_same(got, run_item(item, feeds))
    assert crossed(metadata)[0].transfers == 2


def test_sizes_are_worked_out_where_they_are_read(tmp_path: Path) -> None:
    """The dense side takes the shape of what it has anyway; a shape of ids alone crosses as a few numbers."""

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        a, ids = placeholder(tf.int64, [None], "a"), placeholder(tf.int64, [None, 3], "ids")
        found = tf.gather(tables["a"], a)
        ones = tf.ones([tf.shape(found)[0], 2])
        more = tf.fill([tf.shape(ids)[0], 1], 0.5)
        h = tf.concat([found, ones, more], 1)
        return {"y": tf.matmul(h, weights(WIDTH + 3, 2)) + tf.gather(tables["a"], tf.reduce_max(ids, 1))[:, :2]}

    item = graph_item(build, tables={"a": table(width=WIDTH)}, work_dir=tmp_path)
    feeds = {"a": np.array([2, 4, 1]), "ids": np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]])}
    after = assert_rewrites(place_devices, item, feeds=feeds, options=OPTIONS)
    view, found = GraphView(after.graph_def), devices_of(after)
    shapes = {(view.producer(n.input[0]).op, found[n.name]) for n in view if n.op == "Shape"}
    assert shapes == {("GatherV2", "dense"), ("Placeholder", "sparse")}
    assert {found[n.name] for n in view if n.op == "Pack"} == {"dense"}


def test_strings_and_sparse_features_stay_on_the_sparse_side(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        text, x = placeholder(tf.string, [None], "text"), placeholder(tf.float32, [None, WIDTH], "x")
        found = tf.gather(tables["a"], tf.strings.to_hash_bucket_fast(text, 100))
        score = tf.matmul(found + x, weights(WIDTH, 1))
        return {"score": score, "label": tf.strings.join([text, tf.strings.as_string(score[:, 0])])}

    item = graph_item(build, tables={"a": table(width=WIDTH)}, work_dir=tmp_path)
    feeds = {"text": np.array([b"p", b"q"], object), "x": np.ones((2, WIDTH), np.float32)}
    after = assert_rewrites(place_devices, item, feeds=feeds, options=OPTIONS)
    assert {"StringToHashBucketFast", "StringJoin", "AsString"} <= ops_on(after, "sparse")
    with TwoDevices(after) as session:
        to_dense, back = crossed(session.run(feeds)[1])
    assert (to_dense.strings, back.strings) == (0, 0)


def test_reducers_of_lookups_left_alone_are_sparse(tmp_path: Path) -> None:
    item = safe_sparse(tmp_path)
    view = GraphView(item.graph_def)
    assert "SparseSegmentMean" in {n.op for n in view}
    after = apply(place_devices, item, OPTIONS)[0]
    assert {"SparseSegmentMean", "SparseFillEmptyRows"} <= ops_on(after, "sparse")
    feeds = sparse_feeds("a", [2, 0, 1])
    assert_same(run_item(after, feeds), run_item(item, feeds))


def test_two_stage_lookups_cross_twice(tmp_path: Path) -> None:
    item = two_stages(tmp_path)
    feeds = {"a": np.array([2, 4, 1])}
    after = assert_rewrites(place_devices, item, feeds=feeds, options=OPTIONS)
    found = devices_of(after)
    gathers = {found[n.name] for n in after.graph_def.node if n.op == "GatherV2"}
    products = {found[n.name] for n in after.graph_def.node if n.op in ("MatMul", "ArgMax")}
    assert (gathers, products) == ({"sparse"}, {"dense"})


def test_devices_of_the_model_stay_unless_forced(tmp_path: Path) -> None:
    item = ranker(tmp_path)
    product = next(n for n in item.graph_def.node if n.op == "MatMul")
    product.device = "/cpu:0"
    after, outcome = apply(place_devices, item, OPTIONS)
    assert devices_of(after)[product.name] == "/cpu:0"
    (refused,) = [r for r in outcome.refused if r.nodes == (product.name,)]
    assert "the model puts it on /cpu:0; --force-placement would move it" in refused.reason
    assert outcome.details["placement"]["kept"] == {product.name: "/cpu:0"}
    forced = ConvertOptions(device_map=OPTIONS.device_map, force_placement=True)
    after = assert_rewrites(place_devices, item, feeds=ranker_feeds(4), options=forced)
    assert devices_of(after)[product.name] == "dense"


def test_what_has_no_gpu_kernel_stays_and_is_named(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        h = tf.matmul(tf.gather(tables["a"], placeholder(tf.int64, [None], "a")), weights(WIDTH, 4))
        return {"y": tf.sigmoid(tf.raw_ops.NthElement(input=h, n=2))}

    item = graph_item(build, tables={"a": table(width=WIDTH)}, work_dir=tmp_path)
    after, outcome = apply(place_devices, item, GPU)
    devices = {n.op: n.device for n in after.graph_def.node}
    assert [devices[op] for op in ("NthElement", "MatMul", "Sigmoid")] == [
        "/device:CPU:0", "/device:GPU:0", "/device:GPU:0"
    ]  # fmt: skip
    assert list(outcome.details["placement"]["no_kernel"].values()) == ["NthElement"]
    assert "no GPU kernel of NthElement for its types; it stays on the sparse device" in outcome.refused[0].reason
    feeds = {"a": np.array([2, 4, 1])}
    assert_same(run_item(after, feeds), run_item(item, feeds))  # no GPU here: soft placement


def test_control_flow_goes_where_its_tensors_are(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        a, big = placeholder(tf.int64, [None], "a"), placeholder(tf.bool, [], "big")
        found = tf.gather(tables["a"], a)
        h = tf.cond(big, lambda: found * 2.0, lambda: found + 1.0)
        h = tf.while_loop(lambda k, _: k < 3, lambda k, v: (k + 1, v * 1.5), [tf.constant(0), h])[1]
        name = tf.cond(big, lambda: tf.constant(["big"]), lambda: tf.constant(["small"]))
        return {"y": tf.matmul(h, weights(WIDTH, 1)), "name": name}

    item = graph_item(build, tables={"a": table(width=WIDTH)}, work_dir=tmp_path)
    feeds = [{"a": np.array([2, 4, 1]), "big": value} for value in (True, False)]
    after = assert_rewrites(place_devices, item, feeds=feeds, options=OPTIONS)
    found = devices_of(after)
    kinds = sorted(
        (n.op.removeprefix("Stateless"), found[n.name]) for n in after.graph_def.node if n.op.endswith(("If", "While"))
    )
    assert kinds == [("If", "dense"), ("If", "sparse"), ("While", "dense")]
    told = " ".join(apply(place_devices, item, OPTIONS)[1].notes)
    assert "goes to the dense device: its tensors are there" in told
    assert "goes to the sparse device" in told
    for one in feeds:
        with TwoDevices(after) as session:
            assert_same(session.run(one)[0], run_item(item, one))


def test_a_model_without_embeddings_is_all_dense_and_told(tmp_path: Path) -> None:
    item = plain_mlp(tmp_path)
    feeds = {"x": np.ones((3, 4), np.float32)}
    after = assert_rewrites(place_devices, item, feeds=feeds, options=OPTIONS)
    assert ops_on(after, "sparse") == {"Placeholder", "Identity"}
    outcome = apply(place_devices, item, OPTIONS)[1]
    assert "no embedding op: all that computes with inputs goes to the dense device" in outcome.refused[0].reason


@pytest.mark.parametrize(
    ("make", "options", "reason"),
    [
        (ranker, ConvertOptions(), "no devices were given"),
        (only_lookups, OPTIONS, "no dense part"),
        (ranker, ConvertOptions(device_map={"sparse": "/CPU:0", "dense": "/CPU:0"}), "are one device"),
    ],
)
def test_refusals(make, options: ConvertOptions, reason: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert_refused(place_devices, make(tmp_path), reason, options=options)


def test_names_do_not_matter(tmp_path: Path) -> None:
    def sides(scope: str) -> dict[str, str]:
        folder = tmp_path / scope
        folder.mkdir()
        after = apply(place_devices, ranker(folder, scope), OPTIONS)[0]
        return {name.replace(scope, "SCOPE"): device for name, device in devices_of(after).items()}

    assert sides("dense_tower") == sides("embedding")
