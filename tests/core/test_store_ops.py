"""The store ops in TF1 sessions and in eager mode: files shared by the process, zero-copy tables, vocabularies."""

import gc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fresh import in_fresh_process, mappings_of, private_bytes
from tfctr.core import library

ops = library.load()
native = library.native()


def open_store(name: str, files: list[tuple[str, Path]], fingerprints: list[str] | None = None) -> tf.Tensor:
    """Opens files of (kind, path) in an eager store and returns its handle."""
    handle = ops.tfctr_store(shared_name=name)
    ops.tfctr_store_open(
        handle,
        [str(path) for _, path in files],
        kinds=[kind for kind, _ in files],
        fingerprints=fingerprints or [""] * len(files),
    )
    return handle


# Of one open table, however many users it has: the file, and its rows in the range of addresses that overlays extend.
MAPPINGS = 2


@pytest.fixture
def table(tmp_path) -> tuple[Path, np.ndarray]:
    array = np.random.default_rng(5).normal(size=(100, 8)).astype(np.float32)
    native.write_table(tmp_path / "table", "emb_user", array)
    return tmp_path / "table", array


@pytest.fixture
def vocab(tmp_path) -> Path:
    native.write_vocab(tmp_path / "vocab", "city", [b"rome", b"oslo", b""], [10, 11, 12])
    return tmp_path / "vocab"


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (6,), (2, 3, 4)])
@pytest.mark.parametrize(
    "dtype", ["float32", "float16", ml_dtypes.bfloat16, "float64", "int32", "int64", "uint8", "int8", "bool"]
)
def test_table_of_any_type_and_rank(tmp_path, request, dtype, shape):
    array = np.random.default_rng(2).integers(0, 2, shape).astype(dtype)
    native.write_table(tmp_path / "t", "t", array)
    store = open_store(request.node.name, [("table", tmp_path / "t")])
    value = ops.tfctr_table(store, index=0, dtype=tf.as_dtype(array.dtype), shape=shape)
    np.testing.assert_array_equal(value.numpy(), array)


def test_stock_ops_read_the_mapping_bit_equal(table, request):
    path, array = table
    store = open_store(request.node.name, [("table", path)])
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 100, 50)
    segments = np.sort(rng.integers(0, 9, 50)).astype(np.int32)

    @tf.function
    def lookups(params):
        return (
            tf.gather(params, ids),
            tf.sparse.segment_mean(params, ids, segments),
            tf.sparse.segment_sum(params, ids, segments),
            tf.nn.relu(params),  # would write in place if the buffer could be forwarded: the pages are read-only
            params + 1.0,
        )

    mapped = ops.tfctr_table(store, index=0, dtype=tf.float32, shape=array.shape)
    for ours, stock in zip(lookups(mapped), lookups(tf.constant(array)), strict=True):
        np.testing.assert_array_equal(ours.numpy(), stock.numpy())


def test_elementwise_ops_right_behind_the_table_do_not_write_to_it(table, request):
    path, array = table
    name = request.node.name
    graph = tf.Graph()
    with graph.as_default():
        store = ops.tfctr_store(shared_name=name)
        init = ops.tfctr_store_open(store, [str(path)], kinds=["table"], fingerprints=[""])
        value = ops.tfctr_table(store, index=0, dtype=tf.float32, shape=array.shape)
        out = tf.reshape(tf.exp(tf.negative(value)), [-1])
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(init)
        for _ in range(2):
            np.testing.assert_allclose(session.run(out), np.exp(-array).ravel(), rtol=1e-5)
    np.testing.assert_array_equal(np.fromfile(path, np.float32, array.size).reshape(array.shape), array)


