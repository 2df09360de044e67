"""A ranker of F pooled features and a dense tower: the baseline of the benchmarks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf


class SparseRanker(tf.Module):
    """F multi-valued features, each averaged over its ids in a table of its own, then a dense tower to one logit.

    The lookup is ``tf.nn.safe_embedding_lookup_sparse`` with the mean combiner: negative ids are dropped, an empty row
    gives zeros. The signature takes per feature K ``fK_indices`` int64 [N, 2], ``fK_values`` int64 [N] and
    ``fK_shape`` int64 [2]; it returns ``score`` float32 [B, 1].
    """

    def __init__(
        self,
        features: int,
        vocabulary: int = 100_000,
        width: int = 16,
        hidden: Sequence[int] = (256, 128),
        seed: int = 0,
    ) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)

        def kernel(rows: int, columns: int) -> np.ndarray:
            # Uniform with variance 2 / rows: the scores spread.
            return (rng.random((rows, columns), np.float32) - np.float32(0.5)) * np.float32((24 / rows) ** 0.5)

        self.tables = [
            tf.Variable(rng.random((vocabulary, width), np.float32) - np.float32(0.5), name=f"emb_f{k}")
            for k in range(features)
        ]
        sizes = [features * width, *hidden, 1]
        self.kernels = [
            tf.Variable(kernel(a, b), name=f"kernel{k}") for k, (a, b) in enumerate(itertools.pairwise(sizes))
        ]
        self.biases = [tf.Variable(tf.zeros(size), name=f"bias{k}") for k, size in enumerate(sizes[1:])]

    def specs(self) -> dict[str, tf.TensorSpec]:
        """The signature's inputs by name."""
        found = {}
        for k in range(len(self.tables)):
            found[f"f{k}_indices"] = tf.TensorSpec([None, 2], tf.int64, f"f{k}_indices")
            found[f"f{k}_values"] = tf.TensorSpec([None], tf.int64, f"f{k}_values")
            found[f"f{k}_shape"] = tf.TensorSpec([2], tf.int64, f"f{k}_shape")
        return found

    def serve(self, **x: tf.Tensor) -> dict[str, tf.Tensor]:
        """Scores one batch."""
        pooled = []
        for k, table in enumerate(self.tables):
            ids = tf.SparseTensor(x[f"f{k}_indices"], x[f"f{k}_values"], x[f"f{k}_shape"])
            pooled.append(tf.nn.safe_embedding_lookup_sparse(table, ids, combiner="mean"))
        h = tf.concat(pooled, 1)
        for k, (kernel, bias) in enumerate(zip(self.kernels, self.biases, strict=True)):
            h = tf.nn.bias_add(tf.matmul(h, kernel), bias)
            h = tf.nn.relu(h) if k < len(self.kernels) - 1 else h
        return {"score": h}

    def save(self, folder: str) -> None:
        """Writes a SavedModel with the signature ``serving_default``."""
        serve = tf.function(self.serve, autograph=False).get_concrete_function(**self.specs())
        tf.saved_model.save(self, folder, signatures={"serving_default": serve})
