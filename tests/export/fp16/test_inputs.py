"""Which inputs a clamp is for."""

import numpy as np
import tensorflow as tf

from export.fp16.inputs import embedding_inputs
from export.tower import Tower, TowerTensor


def tensor(name, source="", side="item", dtype="float32"):
    return TowerTensor(name=name, tensor=f"{name}:0", source=source, dtype=dtype, shape=(None, 4), side=side)


def tower(*inputs):
    return Tower(signature="s", graph_def=tf.compat.v1.GraphDef(), inputs=inputs, outputs=())


def test_by_sides():
    inputs = [tensor("a"), tensor("b", side="user"), tensor("c", side="dense"), tensor("d", dtype="int64")]
    assert embedding_inputs(tower(*inputs, tensor("r", side="row_to_user"))) == ("a", "b")


def test_by_what_they_come_from():
    with tf.Graph().as_default() as graph:
        table = tf.constant(np.ones((10, 4), np.float32), name="table")
        ids = tf.compat.v1.placeholder(tf.int64, [None], "ids")
        age = tf.compat.v1.placeholder(tf.float32, [None, 4], "age")
        rows = tf.gather(table, ids, name="rows")
        bag = tf.compat.v1.sparse_segment_mean(table, ids, tf.cast(ids, tf.int32), name="bag")
        both = tf.concat([tf.reshape(rows, [-1, 4]), tf.identity(bag)], 1, name="both")
        tf.concat([rows, age], 1, name="mixed")
        tf.split(both, 2, 1, name="parts")
        tf.math.log(rows, name="log")
        tf.cast(ids > 0, tf.float32, name="mask")
    names = ["rows", "bag", "both", "mixed", "parts", "log", "mask", "age"]
    found = tower(*(tensor(name, f"{name}:0", side="user" if name == "bag" else "item") for name in names))
    assert embedding_inputs(found, graph.as_graph_def()) == ("rows", "bag", "both", "parts")
