"""Ids computed in the graph (family K), stacked tables with offsets (L), two-stage lookups, 16-bit tables."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import tensorflow as tf

from tests.models.base import (
    BATCH,
    SERVING,
    Arrays,
    ModelBuilder,
    Save,
    Tower,
    row_lengths,
    save_module,
    sparse_parts,
    table,
)
from tests.models.vocabularies import words


class HashModel(tf.Module):
    """int32/int64 mod, uint32/uint64 by cast, text of integers, fast and strong string hashes, split strings."""

    ROWS: ClassVar = {
        "mod32": 101,
        "mod64": 997,
        "u32": 64,
        "u64": 350,
        "text": 128,
        "fast": 500,
        "strong": 90,
        "split": 211,
        "both": 77,
    }

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.tables = {
            k: tf.Variable(table(rng, v, 4 + i), name=f"emb_{k}") for i, (k, v) in enumerate(self.ROWS.items())
        }
        self.tower = Tower(rng, sum(4 + i for i in range(len(self.ROWS))) + 4)

    def serve(self, mod32, mod64, u32, u64, text, fast, strong, split, both):  # type: ignore[no-untyped-def]
        rows = self.ROWS
        ids = {
            "mod32": mod32 % rows["mod32"],
            "mod64": tf.math.floormod(mod64, rows["mod64"]),
            "u32": tf.cast(tf.cast(u32, tf.uint32) % tf.constant(rows["u32"], tf.uint32), tf.int64),
            "u64": tf.cast(u64 % tf.constant(rows["u64"], tf.uint64), tf.int64),
            "text": tf.strings.to_hash_bucket_fast(tf.strings.as_string(text), rows["text"]),
            "fast": tf.strings.to_hash_bucket_fast(fast, rows["fast"]),
            "strong": tf.strings.to_hash_bucket_strong(strong, rows["strong"], [123, 456]),
            "both": tf.math.floormod(both, rows["both"]),
        }
        found = [tf.nn.embedding_lookup(self.tables[k], v) for k, v in ids.items()]
        # One id stream, two tables: as in DeepFM's linear and deep parts.
        found.append(tf.nn.embedding_lookup(self.tables["mod32"], ids["both"]))
        pieces = tf.strings.split(split, "|").to_sparse()
        hashed = tf.SparseTensor(
            pieces.indices, tf.strings.to_hash_bucket_fast(pieces.values, rows["split"]), pieces.dense_shape
        )
        found.append(tf.nn.safe_embedding_lookup_sparse(self.tables["split"], hashed, combiner="sqrtn"))
        return {"score": self.tower(tf.concat(found, 1))}


def _save_hash(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    model = HashModel(rng)
    names = [f"n{k}" for k in range(300)]
    wide = np.iinfo(np.int64)
    splits = ["|".join(rng.choice(names, rng.integers(0, 5))) for _ in range(BATCH)]
    arrays = {
        "mod32": rng.integers(-(2**31), 2**31, BATCH).astype(np.int32),
        "mod64": rng.integers(wide.min, wide.max, BATCH),
        "u32": rng.integers(0, 2**40, BATCH),
        "u64": rng.integers(0, 2**64, BATCH, dtype=np.uint64),
        "text": rng.integers(wide.min, wide.max, BATCH),
        "fast": words(rng, names, (BATCH,)),
        "strong": words(rng, names, (BATCH,)),
        "split": np.array([s.encode() for s in splits], object),
        "both": rng.integers(0, 10**6, BATCH),
    }
    specs = {k: tf.TensorSpec([None], tf.string if v.dtype == object else v.dtype, k) for k, v in arrays.items()}
    save_module(path, model, model.serve, specs)
    return {SERVING: arrays}


class StackedModel(tf.Module):
    """All features in one table: ids [B, F] + offsets [F], one gather to [B, F, D], pairwise products (as in DLRM)."""

    SIZES = (50, 130, 77, 210, 64)

    def __init__(self, rng: np.random.Generator, width: int = 8) -> None:
        super().__init__()
        count = len(self.SIZES)
        self.offsets = np.cumsum((0, *self.SIZES[:-1])).astype(np.int64)
        self.table = tf.Variable(table(rng, sum(self.SIZES), width), name="stacked")
        self.tower = Tower(rng, count * width + count * count)

    def serve(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        found = tf.nn.embedding_lookup(self.table, ids + self.offsets)
        pairs = tf.matmul(found, found, transpose_b=True)
        flat = [tf.reshape(found, [-1, found.shape[1] * found.shape[2]]), tf.reshape(pairs, [-1, found.shape[1] ** 2])]
        return {"score": self.tower(tf.concat(flat, 1))}


def _save_stacked(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    model = StackedModel(rng)
    count = len(model.SIZES)
    save_module(path, model, model.serve, {"ids": tf.TensorSpec([None, count], tf.int64, "ids")})
    return {SERVING: {"ids": rng.integers(0, np.array(model.SIZES), (BATCH, count))}}


class HalfModel(tf.Module):
    """Tables of float16 or bfloat16: a gather, a weighted mean (computed in float32) and an unweighted sum."""

    def __init__(self, rng: np.random.Generator, dtype: tf.DType) -> None:
        super().__init__()
        rows, widths = (80, 140, 60), (8, 5, 6)
        self.tables = [
            tf.Variable(tf.cast(table(rng, v, d), dtype), name=f"emb{k}")
            for k, (v, d) in enumerate(zip(rows, widths, strict=True))
        ]
        self.tower = Tower(rng, sum(widths))

    def serve(self, one, indices, values, weights, shape):  # type: ignore[no-untyped-def]
        ids = tf.SparseTensor(indices, values, shape)
        # safe_* wants weights of the table's dtype; it computes in float32 all the same.
        weighted = tf.SparseTensor(indices, tf.cast(weights, self.tables[1].dtype), shape)
        found = [
            tf.nn.embedding_lookup(self.tables[0], one),
            tf.nn.safe_embedding_lookup_sparse(self.tables[1], ids, weighted, combiner="mean"),
            tf.nn.safe_embedding_lookup_sparse(self.tables[2], ids, combiner="sum"),
        ]
        return {"score": self.tower(tf.concat([tf.cast(f, tf.float32) for f in found], 1))}


def _save_half(dtype: tf.DType) -> Save:
    def save(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
        model = HalfModel(rng, dtype)
        indices, shape = sparse_parts(row_lengths(rng, BATCH, 5))
        arrays = {
            "one": rng.integers(0, 80, BATCH),
            "indices": indices,
            "values": rng.integers(0, 60, len(indices)),
            "weights": rng.uniform(0.2, 2, len(indices)).astype(np.float32),
            "shape": shape,
        }
        dims = {"indices": [None, 2], "shape": [2]}
        specs = {k: tf.TensorSpec(dims.get(k, [None]), v.dtype, k) for k, v in arrays.items()}
        save_module(path, model, model.serve, specs)
        return {SERVING: arrays}

    return save


class TwoStageModel(tf.Module):
    """An item id gathers its category from an int64 table, whose result is the id of the second lookup."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.category = tf.Variable(rng.integers(0, 30, 120), trainable=False, name="category_of_item", dtype=tf.int64)
        self.items = tf.Variable(table(rng, 120, 7), name="emb_item")
        self.categories = tf.Variable(table(rng, 30, 5), name="emb_category")
        self.tower = Tower(rng, 12)

    def serve(self, item: tf.Tensor) -> dict[str, tf.Tensor]:
        found = [tf.nn.embedding_lookup(self.items, item)]
        found.append(tf.nn.embedding_lookup(self.categories, tf.gather(self.category, item)))
        return {"score": self.tower(tf.concat(found, 1))}


def _save_two_stage(path: str, rng: np.random.Generator) -> dict[str, Arrays]:
    model = TwoStageModel(rng)
    save_module(path, model, model.serve, {"item": tf.TensorSpec([None], tf.int64, "item")})
    return {SERVING: {"item": rng.integers(0, 120, BATCH)}}


BUILDERS = [
    ModelBuilder("k_hash_ids", "K computed ids", _save_hash),
    ModelBuilder("k_two_stage", "K computed ids", _save_two_stage),
    ModelBuilder("l_fused_offsets", "L stacked table", _save_stacked),
    ModelBuilder("p_half_tables", "16-bit tables", _save_half(tf.float16)),
    ModelBuilder("p_bfloat16_tables", "16-bit tables", _save_half(tf.bfloat16)),
]
