"""Sparse lookups in TF1 SavedModels: SparseSegment* reads the variable (ReadVariableOp or VariableV2) itself."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.models.base import BATCH, SERVING, Arrays, ModelBuilder, Save, row_lengths, sparse_parts, table
from tests.models.partitioned import save_v1, v1_tower

v1 = tf.compat.v1


def _saver(use_resource: bool) -> Save:
    def save(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
        arrays: Arrays = {}
        inputs: dict[str, object] = {}
        pooled = []
        with tf.Graph().as_default(), v1.Session() as session:
            for name, rows, width, combiner in (
                ("safe_mean", 90, 7, "mean"),
                ("safe_weighted", 130, 5, "sqrtn"),
                ("plain_sum", 60, 8, "sum"),
                ("shared", 90, 7, "sum"),
            ):
                scope = "safe_mean" if name == "shared" else name
                with v1.variable_scope(scope, reuse=name == "shared"):
                    start = None if name == "shared" else table(rng, rows, width)
                    shape = [rows, width] if name == "shared" else None
                    emb = v1.get_variable("emb", shape, initializer=start, use_resource=use_resource)
                ids = v1.sparse_placeholder(tf.int64, [None, None], name=f"in_{name}")
                indices, dense_shape = sparse_parts(row_lengths(rng, BATCH, 5, empty_rows=name != "plain_sum"))
                arrays |= {f"{name}/indices": indices, f"{name}/dense_shape": dense_shape}
                arrays[f"{name}/values"] = rng.integers(0 if name == "plain_sum" else -1, rows, len(indices))
                inputs[name] = ids
                weights = None
                if name == "safe_weighted":
                    # A plain placeholder of the values: ids and weights share one indices tensor.
                    values = inputs[f"{name}_weights"] = v1.placeholder(tf.float32, [None], name=f"in_{name}_weights")
                    weights = tf.SparseTensor(ids.indices, values, ids.dense_shape)
                    arrays[f"{name}_weights"] = rng.uniform(-0.2, 2.0, len(indices)).astype(np.float32)
                if name == "plain_sum":
                    found = v1.nn.embedding_lookup_sparse(emb, ids, weights, combiner=combiner)
                else:
                    found = v1.nn.safe_embedding_lookup_sparse(emb, ids, weights, combiner=combiner)
                found.set_shape([None, width])
                pooled.append(found)
            one = inputs["one"] = v1.placeholder(tf.int32, [None, 1], name="in_one")
            arrays["one"] = rng.integers(0, 75, (BATCH, 1)).astype(np.int32)
            emb = v1.get_variable("emb_one", initializer=table(rng, 75, 6), use_resource=use_resource)
            pooled.append(tf.reshape(v1.nn.embedding_lookup(emb, one), [-1, 6]))
            score = v1_tower(rng, tf.concat(pooled, 1), use_resource)
            session.run(v1.global_variables_initializer())
            save_v1(path, session, inputs, {"score": score})
        return {SERVING: arrays}

    return save


BUILDERS = [
    ModelBuilder("a_sparse_v1_res", "A safe sparse", _saver(use_resource=True)),
    ModelBuilder("a_sparse_v1_ref", "A safe sparse", _saver(use_resource=False)),
]
