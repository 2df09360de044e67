"""Keys and batches for the benchmarks of embedding variables. NumPy only: TFRA's worker imports it too.

Rows are numbered 0..N-1; a row's key is a fixed scattering of its number over the positive int64 range, so a dynamic
table sees keys without any order and a static variable the row numbers themselves. Equal arguments give equal arrays.
"""

from __future__ import annotations

import numpy as np

BATCH = 100_000  # ids per lookup or insert


def keys_of(rows: np.ndarray) -> np.ndarray:
    """int64 keys of row numbers: distinct, in [0, 2**63) (splitmix64's finaliser, which maps no two numbers to one)."""
    x = rows.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    # 62 bits in, 62 bits out: multiplication by an odd number and xor-shift are bijections modulo 2**62.
    mask = np.uint64(2**62 - 1)
    x &= mask
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9) & mask
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB) & mask
    return (x ^ (x >> np.uint64(31))).astype(np.int64)


class Popularity:
    """Draws row numbers of a table: uniform, or Zipf with the popular rows scattered over the table."""

    def __init__(self, rows: int, exponent: float | None):
        self._rows, self._cumulative = rows, np.empty(0)
        if exponent is not None:
            self._cumulative = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -exponent)
            self._cumulative /= self._cumulative[-1]
            self._row_of_rank = np.random.default_rng(7).permutation(rows)

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """int64 [count]."""
        if not len(self._cumulative):
            return rng.integers(0, self._rows, count)
        ranks = np.searchsorted(self._cumulative, rng.random(count))
        return self._row_of_rank[np.minimum(ranks, self._rows - 1)]


def lookup_rows(rows: int, exponent: float | None, batches: int, batch: int = BATCH) -> list[np.ndarray]:
    """``batches`` arrays of row numbers, int64 [batch]."""
    popularity, rng = Popularity(rows, exponent), np.random.default_rng(1)
    return [popularity.draw(rng, batch) for _ in range(batches)]


def step_rows(rows: int, exponent: float | None, features: int, batch: int, batches: int) -> list[np.ndarray]:
    """``batches`` arrays of row numbers, int64 [features, batch]: one id per feature and example."""
    popularity, rng = Popularity(rows, exponent), np.random.default_rng(2)
    return [popularity.draw(rng, features * batch).reshape(features, batch) for _ in range(batches)]
