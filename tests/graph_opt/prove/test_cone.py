"""Cutting a candidate's subgraph out of the graph."""

import pytest
import tensorflow as tf

from graph_opt.prove.cone import ConeError, extract_cone, fingerprint, inside_nodes
from graph_opt.view import GraphView


def view_of(build):
    graph = tf.Graph()
    with graph.as_default():
        build()
    return GraphView(graph.as_graph_def())


def gathers():
    for name, scale in (("a", 2.0), ("b", 2.0), ("c", 3.0)):
        with tf.name_scope(name):
            ids = tf.compat.v1.placeholder(tf.int64, [None], name="ids")
            tf.multiply(tf.gather(tf.ones([10, 4]), ids), scale, name="out")


def test_cone_stops_at_the_sources():
    view = view_of(gathers)
    cone = extract_cone(view, "a/out", ["a/ids"])
    assert cone.nodes[-1] == "a/out"
    assert "a/ids" not in cone.nodes
    assert all(n.startswith("a/") for n in cone.nodes)
    assert inside_nodes(view, cone) == set(cone.nodes)


def test_fingerprint_sees_what_is_computed_not_names():
    view = view_of(gathers)
    a, b, c = (fingerprint(view, extract_cone(view, f"{n}/out", [f"{n}/ids"]), 10) for n in "abc")
    assert a == b
    assert a != c


def test_another_input_is_a_reason():
    def build():
        ids = tf.compat.v1.placeholder(tf.int64, [None], name="ids")
        other = tf.compat.v1.placeholder(tf.float32, [None, 4], name="other")
        tf.add(tf.gather(tf.ones([10, 4]), ids), other, name="out")

    with pytest.raises(ConeError, match="depends on input 'other' as well") as caught:
        extract_cone(view_of(build), "out", ["ids"])
    assert caught.value.nodes == ("other",)


def test_a_stateful_op_is_a_reason():
    def build():
        ids = tf.compat.v1.placeholder(tf.int64, [None], name="ids")
        tf.add(tf.gather(tf.ones([10, 4]), ids), tf.random.uniform([4]), name="out")

    with pytest.raises(ConeError, match="stateful op RandomUniform"):
        extract_cone(view_of(build), "out", ["ids"])


def test_output_that_is_a_source():
    with pytest.raises(ConeError, match="one of its own sources"):
        extract_cone(view_of(gathers), "a/ids", ["a/ids"])


def test_an_op_nobody_knows_is_a_reason():
    view = view_of(gathers)
    view.node("a/out").op = "__inference_lookup_42"
    with pytest.raises(ConeError, match="a call of '__inference_lookup_42' that is not inlined"):
        extract_cone(view, "a/out", ["a/ids"])
