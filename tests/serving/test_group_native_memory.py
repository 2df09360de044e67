"""A request that memory does not suffice for: it alone fails, and nobody takes the executor for broken."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from tfctr.core import library
from tfctr.serving import feature_map, loaded
from tfctr.serving.signature_info import read_signature

HUGE, BLOCKS = 77.0, 99.0
WAIT = 60
OPENED = threading.Event()
ENTERED = threading.Semaphore(0)


def step(x):
    if HUGE in x:
        raise MemoryError("no memory for the tensor of this request")  # TensorFlow's RESOURCE_EXHAUSTED
    if BLOCKS in x:
        ENTERED.release()
        assert OPENED.wait(WAIT)
    return x


class Model(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def serve(self, x):
        return {"double": 2 * tf.ensure_shape(tf.numpy_function(lambda value: step(value), [x], tf.float32), [None])}


def test_mates_of_a_request_that_is_too_large_are_answered(tmp_path):
    module = Model()
    tf.saved_model.save(module, str(tmp_path / "m"), signatures={"serving_default": module.serve})
    library.load()
    native = library.native()
    model = native.Model(str(tmp_path / "m"), ["serve"], 1)
    info = read_signature(loaded.read_definitions(model)["serving_default"])
    described = feature_map.describe("model 'm', signature 's'", info, (), None, info.outputs, None, {})
    group = native.Group([model], {"batching": {"max_batch_rows": 10}})
    signature = group.signature("s", described, True)
    with ThreadPoolExecutor(8) as pool:
        try:
            blocked = pool.submit(signature.predict, {"x": [BLOCKS]}, native.Call())
            assert ENTERED.acquire(timeout=WAIT)
            futures = []
            for number in (1.0, HUGE, 2.0):
                futures.append(pool.submit(signature.predict, {"x": [number]}, native.Call()))
                while group.describe()["waiting"] < len(futures):
                    pass
        finally:
            OPENED.set()
        blocked.result(WAIT)
        for future, number in ((futures[0], 1.0), (futures[2], 2.0)):
            np.testing.assert_array_equal(future.result(WAIT)[0]["double"], [2 * number])
        with pytest.raises(native.ServeFailed, match="no memory") as failed:
            futures[1].result(WAIT)
    assert failed.value.code == "RESOURCE_EXHAUSTED"
    assert group.describe()["executors"][0]["failures"] == 0
    assert group.close(0)
