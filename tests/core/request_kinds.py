"""Inputs of generated signatures, for tests of stacked requests: their parts, their rows, and how rows are joined."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from tests.core.test_packer import numpy_dtype, part


class Kind:
    """One input of a generated signature: its parts, rows of it, and what a request of rows is."""

    def __init__(self, name: str, parts: list[dict[str, Any]], feature: dict[str, Any] | None = None):
        self.name, self.parts, self.feature = name, parts, feature

    def numbered(self, first: int) -> dict[str, Any] | None:
        if self.feature is None:
            return None
        number = {p["name"]: first + k for k, p in enumerate(self.parts)}
        roles = {
            key: [number[n] for n in value] if isinstance(value, list) else number.get(value, value)
            for key, value in self.feature.items()
        }
        return {"name": self.name, **roles}


def values_of(draw, dtype, count):
    if dtype == "string":
        made = np.empty(count, object)
        made[:] = draw(st.lists(st.binary(max_size=30), min_size=count, max_size=count))
        return made
    return np.array(draw(st.lists(st.integers(0, 100), min_size=count, max_size=count)), np.int64).astype(
        numpy_dtype(dtype)
    )


class Dense(Kind):
    def __init__(self, name, dtype, inner, shape_known=True):
        super().__init__(name, [part(name, dtype, [-1, *inner] if shape_known else None)])
        self.dtype, self.inner = dtype, inner

    def rows(self, draw, count):
        size = int(np.prod(self.inner))
        return values_of(draw, self.dtype, count * size).reshape(count, *self.inner)

    def request(self, rows):
        return {self.name: rows}

    def join(self, pieces):
        return np.concatenate(pieces)


class Ragged(Kind):
    """Rows are RaggedTensors. weights: another input with a number for each value."""

    def __init__(self, name, dtype, levels, splits, inner=(), weights=False):
        names = ["row_splits", *(f"row_splits_{k}" for k in range(1, levels))]
        parts = [part(f"{name}/values", dtype, [-1, *inner]), *(part(f"{name}/{n}", splits, [-1]) for n in names)]
        feature = {"kind": "ragged", "values": f"{name}/values", "row_splits": [f"{name}/{n}" for n in names]}
        super().__init__(name, parts, feature)
        self.dtype, self.levels, self.splits, self.inner, self.weights = dtype, levels, splits, inner, weights
        if weights:
            self.parts = [*parts, part(f"{name}_weights", "float32", [-1]) | {"like_name": f"{name}/values"}]

    def rows(self, draw, count):
        nested = []
        for _ in range(self.levels):
            lengths = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
            nested.append(np.cumsum([0, *lengths]))
            count = int(nested[-1][-1])
        flat = values_of(draw, self.dtype, count * int(np.prod(self.inner))).reshape(count, *self.inner)
        flat = (
            tf.constant(flat, self.dtype)
            if flat.size
            else tf.zeros((count, *self.inner), self.dtype)
            if (self.dtype != "string")
            else tf.constant([], tf.string, shape=(count, *self.inner))
        )
        ragged = tf.RaggedTensor.from_nested_row_splits(flat, [tf.constant(s, self.splits) for s in nested])
        return ragged, values_of(draw, "float32", count)

    def request(self, rows):
        ragged, weights = rows
        made = {self.name: ragged}
        return made | {f"{self.name}_weights": weights} if self.weights else made

    def join(self, pieces):
        return tf.concat([ragged for ragged, _ in pieces], 0), np.concatenate([weights for _, weights in pieces])


class Sparse(Kind):
    """Rows are (indices, values, inner sizes, count)."""

    def __init__(self, name, dtype, rank):
        parts = [
            part(f"{name}/values", dtype, [-1]),
            part(f"{name}/indices", "int64", [-1, rank]),
            part(f"{name}/dense_shape", "int64", [rank]),
        ]
        feature = {"kind": "sparse"} | {role: f"{name}/{role}" for role in ("values", "indices", "dense_shape")}
        super().__init__(name, parts, feature)
        self.dtype, self.rank = dtype, rank

    def rows(self, draw, count):
        inner = draw(st.lists(st.integers(1, 3), min_size=self.rank - 1, max_size=self.rank - 1))
        dense = np.zeros((count, *inner), bool)
        size = dense.size
        dense.reshape(-1)[:] = draw(st.lists(st.booleans(), min_size=size, max_size=size))
        indices = np.argwhere(dense).astype(np.int64).reshape(-1, self.rank)
        return indices, values_of(draw, self.dtype, len(indices)), inner, count

    def request(self, rows):
        indices, values, inner, count = rows
        return {
            f"{self.name}/indices": indices,
            f"{self.name}/values": values,
            f"{self.name}/dense_shape": np.array([count, *inner], np.int64),
        }

    def join(self, pieces):
        offset, indices = 0, []
        for own, _, _, count in pieces:
            indices.append(own + np.array([offset] + [0] * (self.rank - 1)))
            offset += count
        inner = np.max([inner for _, _, inner, _ in pieces], axis=0).tolist()
        return np.concatenate(indices), np.concatenate([values for _, values, _, _ in pieces]), inner, offset


class Constant(Kind):
    """An input without rows: the same in all requests."""

    def __init__(self, name, value, shape):
        super().__init__(name, [part(name, "string" if isinstance(value, bytes) else "float32", shape)])
        self.value = value

    def rows(self, draw, count):
        return self.value

    def request(self, rows):
        return {self.name: np.array(rows, object if isinstance(rows, bytes) else np.float32)}

    def join(self, pieces):
        return pieces[0]
