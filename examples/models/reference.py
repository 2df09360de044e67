"""Five CTR models in one shape: Wide & Deep, DeepFM, DLRM, DIN and MMoE on plain TensorFlow.

Each has user features, item features and dense inputs (``features``), takes them by name in its one signature
``serving_default`` and returns named probabilities [B, 1]. Weights are random by ``seed`` and wide enough that outputs
spread. Shape letters: B rows, F features, T = HISTORY positions, D width of an embedding, E experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import tensorflow as tf

from examples.models.features import HISTORY, Feature, pick
from examples.models.layers import Dense, Dice, PReLU, Tower, uniform

_EMBEDDING_VARIANCE = 1 / 3
Inputs = dict[str, tf.Tensor]


class ReferenceModel(tf.Module):
    """What the five share: tables, lookups, the signature.

    vocabulary: rows of the largest tables. width: columns of the embeddings. hidden: sizes of the tower's layers.
    """

    features: ClassVar[tuple[Feature, ...]] = ()

    def __init__(self, vocabulary: int = 1000, width: int = 8, hidden: Sequence[int] = (64, 32), seed: int = 0) -> None:
        super().__init__()
        self.vocabulary, self.width, self.hidden = vocabulary, width, tuple(hidden)
        self._rng = np.random.default_rng(seed)
        self.tables = self._tables(width, "embedding")

    def specs(self) -> dict[str, tf.TensorSpec]:
        """The signature's inputs by name."""
        return {name: spec for feature in self.features for name, spec in feature.specs().items()}

    def serve(self, **x: tf.Tensor) -> dict[str, tf.Tensor]:
        """Outputs of one batch, by name."""
        raise AssertionError(f"{type(self).__name__} has no outputs")

    def save(self, folder: str) -> None:
        """Writes a SavedModel with the signature ``serving_default``."""
        serve = tf.function(self.serve, autograph=False).get_concrete_function(**self.specs())
        tf.saved_model.save(self, folder, signatures={"serving_default": serve})

    def _tables(self, width: int, kind: str) -> dict[str, tf.Variable]:
        """One table [V, ``width``] for every feature that shares no other's."""
        return {
            f.name: uniform(self._rng, (f.rows(self.vocabulary), width), _EMBEDDING_VARIANCE, f"{kind}_{f.name}")
            for f in self.features
            if f.kind != "dense" and not f.table
        }

    def _look_up(self, feature: Feature, x: Inputs, tables: dict[str, tf.Variable]) -> tf.Tensor:
        """[B, D], the mean of the tags; [B, T, D] of a history."""
        table = tables[feature.table or feature.name]
        if feature.kind != "tags":
            return tf.gather(table, x[feature.name])
        parts = (x[f"{feature.name}_{part}"] for part in ("indices", "values", "shape"))
        return tf.nn.safe_embedding_lookup_sparse(table, tf.SparseTensor(*parts), combiner="mean")

    def _embeddings(self, x: Inputs, tables: dict[str, tf.Variable] | None = None) -> list[tf.Tensor]:
        """One [B, D] per feature of one value or tags, in order."""
        chosen = [f for f in self.features if f.kind in ("id", "tags")]
        return [self._look_up(f, x, tables or self.tables) for f in chosen]

    def _dense(self, x: Inputs) -> list[tf.Tensor]:
        return [x[f.name] for f in self.features if f.kind == "dense"]

    def _columns(self) -> tuple[int, int]:
        """Number of embedded features (histories left out), and columns of all dense features together."""
        embedded = sum(f.kind in ("id", "tags") for f in self.features)
        return embedded, sum(f.size for f in self.features if f.kind == "dense")


