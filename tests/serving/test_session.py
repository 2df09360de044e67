"""ServingSession on plain SavedModels: equal to stock TensorFlow, thread-safe, and clear about what does not fit."""

import concurrent.futures
import shutil
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tfctr.errors import CorruptFileError, InputError, UsageError

v1 = tf.compat.v1
RNG = np.random.default_rng(7)


class Tf2Model(tf.Module):
    """Sparse `a`, ragged string `r`, dense `d`; several outputs, a sparse and a ragged one among them."""

    def __init__(self):
        super().__init__()
        self.table = tf.Variable(RNG.normal(size=(50, 4)).astype(np.float32), name="table")
        keys = tf.constant(["x", "y", "z"])
        self.vocabulary = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(keys, tf.constant([1, 2, 3], tf.int64)), -1
        )

    @tf.function(
        input_signature=[
            tf.SparseTensorSpec([None, None], tf.int64),
            tf.RaggedTensorSpec([None, None], tf.string, 1, tf.int64),
            tf.TensorSpec([None, 3], tf.float32, name="d"),
        ]
    )
    def serve(self, a, r, d):
        pooled = tf.nn.embedding_lookup_sparse(self.table, a, None, combiner="mean")
        ids = tf.ragged.map_flat_values(self.vocabulary.lookup, r)
        score = tf.reduce_sum(pooled, 1) + tf.reduce_sum(d, 1)
        return {"score": score, "echo": a, "ids": ids, "text": tf.strings.reduce_join(r, 1), "same": d, "twice": d * 2}


A_FEATURES = [
    {"name": "a", "kind": "sparse", "parts": {"indices": "a", "values": "a_1", "dense_shape": "a_2"}},
    {"name": "r", "kind": "ragged", "parts": {"values": "r", "row_splits": "r_1"}},
]


@pytest.fixture(scope="module")
def tf2_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("tf2") / "model"
    module = Tf2Model()
    signatures = {"serving_default": module.serve, "other": module.serve}
    tf.saved_model.save(module, str(path), signatures=signatures)
    return path


@pytest.fixture(scope="module")
def tf1_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("tf1") / "model"
    with tf.Graph().as_default(), v1.Session() as session:
        ids = v1.sparse_placeholder(tf.int64, [None, None], name="ids")
        ragged = v1.ragged.placeholder(tf.int32, 1, name="ragged")
        scale = v1.placeholder(tf.float64, [], name="scale")
        table = v1.get_variable("table", initializer=RNG.normal(size=(20, 2)), use_resource=False)
        pooled = tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum") * scale
        dense = tf.gather(table, ids.values)
        offset = v1.placeholder_with_default(np.float64(1.5), [], name="offset")
        inputs = {"ids": ids, "ragged": ragged, "scale": scale, "offset": offset}
        outputs = {
            "pooled": pooled,
            "dense": dense,
            "ragged_out": ragged.with_flat_values(ragged.flat_values + 1),
            "scale_out": scale,
            "moved": scale + offset,
        }
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(path))
        signature = v1.saved_model.predict_signature_def(inputs, outputs)
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.add_meta_graph(["serve", "gpu"], {"serving_default": signature})
        builder.save()
    return path


@pytest.fixture(scope="module")
def session(tf2_path):
    with tfctr.ServingSession(tf2_path, features=A_FEATURES) as made:
        yield made


def test_inputs_that_may_be_left_out_are_known(tf1_path):
    with tfctr.SessionGroup(tf1_path) as group:
        assert group.version.signature("serving_default").optional_inputs == {"offset"}


def request_(rows, seed=0):
    rng = np.random.default_rng(seed)
    ids = [rng.integers(0, 50, rng.integers(1, 4)).tolist() for _ in range(rows)]
    words = [rng.choice(["x", "y", "z", "w"], rng.integers(0, 4)).tolist() for _ in range(rows)]
    return {"a": ids, "r": words, "d": rng.normal(size=(rows, 3)).astype(np.float32)}


def stock(path, request):
    """The same request through tf.saved_model.load."""
    model = tf.saved_model.load(str(path))
    ragged = tf.ragged.constant(request["a"], tf.int64, ragged_rank=1)
    words = tf.ragged.constant(request["r"], tf.string, ragged_rank=1)
    return model.serve(ragged.to_sparse(), words, tf.constant(request["d"]))


