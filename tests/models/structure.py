"""Models whose structure is the point: attention, control flow, tied softmax, several signatures, zero tables."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.models.base import BATCH, SERVING, Arrays, ModelBuilder, Tower, row_lengths, save_module, sparse_parts, table

INT64 = tf.int64


def one_id(name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None], INT64, name)


class Din(tf.Module):
    """Deep Interest Network by hand (family J): item table gathered by [B] and [B, T], then attention."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.items, self.users = (
            tf.Variable(table(rng, 150, 8), name="emb_item"),
            tf.Variable(table(rng, 60, 5), name="emb_user"),
        )
        self.attention = Tower(rng, 32)
        self.tower = Tower(rng, 21)

    def serve(self, user: tf.Tensor, item: tf.Tensor, history: tf.Tensor) -> dict[str, tf.Tensor]:
        target = tf.nn.embedding_lookup(self.items, item)
        clicks = tf.nn.embedding_lookup(self.items, history)
        query = tf.tile(target[:, None], [1, tf.shape(history)[1], 1])
        joined = tf.concat([query, clicks, query - clicks, query * clicks], -1)
        scores = tf.reshape(self.attention(tf.reshape(joined, [-1, 32])), tf.shape(history))
        weights = tf.nn.softmax(tf.where(history > 0, scores, tf.fill(tf.shape(scores), -1e9)))
        interest = tf.reduce_sum(weights[:, :, None] * clicks, 1)
        return {"score": self.tower(tf.concat([tf.nn.embedding_lookup(self.users, user), target, interest], 1))}


