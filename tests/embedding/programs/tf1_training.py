"""A TF1 program as they were written: no eager mode, reference variables, a monitored session."""

import numpy as np
import tensorflow.compat.v1 as tf

import tfctr

tf.disable_v2_behavior()

ids, labels = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.float32, [None])
with tf.variable_scope("model"):
    users = tfctr.EmbeddingVariable(
        4, "users", optimizer=tfctr.optimizers.Adam(0.05), eviction=tfctr.StepEviction(steps_to_live=5)
    )
    kernel = tf.get_variable("kernel", [4, 1])
logits = tf.matmul(users.lookup(ids, training=True), kernel)[:, 0]
loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
train = tfctr.minimize(loss, [users, kernel], tf.train.AdamOptimizer(0.05))
step = tf.train.get_global_step()
assert users.step is step and users.name == "model/users"
size, evicted = users.size(), users.evict().rows

with tf.train.MonitoredTrainingSession() as session:
    both = {ids: np.arange(-5, 15), labels: (np.arange(20) % 2).astype(np.float32)}
    few = {ids: np.arange(3), labels: np.ones(3, np.float32)}
    losses = [session.run([loss, train], both)[0] for _ in range(50)]
    assert losses[-1] < 0.1 * losses[0], losses
    assert session.run([size, evicted, step]) == [20, 0, 50]
    for _ in range(7):
        session.run(train, few)
    assert session.run(evicted) == 17
    assert session.run(size) == 3
print("trained")