@pytest.mark.parametrize("rows", [1, 7, 32])
def test_tf2_outputs_equal_stock(session, tf2_path, rows):
    request = request_(rows, rows)
    want = stock(tf2_path, request)
    got = session.predict(request)
    assert sorted(got) == ["echo", "ids", "same", "score", "text", "twice"]
    np.testing.assert_array_equal(got["score"], want["score"].numpy())
    np.testing.assert_array_equal(got["twice"], want["twice"].numpy())
    np.testing.assert_array_equal(got["same"], request["d"])
    assert got["text"].tolist() == want["text"].numpy().tolist()
    assert got["text"].dtype == object
    assert got["ids"].to_list() == want["ids"].to_list()
    assert isinstance(got["echo"], v1.SparseTensorValue)
    np.testing.assert_array_equal(got["echo"].indices, want["echo"].indices.numpy())
    np.testing.assert_array_equal(got["echo"].values, want["echo"].values.numpy())
    np.testing.assert_array_equal(got["echo"].dense_shape, want["echo"].dense_shape.numpy())
    assert np.ptp(got["score"]) > 0 or rows == 1


def test_every_way_to_give_a_feature_means_the_same(session):
    request = request_(5)
    want = session.predict(request)
    sparse = tf.ragged.constant(request["a"], tf.int64).to_sparse()
    ragged = tf.ragged.constant(request["r"], tf.string, ragged_rank=1)
    forms = [
        {"a": sparse, "r": ragged},
        {
            "a": v1.SparseTensorValue(sparse.indices.numpy(), sparse.values.numpy(), sparse.dense_shape.numpy()),
            "r": v1.ragged.RaggedTensorValue(ragged.values.numpy(), ragged.row_splits.numpy()),
        },
        {
            "a": sparse.indices.numpy(),
            "a_1": sparse.values.numpy(),
            "a_2": sparse.dense_shape.numpy(),
            "r": ragged.values.numpy(),
            "r_1": ragged.row_splits.numpy(),
        },
        {"a": [np.array(row) for row in request["a"]], "r": np.array([*request["r"], None], object)[:-1]},
    ]
    for form in forms:
        got = session.predict({**form, "d": request["d"].astype(np.float64)})
        np.testing.assert_array_equal(got["score"], want["score"])
        assert got["ids"].to_list() == want["ids"].to_list()


def test_without_features_only_parts_are_known(tf2_path):
    with tfctr.ServingSession(tf2_path) as plain:
        assert plain.features == ()
        with pytest.raises(InputError, match="input 'a'"):
            plain.predict(request_(3))


def test_tf1_equals_stock(tf1_path):
    model = tf.saved_model.load(str(tf1_path), tags=["serve"]).signatures["serving_default"]
    sparse = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], np.array([3, 4, 19], np.int64), [3, 2])
    ragged = tf.ragged.constant([[1, 2], [], [3]], tf.int32)
    # Stock takes a v1 sparse input by its parts.
    with tf.Graph().as_default(), v1.Session() as v1_session:
        meta = v1.saved_model.load(v1_session, ["serve"], str(tf1_path))
        coo = meta.signature_def["serving_default"].inputs["ids"].coo_sparse
        outputs = meta.signature_def["serving_default"].outputs
        feeds = {
            coo.values_tensor_name: sparse.values.numpy(),
            coo.indices_tensor_name: sparse.indices.numpy(),
            coo.dense_shape_tensor_name: sparse.dense_shape.numpy(),
            "scale:0": 0.5,
        }
        want = v1_session.run({name: outputs[name].name for name in ("pooled", "dense")}, feeds)
    assert model is not None
    with tfctr.ServingSession(tf1_path) as session:
        assert [f.name for f in session.features] == ["ids", "ragged"]
        got = session.predict({"ids": sparse, "ragged": ragged, "scale": 0.5})
        rows = session.predict({"ids": [[3, 4], [], [19]], "ragged": [[1, 2], [], [3]], "scale": np.float32(0.5)})
    for name in ("pooled", "dense"):
        np.testing.assert_array_equal(got[name], want[name])
        np.testing.assert_array_equal(rows[name], want[name])
    assert got["ragged_out"].to_list() == [[2, 3], [], [4]]
    assert got["scale_out"] == 0.5


def test_an_input_with_a_default_may_be_left_out(tf1_path):
    request = {"ids": [[1]], "ragged": [[]], "scale": 1.0}
    with tfctr.ServingSession(tf1_path) as session:
        assert session.predict(request)["moved"] == 2.5
        assert session.predict(request | {"offset": 4.0})["moved"] == 5.0
        outputs, metadata = session.run_traced(request)
        assert outputs["moved"] == 2.5
        assert metadata.step_stats.dev_stats
        with pytest.raises(InputError, match=r"missing input 'scale' \(float64 \[\]\)"):
            session.predict({"ids": [[1]], "ragged": [[]]})