def _save_din(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    model = Din(rng)
    specs = {"user": one_id("user"), "item": one_id("item"), "history": tf.TensorSpec([None, None], INT64, "history")}
    save_module(path, model, model.serve, specs)
    history = rng.integers(1, 150, (BATCH, 7)) * (np.arange(7) < rng.integers(1, 8, (BATCH, 1)))
    return {SERVING: {"user": rng.integers(0, 60, BATCH), "item": rng.integers(1, 150, BATCH), "history": history}}


class ControlFlow(tf.Module):
    """One lookup outside, one inside a tf.cond, one inside a tf.while_loop (those two stay as they are)."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.tables = [tf.Variable(table(rng, 70, 6), name=f"emb{k}") for k in range(3)]
        self.tower = Tower(rng, 18)

    def serve(self, outside: tf.Tensor, branch: tf.Tensor, loop: tf.Tensor) -> dict[str, tf.Tensor]:
        found = [tf.nn.embedding_lookup(self.tables[0], outside)]
        found.append(
            tf.cond(
                tf.reduce_sum(branch) > 0,
                lambda: tf.nn.embedding_lookup(self.tables[1], branch),
                lambda: tf.zeros([tf.shape(branch)[0], 6]),
            )
        )
        steps = tf.shape(loop)[1]
        _, total = tf.while_loop(
            lambda k, _: k < steps,
            lambda k, total: (k + 1, total + tf.nn.embedding_lookup(self.tables[2], loop[:, k])),
            (tf.constant(0), tf.zeros([tf.shape(loop)[0], 6])),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, 6])),
        )
        return {"score": self.tower(tf.concat([*found, total], 1))}


def _save_control_flow(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    model = ControlFlow(rng)
    specs = {
        "outside": one_id("outside"),
        "branch": one_id("branch"),
        "loop": tf.TensorSpec([None, None], INT64, "loop"),
    }
    save_module(path, model, model.serve, specs)
    ids = {"outside": (BATCH,), "branch": (BATCH,), "loop": (BATCH, 3)}
    return {SERVING: {k: rng.integers(0, 70, v) for k, v in ids.items()}}


class TiedSoftmax(tf.Module):
    """The item table is gathered and also read whole by a MatMul: scores of all items."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.items = tf.Variable(table(rng, 90, 8), name="emb_item")
        self.kernel = tf.Variable(rng.normal(0, 0.5, (8, 8)), dtype=tf.float32)

    def serve(self, indices: tf.Tensor, values: tf.Tensor, shape: tf.Tensor) -> dict[str, tf.Tensor]:
        state = tf.nn.safe_embedding_lookup_sparse(self.items, tf.SparseTensor(indices, values, shape), combiner="mean")
        return {"scores": tf.matmul(tf.nn.tanh(tf.matmul(state, self.kernel)), self.items, transpose_b=True)}


def _save_tied(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    model = TiedSoftmax(rng)
    specs = {"indices": tf.TensorSpec([None, 2], INT64, "indices"), "values": one_id("values")}
    save_module(path, model, model.serve, {**specs, "shape": tf.TensorSpec([2], INT64, "shape")})
    indices, shape = sparse_parts(row_lengths(rng, BATCH, 6))
    return {SERVING: {"indices": indices, "values": rng.integers(0, 90, len(indices)), "shape": shape}}


class TwoSignatures(tf.Module):
    """``serving_default`` scores (user, item); ``user_vector`` returns the user side. Both read the user table."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.users, self.items = (
            tf.Variable(table(rng, 110, 8), name="emb_user"),
            tf.Variable(table(rng, 85, 8), name="emb_item"),
        )
        self.tower = Tower(rng, 16)

    def serve(self, user: tf.Tensor, item: tf.Tensor) -> dict[str, tf.Tensor]:
        found = [tf.nn.embedding_lookup(self.users, user), tf.nn.embedding_lookup(self.items, item)]
        return {"score": self.tower(tf.concat(found, 1))}

    def user_vector(self, user: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"vector": tf.nn.l2_normalize(tf.nn.embedding_lookup(self.users, user), 1)}


def _save_two_signatures(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    model = TwoSignatures(rng)
    both = {"user": one_id("user"), "item": one_id("item")}
    save_module(path, model, model.serve, both, {"user_vector": (model.user_vector, {"user": one_id("user")})})
    user, item = rng.integers(0, 110, BATCH), rng.integers(0, 85, BATCH)
    return {SERVING: {"user": user, "item": item}, "user_vector": {"user": user[::-1].copy()}}


class ZeroTable(tf.Module):
    """A first-order weight table that is still all zeros beside a trained one: equal rows prove nothing."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.zeros = tf.Variable(np.zeros((100, 4), np.float32), name="emb_untrained")
        self.items = tf.Variable(table(rng, 100, 6), name="emb_item")
        self.tower = Tower(rng, 10)

    def serve(self, ids: tf.Tensor, indices: tf.Tensor, values: tf.Tensor, shape: tf.Tensor) -> dict[str, tf.Tensor]:
        sparse = tf.SparseTensor(indices, values, shape)
        untrained = tf.nn.safe_embedding_lookup_sparse(self.zeros, sparse, combiner="sqrtn")
        return {"score": self.tower(tf.concat([tf.nn.embedding_lookup(self.items, ids), untrained], 1))}


def _save_zero(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    model = ZeroTable(rng)
    specs = {"ids": one_id("ids"), "indices": tf.TensorSpec([None, 2], INT64, "indices"), "values": one_id("values")}
    save_module(path, model, model.serve, {**specs, "shape": tf.TensorSpec([2], INT64, "shape")})
    indices, shape = sparse_parts(row_lengths(rng, BATCH, 6))
    values = rng.integers(-1, 100, len(indices))
    return {SERVING: {"ids": rng.integers(0, 100, BATCH), "indices": indices, "values": values, "shape": shape}}


class SharedAndRanked(tf.Module):
    """One table by three sparse features, one of rank 3 (output [B, T, D]), one unsorted, ids used twice."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.items = tf.Variable(table(rng, 95, 6), name="emb_item")
        self.tower = Tower(rng, 19)

    def serve(self, a_indices, a_values, a_shape, b_indices, b_values, b_shape, c_indices, c_values, c_shape):  # type: ignore[no-untyped-def]
        a, b, c = (
            tf.SparseTensor(*parts)
            for parts in (
                (a_indices, a_values, a_shape),
                (b_indices, b_values, b_shape),
                (c_indices, c_values, c_shape),
            )
        )
        found = [tf.nn.safe_embedding_lookup_sparse(self.items, x, combiner="mean") for x in (a, b)]
        ranked = tf.reshape(tf.nn.safe_embedding_lookup_sparse(self.items, c, combiner="sum"), [a_shape[0], -1, 6])
        seen = tf.math.unsorted_segment_sum(tf.cast(a_values > 40, tf.float32), a_indices[:, 0], a_shape[0])
        return {"score": self.tower(tf.concat([*found, tf.reduce_max(ranked, 1), seen[:, None]], 1))}


def _save_shared(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    model = SharedAndRanked(rng)
    arrays: Arrays = {}
    for name in "abc":
        indices, shape = sparse_parts(row_lengths(rng, BATCH, 6))
        if name == "b":
            indices = rng.permutation(indices)
        if name == "c":  # [B, 3, 2]: the position splits into two axes
            indices = np.stack([indices[:, 0], indices[:, 1] // 2, indices[:, 1] % 2], 1)
            shape = np.array([BATCH, 3, 2])
        arrays |= {f"{name}_indices": indices, f"{name}_shape": shape}
        arrays[f"{name}_values"] = rng.integers(-1, 95, len(indices))
    rank = {"a": 2, "b": 2, "c": 3}
    specs = {}
    for key in arrays:
        part = key.split("_")[1]
        dims = {"indices": [None, rank[key[0]]], "values": [None], "shape": [rank[key[0]]]}[part]
        specs[key] = tf.TensorSpec(dims, INT64, key)
    save_module(path, model, model.serve, specs)
    return {SERVING: arrays}


BUILDERS = [
    ModelBuilder("j_din_tf", "J sequences", _save_din),
    ModelBuilder("m_control_flow", "stays", _save_control_flow),
    ModelBuilder("m_tied_softmax", "dense reads", _save_tied),
    ModelBuilder("o_two_signatures", "signatures", _save_two_signatures),
    ModelBuilder("o_zero_table", "zero table", _save_zero),
    ModelBuilder("o_shared_ranked", "A safe sparse", _save_shared),
]
