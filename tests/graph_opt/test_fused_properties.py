"""Property: whatever lookup is fused, on whatever ids, it gives what the unfused graph gives, errors included."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graph_opt.finish import finish
from graph_opt.passes.fuse_lookups import fuse_lookups
from graph_opt.sessions import ItemSession
from graph_opt.testing import SIGNATURE, apply, graph_item
from tests.graph_opt.graphs import ROWS, placeholder, sparse_input, table

COMBINERS = ("sum", "mean", "sqrtn")
EDGES = (-1, 0, 1, ROWS - 1, ROWS, np.iinfo(np.int64).min, np.iinfo(np.int64).max)
LENGTHS = st.lists(st.sampled_from([0, 0, 1, 2, 7, 8, 9, 10, 17]), max_size=7)


def outputs(tables):
    """One lookup per output: safe and plain, weighted, default_id, max_norm, wrapped gathers, masked pooling."""
    emb, sparse = tables["emb"], sparse_input("s")
    weights = tf.SparseTensor(sparse.indices, placeholder(tf.float32, [None], "w"), sparse.dense_shape)
    made = {f"safe_{c}": tf.nn.safe_embedding_lookup_sparse(emb, sparse, combiner=c) for c in COMBINERS}
    made |= {f"weighted_{c}": tf.nn.safe_embedding_lookup_sparse(emb, sparse, weights, combiner=c) for c in COMBINERS}
    made["default_id"] = tf.nn.safe_embedding_lookup_sparse(emb, sparse, combiner="mean", default_id=3)
    made["max_norm"] = tf.nn.safe_embedding_lookup_sparse(emb, sparse, combiner="sum", max_norm=1.5)
    made |= {f"plain_{c}": tf.nn.embedding_lookup_sparse(emb, sparse, None, combiner=c) for c in COMBINERS}
    dense = placeholder(tf.int64, [None, None], "d")
    made["gather"] = tf.gather(emb, dense)
    made["wrapped"] = tf.gather(emb, tf.where(dense < 0, dense + ROWS, dense))
    made["modulo"] = tf.gather(emb, tf.math.floormod(dense, ROWS))
    kept = tf.cast(tf.not_equal(dense, 0), tf.float32)[..., None]
    summed = tf.reduce_sum(tf.gather(emb, dense) * kept, 1)
    made["masked_mean"] = summed / tf.maximum(tf.reduce_sum(kept, 1), 1.0)
    return made


class Sides:
    """Sessions over the graph before and after fusing, one output at a time."""

    def __init__(self, folder):
        before = graph_item(outputs, tables={"emb": table()}, work_dir=folder)
        after, self.outcome = apply(fuse_lookups, before)
        self.sessions = []
        for item in (before, after):
            ready = item.copy()
            finish(ready)
            self.sessions.append(ItemSession(ready))
        self.names = {name: info.name for name, info in before.signatures[SIGNATURE].outputs.items()}
        self.inputs = {name: info.name for name, info in before.signatures[SIGNATURE].inputs.items()}

    def run(self, session, output, feeds):
        fed = {self.inputs[n]: v for n, v in feeds.items()}
        try:
            return session.run([self.names[output]], fed)[0]
        except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError):
            return None


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    made = Sides(tmp_path_factory.mktemp("properties"))
    yield made
    for session in made.sessions:
        session.close()


def test_all_are_fused(sides):
    assert not sides.outcome.refused, [r.reason for r in sides.outcome.refused]
    assert sides.outcome.fired == len(sides.names)


@st.composite
def feeds(draw):
    lengths = draw(LENGTHS)
    count = sum(lengths)
    good = st.integers(0, ROWS - 1)
    one = draw(st.sampled_from([good, st.one_of(good, st.just(-1)), st.one_of(good, st.sampled_from(EDGES))]))
    ids = np.asarray(draw(st.lists(one, min_size=count, max_size=count)), np.int64)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    position = np.concatenate([np.arange(n) for n in lengths] or [np.zeros(0)])
    indices = np.stack([rows, position], 1).astype(np.int64)
    weight = st.sampled_from([1.0, 0.5, 2.0, 0.0, -0.5, float("nan")])
    weights = np.asarray(draw(st.lists(weight, min_size=count, max_size=count)), np.float32)
    if draw(st.booleans()) and count > 1:
        order = np.asarray(draw(st.permutations(range(count))))
        ids, indices, weights = ids[order], indices[order], weights[order]
    shape = draw(st.sampled_from([(0, 3), (1, 1), (7, 9), (3, 17), (2, 0)]))
    dense = np.asarray(draw(st.lists(one, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])), np.int64)
    return {
        "s_ids": ids,
        "s_indices": indices.reshape(-1, 2),
        "s_shape": np.asarray([len(lengths), max([1, *lengths])], np.int64),
        "w": weights,
        "d": dense.reshape(shape),
    }


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(fed=feeds())
def test_equal_to_the_unfused_graph(sides, fed):
    # The fused graph runs all lookups of a group at once, so an error in one is an error of all: errors are compared
    # where at least one lookup that reads the same ids fails, values where none does.
    expected = {name: sides.run(sides.sessions[0], name, fed) for name in sides.names}
    got = {name: sides.run(sides.sessions[1], name, fed) for name in sides.names}
    empty = len(fed["s_shape"]) and fed["s_shape"][0] == 0 or 0 in fed["d"].shape
    for name, value in got.items():
        if value is None:
            assert any(v is None for v in expected.values()), (
                f"{name}: the fused op raises, nothing in the original does"
            )
            continue
        assert expected[name] is not None or (empty and value.size == 0), f"{name}: only the original raises"
        if expected[name] is not None:
            exact = not name.startswith(("weighted", "max_norm", "masked"))
            rtol, atol = (0.0, 0.0) if exact else (1e-5, 2e-6)
            np.testing.assert_allclose(value, expected[name], rtol, atol, equal_nan=True, err_msg=name)