class WideAndDeep(ReferenceModel):
    """Wide & Deep (Cheng et al., 2016): a linear model of features and of one cross, beside a tower.

    The cross is city x category, hashed into ``vocabulary`` buckets. Returns ``click``.
    """

    features = pick(
        "user_id", "age", "gender", "city", "user_tags", "user_dense", "item_id", "category", "brand", "item_dense"
    )  # fmt: skip

    def __init__(self, vocabulary: int = 1000, width: int = 8, hidden: Sequence[int] = (64, 32), seed: int = 0) -> None:
        super().__init__(vocabulary, width, hidden, seed)
        embedded, dense = self._columns()
        self.linear = self._tables(1, "linear")
        self.cross = uniform(self._rng, (vocabulary, 1), _EMBEDDING_VARIANCE, "linear_cross")
        self.linear_dense = Dense(self._rng, dense, 1, "linear_dense")
        self.deep = Tower(self._rng, embedded * width + dense, hidden, "deep", output=1)

    def serve(self, **x: tf.Tensor) -> dict[str, tf.Tensor]:
        dense = self._dense(x)
        crossed = tf.math.floormod(x["city"] * 1_000_003 + x["category"], self.vocabulary)
        wide = tf.add_n([*self._embeddings(x, self.linear), tf.gather(self.cross, crossed)])
        wide += self.linear_dense(tf.concat(dense, 1))
        deep = self.deep(tf.concat([*self._embeddings(x), *dense], 1))
        return {"click": tf.sigmoid(wide + deep)}


class DeepFM(ReferenceModel):
    """DeepFM (Guo et al., 2017): linear terms, all pairwise products of the embeddings, and a tower. Returns
    ``click``.
    """

    features = pick(
        "user_id", "age", "gender", "city", "device", "user_dense", "item_id", "category", "brand", "item_dense"
    )  # fmt: skip

    def __init__(self, vocabulary: int = 1000, width: int = 8, hidden: Sequence[int] = (64, 32), seed: int = 0) -> None:
        super().__init__(vocabulary, width, hidden, seed)
        embedded, dense = self._columns()
        self.linear = self._tables(1, "linear")
        self.linear_dense = Dense(self._rng, dense, 1, "linear_dense")
        self.deep = Tower(self._rng, embedded * width + dense, hidden, "deep", output=1)

    def serve(self, **x: tf.Tensor) -> dict[str, tf.Tensor]:
        dense, vectors = self._dense(x), self._embeddings(x)
        first = tf.add_n(self._embeddings(x, self.linear)) + self.linear_dense(tf.concat(dense, 1))
        # (sum of vectors)^2 - sum of squares: all pairwise products in one pass.
        total, squares = tf.add_n(vectors), tf.add_n([tf.square(v) for v in vectors])
        second = 0.5 * tf.reduce_sum(tf.square(total) - squares, 1, keepdims=True)
        deep = self.deep(tf.concat([*vectors, *dense], 1))
        return {"click": tf.sigmoid(first + second + deep)}


class DLRM(ReferenceModel):
    """DLRM (Naumov et al., 2019): a bottom tower over the dense inputs, dot products of all pairs, a top tower.
    Returns ``click``.
    """

    features = pick(
        "user_id", "age", "city", "device", "user_dense", "item_id", "category", "brand", "shop", "item_dense"
    )  # fmt: skip

    def __init__(self, vocabulary: int = 1000, width: int = 8, hidden: Sequence[int] = (64, 32), seed: int = 0) -> None:
        super().__init__(vocabulary, width, hidden, seed)
        embedded, dense = self._columns()
        vectors = embedded + 1
        # Places of the pairs (i, j), i > j, in the flattened matrix of products.
        self._pairs = np.flatnonzero(np.tri(vectors, k=-1, dtype=bool)).astype(np.int32)
        self.bottom = Tower(self._rng, dense, [*hidden, width], "bottom")
        self.top = Tower(self._rng, width + len(self._pairs), hidden, "top", output=1)

    def serve(self, **x: tf.Tensor) -> dict[str, tf.Tensor]:
        bottom = self.bottom(tf.concat(self._dense(x), 1))
        vectors = tf.stack([bottom, *self._embeddings(x)], 1)
        products = tf.matmul(vectors, vectors, transpose_b=True)
        flat = tf.reshape(products, [-1, products.shape[1] * products.shape[2]])
        pairs = tf.gather(flat, self._pairs, axis=1)
        return {"click": tf.sigmoid(self.top(tf.concat([bottom, pairs], 1)))}


