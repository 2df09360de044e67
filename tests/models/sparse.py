"""``tf.nn.safe_embedding_lookup_sparse`` and ``embedding_lookup_sparse`` in every variant (families A and A plain)."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from tests.models.base import BATCH, SERVING, Arrays, ModelBuilder, Tower, row_lengths, save_module, sparse_parts, table


@dataclasses.dataclass(frozen=True)
class SparseFeature:
    """One sparse feature of a model and how it is looked up."""

    name: str
    vocabulary: int
    width: int
    combiner: str
    weighted: bool = False
    negatives: bool = True
    default_id: int | None = None
    max_norm: float | None = None
    max_length: int = 5
    ids: type = np.int64
    safe: bool = True
    empty_rows: bool = True


class SparseModel(tf.Module):
    """F sparse features, each looked up in its own table, concatenated into a tower.

    ``composite``: the signature takes SparseTensors (saved as a, a_1, a_2) instead of NAME_indices and so on.
    """

    def __init__(self, rng: np.random.Generator, features: list[SparseFeature], composite: bool = False) -> None:
        super().__init__()
        self.features = features
        self.composite = composite
        self.tables = [tf.Variable(table(rng, f.vocabulary, f.width), name=f"emb_{f.name}") for f in features]
        self.tower = Tower(rng, sum(f.width for f in features))

    def specs(self) -> dict[str, tf.TypeSpec]:
        found: dict[str, tf.TypeSpec] = {}
        for f in self.features:
            ids = tf.as_dtype(f.ids)
            if self.composite:
                found[f.name] = tf.SparseTensorSpec([None, None], ids)
                continue
            found[f"{f.name}_indices"] = tf.TensorSpec([None, 2], tf.int64, f"{f.name}_indices")
            found[f"{f.name}_values"] = tf.TensorSpec([None], ids, f"{f.name}_values")
            found[f"{f.name}_shape"] = tf.TensorSpec([2], tf.int64, f"{f.name}_shape")
            if f.weighted:
                found[f"{f.name}_weights"] = tf.TensorSpec([None], tf.float32, f"{f.name}_weights")
        return found

    def serve(self, **x: tf.Tensor) -> dict[str, tf.Tensor]:
        pooled = []
        for f, variable in zip(self.features, self.tables, strict=True):
            if self.composite:
                ids, weights = x[f.name], None
            else:
                indices, shape = x[f"{f.name}_indices"], x[f"{f.name}_shape"]
                ids = tf.SparseTensor(indices, x[f"{f.name}_values"], shape)
                weights = tf.SparseTensor(indices, x[f"{f.name}_weights"], shape) if f.weighted else None
            if f.safe:
                found = tf.nn.safe_embedding_lookup_sparse(
                    variable, ids, weights, combiner=f.combiner, default_id=f.default_id, max_norm=f.max_norm
                )
            else:
                found = tf.nn.embedding_lookup_sparse(variable, ids, weights, combiner=f.combiner, max_norm=f.max_norm)
            pooled.append(tf.reshape(found, [-1, f.width]) if f.default_id is not None else found)
        return {"score": self.tower(tf.concat(pooled, 1))}

    def inputs(self, rng: np.random.Generator) -> Arrays:
        found: Arrays = {}
        for f in self.features:
            lengths = row_lengths(rng, BATCH, f.max_length, f.empty_rows)
            indices, shape = sparse_parts(lengths)
            ids = rng.integers(-1 if f.negatives else 0, f.vocabulary, len(indices)).astype(f.ids)
            names = [f.name, f"{f.name}_1", f"{f.name}_2"]
            if not self.composite:
                names = [f"{f.name}_indices", f"{f.name}_values", f"{f.name}_shape"]
            found |= dict(zip(names, (indices, ids, shape), strict=True))
            if f.weighted:
                # Zero and negative weights are pruned by mean and sqrtn, not by sum.
                weights = rng.uniform(0.1, 2.0, len(ids)).astype(np.float32)
                weights[rng.random(len(ids)) < 0.1] = 0.0
                weights[rng.random(len(ids)) < 0.1] = -0.5
                found[f"{f.name}_weights"] = weights
        return found


def _builder(
    name: str, features: list[SparseFeature], composite: bool = False, family: str = "A safe sparse"
) -> ModelBuilder:
    def save(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
        model = SparseModel(rng, features, composite)
        save_module(path, model, model.serve, model.specs())
        return {SERVING: model.inputs(rng)}

    return ModelBuilder(name, family, save)


PLAIN = {"safe": False, "negatives": False, "empty_rows": False}
COMBINERS = ("sum", "mean", "sqrtn")


def _varied(count: int, **changes: object) -> list[SparseFeature]:
    """Features with every combiner, widths 4 to 17, vocabularies 50 to 990 and up to 12 values a row."""
    return [
        SparseFeature(
            f"f{k}", 50 + (k * 47) % 941, 4 + k % 14, COMBINERS[k % 3], max_length=(3, 5, 12)[k // 3 % 3], **changes
        )  # type: ignore[arg-type]
        for k in range(count)
    ]


BUILDERS = [
    _builder("a_safe_sparse", _varied(12)),
    _builder("a_safe_sparse_composite", _varied(6), composite=True),
    _builder("a_safe_sparse_int32", _varied(3, ids=np.int32)),
    _builder("a_safe_sparse_one", _varied(1), composite=True),
    _builder("a_safe_sparse_w", _varied(9, weighted=True)),
    _builder("a_safe_sparse_defid", _varied(3, default_id=7)),
    _builder("a_safe_sparse_defid_zero", _varied(3, default_id=0)),
    _builder("a_safe_sparse_defid_w", _varied(3, default_id=7, weighted=True)),
    _builder("a_safe_sparse_maxnorm", _varied(3, max_norm=1.0)),
    _builder("a_safe_sparse_maxnorm_w", _varied(3, max_norm=1.0, weighted=True)),
    _builder("a_plain_sparse", _varied(6, **PLAIN), family="A plain sparse"),
    _builder("a_plain_sparse_w", _varied(3, weighted=True, **PLAIN), family="A plain sparse"),
]  # fmt: skip
