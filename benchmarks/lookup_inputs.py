"""Inputs of the lookup benchmark: tables and batches of sparse features with Zipf-distributed ids."""

from __future__ import annotations

import dataclasses

import numpy as np

VOCABULARY, WIDTH, ZIPF = 100_000, 16, 1.05


@dataclasses.dataclass(frozen=True)
class Batch:
    """Per feature: int64 ids [N], indices [N, 2], dense_shape [2]."""

    ids: list[np.ndarray]
    indices: list[np.ndarray]
    shape: np.ndarray


def make_tables(features: int) -> list[np.ndarray]:
    """``features`` tables, float32 [VOCABULARY, WIDTH]."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=(VOCABULARY, WIDTH)).astype(np.float32) for _ in range(features)]


def make_batches(features: int, rows: int, count: int, vocabulary: int = VOCABULARY) -> list[Batch]:
    """``count`` batches of ``rows`` rows, 1-3 ids per row. Popular ids are spread over the table, as hashing does."""
    rng = np.random.default_rng(1)
    weights = np.arange(1, vocabulary + 1) ** -ZIPF
    cumulative = np.cumsum(weights / weights.sum())
    places = rng.permutation(vocabulary)
    batches = []
    for _ in range(count):
        ids, indices = [], []
        for _ in range(features):
            counts = rng.integers(1, 4, rows)
            total = int(counts.sum())
            ranks = np.searchsorted(cumulative, rng.random(total)).clip(max=vocabulary - 1)
            ids.append(places[ranks].astype(np.int64))
            row = np.repeat(np.arange(rows), counts)
            column = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
            indices.append(np.ascontiguousarray(np.stack([row, column], 1).astype(np.int64)))
        batches.append(Batch(ids, indices, np.array([rows, 3], np.int64)))
    return batches