def five_sessions(path: Path) -> int:
    """What four more sessions on a table add to memory."""
    rows, width = 1 << 20, 64  # 256 MB
    probes = np.arange(0, rows, 1021)
    values = np.random.default_rng(0).normal(size=(len(probes), width)).astype(np.float32)
    native.write_surrogate_table(path, "big", "float32", [rows, width], probes, values)
    sessions = []

    def new_session():
        graph = tf.Graph()
        with graph.as_default():
            store = ops.tfctr_store(shared_name="bundle")
            init = ops.tfctr_store_open(store, [str(path)], kinds=["table"], fingerprints=[""])
            params = ops.tfctr_table(store, index=0, dtype=tf.float32, shape=[rows, width])
            ids = tf.compat.v1.placeholder(tf.int64, [None])
            gathered = tf.gather(params, ids)
            mean = tf.sparse.segment_mean(params, ids, tf.range(tf.size(ids)) // 2)
        session = tf.compat.v1.Session(graph=graph)  # default options: grappler must not fold the table
        session.run(init)
        sessions.append((session, ids, gathered, mean))

    def run_all():
        for session, ids, gathered, mean in sessions:
            rows_out, mean_out = session.run([gathered, mean], {ids: probes})
            np.testing.assert_array_equal(rows_out, values)
            assert np.isfinite(mean_out).all()

    new_session()
    run_all()
    gc.collect()
    before = private_bytes()
    for _ in range(4):
        new_session()
    run_all()
    grown = private_bytes() - before
    assert mappings_of(path) == MAPPINGS
    (stats,) = [f for f in native.store_stats()["files"] if f["path"] == str(path)]
    assert stats["refs"] == 5 * 2  # each session has it as a file and as a served table
    for session, *_ in sessions:
        session.close()
    sessions.clear()
    gc.collect()
    assert mappings_of(path) == 0
    return grown


def test_five_sessions_share_one_mapping(tmp_path):
    grown = in_fresh_process(five_sessions, tmp_path / "big")
    assert grown < 64 << 20, f"4 more sessions on a 256 MB table took {grown} bytes of memory"


def test_store_that_was_never_opened(request):
    handle = ops.tfctr_store(shared_name=request.node.name)
    with pytest.raises(tf.errors.FailedPreconditionError, match=f"'{request.node.name}'.*init op .* was not run"):
        ops.tfctr_table(handle, index=0, dtype=tf.float32, shape=[1])
    with pytest.raises(tf.errors.FailedPreconditionError, match="init op"):
        ops.tfctr_vocab_find(handle, tf.constant(["x"]), tf.constant(0, tf.int64), index=0)


def test_open_checks_kind_and_fingerprint(table, vocab, request):
    path, _ = table
    name = request.node.name
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"bundle file 1 .*is a table file, expected a vocabulary"):
        open_store(name, [("vocab", vocab), ("vocab", path)])
    with pytest.raises(tf.errors.NotFoundError, match=r"bundle file 0 .*expected: a table.*gone"):
        open_store(name, [("table", path.parent / "gone")])
    fingerprint = native.file_info(path)["fingerprint"]
    open_store(name, [("table", path)], [fingerprint])
    with pytest.raises(tf.errors.DataLossError, match=f"'{path}'.*{fingerprint}, the bundle expects 0123456789abcdef"):
        open_store(name, [("table", path)], ["0123456789abcdef"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="neither 'table' nor 'vocab'"):
        open_store(name, [("tabel", path)])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"filenames has shape \[1\], expected \[2\]"):
        ops.tfctr_store_open(ops.tfctr_store(shared_name=name), ["x"], kinds=["table"] * 2, fingerprints=[""] * 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="1 kinds but 0 fingerprints"):
        ops.tfctr_store_open(ops.tfctr_store(shared_name=name), ["x"], kinds=["table"], fingerprints=[])
    damaged = path.parent / "damaged"
    damaged.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(tf.errors.DataLossError, match=r"bundle file 0 .*damaged"):
        open_store(name, [("table", damaged)])


def test_opening_replaces_the_whole_set_or_nothing(table, vocab, tmp_path, request):
    path, array = table
    name = request.node.name
    store = open_store(name, [("table", path), ("vocab", vocab)])
    with pytest.raises(tf.errors.NotFoundError):
        open_store(name, [("table", tmp_path / "gone"), ("vocab", vocab)])
    old = ops.tfctr_table(store, index=0, dtype=tf.float32, shape=array.shape)  # the former set still serves
    native.write_table(tmp_path / "other", "other", array * 2)
    open_store(name, [("table", tmp_path / "other")])
    new = ops.tfctr_table(store, index=0, dtype=tf.float32, shape=array.shape)
    np.testing.assert_array_equal(new.numpy(), array * 2)
    np.testing.assert_array_equal(old.numpy(), array)  # tensors in flight keep their file
    assert mappings_of(vocab) == 0
    del old
    gc.collect()
    assert mappings_of(path) == 0


def test_table_errors_name_the_table(table, vocab, request):
    path, _ = table
    store = open_store(request.node.name, [("table", path), ("vocab", vocab)])
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=rf"table 'emb_user' in '{path}' is float32 \[100,8\], expected float \[8,100\]",
    ):
        ops.tfctr_table(store, index=0, dtype=tf.float32, shape=[8, 100])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected half \[100,8\]"):
        ops.tfctr_table(store, index=0, dtype=tf.float16, shape=[100, 8])
    with pytest.raises(tf.errors.InvalidArgumentError, match="only 2 files are open"):
        ops.tfctr_table(store, index=2, dtype=tf.float32, shape=[100, 8])
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"'{vocab}', is not a table file"):
        ops.tfctr_table(store, index=1, dtype=tf.float32, shape=[100, 8])
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"'{path}', is not a vocab file"):
        ops.tfctr_vocab_find(store, tf.constant(["x"]), tf.constant(0, tf.int64), index=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="tables cannot hold complex64"):
        ops.tfctr_table(store, index=0, dtype=tf.complex64, shape=[1])


