"""The fusing pass: structure of the result, equal numbers, twice = once, a fresh session, and what stays."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from graph_opt.candidates import Candidate
from graph_opt.lookup_spec import Step
from graph_opt.options import ConvertOptions
from graph_opt.passes.fuse_lookups import fuse_lookups, replace_lookups
from graph_opt.recognise import find_lookups
from graph_opt.recognise.facts import Facts
from graph_opt.testing import apply, assert_refused, assert_rewrites, graph_item, op_counts, run_item
from graph_opt.verify import verify
from graph_opt.view import GraphView
from tests.graph_opt.graphs import (
    ROWS,
    WIDTH,
    one_hot_gather,
    placeholder,
    safe_sparse,
    sparse_feeds,
    sparse_input,
    table,
)
from tests.graph_opt.prove.specs import dense

FUSED = "TfctrFusedLookup"
BATCH = [2, 0, 1, 9, 0]


def feeds_of(names, lengths=BATCH):
    return {k: v for n, name in enumerate(names) for k, v in sparse_feeds(name, lengths, seed=n).items()}


def fused_nodes(item):
    return [n for n in item.graph_def.node if n.op == FUSED]


def spec_lines(node, kind="lookup"):
    return [line for line in node.attr["spec"].s.decode().splitlines() if line.startswith(kind + " ")]


def test_pooled_lookups_share_one_op_with_an_output_each(tmp_path):
    names = ("a", "b", "c")
    item = safe_sparse(tmp_path, names)
    after = assert_rewrites(fuse_lookups, item, feeds=feeds_of(names), fired=3)
    (node,) = fused_nodes(after)
    assert len(spec_lines(node)) == len(spec_lines(node, "output")) == 3
    assert "SparseSegmentMean" not in op_counts(after)
    assert "GatherV2" not in op_counts(after)
    assert "TfctrTable" not in op_counts(after)
    assert node.attr["_tfctr_rule"].s == b"fuse_lookups"
    assert "tfctr/lookup_0" in node.name
    (group,) = after.groups
    assert group.node == node.name
    assert [s.name for s, _ in group.lookups] == ["a", "b", "c"]
    assert set(group.bind) == {f"{n}_{part}:0" for n in names for part in ("ids", "indices", "shape")}


def concat_graph(tmp_path, arrange, names=("a", "b", "c"), extra=None):
    """Pooled lookups and ``dense`` [B, 3] joined by ``arrange(pooled, dense)``."""

    def build(tables):
        found = {n: tf.nn.safe_embedding_lookup_sparse(tables[n], sparse_input(n), combiner="sum") for n in names}
        dense = placeholder(tf.float32, [None, 3], "dense")
        joined = {"joined": arrange(found, dense)}
        return joined | (extra(found) if extra else {})

    tables = {n: table(width=4 + k, seed=k) for k, n in enumerate(names)}
    return graph_item(build, tables=tables, work_dir=tmp_path)


def concat_feeds(names=("a", "b", "c")):
    return {**feeds_of(names), "dense": np.random.default_rng(3).normal(size=(len(BATCH), 3)).astype(np.float32)}


def test_a_concat_of_lookups_is_folded_in(tmp_path):
    def arrange(found, dense):
        return tf.concat([*found.values()], 1) + tf.reduce_sum(dense)

    after = assert_rewrites(fuse_lookups, concat_graph(tmp_path, arrange), feeds=concat_feeds(), fired=3)
    (node,) = fused_nodes(after)
    assert spec_lines(node, "output") == ["output 0 form=rows columns=15 dtype=float32"]
    assert [line.split("column=")[1].split()[0] for line in spec_lines(node)] == ["0", "4", "9"]
    assert "ConcatV2" not in [
        n.op for n in after.graph_def.node if "joined" not in n.name and n.name.startswith("concat")
    ]


def test_numeric_inputs_of_the_concat_are_copied(tmp_path):
    def arrange(found, dense):
        return tf.concat([dense, *found.values(), dense * 2], -1)

    after = assert_rewrites(fuse_lookups, concat_graph(tmp_path, arrange), feeds=concat_feeds(), fired=3)
    (node,) = fused_nodes(after)
    assert spec_lines(node, "output") == ["output 0 form=rows columns=21 dtype=float32"]
    assert len(spec_lines(node, "copy")) == 2
    assert not any(n.name == "concat" for n in after.graph_def.node)


def test_what_can_not_be_copied_splits_the_concat(tmp_path):
    def arrange(found, dense):
        wide = tf.reshape(dense, tf.stack([tf.shape(dense)[0], -1]))  # width unknown
        return tf.concat([found["a"], found["b"], wide, found["c"]], 1)

    after = assert_rewrites(fuse_lookups, concat_graph(tmp_path, arrange), feeds=concat_feeds(), fired=3)
    (node,) = fused_nodes(after)
    assert [line.split()[3] for line in spec_lines(node, "output")] == ["columns=9", "columns=6"]
    concat = next(n for n in after.graph_def.node if n.name == "concat")
    assert concat.attr["N"].i == 3
    assert concat.input[0] == node.name


def test_a_result_with_another_consumer_keeps_the_concat(tmp_path):
    def arrange(found, dense):
        return tf.concat([*found.values()], 1) + tf.reduce_sum(dense)

    item = concat_graph(tmp_path, arrange, extra=lambda found: {"alone": found["b"]})
    after = assert_rewrites(fuse_lookups, item, feeds=concat_feeds(), fired=3)
    (node,) = fused_nodes(after)
    assert len(spec_lines(node, "output")) == 3
    assert "ConcatV2" in op_counts(after)


def test_plain_gathers_join_pooled_lookups(tmp_path):
    def build(tables):
        pooled = tf.nn.safe_embedding_lookup_sparse(tables["a"], sparse_input("a"), combiner="mean")
        single = tf.gather(tables["b"], placeholder(tf.int32, [None], "ids"))
        return {"joined": tf.concat([single, pooled], 1)}

    item = graph_item(build, tables={"a": table(), "b": table(width=3)}, work_dir=tmp_path)
    feeds = {**feeds_of(["a"]), "ids": np.asarray([0, 99, 5, 5, 1], np.int32)}
    after = assert_rewrites(fuse_lookups, item, feeds=feeds, fired=2)
    assert len(fused_nodes(after)) == 1
    assert "ConcatV2" not in op_counts(after)


def test_sequences_are_a_group_of_their_own(tmp_path):
    def build(tables):
        history = tf.gather(tables["a"], placeholder(tf.int64, [None, None], "history"))
        target = tf.gather(tables["a"], placeholder(tf.int64, [None], "target"))
        return {"score": tf.einsum("btd,bd->bt", history, target)}

    item = graph_item(build, tables={"a": table()}, work_dir=tmp_path)
    rng = np.random.default_rng(0)
    feeds = {"history": rng.integers(0, ROWS, (4, 6)), "target": rng.integers(0, ROWS, 4)}
    after = assert_rewrites(fuse_lookups, item, feeds=feeds, fired=2)
    assert sorted(g.outputs[0].form for g in after.groups) == ["like", "rows"]


def test_a_lookup_whose_ids_depend_on_another_is_no_group_with_it(tmp_path):
    def build(tables):
        first = tf.gather(tables["a"], placeholder(tf.int64, [None], "ids"))
        next_ids = tf.cast(tf.abs(first[:, 0]) * 10.0, tf.int64) % ROWS
        return {"first": first, "second": tf.gather(tables["b"], next_ids)}

    item = graph_item(build, tables={"a": table(), "b": table(seed=1)}, work_dir=tmp_path)
    after, outcome = apply(fuse_lookups, item)
    feeds = {"ids": np.arange(5)}
    for name, value in run_item(item, feeds).items():
        np.testing.assert_array_equal(run_item(after, feeds)[name], value)
    nodes = fused_nodes(after)
    assert len(nodes) == outcome.fired
    for node in nodes:
        assert len(spec_lines(node)) == 1


def test_different_batches_may_share_an_op(tmp_path):
    def build(tables):
        return {n: tf.gather(tables[n], placeholder(tf.int64, [None], f"{n}_ids")) for n in ("user", "items")}

    item = graph_item(build, tables={"user": table(), "items": table(seed=1)}, work_dir=tmp_path)
    feeds = {"user_ids": np.asarray([3]), "items_ids": np.arange(50)}
    after = assert_rewrites(fuse_lookups, item, feeds=feeds, fired=2)
    assert len(fused_nodes(after)) == 1


def test_ids_used_elsewhere_keep_their_nodes(tmp_path):
    def build(tables):
        ids = placeholder(tf.int64, [None], "ids") % 50
        return {"rows": tf.gather(tables["a"], ids), "ids": ids}

    item = graph_item(build, tables={"a": table()}, work_dir=tmp_path)
    after = assert_rewrites(fuse_lookups, item, feeds={"ids": np.asarray([-1, 7, 10**12])}, fired=1)
    assert "FloorMod" in op_counts(after)


def test_a_table_also_read_as_a_whole_keeps_that_read(tmp_path):
    def build(tables):
        rows = tf.gather(tables["a"], placeholder(tf.int64, [None], "ids"))
        return {"scores": tf.matmul(rows, tables["a"], transpose_b=True)}

    item = graph_item(build, tables={"a": table()}, work_dir=tmp_path)
    after, outcome = apply(fuse_lookups, item)
    assert outcome.fired == 1
    assert op_counts(after)["TfctrTable"] == 1
    feeds = {"ids": np.asarray([0, 99])}
    np.testing.assert_array_equal(run_item(after, feeds)["scores"], run_item(item, feeds)["scores"])


def guarded_graph(tmp_path):
    """A lookup that waits for an assertion, and an output that waits for the lookup."""

    def build(tables):
        ids = placeholder(tf.int64, [None], "ids")
        check = tf.debugging.assert_less(tf.size(ids), 100)
        with tf.control_dependencies([check]):
            rows = tf.gather(tables["a"], ids, name="lookup")
        with tf.control_dependencies([rows]):
            done = tf.identity(tf.constant(1.0), name="done")
        return {"rows": rows, "done": done}

    return graph_item(build, tables={"a": table()}, work_dir=tmp_path)


def test_a_lookup_that_waits_for_an_assertion_is_left(tmp_path):
    assert_refused(fuse_lookups, guarded_graph(tmp_path), "waits for an op with an effect")


def test_control_edges_move_to_the_fused_op(tmp_path):
    after = guarded_graph(tmp_path)
    one = dense(name="ids", ids_per_row=1)
    candidate = Candidate(spec=one, output="lookup:0", nodes=frozenset({"lookup"}), gather="lookup")
    view = GraphView(after.graph_def)
    replace_lookups(after, view, Facts(view), [(candidate, one)])
    verify(after)
    (node,) = fused_nodes(after)
    view = GraphView(after.graph_def)
    assert any("assert" in c for c in view.control_inputs(node))
    assert node.name in view.control_inputs("Const")
    assert run_item(after, {"ids": np.arange(5)})["done"] == 1.0
    with pytest.raises(tf.errors.InvalidArgumentError):
        run_item(after, {"ids": np.zeros(200, np.int64)})


@pytest.mark.parametrize("bad", [-1, ROWS, 1 << 40])
def test_an_id_out_of_range_is_an_error_that_names_the_feature(tmp_path, bad):
    item = one_hot_gather(tmp_path)
    after, _ = apply(fuse_lookups, item)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ids.*at row 2.*not in \[0, 100\)"):
        run_item(after, {"ids": np.asarray([0, 1, bad])})


def test_an_unproven_lookup_stays_and_says_why(tmp_path, monkeypatch):
    def wrong(*args, **kwargs):
        candidates, refusals = find_lookups(*args, **kwargs)
        wrapping = dense(name="ids", steps=(Step("wrap_negative", (str(ROWS),)),))
        return [dataclasses.replace(c, spec=wrapping, alternatives=()) for c in candidates], refusals

    monkeypatch.setattr("graph_opt.passes.fuse_lookups.find_lookups", wrong)
    outcome = assert_refused(fuse_lookups, one_hot_gather(tmp_path), "not proven: on probe .*the original raises")
    assert outcome.refused[0].proof_failed


def test_two_signatures_do_not_feed_each_other(tmp_path):
    item = safe_sparse(tmp_path, ("a", "b"))
    both = item.signatures["serving_default"]
    only_a = type(both)()
    only_a.CopyFrom(both)
    for name in list(only_a.inputs):
        if not name.startswith("a_"):
            del only_a.inputs[name]
    del only_a.outputs["b"]
    item.signatures["only_a"] = only_a
    after, outcome = apply(fuse_lookups, item)
    assert outcome.fired == 2
    assert len(fused_nodes(after)) == 2
    result = run_item(after, feeds_of(["a"]), signature="only_a")
    np.testing.assert_array_equal(result["a"], run_item(item, feeds_of(["a"]), signature="only_a")["a"])


def test_details_name_every_lookup(tmp_path):
    _, outcome = apply(fuse_lookups, safe_sparse(tmp_path, ("a", "b")))
    entries = outcome.details["lookups"]
    assert [(e["name"], e["status"], e["table_name"]) for e in entries] == [
        ("a", "fused", "a"),
        ("b", "fused", "b"),
    ]
    assert all(e["output_columns"] == WIDTH for e in entries)


def test_an_empty_batch(tmp_path):
    item = safe_sparse(tmp_path, ("a",))
    assert_rewrites(fuse_lookups, item, feeds=feeds_of(["a"], []), fired=1)


def test_no_lookup_no_change(tmp_path):
    item = graph_item(lambda tables: {"y": placeholder(tf.float32, [None], "x") * 2.0}, work_dir=tmp_path)
    after, outcome = apply(fuse_lookups, item)
    assert outcome.fired == 0
    assert after.graph_def == item.graph_def


@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_a_partitioned_table_is_merged(tmp_path, strategy):
    def build(tables):
        parts = [tables[f"part_{k}"] for k in range(3)]
        ids = placeholder(tf.int64, [None], "ids")
        return {"rows": tf.compat.v1.nn.embedding_lookup(parts, ids, partition_strategy=strategy)}

    sizes = (34, 33, 33)
    item = graph_item(build, tables={f"part_{k}": table(n, seed=k) for k, n in enumerate(sizes)}, work_dir=tmp_path)
    after = assert_rewrites(fuse_lookups, item, feeds={"ids": np.arange(100)}, fired=1)
    assert len(after.files) == 4
    assert op_counts(after) == {"TfctrStore": 1, "Placeholder": 1, FUSED: 1, "Identity": 1}


def test_tables_of_different_dtypes_are_groups_of_their_own(tmp_path):
    def build(tables):
        return {n: tf.gather(tables[n], placeholder(tf.int64, [None], f"{n}_ids")) for n in ("half", "full")}

    item = graph_item(build, tables={"half": table().astype(np.float16), "full": table()}, work_dir=tmp_path)
    feeds = {"half_ids": np.arange(5), "full_ids": np.arange(5)}
    after = assert_rewrites(fuse_lookups, item, feeds=feeds, fired=2)
    assert sorted(g.outputs[0].dtype for g in after.groups) == ["float16", "float32"]


def test_casts_before_a_concat_become_one(tmp_path):
    def build(tables):
        found = [tf.gather(tables[n], placeholder(tf.int64, [None], f"{n}_ids")) for n in ("a", "b")]
        return {"joined": tf.concat([tf.cast(f, tf.float32) for f in found], 1)}

    arrays = {n: table(seed=k).astype(np.float16) for k, n in enumerate("ab")}
    item = graph_item(build, tables=arrays, work_dir=tmp_path)
    after = assert_rewrites(fuse_lookups, item, feeds={"a_ids": np.arange(5), "b_ids": np.arange(5)}, fired=2)
    counts = op_counts(after)
    assert counts["Cast"] == counts[FUSED] == 1
    assert "ConcatV2" not in counts


@pytest.mark.parametrize("by", ["feature", "gather"])
def test_only_the_chosen_lookups_are_fused(tmp_path, by):
    names = ("a", "b", "c")
    item = safe_sparse(tmp_path, names)
    _, outcome = apply(fuse_lookups, item)
    assert len(set(outcome.rewrites)) == 3
    wanted = "b" if by == "feature" else outcome.rewrites[1]
    options = ConvertOptions(only_lookups=frozenset([wanted]))
    after = assert_rewrites(fuse_lookups, item, feeds=feeds_of(names), fired=1, options=options)
    assert [s.name for group in after.groups for s, _ in group.lookups] == ["b"]
    assert_refused(fuse_lookups, item, "only_lookups", options=ConvertOptions(only_lookups=frozenset()))


def test_results_of_the_dense_tower_are_not_copied(tmp_path) -> None:
    """Beside a raw dense input, which is: the lookups would wait for the tower."""

    def build(tables):
        dense = placeholder(tf.float32, [None, 3], "dense")
        bottom = tf.nn.relu(tf.matmul(dense, tf.ones([3, 4])))
        found = [tf.gather(tables[n], placeholder(tf.int64, [None], f"{n}_ids")) for n in ("a", "b")]
        return {"x": tf.concat([bottom, *found], 1), "y": tf.concat([dense, *found], 1)}

    item = graph_item(build, tables={"a": table(), "b": table(seed=1)}, work_dir=tmp_path)
    feeds = {"dense": np.ones((2, 3), np.float32), "a_ids": np.array([1, 2]), "b_ids": np.array([3, 4])}
    after = assert_rewrites(fuse_lookups, item, feeds=feeds)
    view = GraphView(after.graph_def)
    for group in after.groups:
        assert not {view.node(n).op for n in view.ancestors([group.node])} & {"MatMul", "Relu"}
