"""Partitioned tables (family H) and TF1 SavedModels of sparse lookups."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.models.base import BATCH, SERVING, Arrays, ModelBuilder, Save, row_lengths, sparse_parts

v1 = tf.compat.v1


def save_v1(
    path: str, session: v1.Session, inputs: dict[str, object], outputs: dict[str, tf.Tensor], **more: object
) -> None:
    """Saves the session's graph as a TF1 SavedModel with one signature; ``more`` goes to the builder."""
    signature = v1.saved_model.build_signature_def(
        {name: v1.saved_model.build_tensor_info(tensor) for name, tensor in inputs.items()},
        {name: v1.saved_model.build_tensor_info(tensor) for name, tensor in outputs.items()},
        v1.saved_model.signature_constants.PREDICT_METHOD_NAME,
    )
    builder = v1.saved_model.Builder(path)
    builder.add_meta_graph_and_variables(session, ["serve"], {SERVING: signature}, strip_default_attrs=True, **more)
    builder.save()


def v1_tower(rng: np.random.Generator, x: tf.Tensor, use_resource: bool) -> tf.Tensor:
    """A dense part of TF1 variables: [B, width] float32 to [B, 1] float32."""
    width = int(x.shape[1])
    kernel = v1.get_variable(
        "hidden/kernel",
        initializer=rng.normal(0, (2 / width) ** 0.5, (width, 16)).astype(np.float32),
        use_resource=use_resource,
    )
    logit = v1.get_variable(
        "logit/kernel", initializer=rng.normal(0, 0.5, (16, 1)).astype(np.float32), use_resource=use_resource
    )
    return tf.matmul(tf.nn.relu(tf.matmul(x, kernel)), logit)


def _partitioned(strategy: str, use_resource: bool, rows: tuple[int, int] = (1003, 202), single: bool = False) -> Save:
    """Two features over tables of 4 and 3 parts of unequal sizes; ``single``: also embedding_lookup of [B] ids."""

    def save(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
        arrays: Arrays = {}
        with tf.Graph().as_default(), v1.Session() as session:
            inputs: dict[str, object] = {}
            pooled = []
            for k, (count, parts, width) in enumerate(((rows[0], 4, 9), (rows[1], 3, 6))):
                variable = v1.get_variable(
                    f"emb{k}",
                    shape=[count, width],
                    initializer=v1.random_normal_initializer(stddev=0.5, seed=k + 1),
                    partitioner=v1.fixed_size_partitioner(parts),
                    use_resource=use_resource,
                )
                ids = v1.sparse_placeholder(tf.int64, shape=[None, None], name=f"ids{k}")
                inputs[f"ids{k}"] = ids
                lookup = v1.nn.safe_embedding_lookup_sparse if k == 0 else v1.nn.embedding_lookup_sparse
                # mod over a PartitionedVariable is only legal through a plain list of its parts.
                shards = list(variable) if strategy == "mod" else variable
                if k == 0:
                    pooled.append(lookup(shards, ids, combiner="mean", partition_strategy=strategy))
                else:
                    pooled.append(lookup(shards, ids, None, combiner="sum", partition_strategy=strategy))
                pooled[-1].set_shape([None, width])
                indices, shape = sparse_parts(row_lengths(rng, BATCH, 4, empty_rows=k == 0))
                arrays[f"ids{k}/indices"], arrays[f"ids{k}/dense_shape"] = indices, shape
                arrays[f"ids{k}/values"] = rng.integers(0, count, len(indices))
                if single:
                    one = v1.placeholder(tf.int64, [None], name=f"one{k}")
                    inputs[f"one{k}"] = one
                    arrays[f"one{k}"] = rng.integers(0, count, BATCH)
                    pooled.append(v1.nn.embedding_lookup(shards, one, partition_strategy=strategy))
            score = v1_tower(rng, tf.concat(pooled, 1), use_resource)
            session.run(v1.global_variables_initializer())
            save_v1(path, session, inputs, {"score": score})
        return {SERVING: arrays}

    return save


BUILDERS = [
    ModelBuilder("h_part_div_ref", "H partitioned", _partitioned("div", use_resource=False)),
    ModelBuilder("h_part_mod_res", "H partitioned", _partitioned("mod", use_resource=True)),
    ModelBuilder("h_part_div_res_single", "H partitioned", _partitioned("div", use_resource=True, single=True)),
    ModelBuilder("h_part_mod_ref_single", "H partitioned", _partitioned("mod", use_resource=False, single=True)),
]  # fmt: skip
