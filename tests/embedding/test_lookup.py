"""Lookups one by one: shapes, dtypes, kinds of ids, groups, gradients by every road, and what is refused."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tfctr
from tfctr.embedding import ops
from tfctr.errors import InputError, UsageError

EXTREMES = [-1, -2, 0, 1, -(2**63), 2**63 - 1]


def table(dim: int = 4, **options: Any) -> Any:
    options.setdefault("optimizer", tfctr.optimizers.SGD(1.0))
    return tfctr.EmbeddingVariable(dim, **options)


def test_every_key_is_an_ordinary_one():
    variable = table()
    rows = variable.lookup(EXTREMES, training=True).numpy()
    assert len({row.tobytes() for row in rows}) == len(EXTREMES)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable.lookup(EXTREMES, training=True))
    variable.apply_gradients(tape.gradient(loss, variable.handle))
    np.testing.assert_allclose(variable.lookup(EXTREMES), rows - 1, rtol=1e-6)
    assert variable.size() == len(EXTREMES)


def test_many_tables_take_one_op_each_way():
    variables = [table(2, name=f"t{k}") for k in range(26)]

    @tf.function(input_signature=[tf.TensorSpec([26, None], tf.int64)])
    def train(ids):
        splits = tf.constant([0, 2, 5], tf.int64)
        with tf.GradientTape() as tape:
            rows = tfctr.embedding_lookup_group(
                [
                    tfctr.Lookup(v, tf.RaggedTensor.from_row_splits(ids[k], splits), combiner="sum")
                    if k % 2
                    else (v, ids[k])
                    for k, v in enumerate(variables)
                ],
                training=True,
            )
            loss = tf.add_n([tf.reduce_sum(one) for one in rows])
        tfctr.minimize(loss, variables, tape=tape)

    ours = [op.type for op in train.get_concrete_function().graph.get_operations() if op.type.startswith("TfctrEv")]
    assert sorted(ours) == ["TfctrEvApply", "TfctrEvLookup", "TfctrEvLookupGrad"]
    before = [v.size() for v in variables]
    train(np.arange(26 * 5).reshape(26, 5))
    assert before == [0] * 26 and [v.size() for v in variables] == [5] * 26


@pytest.mark.parametrize("shape", [(), (0,), (1,), (5,), (2, 3), (2, 0, 3), (1, 2, 3, 4)])
def test_rows_have_the_shape_of_the_ids(shape):
    variable = table(3)
    ids = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    rows = variable.lookup(ids, training=True)
    assert rows.shape == (*shape, 3)
    flat = variable.lookup(ids.reshape(-1))
    np.testing.assert_array_equal(tf.reshape(rows, [-1, 3]), flat)


def test_static_shapes_are_kept():
    variable = table(5)
    seen = {}

    @tf.function(input_signature=[tf.TensorSpec([None, 7], tf.int64), tf.SparseTensorSpec([3, None], tf.int64)])
    def trace(ids, sparse):
        seen["dense"] = variable.lookup(ids).shape
        seen["sparse"] = tfctr.embedding_lookup_sparse(variable, sparse).shape
        ragged = tf.RaggedTensor.from_row_splits(ids[:, 0], tf.constant([0, 2, 2, 4], tf.int64))
        seen["ragged"] = tfctr.embedding_lookup_sparse(variable, ragged).shape
        seen["rows of ragged"] = variable.lookup(ragged).flat_values.shape

    trace.get_concrete_function()
    assert seen["dense"].as_list() == [None, 7, 5]
    assert seen["sparse"].as_list() == [3, 5]
    assert seen["ragged"].as_list() == [3, 5]
    assert seen["rows of ragged"].as_list() == [None, 5]


def test_rows_of_ragged_ids_are_ragged():
    variable = table(2)
    ids = tf.ragged.constant([[[1, 2], []], [[3]], []], dtype=tf.int64)
    rows = tfctr.embedding_lookup(variable, ids, training=True)
    assert isinstance(rows, tf.RaggedTensor)
    assert rows.ragged_rank == 2
    np.testing.assert_array_equal(rows.flat_values, variable.lookup([1, 2, 3]))
    np.testing.assert_array_equal(rows.row_splits, ids.row_splits)


@pytest.mark.parametrize("key_dtype", [tf.int32, tf.int64, tf.string])
def test_every_key_dtype_in_every_lookup(key_dtype):
    variable = table(2, key_dtype=key_dtype)
    ids = tf.constant(["a", "b", "a"]) if key_dtype == tf.string else tf.constant([7, -8, 7], key_dtype)
    with tf.GradientTape() as tape:
        rows = variable.lookup(ids, training=True)
        ragged = tf.RaggedTensor.from_row_lengths(ids, [2, 1])
        sums = tfctr.embedding_lookup_sparse(variable, ragged, combiner="sum", training=True)
        loss = tf.reduce_sum(rows) + tf.reduce_sum(sums)
    np.testing.assert_allclose(sums, [rows[0] + rows[1], rows[2]], rtol=1e-6)
    variable.apply_gradients(tape.gradient(loss, variable.handle))
    np.testing.assert_allclose(variable.lookup(ids), rows - [[4.0], [2.0], [4.0]], rtol=1e-6)


def test_inference_leaves_the_table_as_it_is():
    variable = table(default_value=7.0, record_frequency=True)
    variable.lookup([1], training=True)
    np.testing.assert_array_equal(variable.lookup([2]), np.full([1, 4], 7.0))
    assert variable.size() == 1
    assert variable.frequency([1, 2]).tolist() == [1, 0]


def test_training_may_be_a_tensor():
    variable = table()

    @tf.function
    def look(ids, training):
        return tfctr.embedding_lookup(variable, ids, training=training)

    look(tf.constant([1], tf.int64), tf.constant(False))
    assert variable.size() == 0
    look(tf.constant([1], tf.int64), tf.constant(True))
    assert variable.size() == 1


def test_a_group_is_its_lookups_one_by_one():
    users, items = table(3), table(5)
    ids = tf.constant([[1, 2], [2, 3]], tf.int64)
    sparse = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], tf.constant([1, 9, 4], tf.int64), [4, 2])
    weights = sparse.with_values(tf.constant([0.5, 2.0, -1.0]))
    ragged = tf.RaggedTensor.from_row_lengths(tf.constant([4, 1], tf.int64), [0, 2])
    lookups = [
        (users, ids),
        tfctr.Lookup(items, sparse, "sum", weights),
        tfctr.Lookup(users, sparse, "mean"),
        tfctr.Lookup(items, ragged, "sqrtn", max_norm=0.05),
        tfctr.Lookup(items, ragged),
    ]
    with tf.GradientTape() as tape:
        found = tfctr.embedding_lookup_group(lookups, training=True)
        loss = tf.add_n([tf.reduce_sum(rows**2) for rows in found[:4]])
    grouped = tape.gradient(loss, [users.handle, items.handle])
    with tf.GradientTape() as tape:
        alone = [
            users.lookup(ids, training=True),
            tfctr.embedding_lookup_sparse(items, sparse, weights, "sum", training=True),
            tfctr.embedding_lookup_sparse(users, sparse, None, "mean", training=True),
            tfctr.embedding_lookup_sparse(items, ragged, None, "sqrtn", 0.05, training=True),
            items.lookup(ragged, training=True),
        ]
        loss = tf.add_n([tf.reduce_sum(rows**2) for rows in alone[:4]])
    single = tape.gradient(loss, [users.handle, items.handle])
    for one, other in zip(found[:4], alone[:4], strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(found[4].flat_values, alone[4].flat_values)
    for one, other in zip(grouped, single, strict=True):
        keys = np.unique(one.indices)
        np.testing.assert_array_equal(keys, np.unique(other.indices))
        for key in keys:
            sums = [tf.reduce_sum(g.values[g.indices == key], axis=0).numpy() for g in (one, other)]
            np.testing.assert_allclose(*sums, rtol=1e-5, atol=1e-6)


def test_gradients_by_every_road():
    variable = table(initializer=tfctr.Constant(1.0))
    ids = tf.constant([3, 3, 5], tf.int64)

    def loss_of():
        return tf.reduce_sum(variable.lookup(ids, training=True) ** 2)

    with tf.GradientTape() as eager:
        loss = loss_of()
    results = [eager.gradient(loss, variable.handle)]
    inside = tf.function(lambda: _gradient(loss_of, variable))
    results.append(inside())
    forward = tf.function(loss_of)
    with tf.GradientTape() as outside:
        loss = forward()
    results.append(outside.gradient(loss, variable.handle))
    for gradient in results:
        assert isinstance(gradient, tf.IndexedSlices)
        np.testing.assert_array_equal(gradient.indices, [3, 3, 5])
        np.testing.assert_array_equal(gradient.values, np.full([3, 4], 2.0))


def test_a_lookup_that_would_run_twice_is_refused():
    variable = table(name="clicks")
    with tf.GradientTape(), pytest.raises(UsageError, match=r"'clicks'.*recompute_grad.*rows as an argument"):
        tf.recompute_grad(lambda: variable.lookup([1], training=True))()


def _gradient(loss_of: Any, variable: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = loss_of()
    return tape.gradient(loss, variable.handle)


def test_an_unused_lookup_has_no_gradient():
    variable, other = table(), table()
    with tf.GradientTape() as tape:
        variable.lookup([1], training=True)
        loss = tf.reduce_sum(other.lookup([1], training=True))
    assert tape.gradient(loss, variable.handle) is None


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6), max_size=6),
    st.sampled_from(["sum", "mean", "sqrtn"]),
    st.randoms(use_true_random=False),
)
def test_any_batch_is_as_numpy_says(rows, combiner, random):
    variable = table(3)
    flat = np.array([key for row in rows for key in row], np.int64)
    ragged = tf.RaggedTensor.from_row_lengths(flat, np.array([len(row) for row in rows], np.int64))
    weights = np.array([random.uniform(0.1, 2.0) for _ in flat], np.float32)
    of_keys = variable.lookup(flat, training=True).numpy()
    found = tfctr.embedding_lookup_sparse(variable, ragged, ragged.with_values(weights), combiner, training=True)
    expected = np.zeros([len(rows), 3], np.float32)
    at = 0
    for r, row in enumerate(rows):
        w, v = weights[at : at + len(row)], of_keys[at : at + len(row)]
        at += len(row)
        divisor = {"sum": 1.0, "mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}[combiner]
        if row:
            expected[r] = (w[:, None] * v).sum(0) / divisor
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=12), st.integers(0, 7))
def test_row_splits_of_any_sparse_rows(rows, count):
    rows = np.array(rows, np.int64)
    indices = np.stack([rows, np.arange(len(rows))], 1).reshape(-1, 2)
    in_order = bool((np.diff(rows) >= 0).all()) and (len(rows) == 0 or int(rows.max()) < count)
    shape = np.array([count, max(1, len(rows))], np.int64)
    if not in_order:
        with pytest.raises(tf.errors.InvalidArgumentError, match="row"):
            ops.row_splits_of(indices, shape)
        return
    np.testing.assert_array_equal(ops.row_splits_of(indices, shape), np.searchsorted(rows, np.arange(count + 1)))


SPARSE = tf.SparseTensor([[0, 0]], tf.constant([1], tf.int64), [1, 1])
BAD = [
    (lambda v: v.lookup([1.5]), InputError, "float"),
    (lambda v: v.lookup(["a"]), InputError, "ids are string"),
    (lambda v: v.lookup(SPARSE), InputError, "SparseTensor"),
    (lambda v: tfctr.embedding_lookup_sparse(v, tf.constant([1], tf.int64)), InputError, "expected a SparseTensor"),
    (
        lambda v: tfctr.embedding_lookup_sparse(v, tf.ragged.constant([[[1]]], dtype=tf.int64)),
        InputError,
        "RaggedTensor",
    ),
    (lambda v: tfctr.embedding_lookup_sparse(v, SPARSE, combiner="max"), UsageError, "combiner is 'max'"),
    (lambda v: tfctr.embedding_lookup_sparse(v, SPARSE, max_norm=0.0), UsageError, "max_norm is 0.0"),
    (lambda v: v.lookup([1], max_norm=np.inf), UsageError, "max_norm is inf"),  # inf / inf: a row would be NaN
    (lambda v: v.lookup([1], max_norm=1e300), UsageError, "max_norm is 1e"),  # infinite as a float32
    (lambda v: v.lookup([1], max_norm="1"), UsageError, "max_norm is '1'"),
    (lambda v: tfctr.embedding_lookup_sparse(v, SPARSE, SPARSE), InputError, "weights are int64"),
    (
        lambda v: tfctr.embedding_lookup_sparse(v, SPARSE, tf.ragged.constant([[1.0]])),
        InputError,
        "expected a SparseTensor",
    ),
    (lambda v: tfctr.embedding_lookup_group([v]), UsageError, "expected a tfctr.Lookup"),
    (lambda v: tfctr.embedding_lookup_group([tfctr.Lookup(v, [1], weights=[1.0])]), InputError, "without a combiner"),
]


@pytest.mark.parametrize(("look", "error", "said"), BAD, ids=[said for _, _, said in BAD])
def test_bad_input_is_named(look, error, said):
    variable = table(2, name="clicks")
    with pytest.raises(error, match=said) as caught:
        look(variable)
    assert "clicks" in str(caught.value)
    assert variable.lookup([1], training=True).shape == (1, 2)  # the next lookup works


def test_bad_tensors_are_named_by_the_op():
    variable = table(2, name="clicks")
    ids = tf.RaggedTensor.from_row_splits(tf.constant([1, 2], tf.int64), tf.constant([0, 2], tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"lookup 0 .*'clicks'.*weights.*\[2\]"):
        weights = tf.RaggedTensor.from_row_splits([1.0, 2.0, 3.0], tf.constant([0, 3], tf.int64))
        tfctr.embedding_lookup_sparse(variable, ids, weights)
    spec = [ops.LookupSpec(2, "sum", splits=0)]
    keys = [tf.constant([1, 2], tf.int64)]
    for splits, said in (([0, 1], "goes from 0 to 1"), ([0, 3, 2], "falls from 3 to 2"), ([1, 2], "goes from 1")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=said):
            ops.lookup([variable.handle], keys, spec, row_splits=[tf.constant(splits, tf.int64)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="rows of 3 floats, the variable has rows of 2"):
        ops.lookup([variable.handle], keys, [ops.LookupSpec(3)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="value 1 is in row 0, after one in row 1"):
        tfctr.embedding_lookup_sparse(variable, tf.SparseTensor([[1, 0], [0, 0]], keys[0], [2, 1]))
    for rows in (-1, 2**63 - 1):  # a shape of the latter + 1 ended the process
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"dense_shape says {rows} rows"):
            tfctr.embedding_lookup_sparse(variable, tf.SparseTensor([[0, 0]], keys[0][:1], [rows, 1]))


def test_updates_are_checked_before_a_row_changes():
    variable = table(2, name="clicks")
    before = variable.lookup([1, 2, 3], training=True).numpy()
    keys = tf.constant([1, 2, 3], tf.int64)
    for bad in (np.nan, np.inf, -np.inf):
        grads = np.ones([3, 2], np.float32)
        grads[1, 1] = bad
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"'clicks'.*\b2\b"):
            ops.apply([variable.handle], [keys], [tf.constant(grads)], [1.0], 0)
        np.testing.assert_array_equal(variable.lookup([1, 2, 3]), before)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected \[n\] and \[n, 2\]"):
        ops.apply([variable.handle], [keys], [tf.ones([3, 3])], [1.0], 0)
    with pytest.raises(tf.errors.FailedPreconditionError, match="no optimizer"):
        still = table(2, optimizer=None)
        ops.apply([still.handle], [keys], [tf.ones([3, 2])], [1.0], 0)
    ops.apply([variable.handle], [keys], [tf.ones([3, 2])], [1.0], 0)
    np.testing.assert_allclose(variable.lookup([1, 2, 3]), before - 1, rtol=1e-6)


def test_a_name_with_another_config_is_refused():
    variable = table(2, shared_name="one_name")
    again = ops.handle(variable.config, shared_name="one_name")
    np.testing.assert_array_equal(ops.size(again), ops.size(variable.handle))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"'one_name' already, with another configuration"):
        ops.handle(
            variable.config.replace('"dim": 2', '"dim": 3').replace('"dim":2', '"dim":3'), shared_name="one_name"
        )


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{", "no JSON"),
        ('{"format": 2, "name": "x", "dim": 4}', "'x': its config has format 2"),
        ('{"format": 1, "name": "x", "dim": 0}', "'dim' is 0"),
        ('{"format": 1, "name": "x", "dim": 4, "tiers": []}', "'tiers' is not known"),
        ('{"format": 1, "name": "x", "dim": 4, "seed": "-1"}', "'seed' must be an integer"),
        ('{"format": 1, "name": "x", "dim": 4, "default_value": [1, 2]}', "has 2 numbers"),
        ('{"format": 1, "name": "x", "dim": 4, "optimizer": {"kind": "magic"}}', "magic"),
        ('{"format": 1, "name": "x", "dim": 4, "eviction": [{"kind": "fifo"}]}', r"eviction\[0\]: 'kind' is 'fifo'"),
        ('{"format": 1, "name": "x", "dim": 4, "eviction": [{"kind": "step", "steps_to_live": 1}]}', "last step"),
        ('{"format": 1, "name": "x", "dim": 4, "admission": {"kind": "bloom", "min_count": 1}}', "expected_keys"),
        ('{"format": 1, "name": "x", "dim": 4, "clip": {"kind": "value", "limit": -1}}', "'limit' must be above 0"),
    ],
)
def test_a_wrong_config_is_refused_by_member(config, said):
    with pytest.raises(tf.errors.InvalidArgumentError, match=said):
        ops.handle(config, shared_name="never_made")


@pytest.mark.parametrize("large", [10_000, 60_000])
def test_updates_of_any_size(large):
    """The second is spread over the threads in pieces."""
    rng = np.random.default_rng(large)
    variables = [table(3, initializer=tfctr.Constant(0.0)) for _ in range(2)]
    handles = [variable.handle for variable in variables]
    keys = [rng.integers(0, 30_000, large), rng.integers(0, 50, 500)]
    grads = [rng.normal(size=(len(k), 3)).astype(np.float32) for k in keys]
    for variable, k in zip(variables, keys, strict=True):
        variable.lookup(k[::2], training=True)
    inserted = [set(k[::2]) for k in keys]

    def apply(grads: list[np.ndarray]) -> None:
        ops.apply(handles, [tf.constant(k) for k in keys], [tf.constant(g) for g in grads], [1.0, 0.5], 0)

    apply(grads)
    for variable, k, g, rate, have in zip(variables, keys, grads, [1.0, 0.5], inserted, strict=True):
        distinct, place = np.unique(k, return_inverse=True)
        sums = np.zeros([len(distinct), 3])
        np.add.at(sums, place, g)
        sums[[key not in have for key in distinct]] = 0  # no row, no update
        np.testing.assert_allclose(variable.lookup(distinct), -rate * sums, rtol=1e-4, atol=1e-4)
        assert variable.size() == len(have)
    before = variables[0].lookup(keys[0]).numpy()
    grads[0][-1, -1] = np.nan
    with pytest.raises(tf.errors.InvalidArgumentError, match=str(keys[0][-1])):
        apply(grads)
    np.testing.assert_array_equal(variables[0].lookup(keys[0]), before)
