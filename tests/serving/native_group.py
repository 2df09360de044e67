"""What the tests of native groups share: a model with a gate inside (a Python function in its graph), which holds
executors until the test opens it, so that nothing sleeps.
"""

import concurrent.futures
import os
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tfctr.core import library
from tfctr.serving import feature_map, loaded
from tfctr.serving.signature_info import read_signature

BLOCKS, BAD, BROKEN = 99.0, 77.0, 66.0  # values of x[:, 0] that mean something to the gate
TABLE = np.arange(20, dtype=np.float32).reshape(10, 2)
WAIT = 60  # seconds, for what must happen
DEADLINES_MS = (20, 300, 5000, 30_000)  # in turn: on a busy machine the first is over before a request gets anywhere


class Gate:
    """What the model's Python function does with each run."""

    def __init__(self):
        self.opened = threading.Event()
        self.entered = threading.Semaphore(0)
        self.runs = []

    def __call__(self, x):
        self.runs.append(len(x))
        if BAD in x[:, 0]:
            raise ValueError("x is bad")
        if BROKEN in x[:, 0]:
            raise RuntimeError("the executor broke")
        if BLOCKS in x[:, 0]:
            self.entered.release()
            assert self.opened.wait(WAIT)
        return x

    def reset(self):
        self.opened.clear()
        self.runs.clear()


GATE = Gate()


class Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.table = tf.Variable(TABLE)

    @tf.function(
        input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x"), tf.RaggedTensorSpec([None, None], tf.int64, 1)]
    )
    def serve(self, x, ids):
        x = tf.ensure_shape(tf.numpy_function(lambda value: GATE(value), [x], tf.float32), [None, 3])
        pooled = tf.reduce_sum(tf.ragged.map_flat_values(tf.gather, self.table, ids), 1)
        return {"score": tf.reduce_sum(x, 1) + tf.reduce_sum(pooled, 1), "ids": ids, "double": x * 2}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """native models (two), the signature's description, and what keeps the gate alive."""
    path = tmp_path_factory.mktemp("group") / "model"
    module = Model()
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.serve})
    library.load()
    native = library.native()
    models = [native.Model(str(path), ["serve"], 1) for _ in range(2)]
    info = read_signature(loaded.read_definitions(models[0])["serving_default"])
    features = feature_map.with_features(
        info, [{"name": "ids", "kind": "ragged", "parts": {"values": "ids", "row_splits": "ids_1"}}]
    )
    description = feature_map.describe("model 'm', signature 's'", info, features, None, info.outputs, None, {})
    return SimpleNamespace(native=native, models=models, description=description, module=module, path=path)


@pytest.fixture
def make(opened):
    """make(executors=1, batchable=True, **options) -> (group, signature)."""
    GATE.reset()
    groups = []

    def build(executors=1, batchable=True, max_rows=0, **options):
        group = opened.native.Group(opened.models[:executors], options)
        groups.append(group)
        return group, group.signature("s", opened.description, batchable, max_rows)

    yield build
    GATE.opened.set()
    for group in groups:
        group.close(0)


@pytest.fixture
def pool():
    with concurrent.futures.ThreadPoolExecutor(40) as executor:
        yield executor
        GATE.opened.set()


def request(rows, seed=0, first=None):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3)).astype(np.float32)
    if first is not None:
        x[0, 0] = first
    return {"x": x, "ids": [rng.integers(0, 10, rng.integers(0, 4)).tolist() for _ in range(rows)]}


def expected(inputs):
    pooled = np.array([TABLE[ids].sum() if ids else 0 for ids in inputs["ids"]], np.float32)
    return inputs["x"].sum(1) + pooled


def check(outputs, inputs):
    np.testing.assert_allclose(outputs["score"], expected(inputs), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(outputs["double"], inputs["x"] * 2)


def wait_until(condition):
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        os.sched_yield()


def block(group, signature, pool, native, executors=1):
    """Requests that hold all executors until the gate opens."""
    futures = []
    for _ in range(executors):
        futures.append(pool.submit(signature.predict, request(1, first=BLOCKS), native.Call()))
        assert GATE.entered.acquire(timeout=WAIT)
    return futures


def queue(group, signature, pool, inputs, call):
    before = group.describe()["waiting"]
    future = pool.submit(signature.predict, inputs, call)
    wait_until(lambda: group.describe()["waiting"] > before)
    return future


def in_ms(milliseconds):
    return time.monotonic_ns() + milliseconds * 1_000_000


def too_late(native, ask, far_enough):
    """The error of the request of ``ask(call)``, a future, that its deadline ends; of the first that got so far."""
    for milliseconds in DEADLINES_MS:
        error = failed(native, ask(native.Call(deadline_ns=in_ms(milliseconds))))
        assert error.code == "DEADLINE_EXCEEDED"
        if far_enough(error):
            return error
    pytest.fail(f"{milliseconds} ms did not get it further than {error.stage}")


def failed(native, future_or_call):
    with pytest.raises(native.ServeFailed) as info:
        future_or_call.result(WAIT) if isinstance(future_or_call, concurrent.futures.Future) else future_or_call()
    return info.value
