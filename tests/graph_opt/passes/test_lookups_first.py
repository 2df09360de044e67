"""Nothing of the dense tower starts before the lookups: structure, numbers, twice = once, and every refusal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.passes.lookups_first import lookups_first
from graph_opt.passes.merge_transfers import merge_transfers
from graph_opt.passes.place_devices import place_devices
from graph_opt.testing import SIGNATURE, Tables, apply, assert_refused, assert_rewrites, graph_item, run_item
from graph_opt.view import GraphView
from tests.graph_opt.graphs import placeholder, table
from tests.graph_opt.placement.small_models import (
    WIDTH,
    only_lookups,
    plain_mlp,
    ranker,
    ranker_feeds,
    two_stages,
    weights,
)  # fmt: skip
from tests.graph_opt.placement.two_devices import OPTIONS, TwoDevices, assert_same, crossed


def waits(item: GraphItem) -> dict[str, set[str]]:
    view = GraphView(item.graph_def)
    return {n.name: set(view.control_inputs(n)) for n in view if view.control_inputs(n)}


def lookups(item: GraphItem) -> set[str]:
    return {n.name for n in item.graph_def.node if n.op == "GatherV2"}


def test_the_bottom_tower_waits(tmp_path: Path) -> None:
    item = ranker(tmp_path)
    after = assert_rewrites(lookups_first, item, feeds=[ranker_feeds(n) for n in (5, 1, 0)])
    held = waits(after)
    first = [n for n in after.graph_def.node if n.op == "MatMul" and n.input[0] == "dense"]
    assert [held[n.name] for n in first] == [lookups(item)]
    view = GraphView(after.graph_def)
    dense = [n.name for n in view if n.op in ("MatMul", "ConcatV2", "Relu", "Sigmoid", "ArgMax")]
    assert all(lookups(item) <= view.ancestors([name]) for name in dense)
    for name in lookups(item):
        assert not view.ancestors([name]) & set(dense)


def test_what_needs_one_lookup_waits_for_the_other(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        ids = [placeholder(tf.int64, [None], name) for name in ("a", "b")]
        found = [tf.gather(tables["a"], i) for i in ids]
        return {"x": tf.matmul(found[0], weights(WIDTH, 2)), "y": tf.matmul(found[1], weights(WIDTH, 2))}

    item = graph_item(build, tables={"a": table(width=WIDTH)}, work_dir=tmp_path)
    ids = np.array([3, 5])
    after = assert_rewrites(lookups_first, item, feeds={"a": ids, "b": ids}, fired=2)
    assert sorted(len(names) for names in waits(after).values()) == [1, 1]


def test_many_waits_go_through_one_node(tmp_path: Path) -> None:
    names = "abcdef"

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        found = [tf.gather(tables["t"], placeholder(tf.int64, [None], name)) for name in names]
        return {name: tf.matmul(rows, weights(WIDTH, 2)) for name, rows in zip(names, found, strict=True)}

    item = graph_item(build, tables={"t": table(width=WIDTH)}, work_dir=tmp_path)
    feeds = {name: np.array([1, 2]) for name in names}
    after = assert_rewrites(lookups_first, item, feeds=feeds, fired=len(names))
    assert sorted(len(found) for found in waits(after).values()) == [1] * len(names) + [len(names)]
    view = GraphView(after.graph_def)
    assert all(lookups(after) <= view.ancestors([n.name]) for n in view if n.op == "MatMul")
    placed = apply(merge_transfers, apply(place_devices, after, OPTIONS)[0], OPTIONS)[0]
    with TwoDevices(placed) as session:
        got, metadata = session.run(feeds)
    assert_same(got, run_item(item, feeds))
    assert [(c.transfers, c.waits) for c in crossed(metadata)] == [(1, 0), (1, 0)]


def test_a_two_stage_lookup_stays_behind(tmp_path: Path) -> None:
    item = two_stages(tmp_path)
    outcome = assert_refused(lookups_first, item, "needs .*, a result of the dense tower: it stays behind it")
    assert len(outcome.details["lookups_first"]["two_stage"]) == 1
    assert len(outcome.details["lookups_first"]["lookups"]) == 1


@pytest.mark.parametrize(
    ("make", "reason"),
    [(plain_mlp, "no embedding op that could go first"), (only_lookups, "no dense part that could wait")],
)
def test_models_of_one_part_are_left(make, reason: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert_refused(lookups_first, make(tmp_path), reason)


def test_a_tower_that_waits_already_is_left(tmp_path: Path) -> None:
    item = apply(lookups_first, ranker(tmp_path))[0]
    assert_refused(lookups_first, item, "waits for every lookup already")


def test_no_signature_runs_what_another_one_needs(tmp_path: Path) -> None:
    item = ranker(tmp_path)
    small = tf.compat.v1.MetaGraphDef().signature_def["bottom"]
    small.inputs["dense"].CopyFrom(item.signatures[SIGNATURE].inputs["dense"])
    view = GraphView(item.graph_def)
    relu = next(n.name for n in view if n.op == "Relu" and not lookups(item) & view.ancestors([n.name]))
    small.outputs["h"].name = f"{relu}:0"
    small.outputs["h"].dtype = tf.float32.as_datatype_enum
    item.signatures["bottom"] = small
    item.optimise = (SIGNATURE, "bottom")
    after, outcome = apply(lookups_first, item)
    assert any("which signature bottom does not need" in r.reason for r in outcome.refused)
    view = GraphView(after.graph_def)
    assert not lookups(after) & view.ancestors(after.fetches("bottom"))


def test_nodes_with_one_reason_are_one_refusal(tmp_path: Path) -> None:
    names = ("h0", "h1", "h2")

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        dense = placeholder(tf.float32, [None, WIDTH], "dense")
        hidden = [tf.matmul(dense, weights(WIDTH, WIDTH) + k) for k in range(len(names))]
        rows = tf.gather(tables["a"], placeholder(tf.int64, [None], "a"))
        return {"y": tf.add_n([rows, *hidden]), **dict(zip(names, hidden, strict=True))}

    item = graph_item(build, tables={"a": table(width=WIDTH)}, work_dir=tmp_path)
    whole = item.signatures[SIGNATURE]
    bottom = type(whole)()
    bottom.inputs["dense"].CopyFrom(whole.inputs["dense"])
    for name in names:
        bottom.outputs[name].CopyFrom(whole.outputs.pop(name))
    item.signatures["bottom"] = bottom
    item.optimise = (SIGNATURE, "bottom")
    outcome = assert_refused(lookups_first, item, "does not wait for GatherV2, which signature bottom does not need")
    (refused,) = outcome.refused
    assert refused.what.endswith(" and 2 more") and len(refused.nodes) == 4


def test_nodes_inside_tf1_control_flow_do_not_wait(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        tf.compat.v1.disable_control_flow_v2()
        try:
            a, dense = placeholder(tf.int64, [None], "a"), placeholder(tf.float32, [None, WIDTH], "dense")
            big = placeholder(tf.bool, [], "big")
            h = tf.compat.v1.cond(big, lambda: dense * 2.0, lambda: dense + 1.0)
            return {"y": tf.matmul(tf.gather(tables["a"], a) + h, weights(WIDTH, 1))}
        finally:
            tf.compat.v1.enable_control_flow_v2()

    item = graph_item(build, tables={"a": table(width=WIDTH)}, work_dir=tmp_path)
    after, outcome = apply(lookups_first, item, ConvertOptions())
    assert any("inside TF1 control flow" in r.reason for r in outcome.refused)
    inside = {n.name for n in after.graph_def.node if n.op in ("Switch", "Merge")}
    assert not inside & waits(after).keys()
