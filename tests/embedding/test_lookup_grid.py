"""Combined lookups against stock `tf.nn.embedding_lookup_sparse`, values and gradients of rows and of weights: every
width, combiner, kind of weights, shape of batch and norm limit.
"""

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr

ROWS = 40
DIMS = (1, 3, 64, 65, 128, 257)
COMBINERS = ("sum", "mean", "sqrtn")
WEIGHTS = ("none", "random", "zeros", "some zeros", "negative")
# Ids per row.
BATCHES = {
    "mixed": (3, 0, 1, 7, 0, 0, 2),
    "all empty": (0, 0, 0),
    "trailing empty": (2, 1, 0, 0),
    "no rows": (),
    "long row": (0, 600, 1),
}
LIMITS = (None, 1.0)


@pytest.fixture(scope="module")
def tables() -> dict[int, Any]:
    """Per width a variable with keys 0..ROWS-1, and its rows; some rows are longer than the limit, some shorter."""
    made = {}
    for dim in DIMS:
        bound = 2.5 / np.sqrt(dim)
        variable = tfctr.EmbeddingVariable(dim, initializer=tfctr.Uniform(-bound, bound), seed=dim)
        made[dim] = (variable, variable.lookup(np.arange(ROWS), training=True).numpy())
    return made


def batch_of(lengths: tuple[int, ...], weights: str, seed: int) -> tuple[tf.SparseTensor, tf.SparseTensor | None]:
    rng = np.random.default_rng(seed)
    indices = [(row, column) for row, length in enumerate(lengths) for column in range(length)]
    shape = [len(lengths), max(lengths, default=0)]
    indices = np.array(indices, np.int64).reshape(-1, 2)
    ids = tf.SparseTensor(indices, rng.integers(0, ROWS, len(indices)), shape)
    if weights == "none":
        return ids, None
    values = rng.uniform(0.1, 2.0, len(indices)).astype(np.float32)
    if weights == "zeros":
        values[:] = 0
    if weights == "some zeros":
        values[::2] = 0
    if weights == "negative":
        values[::3] *= -1
    return ids, tf.SparseTensor(indices, values, shape)


def padded(rows: Any, count: int) -> Any:
    """Stock drops empty rows at the end."""
    return tf.pad(rows, [[0, int(count) - rows.shape[0]], [0, 0]])


def stock(rows: np.ndarray, ids: Any, weights: Any, combiner: str, limit: float | None, upstream: Any) -> tuple:
    params = tf.Variable(rows)
    values = None if weights is None else tf.constant(weights.values)
    with tf.GradientTape() as tape:
        if values is not None:
            tape.watch(values)
            weights = tf.SparseTensor(weights.indices, values, weights.dense_shape)
        looked = tf.nn.embedding_lookup_sparse(params, ids, weights, combiner=combiner, max_norm=limit)
        looked = padded(looked, ids.dense_shape[0])
        loss = tf.reduce_sum(looked * upstream)
    of_rows, of_weights = (
        tape.gradient(loss, [params, values])
        if values is not None
        else (
            tape.gradient(loss, params),
            None,
        )
    )
    return looked, tf.convert_to_tensor(of_rows), of_weights