class DIN(ReferenceModel):
    """Deep Interest Network (Zhou et al., 2018): the target item asks the user's click history.

    Attention weights come from a small tower with Dice over (click, target, click - target, click * target); they are
    not normalised, and padded positions weigh 0. The upper tower has PReLU. Returns ``click``.
    """

    features = pick(
        "user_id", "age", "user_history", "user_history_category", "user_dense", "item_id", "category", "item_dense"
    )  # fmt: skip

    def __init__(self, vocabulary: int = 1000, width: int = 8, hidden: Sequence[int] = (64, 32), seed: int = 0) -> None:
        super().__init__(vocabulary, width, hidden, seed)
        embedded, dense = self._columns()
        item = 2 * width
        self.attention = Tower(self._rng, 4 * item, (32, 16), "attention", output=1, activation=Dice)
        self.deep = Tower(self._rng, embedded * width + item + dense, hidden, "deep", output=1, activation=PReLU)

    def serve(self, **x: tf.Tensor) -> dict[str, tf.Tensor]:
        by_name = {f.name: f for f in self.features}
        clicks = tf.concat(
            [self._look_up(by_name[n], x, self.tables) for n in ("user_history", "user_history_category")], 2
        )
        target = tf.concat([self._look_up(by_name[n], x, self.tables) for n in ("item_id", "category")], 1)
        query = tf.tile(target[:, tf.newaxis], [1, HISTORY, 1])
        # The tower is applied to B*T rows: a matrix product is what every device is best at.
        asked = tf.concat([clicks, query, clicks - query, clicks * query], 2)
        weights = tf.reshape(self.attention(tf.reshape(asked, [-1, asked.shape[2]])), [-1, HISTORY])
        weights = tf.where(x["user_history"] > 0, weights, tf.zeros_like(weights))
        interest = tf.squeeze(tf.matmul(weights[:, tf.newaxis], clicks), 1) / HISTORY**0.5
        deep = self.deep(tf.concat([*self._embeddings(x), interest, *self._dense(x)], 1))
        return {"click": tf.sigmoid(deep)}


class MMoE(ReferenceModel):
    """Multi-gate mixture of experts (Ma et al., 2018): each task mixes the same E experts with a gate of its own.

    experts: E. Returns ``click`` and ``conversion``.
    """

    features = pick(
        "user_id", "age", "gender", "city", "user_tags", "user_dense", "item_id", "category", "brand", "shop",
        "item_dense",
    )  # fmt: skip
    tasks: ClassVar[tuple[str, ...]] = ("click", "conversion")

    def __init__(
        self,
        vocabulary: int = 1000,
        width: int = 8,
        hidden: Sequence[int] = (64, 32),
        seed: int = 0,
        experts: int = 4,
    ) -> None:
        super().__init__(vocabulary, width, hidden, seed)
        embedded, dense = self._columns()
        columns = embedded * width + dense
        self.experts = [Tower(self._rng, columns, hidden[:1], f"expert{k}") for k in range(experts)]
        self.gates = {task: Dense(self._rng, columns, experts, f"gate_{task}") for task in self.tasks}
        self.towers = {task: Tower(self._rng, hidden[0], hidden[1:], f"tower_{task}", output=1) for task in self.tasks}

    def serve(self, **x: tf.Tensor) -> dict[str, tf.Tensor]:
        h = tf.concat([*self._embeddings(x), *self._dense(x)], 1)
        experts = tf.stack([expert(h) for expert in self.experts], 1)
        found = {}
        for task in self.tasks:
            gate = tf.nn.softmax(self.gates[task](h))
            mixed = tf.squeeze(tf.matmul(gate[:, tf.newaxis], experts), 1)
            found[task] = tf.sigmoid(self.towers[task](mixed))
        return found
