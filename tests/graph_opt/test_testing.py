"""The public test helpers must themselves fail when they should."""

import numpy as np
import pytest
import tensorflow as tf

from tfctr.passes import (
    GraphView,
    PassOutcome,
    Refused,
    apply,
    assert_refused,
    assert_rewrites,
    graph_item,
    graph_text,
    op_counts,
    run_item,
)


def doubled(tables):
    x = tf.compat.v1.placeholder(tf.float32, [None], "x")
    return {"y": tf.add(x, x, name="sum")}


@pytest.fixture
def item(tmp_path):
    return graph_item(doubled, work_dir=tmp_path)


FEEDS = {"x": np.asarray([1.0, 2.5], np.float32)}


def rename_add(op):
    """A pass that turns AddV2 into another binary op."""

    def run(item, options):
        view = GraphView(item.graph_def)
        found = [n for n in view if n.op == "AddV2"]
        for node in found:
            node.op = op
        return PassOutcome(fired=len(found))

    return run


def test_run_item(item):
    np.testing.assert_array_equal(run_item(item, FEEDS)["y"], [2.0, 5.0])


def test_equal_rewrite_passes(item):
    after = assert_rewrites(rename_add("Add"), item, feeds=FEEDS, fired=1)
    assert op_counts(after)["Add"] == 1
    assert op_counts(item)["AddV2"] == 1


def test_other_numbers_fail(item):
    with pytest.raises(AssertionError, match="output 'y'"):
        assert_rewrites(rename_add("Mul"), item, feeds=FEEDS)


def test_a_rule_that_does_nothing_fails(item):
    with pytest.raises(AssertionError, match="fired 0 times"):
        assert_rewrites(lambda item, options: PassOutcome(), item, feeds=FEEDS)


def test_a_rule_that_never_ends_fails(item):
    def swap(item, options):
        view = GraphView(item.graph_def)
        view.set_inputs("sum", reversed(view.inputs("sum")))
        return PassOutcome(fired=1)

    with pytest.raises(AssertionError, match="second run"):
        assert_rewrites(swap, item, feeds=FEEDS)


def test_an_illegal_graph_fails(item):
    def cut(item, options):
        GraphView(item.graph_def).set_inputs("sum", ["x", "nowhere"])
        return PassOutcome(fired=1)

    with pytest.raises(Exception, match="nowhere"):
        apply(cut, item)


def test_refusals(item):
    def refuse(item, options):
        return PassOutcome(refused=(Refused(what="sum", reason="I would rather not"),))

    assert_refused(refuse, item, "rather not")
    with pytest.raises(AssertionError, match="no refusal matches"):
        assert_refused(refuse, item, "something else")
    with pytest.raises(AssertionError, match="expected a refusal"):
        assert_refused(rename_add("Add"), item, ".")


def test_graph_text_shows_nodes_and_constants(item):
    text = graph_text(item)
    assert "sum = AddV2(x, x)" in text
    assert "output/y = Identity(sum)" in text
