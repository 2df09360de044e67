"""Unloading gives a model's memory back to the system (TF Serving #1664)."""

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.fresh import in_fresh_process, private_bytes
from tests.serving.versions.fakes import FakeClock
from tfctr.serving.versions import ModelManager, ModelSpec

TABLE_BYTES = 32 << 20
OPTIONS = tfctr.GroupOptions(executors=2, batching=tfctr.BatchingOptions(max_batch_rows=8))


class Model(tf.Module):
    """A plain SavedModel: TensorFlow keeps its variable in anonymous memory, once for each executor."""

    def __init__(self):
        super().__init__()
        self.table = tf.Variable(tf.ones([TABLE_BYTES // 256, 64]), name="table")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def serve(self, ids):
        return {"sum": tf.reduce_sum(tf.gather(self.table, ids), 1)}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    module = Model()
    tf.saved_model.save(module, str(folder / "1"), signatures=module.serve)
    return folder


def cycles(folder, count):
    """Memory after each unload, and while the model was loaded."""
    unloaded, loaded = [], []
    with ModelManager([ModelSpec(name="m", base_path=folder, options=OPTIONS)], FakeClock(), start=False) as made:
        for _ in range(count):
            made.load("m")
            with made.acquire("m") as lease:
                outputs, _ = lease.version.signature("serving_default").predict({"ids": np.arange(20)})
            assert set(outputs["sum"].tolist()) == {64.0}
            loaded.append(private_bytes())
            del lease
            made.unload("m")
            unloaded.append(private_bytes())
    return unloaded, loaded


def check(unloaded, loaded):
    base = unloaded[1]  # threads and arenas of the first load are there by then
    assert min(loaded[2:]) - base > 2 * TABLE_BYTES * 0.9
    assert max(unloaded[2:]) - base < TABLE_BYTES / 4


def test_an_unload_gives_back_what_the_load_took(served):
    check(*in_fresh_process(cycles, served, 5))


@pytest.mark.long
def test_22_loads_and_unloads_end_where_they_began(served):
    check(*in_fresh_process(cycles, served, 22))
