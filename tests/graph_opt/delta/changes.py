"""The model of tests/bundle/deltas, trained on: rows change, users come and go, dense weights move or stay."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.bundle.deltas import delta_models as models


def train(model: models.Model, number: int, *, dense: bool) -> None:
    """Round ``number``: a few rows of each table; users 0 and 1 leave in odd rounds and are back in even ones."""
    random = np.random.default_rng(number)
    for table, rows in ((model.items, models.ITEMS), (model.whole, models.WHOLE)):
        ids = random.choice(rows, 3, replace=False)[:, None]
        table.scatter_nd_update(ids, random.normal(size=(3, models.DIM)).astype(np.float32))
    users = model.users
    fresh = np.arange(4) + 1_000_000 * number
    users.lookup(tf.constant(fresh), training=True)
    old = models.KEYS[:2]
    if number % 2:
        users.erase(tf.constant(old))
    else:
        users.lookup(tf.constant(old), training=True)
        users.erase(tf.constant(models.KEYS[number + 2 : number + 4]))
    keys = models.KEYS[20:25]
    slopes = random.normal(size=(len(keys), models.DIM)).astype(np.float32)
    users.apply_gradients(tf.IndexedSlices(tf.constant(slopes), tf.constant(keys)))
    if dense:
        model.kernel.assign_add(random.normal(size=model.kernel.shape).astype(np.float32) * 0.1)