def test_outputs_may_be_written_to_and_outlive_the_session(tf2_path):
    with tfctr.ServingSession(tf2_path, features=A_FEATURES) as made:
        request = request_(4)
        first = made.predict(request)
        want = first["score"].copy()
        first["same"][:] = -1
        first["score"][:] = 0
        assert (request["d"] != -1).all()
        second = made.predict(request)
    np.testing.assert_array_equal(second["score"], want)
    np.testing.assert_array_equal(second["same"], request["d"])


def test_constant_outputs_are_not_shared_with_the_graph(tmp_path):
    class Constant(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="x")])
        def serve(self, x):
            return {"x": x + 1, "constant": tf.constant(np.arange(100, dtype=np.float32))}

    module = Constant()
    tf.saved_model.save(module, str(tmp_path / "m"), signatures=module.serve)
    with tfctr.ServingSession(tmp_path / "m") as made:
        made.predict({"x": 1.0})["constant"][:] = -1
        assert made.predict({"x": 1.0})["constant"].tolist() == list(range(100))


def test_eight_threads_get_their_own_answers(session):
    requests = [request_(rows, rows) for rows in range(1, 9)]
    want = [session.predict(request) for request in requests]
    start = threading.Barrier(8)

    def run(k):
        start.wait()
        for _ in range(50):
            got = session.predict(requests[k])
            np.testing.assert_array_equal(got["score"], want[k]["score"])
            assert got["text"].tolist() == want[k]["text"].tolist()
        return True

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(8)))


def test_closing_while_others_run(tf2_path):
    made = tfctr.ServingSession(tf2_path, features=A_FEATURES)
    request = request_(3)
    want = made.predict(request)["score"]
    running = threading.Barrier(5)

    def run(_):
        running.wait()
        end = time.monotonic() + 120  # who closes may get its turn late
        while time.monotonic() < end:
            try:
                np.testing.assert_array_equal(made.predict(request)["score"], want)
            except UsageError:
                return True
        return False

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(run, k) for k in range(4)]
        running.wait()
        made.close()
        assert all(call.result() for call in calls)


def test_close_twice_and_use_after_close(tf2_path):
    made = tfctr.ServingSession(tf2_path)
    made.close()
    made.close()
    with pytest.raises(UsageError, match=r"this ServingSession is closed"):
        made.predict({})
    with pytest.raises(UsageError, match=r"closed"):
        made.run_traced({})
    assert "serving_default" in made.signatures


def test_more_intra_op_threads_give_the_same(tf2_path, session):
    request = request_(64)
    with tfctr.ServingSession(tf2_path, intra_op_threads=2, features=A_FEATURES) as two:
        np.testing.assert_array_equal(two.predict(request)["score"], session.predict(request)["score"])


def test_traced_runs_name_their_ops(session):
    request = request_(2)
    outputs, metadata = session.run_traced(request)
    np.testing.assert_array_equal(outputs["score"], session.predict(request)["score"])
    ops = [node for device in metadata.step_stats.dev_stats for node in device.node_stats]
    assert any("SparseSegment" in node.timeline_label for node in ops)
    assert sum(node.op_end_rel_micros for node in ops) >= 0
    assert len(ops) > 5


def test_what_a_session_says_about_itself(session, tf2_path):
    assert session.path == tf2_path
    assert session.signatures == ("other", "serving_default")
    assert (session.inputs[0].name, session.inputs[0].dtype, session.inputs[0].shape) == ("a", "int64", (-1, 2))
    assert {out.name: out.kind for out in session.outputs}["ids"] == "ragged"
    assert {out.name: out.kind for out in session.outputs}["echo"] == "sparse"
    assert not session.packed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": None}, "feature 'a'|input 'a'"),
        ({"a": ...}, "missing feature 'a' "),
        ({"extra": [1]}, r"there is no input 'extra'"),
        ({"dd": [1]}, r"there is no input 'dd'"),
        ({"d": np.zeros((2, 3), np.int64).astype("U")}, r"input 'd': got <U\d+ \[2, 3\], expected float32 \[\?, 3\]"),
        ({"d": np.zeros((2, 4))}, r"input 'd': got float32 \[2, 4\], expected float32 \[\?, 3\]"),
        ({"d": np.zeros(3)}, r"input 'd': got float32 \[3\]"),
        ({"a": [[1], [2.5]]}, r"feature 'a': got the float 2.5 at \[1\]\[0\], expected a sparse int64 feature"),
        ({"r": [["x"], [1]]}, r"feature 'r': got a value of type int at \[1\]\[0\], expected a ragged string feature"),
        ({"r": [["x"], None]}, r"feature 'r': got None at \[1\]"),
        ({"d": np.zeros((5, 3))}, r"the inputs have different numbers of rows: 5 in 'd'; 2 in 'a', 'r'"),
        ({"a": [[1], [2], [3]]}, r"different numbers of rows: 2 in 'd', 'r'; 3 in 'a'|2 in 'd'.*3 in 'a'"),
        ({"a": [[1], [50]]}, r"50"),
        ({"a": [[1], [-1]]}, r"-1"),
    ],
)
def test_bad_requests_are_named_and_the_next_one_works(session, change, message):
    request = request_(2)
    want = session.predict(request)["score"]
    bad = {name: value for name, value in (request | change).items() if value is not ...}
    with pytest.raises(InputError, match=message) as caught:
        session.predict(bad)
    assert "signature 'serving_default'" in str(caught.value)
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(session.predict(request)["score"], want)


