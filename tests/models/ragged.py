"""Ragged ids (family B): embedding_lookup_sparse and safe_* over RaggedTensors, gather + reduce_mean."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from tests.models.base import BATCH, SERVING, Arrays, ModelBuilder, Tower, row_lengths, save_module, table


@dataclasses.dataclass(frozen=True)
class RaggedFeature:
    """One ragged feature; ``how``: plain | safe | gather (embedding_lookup, then reduce over the row)."""

    name: str
    vocabulary: int
    width: int
    how: str
    combiner: str
    splits: type = np.int64
    weighted: bool = False


class RaggedModel(tf.Module):
    """Ragged features into a tower.

    ``composite``: the signature takes RaggedTensors (saved as a, a_1) instead of NAME_values and NAME_row_splits.
    """

    def __init__(self, rng: np.random.Generator, features: list[RaggedFeature], composite: bool) -> None:
        super().__init__()
        self.features = features
        self.composite = composite
        self.tables = [tf.Variable(table(rng, f.vocabulary, f.width), name=f"emb_{f.name}") for f in features]
        self.tower = Tower(rng, sum(f.width for f in features))

    def specs(self) -> dict[str, tf.TypeSpec]:
        found: dict[str, tf.TypeSpec] = {}
        for f in self.features:
            splits = tf.as_dtype(f.splits)
            if self.composite:
                found[f.name] = tf.RaggedTensorSpec([None, None], tf.int64, 1, splits)
                continue
            found[f"{f.name}_values"] = tf.TensorSpec([None], tf.int64, f"{f.name}_values")
            found[f"{f.name}_row_splits"] = tf.TensorSpec([None], splits, f"{f.name}_row_splits")
            if f.weighted:
                found[f"{f.name}_weights"] = tf.TensorSpec([None], tf.float32, f"{f.name}_weights")
        return found

    def serve(self, **x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {
            "score": self.tower(
                tf.concat([self._pooled(f, t, x) for f, t in zip(self.features, self.tables, strict=True)], 1)
            )
        }

    def _pooled(self, f: RaggedFeature, variable: tf.Variable, x: dict[str, tf.Tensor]) -> tf.Tensor:
        weights = None
        if self.composite:
            ids = x[f.name]
        else:
            splits = x[f"{f.name}_row_splits"]
            ids = tf.RaggedTensor.from_row_splits(x[f"{f.name}_values"], splits, validate=False)
            if f.weighted:
                weights = tf.RaggedTensor.from_row_splits(x[f"{f.name}_weights"], splits, validate=False)
        if f.how == "gather":
            found = tf.nn.embedding_lookup(variable, ids)
            if f.combiner == "sum":
                return tf.reduce_sum(found, 1)
            mean = tf.reduce_mean(found, 1)
            return tf.where(tf.math.is_nan(mean), tf.zeros_like(mean), mean)
        lookup = tf.nn.safe_embedding_lookup_sparse if f.how == "safe" else tf.nn.embedding_lookup_sparse
        return tf.reshape(lookup(variable, ids, weights, combiner=f.combiner), [-1, f.width])

    def inputs(self, rng: np.random.Generator) -> Arrays:
        found: Arrays = {}
        for f in self.features:
            lengths = row_lengths(rng, BATCH, 11, empty_rows=f.how != "plain")
            splits = np.concatenate([[0], np.cumsum(lengths)]).astype(f.splits)
            ids = rng.integers(-1 if f.how == "safe" else 0, f.vocabulary, splits[-1])
            names = (f.name, f"{f.name}_1") if self.composite else (f"{f.name}_values", f"{f.name}_row_splits")
            found |= dict(zip(names, (ids, splits), strict=True))
            if f.weighted:
                found[f"{f.name}_weights"] = rng.uniform(0.1, 2.0, len(ids)).astype(np.float32)
        return found


FEATURES = [
    RaggedFeature("plain_mean", 61, 8, "plain", "mean"),
    RaggedFeature("plain_sum", 212, 5, "plain", "sum"),
    RaggedFeature("safe_mean", 333, 4, "safe", "mean"),
    RaggedFeature("safe_sqrtn", 70, 12, "safe", "sqrtn"),
    RaggedFeature("gather_mean", 905, 16, "gather", "mean"),
    RaggedFeature("gather_sum", 50, 7, "gather", "sum"),
]
WEIGHTED = [
    RaggedFeature("plain_w", 61, 8, "plain", "mean", weighted=True),
    RaggedFeature("safe_w", 212, 5, "safe", "sum", weighted=True),
]


def _builder(name: str, features: list[RaggedFeature], composite: bool) -> ModelBuilder:
    def save(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
        model = RaggedModel(rng, features, composite)
        save_module(path, model, model.serve, model.specs())
        return {SERVING: model.inputs(rng)}

    return ModelBuilder(name, "B ragged", save)


BUILDERS = [
    _builder("b_ragged", FEATURES, composite=False),
    _builder("b_ragged_composite", FEATURES, composite=True),
    _builder("b_ragged_w", WEIGHTED, composite=False),
    _builder(
        "b_ragged_int32_splits",
        [dataclasses.replace(f, splits=np.int32) for f in FEATURES if f.how != "safe"],
        composite=False,
    ),
]
