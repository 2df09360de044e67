"""Numbers for a tower's inputs, where a model's own are not at hand: for folding shapes and for the referee."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from export.tower import Tower, TowerTensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """rows: B. user_rows: U. inner: of every other dimension that the tower leaves open. distinct: whether those of
    different names differ (``inner``, ``inner`` + 1...).
    """

    rows: int
    user_rows: int = 2
    inner: int = 4
    distinct: bool = False


def random_feeds(tower: Tower, sizes: Sizes, seed: int = 0, *, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Arrays by input name: normal with standard deviation ``scale``, bool fair, integers 0 to 3, row_to_user in
    [0, U). Equal seeds, equal arrays.
    """
    rng = np.random.default_rng((seed, sizes.rows, sizes.user_rows, sizes.inner))
    names = open_sizes(tower)
    return {one.name: _random(one, _shape(one, sizes, names), rng, sizes, scale) for one in tower.inputs}


def open_sizes(tower: Tower) -> list[str]:
    """Names of the inner sizes that the tower leaves open, in order, without repeats."""
    return list(dict.fromkeys(name for one in tower.inputs for name in one.dims if name))


def _shape(one: TowerTensor, sizes: Sizes, names: Sequence[str]) -> tuple[int, ...]:
    rows = sizes.user_rows if one.side == "user" else sizes.rows
    found = []
    for axis, size in enumerate(one.shape):
        if size is None and axis == 0:
            size = rows
        elif size is None:
            name = one.dims[axis] if one.dims else ""
            size = sizes.inner + (names.index(name) if sizes.distinct and name else 0)
        found.append(size)
    return tuple(found)


def _random(
    one: TowerTensor, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes, scale: float
) -> np.ndarray:
    dtype = tf.as_dtype(one.dtype)
    if one.side == "row_to_user":
        # Every user is there where there are rows enough: rows in any order.
        return rng.permutation(np.arange(shape[0]) % sizes.user_rows).astype(dtype.as_numpy_dtype)
    if dtype.is_bool:
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.is_integer:
        return np.asarray(rng.integers(0, 4, shape), dtype.as_numpy_dtype)
    return np.asarray(rng.standard_normal(shape) * scale, dtype.as_numpy_dtype)
