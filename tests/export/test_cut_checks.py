"""What a model checks about its inputs: sizes that `tf.debugging.assert_equal` compares have no rows."""

import numpy as np
import tensorflow as tf

from graph_opt.testing import graph_item
from tests.export.wholes import cut_and_compare, exported
from tests.graph_opt.graphs import placeholder, table

IDS = np.array([3, 1, 4, 1, 5, 9])


def checked(tables):
    """A score of row splits that must begin with 0, as `tf.RaggedTensor.from_row_splits` checks them."""
    ids, splits = placeholder(tf.int64, [None], "ids"), placeholder(tf.int64, [None], "splits")
    equal = tf.equal(splits[0], 0)
    good = tf.raw_ops.All(input=equal, axis=tf.range(0, tf.rank(equal), 1))
    with tf.control_dependencies([tf.raw_ops.Assert(condition=good, data=[splits[0]])]):
        ids = tf.identity(ids)
    kernel = np.arange(4, dtype=np.float32).reshape(4, 1) / 4
    return {"score": tf.sigmoid(tf.matmul(tf.gather(tables["emb"], ids), kernel))}


def test_a_check_stays_outside(tmp_path):
    item = graph_item(checked, tables={"emb": table()}, work_dir=tmp_path)
    tower = cut_and_compare(item, {"ids": IDS, "splits": np.array([0, 4, 6])})
    assert [one.name for one in tower.outputs] == ["score"] and len(tower.inputs) == 1
    assert not {"All", "Equal"} & {node.op for node in tower.graph_def.node}
    assert exported(item).verdict.max_difference <= 1e-5


def test_inputs_are_named_as_graphs_store_them(tmp_path):
    """ "x", not "x:0": grappler, which tf2onnx runs, makes control inputs of edges that it drops."""
    item = graph_item(checked, tables={"emb": table()}, work_dir=tmp_path)
    tower = cut_and_compare(item, {"ids": IDS, "splits": np.array([0, 4, 6])})
    assert not [name for node in tower.graph_def.node for name in node.input if name.endswith(":0")]
