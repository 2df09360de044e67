"""Numbers for a tower's inputs, where a model's own are not at hand: for folding shapes and for the referee."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from export.tower import Tower, TowerTensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """rows: B. user_rows: U. inner: of every other dimension that the tower leaves open (by default different numbers
    along different axes).
    """

    rows: int
    user_rows: int = 2
    inner: int = 4


def random_feeds(tower: Tower, sizes: Sizes, seed: int = 0, *, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Arrays by input name: normal with standard deviation ``scale``, bool fair, integers 0 to 3, row_to_user in
    [0, U). Equal seeds, equal arrays.
    """
    rng = np.random.default_rng((seed, sizes.rows, sizes.user_rows, sizes.inner))
    return {one.name: _random(one, shape_of(one, sizes), rng, sizes, scale) for one in tower.inputs}


def shape_of(one: TowerTensor, sizes: Sizes) -> tuple[int, ...]:
    """The shape of an input at these sizes."""
    rows = sizes.user_rows if one.side == "user" else sizes.rows
    return tuple(
        size if size is not None else rows if axis == 0 else sizes.inner for axis, size in enumerate(one.shape)
    )


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
