"""The engine does with a batch what ``EngineOptions.pieces`` says, and the numbers stay."""

from collections import Counter

import numpy as np
import onnx
import pytest

from examples.models.towers import tower_inputs
from export.feeds import Sizes, random_feeds
from export.onnx.exporter import to_onnx
from export.openvino.options import EngineOptions
from export.openvino.tuning import engine_spec, tune
from export.tower_session import TowerSession
from tests.export.onnx.exports import exported, small_tower
from tests.export.towers import tower
from tfctr.engines.native import open_engine

OPTIONS = EngineOptions(buckets=(4, 16), pad={4: 2, 16: 12}, chunk=16)


def opened(one, model, path, options):
    onnx.save(model, str(path))
    return open_engine(engine_spec(one, path, "fp32", 1, {**options.to_json(), "max_contexts": 1}))


def runs(engine):
    """Bucket (0: dynamic) -> (runs, of which filled up)."""
    return {one["rows"] or 0: (one["runs"], one["padded_runs"]) for one in engine.describe()["variants"]}


@pytest.fixture(scope="module")
def din(tmp_path_factory):
    path = tmp_path_factory.mktemp("engine") / "din.onnx"
    with opened(tower("din"), exported("din").model, path, OPTIONS) as engine, TowerSession(tower("din")) as session:
        yield engine, session


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 11, 12, 16, 17, 18, 32, 33, 45, 100])
def test_pieces(din, rows):
    """Three inputs, one of them bool, cut and filled up where they lie."""
    engine, session = din
    before = runs(engine)
    feeds = tower_inputs("din", rows, seed=rows)
    got = engine.run(feeds)["click"]
    np.testing.assert_allclose(got, session.run(feeds)["click"], rtol=1e-5, atol=1e-6)
    counted = {
        bucket: tuple(a - b for a, b in zip(after, before[bucket], strict=True))
        for bucket, after in runs(engine).items()
        if after != before[bucket]
    }
    wanted = Counter(piece.bucket for piece in OPTIONS.pieces(rows))
    filled = Counter(piece.bucket for piece in OPTIONS.pieces(rows) if piece.bucket > piece.rows)
    assert counted == {bucket: (count, filled[bucket]) for bucket, count in wanted.items()}


def test_users_of_a_split_form(tmp_path):
    """One user: static variants, in pieces too, the user's rows whole in each. Two: the dynamic one."""
    import tensorflow as tf

    one = small_tower(
        lambda x, user_y, row_to_user: {"y": tf.matmul(x + tf.gather(user_y, row_to_user), tf.fill([4, 2], 0.5))},
        x=("float32", (None, 4)), user_y=("float32", (None, 4)), row_to_user=("int64", (None,)),
    )  # fmt: skip
    options = EngineOptions(buckets=OPTIONS.buckets, pad=OPTIONS.pad, chunk=16, users=1)
    with opened(one, to_onnx(one).model, tmp_path / "split.onnx", options) as engine, TowerSession(one) as session:
        for users, rows, dynamic in ((1, 35, 0), (1, 16, 0), (2, 35, 1)):
            feeds = random_feeds(one, Sizes(rows=rows, user_rows=users))
            before = runs(engine)[0][0]
            np.testing.assert_allclose(engine.run(feeds)["y"], session.run(feeds)["y"], rtol=1e-5, atol=1e-6)
            assert runs(engine)[0][0] - before == dynamic


def test_tuning_for_real(tmp_path):
    """Whatever this machine measures: options that the engine takes, and numbers beside them."""
    path = tmp_path / "dcn.onnx"
    onnx.save(exported("dcn").model, str(path))
    tuned = tune(tower("dcn"), path, seconds=0.1)
    assert [row["rows"] for row in tuned.versus_tensorflow["rows"]] == [32, 256, 512]
    assert all(row["tensorflow_ms"] > 0 and row["openvino_ms"] > 0 for row in tuned.versus_tensorflow["rows"])
    assert EngineOptions.from_json(tuned.options).buckets == tuned.buckets
    with open_engine(engine_spec(tower("dcn"), path, "fp32", 1, tuned.options)) as engine:
        assert {variant["rows"] for variant in engine.describe()["variants"]} == {None, *tuned.buckets}