def test_vocab_find_shapes_and_defaults(vocab, request):
    store = open_store(request.node.name, [("vocab", vocab)])
    keys = tf.constant([["rome", ""], ["paris", "oslo"]])
    found = ops.tfctr_vocab_find(store, keys, tf.constant(-5, tf.int64), index=0)
    assert found.numpy().tolist() == [[10, 12], [-5, 11]]
    assert ops.tfctr_vocab_find(store, tf.constant("oslo"), tf.constant(0, tf.int64), index=0).numpy() == 11
    empty = ops.tfctr_vocab_find(store, tf.zeros([0, 3], tf.string), tf.constant(0, tf.int64), index=0)
    assert empty.shape == (0, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"'city'.*has string keys, but the keys given are int64"):
        ops.tfctr_vocab_find(store, tf.constant([1], tf.int64), tf.constant(0, tf.int64), index=0)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_vocab_find_equals_stock_hash_table(tmp_path_factory, data):
    text = data.draw(st.booleans())
    key = st.binary(max_size=6) if text else st.integers(-(2**63), 2**63 - 1)
    keys = data.draw(st.lists(key, unique=True, min_size=1, max_size=40))
    asked = data.draw(st.lists(st.one_of(st.sampled_from(keys), key), max_size=60))
    dtype = tf.string if text else tf.int64
    values = np.arange(len(keys), dtype=np.int64) - 1
    path = tmp_path_factory.mktemp("v") / "v"
    native.write_vocab(path, "v", keys if text else np.array(keys, np.int64), values)
    store = open_store("vocab_equals_stock", [("vocab", path)])
    stock = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(keys, dtype), tf.constant(values)), default_value=-9
    )
    asked_tensor = tf.constant(asked, dtype)
    ours = ops.tfctr_vocab_find(store, asked_tensor, tf.constant(-9, tf.int64), index=0)
    np.testing.assert_array_equal(ours.numpy(), stock.lookup(asked_tensor).numpy())


def test_int32_keys_and_many_keys(tmp_path, request):
    keys = np.arange(50_000, dtype=np.int64) * 3 - 70_000
    native.write_vocab(tmp_path / "v", "v", keys, keys + 1)
    store = open_store(request.node.name, [("vocab", tmp_path / "v")])
    asked = np.arange(-80_000, 90_000, dtype=np.int32)
    found = ops.tfctr_vocab_find(store, asked, tf.constant(-1, tf.int64), index=0).numpy()
    np.testing.assert_array_equal(found, np.where(np.isin(asked, keys), asked + 1, -1))


def test_many_open_files_and_a_second_graph_under_one_name(table, vocab, request):
    """Several eager functions of one bundle name the same store."""
    path, array = table
    name = request.node.name

    @tf.function
    def init():
        handle = ops.tfctr_store(shared_name=name)
        ops.tfctr_store_open(
            handle, [str(path)] * 200 + [str(vocab)], kinds=["table"] * 200 + ["vocab"], fingerprints=[""] * 201
        )

    @tf.function
    def serve(ids):
        handle = ops.tfctr_store(shared_name=name)
        table_tensor = ops.tfctr_table(handle, index=199, dtype=tf.float32, shape=array.shape)
        found = ops.tfctr_vocab_find(handle, tf.constant(["rome"]), tf.constant(-1, tf.int64), index=200)
        return tf.gather(table_tensor, ids), found

    init()
    rows, found = serve(tf.constant([3, 99]))
    np.testing.assert_array_equal(rows.numpy(), array[[3, 99]])
    assert found.numpy().tolist() == [10]
    assert mappings_of(path) == MAPPINGS


def test_static_shapes_are_known():
    with tf.Graph().as_default():
        store = ops.tfctr_store(shared_name="x")
        assert store.shape == ()
        assert ops.tfctr_table(store, index=0, dtype=tf.int8, shape=[4, 2]).shape == (4, 2)
        keys = tf.compat.v1.placeholder(tf.string, [None, 3])
        found = ops.tfctr_vocab_find(store, keys, tf.constant(0, tf.int64), index=0)
        assert found.shape.as_list() == [None, 3]
        with pytest.raises(ValueError, match="rank 0"):
            ops.tfctr_vocab_find(store, keys, tf.constant([0], tf.int64), index=0)