def test_inputs_must_be_a_mapping(session):
    with pytest.raises(InputError, match="must be a mapping of input names to values, got list"):
        session.predict([1, 2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"signature": "nope"}, "no signature 'nope'; there is: other, serving_default"),
        ({"tags": ("train",)}, "no MetaGraph with the tags train; there is: serve"),
        ({"intra_op_threads": 0}, "intra_op_threads is 0"),
        ({"op_libraries": ["/nowhere/lib.so"]}, "/nowhere/lib.so"),
        ({"features": [{"name": "q", "kind": "sparse", "parts": {"values": "q"}}]}, "feature 'q'"),
    ],
)
def test_wrong_arguments(tf2_path, arguments, message):
    with pytest.raises(UsageError, match=message):
        tfctr.ServingSession(tf2_path, **arguments)


def test_tags_choose_the_meta_graph(tf1_path):
    with pytest.raises(UsageError, match=r"no MetaGraph with the tags gpu; there is: serve; gpu,serve"):
        tfctr.ServingSession(tf1_path, tags=("gpu",))


def test_paths_that_are_no_model(tmp_path, tf2_path):
    with pytest.raises(UsageError, match="no such folder"):
        tfctr.ServingSession(tmp_path / "missing")
    with pytest.raises(UsageError, match="not a SavedModel"):
        tfctr.ServingSession(tmp_path)
    (tmp_path / "model.keras").write_bytes(b"x")
    with pytest.raises(UsageError, match="is a file"):
        tfctr.ServingSession(tmp_path / "model.keras")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "saved_model.pb").write_bytes(b"\xff\xff\xff nonsense")
    with pytest.raises(CorruptFileError, match="does not parse"):
        tfctr.ServingSession(tmp_path / "broken")


def test_the_highest_version_is_taken(tmp_path, tf2_path):
    shutil.copytree(tf2_path, tmp_path / "9")
    shutil.copytree(tf2_path, tmp_path / "10")
    with tfctr.ServingSession(tmp_path) as made:
        assert made.path == tmp_path / "10"


def test_missing_and_damaged_variables(tmp_path, tf2_path):
    shutil.copytree(tf2_path, tmp_path / "m")
    data = tmp_path / "m" / "variables" / "variables.data-00000-of-00001"
    good = data.read_bytes()
    table = np.frombuffer(good[: len(good) // 4 * 4], np.float32)
    assert table.size > 100
    data.write_bytes(bytes([good[0] ^ 0x40]) + good[1:])
    with pytest.raises(CorruptFileError, match="does not load"):
        tfctr.ServingSession(tmp_path / "m")
    data.unlink()
    with pytest.raises(CorruptFileError, match="does not load"):
        tfctr.ServingSession(tmp_path / "m")


def test_an_unknown_op_is_named(tmp_path, tf2_path):
    shutil.copytree(tf2_path, tmp_path / "m")
    model = tmp_path / "m" / "saved_model.pb"
    from tensorflow.core.protobuf import saved_model_pb2

    proto = saved_model_pb2.SavedModel.FromString(model.read_bytes())
    proto.meta_graphs[0].graph_def.node.add(name="odd", op="NobodyKnowsThisOp")
    model.write_bytes(proto.SerializeToString())
    with pytest.raises(UsageError, match=r"the model uses the op 'NobodyKnowsThisOp'.*op_libraries"):
        tfctr.ServingSession(tmp_path / "m")
