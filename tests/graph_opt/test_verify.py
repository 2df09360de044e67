"""Each way in which a graph can be broken is found and named."""

from collections.abc import Callable

import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2

from graph_opt.item import GraphItem
from graph_opt.verify import BrokenGraph, verify
from graph_opt.view import GraphView


def item() -> GraphItem:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None], "x")
        y = tf.identity(tf.add_n([x, x], name="sum"), "y")
        signature = tf.compat.v1.saved_model.build_signature_def(
            {"x": tf.compat.v1.saved_model.build_tensor_info(x)}, {"y": tf.compat.v1.saved_model.build_tensor_info(y)}
        )
        return GraphItem(graph_def=graph.as_graph_def(), signatures={"s": signature}, optimise=("s",))


def test_a_legal_graph_passes() -> None:
    verify(item())


def node(broken: GraphItem, name: str):  # type: ignore[no-untyped-def]
    return GraphView(broken.graph_def).node(name)


def duplicate(broken: GraphItem) -> None:
    broken.graph_def.node.add(name="sum", op="NoOp")


def dangling(broken: GraphItem) -> None:
    node(broken, "sum").input[1] = "nothing"


def missing_fetch(broken: GraphItem) -> None:
    GraphView(broken.graph_def).remove(["y"])


def missing_feed(broken: GraphItem) -> None:
    broken.signatures["s"].inputs["x"].name = "gone:0"


def unknown_op(broken: GraphItem) -> None:
    node(broken, "y").op = "NoSuchOp"


def wrong_dtype(broken: GraphItem) -> None:
    node(broken, "y").attr["T"].type = types_pb2.DT_INT32


def wrong_count(broken: GraphItem) -> None:
    node(broken, "sum").attr["N"].i = 3


def no_such_output(broken: GraphItem) -> None:
    node(broken, "y").input[0] = "sum:1"


def fetched_output(broken: GraphItem) -> None:
    broken.signatures["s"].outputs["y"].name = "y:1"


def cycle(broken: GraphItem) -> None:
    node(broken, "sum").input[1] = "y"


def control_first(broken: GraphItem) -> None:
    node(broken, "y").input.insert(0, "^x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (duplicate, "two nodes are named 'sum'"),
        (dangling, "'sum' reads 'nothing', which does not exist"),
        (missing_fetch, "node 'y' is an input, output"),
        (missing_feed, "node 'gone' is an input, output"),
        (unknown_op, "'y' has the unknown op 'NoSuchOp'"),
        (wrong_dtype, r"input 0 of node 'y' \(Identity\) is float32 from 'sum', expected int32"),
        (wrong_count, r"'sum' \(AddN\) has 2 inputs, its op takes 3"),
        (no_such_output, "reads 'sum:1': 'sum' has only 1 outputs"),
        (fetched_output, "output 'y:1' does not exist"),
        (cycle, "cycle through node"),
        (control_first, "control input before a data input"),
    ],
)
def test_broken_graphs(change: Callable[[GraphItem], None], message: str) -> None:
    broken = item()
    change(broken)
    with pytest.raises(BrokenGraph, match=message):
        verify(broken)