def ours(variable: Any, ids: Any, weights: Any, combiner: str, limit: float | None, upstream: Any) -> tuple:
    values = None if weights is None else tf.constant(weights.values)
    with tf.GradientTape() as tape:
        if values is not None:
            tape.watch(values)
            weights = tf.SparseTensor(weights.indices, values, weights.dense_shape)
        looked = tfctr.embedding_lookup_sparse(variable, ids, weights, combiner, limit)
        loss = tf.reduce_sum(looked * upstream)
    gradients = tape.gradient(loss, [variable.handle, *([] if values is None else [values])])
    of_rows = gradients[0]
    assert len(set(of_rows.indices.numpy())) == len(of_rows.indices)  # one sum per key
    dense = tf.math.unsorted_segment_sum(of_rows.values, of_rows.indices, ROWS)
    return looked, dense, None if values is None else gradients[1]


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("batch", BATCHES)
def test_grid(tables, dim, batch):
    variable, rows = tables[dim]
    lengths = BATCHES[batch]
    # Stock refuses some batches without any id; ours are zeros.
    empty = sum(lengths) == 0
    kinds = WEIGHTS if dim in (3, 65) else WEIGHTS[:3]
    for seed, (combiner, kind, limit) in enumerate(itertools.product(COMBINERS, kinds, LIMITS)):
        ids, weights = batch_of(lengths, kind, seed)
        upstream = np.random.default_rng(seed).normal(size=(len(lengths), dim)).astype(np.float32)
        looked, of_rows, of_weights = ours(variable, ids, weights, combiner, limit, upstream)
        said = f"dim {dim}, {batch}, {combiner}, weights {kind}, max_norm {limit}"
        assert looked.shape == (len(lengths), dim), said
        if empty:
            assert not looked.numpy().any() and not of_rows.numpy().any(), said
            continue
        expected, rows_expected, weights_expected = stock(rows, ids, weights, combiner, limit, upstream)
        close = {"rtol": 2e-4, "atol": 2e-4}
        np.testing.assert_allclose(looked, expected, err_msg=said, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(of_rows, rows_expected, err_msg=said, **close)
        # Where the weights of a row are all 0, stock's gradient of sqrtn is NaN: 0 * (1 / sqrt(0)); ours is 0.
        if weights is not None:
            finite = np.isfinite(weights_expected)
            assert finite.all() or (combiner == "sqrtn" and "zeros" in kind), said
            assert not of_weights.numpy()[~finite].any(), said
            # A divisor near 0 (negative weights, mean) makes gradients large and their rounding with them.
            scale = max(1.0, float(np.abs(weights_expected[finite]).max(initial=0)))
            np.testing.assert_allclose(
                of_weights.numpy()[finite], weights_expected[finite], err_msg=said, rtol=1e-3, atol=1e-3 * scale
            )


@pytest.mark.parametrize("combiner", COMBINERS)
def test_ragged_ids_are_as_sparse_ones(tables, combiner):
    variable, _ = tables[64]
    ids, weights = batch_of(BATCHES["mixed"], "random", 1)
    ragged = tf.RaggedTensor.from_row_lengths(ids.values, BATCHES["mixed"])
    of_ids = ragged.with_values(weights.values)
    one = tfctr.embedding_lookup_sparse(variable, ids, weights, combiner)
    other = tfctr.embedding_lookup_sparse(variable, ragged, of_ids, combiner)
    np.testing.assert_array_equal(one, other)
    narrow = tf.RaggedTensor.from_row_splits(ids.values, tf.cast(ragged.row_splits, tf.int32))
    np.testing.assert_array_equal(
        one, tfctr.embedding_lookup_sparse(variable, narrow, narrow.with_values(weights.values), combiner)
    )


def test_the_default_value_takes_part(tables):
    variable = tfctr.EmbeddingVariable(2, default_value=[1.0, -2.0], initializer=tfctr.Constant(5.0))
    variable.lookup([1], training=True)
    ids = tf.ragged.constant([[1, 99], [99], []], dtype=tf.int64)
    found = tfctr.embedding_lookup_sparse(variable, ids, combiner="sum")
    np.testing.assert_array_equal(found, [[6.0, 3.0], [1.0, -2.0], [0.0, 0.0]])
    mean = tfctr.embedding_lookup_sparse(variable, ids)
    np.testing.assert_array_equal(mean, [[3.0, 1.5], [1.0, -2.0], [0.0, 0.0]])
    limited = tfctr.embedding_lookup(variable, [99], max_norm=1.0)
    np.testing.assert_allclose(limited, [[1 / np.sqrt(5), -2 / np.sqrt(5)]], rtol=1e-6)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("limit", [1.0, 100.0])
def test_rows_with_a_limit_are_as_stock(tables, dim, limit):
    variable, rows = tables[dim]
    ids = np.array([[3, 3, 0], [39, 7, 3]])
    upstream = np.random.default_rng(1).normal(size=(2, 3, dim)).astype(np.float32)
    params = tf.Variable(rows)
    with tf.GradientTape() as tape:
        expected = tf.nn.embedding_lookup(params, ids, max_norm=limit)
        loss = tf.reduce_sum(expected * upstream)
    rows_expected = tf.convert_to_tensor(tape.gradient(loss, params))
    with tf.GradientTape() as tape:
        looked = tfctr.embedding_lookup(variable, ids, max_norm=limit)
        loss = tf.reduce_sum(looked * upstream)
    gradient = tape.gradient(loss, variable.handle)
    np.testing.assert_allclose(looked, expected, rtol=1e-5, atol=1e-6)
    dense = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, ROWS)
    np.testing.assert_allclose(dense, rows_expected, rtol=1e-4, atol=1e-4)
