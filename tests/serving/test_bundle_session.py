"""ServingSession on a bundle: packed requests, features by the manifest, errors that name model and feature."""

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.core.vocab_bytes import as_earlier_format
from tfctr.bundle.reader import open_bundle
from tfctr.errors import CorruptFileError, InputError, VersionError

RNG = np.random.default_rng(11)
ROWS = 30


class Model(tf.Module):
    """A sparse feature, a ragged string feature looked up by vocabulary, dense ids, dense floats."""

    def __init__(self):
        super().__init__()
        self.tables = [tf.Variable(RNG.normal(size=(ROWS, 8)).astype(np.float32), name=f"table_{k}") for k in range(3)]

    @tf.function(
        input_signature=[
            tf.SparseTensorSpec([None, None], tf.int64),
            tf.RaggedTensorSpec([None, None], tf.string, 1, tf.int64),
            tf.TensorSpec([None, 1], tf.int32, name="ids"),
            tf.TensorSpec([None, 3], tf.float32, name="d"),
        ]
    )
    def serve(self, tags, words, ids, d):
        pooled = tf.nn.safe_embedding_lookup_sparse(self.tables[0], tags, combiner="mean")
        hashed = tf.ragged.map_flat_values(tf.strings.to_hash_bucket_fast, words, num_buckets=ROWS)
        summed = tf.reduce_sum(tf.ragged.map_flat_values(tf.gather, self.tables[1], hashed), axis=1)
        single = tf.squeeze(tf.gather(self.tables[2], ids), 1)
        score = tf.reduce_sum(tf.concat([pooled, summed, single, d], 1) * tf.range(27.0), 1)
        return {"score": score, "words": words, "d": d}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    module = Model()
    tf.saved_model.save(module, str(folder / "model"), signatures=module.serve)
    tfctr.convert(str(folder / "model"), str(folder / "bundle"))
    return folder / "model", folder / "bundle"


@pytest.fixture(scope="module")
def session(paths):
    with tfctr.ServingSession(paths[1]) as made:
        yield made


def request_(rows, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "tags": [rng.integers(0, ROWS, rng.integers(0, 4)).tolist() for _ in range(rows)],
        "words": [rng.choice(["x", "yy", "", "é"], rng.integers(0, 3)).tolist() for _ in range(rows)],
        "ids": rng.integers(0, ROWS, (rows, 1)),
        "d": rng.normal(size=(rows, 3)),
    }


@pytest.mark.parametrize("rows", [0, 1, 7, 40])
def test_a_bundle_equals_stock(session, paths, rows):
    request = request_(rows, rows)
    model = tf.saved_model.load(str(paths[0]))  # held: its functions do not keep its variables alive
    want = model.serve(
        tf.ragged.constant(request["tags"], tf.int64, ragged_rank=1).to_sparse(),
        tf.ragged.constant(request["words"], tf.string, ragged_rank=1),
        tf.constant(request["ids"], tf.int32),
        tf.constant(request["d"], tf.float32),
    )
    got = session.predict(request)
    np.testing.assert_allclose(got["score"], want["score"].numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got["d"], want["d"].numpy())
    assert got["words"].to_list() == want["words"].to_list()
    assert rows < 7 or np.ptp(got["score"]) > 1


def test_requests_are_packed_and_helpers_stay_hidden(session):
    assert session.packed
    assert session.signatures == ("serving_default",)
    assert {f.name: f.kind for f in session.features} == {"tags": "sparse", "words": "ragged"}


def test_parts_and_features_mean_the_same(session):
    request = request_(6)
    sparse = tf.ragged.constant(request["tags"], tf.int64, ragged_rank=1).to_sparse()
    words = tf.ragged.constant(request["words"], tf.string, ragged_rank=1)
    parts = {f.name: f for f in session.features}
    flat = {
        parts["tags"].parts["values"]: sparse.values.numpy(),
        parts["tags"].parts["indices"]: sparse.indices.numpy(),
        parts["tags"].parts["dense_shape"]: sparse.dense_shape.numpy(),
        parts["words"].parts["values"]: words.values.numpy(),
        parts["words"].parts["row_splits"]: words.row_splits.numpy(),
        "ids": request["ids"].astype(np.int32),
        "d": request["d"].astype(np.float32),
    }
    np.testing.assert_array_equal(session.predict(flat)["score"], session.predict(request)["score"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tags": [[1], [ROWS]]}, f"tags.*{ROWS}"),
        ({"ids": np.array([[1], [-1]])}, "ids.*-1"),
        ({"ids": np.array([[1], [2**31]])}, "input 'ids': got int64 .* with the value 2147483648, which does not fit"),
        ({"words": [["x"]]}, "1 in 'words'"),
        ({"wrods": [["x"]]}, "did you mean 'words'"),
    ],
)
def test_bad_requests_name_the_feature_and_the_next_one_works(session, change, message):
    request = request_(2)
    with pytest.raises(InputError, match=message) as caught:
        session.predict(request | change)
    assert "bundle', signature 'serving_default'" in str(caught.value)
    assert session.predict(request)["score"].shape == (2,)


def test_a_traced_run_shows_few_ops(session):
    _, metadata = session.run_traced(request_(4))
    labels = [node.timeline_label for device in metadata.step_stats.dev_stats for node in device.node_stats]
    assert any("TfctrFusedLookup" in label for label in labels)
    assert not any("SparseSegment" in label for label in labels)


def test_a_missing_store_file_is_found_when_opening(paths, tmp_path):
    import shutil

    broken = tmp_path / "bundle"
    shutil.copytree(paths[1], broken)
    table = next(iter(sorted((broken / "assets").rglob("*.*"))))
    table.write_bytes(table.read_bytes()[:-1])
    with pytest.raises(CorruptFileError, match=table.name):
        tfctr.ServingSession(broken)


def test_a_bundle_with_a_vocabulary_of_an_earlier_format_says_convert_again(tmp_path):
    module = tf.Module()
    module.rows = tf.Variable(tf.ones([3, 4]))
    keys, values = tf.constant(["x", "y"]), tf.constant([1, 2], tf.int64)
    module.known = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), 0)
    module.serve = tf.function(
        lambda city: {"row": tf.gather(module.rows, module.known.lookup(city))},
        input_signature=[tf.TensorSpec([None], tf.string, "city")],
    )
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.serve)
    tfctr.convert(str(tmp_path / "model"), str(tmp_path / "bundle"))
    files = [path for path in open_bundle(tmp_path / "bundle").store_paths() if b"buckets " in path.read_bytes()]
    assert len(files) == 1
    as_earlier_format(files[0])
    with pytest.raises(VersionError, match=f"{files[0].name}' has string keys in slots.*: convert the model again"):
        tfctr.ServingSession(tmp_path / "bundle")
