"""Two parameter servers and a worker on this machine, driven by a ClusterCoordinator; keys are dealt by remainder."""

import os
import socket
import sys

import tensorflow as tf

import tfctr

# Held to the end, so that no other process is given one of the ports before the servers listen there.
os.environ["TF_GRPC_REUSE_PORT"] = "1"
sockets = [socket.socket() for _ in range(3)]
for one in sockets:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind(("localhost", 0))
addresses = [f"localhost:{one.getsockname()[1]}" for one in sockets]
cluster = tf.train.ClusterSpec({"ps": addresses[:2], "worker": addresses[2:]})
servers = [tf.distribute.Server(cluster, job, task) for job, task in (("ps", 0), ("ps", 1), ("worker", 0))]

strategy = tf.distribute.ParameterServerStrategy(
    tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    kernel, step = tf.Variable(tf.ones([4, 1])), tf.Variable(0, dtype=tf.int64)
parts = []
for task in range(2):
    with tf.device(f"/job:ps/task:{task}"):
        adagrad = tfctr.optimizers.Adagrad(0.5)
        parts.append(tfctr.EmbeddingVariable(4, f"u{task}", optimizer=adagrad, step=step, record_changes=True))


def batches() -> tf.data.Dataset:
    ids = tf.range(-10, 11, dtype=tf.int64)
    return tf.data.Dataset.from_tensors((ids, tf.cast(ids, tf.float32) / 10)).repeat()


@tf.function
def train(iterator: tf.data.Iterator) -> tf.Tensor:
    ids, labels = next(iterator)
    owner = tf.cast(tf.math.floormod(ids, 2), tf.int32)
    where, dealt = tf.dynamic_partition(tf.range(tf.size(ids)), owner, 2), tf.dynamic_partition(ids, owner, 2)
    with tf.GradientTape() as tape:
        rows = [part.lookup(keys, training=True) for part, keys in zip(parts, dealt, strict=True)]
        loss = tf.reduce_mean((tf.matmul(tf.dynamic_stitch(where, rows), kernel)[:, 0] - labels) ** 2)
    tfctr.minimize(loss, parts, tape=tape)
    step.assign_add(1)
    return loss


iterator = iter(coordinator.create_per_worker_dataset(batches))
losses = [coordinator.schedule(train, args=(iterator,)) for _ in range(30)]
coordinator.join()
assert losses[-1].fetch() < 0.01 * losses[0].fetch()
assert [part.size() for part in parts] == [11, 10] and int(step) == 30

path = tf.train.Checkpoint(parts=parts, step=step).save(sys.argv[1])
sizes = {name: shape for name, shape in tf.train.list_variables(path) if name.endswith("/keys")}
assert sizes == {"parts/0/keys": [11], "parts/1/keys": [10]}, sizes
before = [part.lookup([0, 1, -3]).numpy() for part in parts]
for part in parts:
    part.erase(part.keys())
tf.train.Checkpoint(parts=parts, step=step).restore(path).assert_consumed()
assert all((part.lookup([0, 1, -3]).numpy() == rows).all() for part, rows in zip(parts, before, strict=True))

checkpoint = tf.train.Checkpoint(parts=parts, step=step)
manager = tfctr.DeltaCheckpointManager(checkpoint, f"{sys.argv[1]}_deltas", max_delta_rows=100)
assert not manager.save().is_delta
parts[0].erase([0])
coordinator.schedule(train, args=(iterator,))
coordinator.join()
parts[1].erase([-3])
save = manager.save()
assert save.is_delta and [table.rows for table in save.tables] == [11, 9], save
assert [table.removed for table in save.tables] == [0, 1], save
before = [part.lookup([0, 1, -3]).numpy() for part in parts]
for part in parts:
    part.erase(part.keys())
manager.restore().assert_consumed()
assert all((part.lookup([0, 1, -3]).numpy() == rows).all() for part, rows in zip(parts, before, strict=True))
assert manager.save().is_delta
print("trained")
