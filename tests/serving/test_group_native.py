"""Native groups of executors: answers, batches, deadlines, cancellation, limits and failures.

A gate inside the model (a Python function in its graph) holds executors until the test opens it: nothing sleeps.
"""

import concurrent.futures
import gc
import os
import threading
import time
from pathlib import Path
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


def failed(native, future_or_call):
    with pytest.raises(native.ServeFailed) as info:
        future_or_call.result(WAIT) if isinstance(future_or_call, concurrent.futures.Future) else future_or_call()
    return info.value


def test_answer_and_timing(opened, make):
    group, signature = make()
    inputs = request(5)
    outputs, timing = signature.predict(inputs, opened.native.Call())
    check(outputs, inputs)
    stages = timing.as_dict()
    parts = ("parse", "pack", "queue", "batch", "run", "split", "reply")
    assert sum(stages[part] for part in parts) == stages["total"] == timing.total
    assert all(stages[part] >= 0 for part in parts)
    assert stages["lookup"] + stages["dense"] <= stages["run"]
    assert (timing.executor, timing.rows, timing.batch_rows, timing.batch_requests) == (0, 5, 5, 1)
    told = group.describe()
    assert told["executors"][0]["runs"] == 1 and told["waiting"] == 0 and not told["closed"]


def test_output_filter(opened, make):
    _, signature = make()
    outputs, _ = signature.predict(request(2), opened.native.Call(output_filter=["double"]))
    assert list(outputs) == ["double"]
    error = failed(opened.native, lambda: signature.predict(request(2), opened.native.Call(output_filter=["nix"])))
    assert error.code == "INVALID_ARGUMENT" and "'nix'" in error.message and "score" in str(error)
    assert GATE.runs == [2]


def test_bad_input_is_named(opened, make):
    _, signature = make()
    error = failed(opened.native, lambda: signature.predict({"x": [["a"]], "ids": [[1]]}, opened.native.Call()))
    assert (error.code, error.stage) == ("INVALID_ARGUMENT", "pack") and "'x'" in error.message


def test_call_is_for_one_request(opened, make):
    _, signature = make()
    call = opened.native.Call()
    signature.predict(request(1), call)
    assert failed(opened.native, lambda: signature.predict(request(1), call)).code == "INTERNAL"


def test_requests_share_a_run(opened, make, pool):
    """TF Serving #1312, #1529: the achieved batch is told with each answer."""
    group, signature = make(batching={"max_batch_rows": 100})
    blocked = block(group, signature, pool, opened.native)
    requests = [request(rows, seed=rows) for rows in (3, 1, 8, 2)]
    futures = [queue(group, signature, pool, inputs, opened.native.Call()) for inputs in requests]
    GATE.opened.set()
    for future, inputs in zip(futures, requests, strict=True):
        outputs, timing = future.result(WAIT)
        check(outputs, inputs)
        assert (timing.rows, timing.batch_rows, timing.batch_requests) == (len(inputs["x"]), 14, 4)
    blocked[0].result(WAIT)
    assert GATE.runs == [1, 14]


def test_limit_of_a_batch(opened, make, pool):
    """Triton #7271: batches are as full as the limit lets them be."""
    group, signature = make(batching={"max_batch_rows": 6})
    block(group, signature, pool, opened.native)
    futures = [queue(group, signature, pool, request(2, seed=k), opened.native.Call()) for k in range(4)]
    GATE.opened.set()
    for k, future in enumerate(futures):
        check(future.result(WAIT)[0], request(2, seed=k))
    assert GATE.runs == [1, 6, 2]


def test_large_requests_run_in_pieces(opened, make):
    """Triton #7271: full pieces and one rest."""
    _, signature = make(2, batching={"max_batch_rows": 8})
    inputs = request(37)
    outputs, timing = signature.predict(inputs, opened.native.Call())
    check(outputs, inputs)
    assert timing.rows == 37 and sorted(GATE.runs) == [5, 8, 8, 8, 8]
    assert outputs["score"].flags.writeable


def test_large_request_with_a_bad_row(opened, make):
    group, signature = make(batching={"max_batch_rows": 8})
    inputs = request(37)
    inputs["x"][20, 0] = BAD
    assert failed(opened.native, lambda: signature.predict(inputs, opened.native.Call())).code == "INVALID_ARGUMENT"
    check(signature.predict(request(3), opened.native.Call())[0], request(3))
    assert group.describe()["waiting"] == 0


def test_a_bad_request_fails_alone(opened, make, pool):
    group, signature = make(batching={"max_batch_rows": 100})
    block(group, signature, pool, opened.native)
    bad = queue(group, signature, pool, request(2, first=BAD), opened.native.Call())
    good = queue(group, signature, pool, request(3), opened.native.Call())
    GATE.opened.set()
    error = failed(opened.native, bad)
    assert (error.code, error.stage) == ("INVALID_ARGUMENT", "run") and "x is bad" in error.message
    assert "model 'm', signature 's'" in error.message
    check(good.result(WAIT)[0], request(3))
    assert GATE.runs == [1, 5, 2, 3]


def test_executor_that_breaks_lives_on(opened, make):
    """deeprec case 25: one executor that fails gives an error, not a hang."""
    group, signature = make()
    error = failed(opened.native, lambda: signature.predict(request(1, first=BROKEN), opened.native.Call()))
    assert (error.code, error.stage) == ("INTERNAL", "run") and "the executor broke" in error.message
    check(signature.predict(request(1), opened.native.Call())[0], request(1))
    assert group.describe()["executors"][0]["failures"] == 1


def test_deadline_in_the_queue_and_while_running(opened, make, pool):
    """Triton #7512: a queue timeout that fires only when the batch that runs has ended."""
    _, signature = make()
    running = pool.submit(signature.predict, request(1, first=BLOCKS), opened.native.Call(deadline_ns=in_ms(300)))
    assert GATE.entered.acquire(timeout=WAIT)
    waiting = pool.submit(signature.predict, request(1), opened.native.Call(deadline_ns=in_ms(20)))
    error = failed(opened.native, waiting)
    assert (error.code, error.stage) == ("DEADLINE_EXCEEDED", "queue")
    error = failed(opened.native, running)
    assert (error.code, error.stage) == ("DEADLINE_EXCEEDED", "run")
    GATE.opened.set()
    check(signature.predict(request(2), opened.native.Call(deadline_ns=in_ms(60_000)))[0], request(2))
    assert GATE.runs == [1, 2]  # the late one never started
    late = opened.native.Call(deadline_ns=time.monotonic_ns())
    error = failed(opened.native, lambda: signature.predict(request(1), late))
    assert (error.code, error.stage) == ("DEADLINE_EXCEEDED", "pack")


def test_cancel(opened, make, pool):
    """Triton #4344, #4618: cancelled while it waits and while it runs; its batchmates get their answers."""
    group, signature = make(batching={"max_batch_rows": 100})
    first = opened.native.Call()
    running = pool.submit(signature.predict, request(1, first=BLOCKS), first)
    assert GATE.entered.acquire(timeout=WAIT)
    second = opened.native.Call()
    mates = [queue(group, signature, pool, request(2), opened.native.Call())]
    waiting = queue(group, signature, pool, request(3), second)
    mates.append(queue(group, signature, pool, request(4), opened.native.Call()))
    second.cancel()
    assert (failed(opened.native, waiting).code, second.cancelled) == ("CANCELLED", True)
    first.cancel()
    error = failed(opened.native, running)
    assert (error.code, error.stage) == ("CANCELLED", "run")
    GATE.opened.set()
    for future, rows in zip(mates, (2, 4), strict=True):
        check(future.result(WAIT)[0], request(rows))
    assert GATE.runs == [1, 6]


def test_queue_limit_is_exact(opened, make, pool):
    """Triton #5783, #6796: a burst of 30, room for 5: 25 are refused."""
    group, signature = make(queue_limit=5)
    block(group, signature, pool, opened.native)
    futures = [pool.submit(signature.predict, request(1), opened.native.Call()) for _ in range(30)]
    wait_until(lambda: sum(future.done() for future in futures) == 25)
    GATE.opened.set()
    errors = [future.exception(WAIT) for future in futures]
    assert sum(error is None for error in errors) == 5
    assert {error.code for error in errors if error is not None} == {"RESOURCE_EXHAUSTED"}


def test_priorities(opened, make, pool):
    """Triton #980: online traffic before offline traffic."""
    group, signature = make()
    block(group, signature, pool, opened.native)
    futures = [
        queue(group, signature, pool, request(rows), opened.native.Call(priority=priority))
        for rows, priority in ((2, 0), (3, 1), (4, 0), (5, 7))
    ]
    GATE.opened.set()
    for future in futures:
        future.result(WAIT)
    assert GATE.runs == [1, 5, 3, 2, 4]


def test_round_robin(opened, make, pool):
    """deeprec case 25: 51 calls over two executors, 25 and 26."""
    group, signature = make(2, routing="round_robin")
    list(pool.map(lambda k: signature.predict(request(1, seed=k), opened.native.Call()), range(51)))
    assert sorted(one["runs"] for one in group.describe()["executors"]) == [25, 26]


def test_one_held_executor_holds_nobody_else(opened, make, pool):
    group, signature = make(2)
    block(group, signature, pool, opened.native)
    for k in range(5):
        check(signature.predict(request(2, seed=k), opened.native.Call())[0], request(2, seed=k))


def test_asynchronous(opened, make):
    _, signature = make(batching={"max_batch_rows": 100})
    answers, done = [], threading.Semaphore(0)

    def take(*answer):
        answers.append(answer)
        done.release()

    signature.predict_async(request(3), opened.native.Call(), take)
    assert done.acquire(timeout=WAIT)
    outputs, error, timing = answers.pop()
    check(outputs, request(3))
    assert error is None and timing.total > 0
    signature.predict_async(request(3, first=BAD), opened.native.Call(), take)
    assert done.acquire(timeout=WAIT)
    outputs, error, _ = answers.pop()
    assert outputs is None and isinstance(error, opened.native.ServeFailed) and error.code == "INVALID_ARGUMENT"
    assert (
        failed(opened.native, lambda: signature.predict_async({}, opened.native.Call(), take)).code
        == "INVALID_ARGUMENT"
    )
    assert answers == []


def test_asynchronous_deadline_and_cancel(opened, make, pool):
    group, signature = make()
    block(group, signature, pool, opened.native)
    codes, done = [], threading.Semaphore(0)

    def take(_, error, __):
        codes.append((error.code, error.stage))
        done.release()

    signature.predict_async(request(1), opened.native.Call(deadline_ns=in_ms(10)), take)
    assert done.acquire(timeout=WAIT)
    call = opened.native.Call()
    signature.predict_async(request(1), call, take)
    call.cancel()
    assert done.acquire(timeout=WAIT)
    assert codes == [("DEADLINE_EXCEEDED", "queue"), ("CANCELLED", "queue")]


def test_group_that_only_a_request_holds(opened):
    """The last reference goes on the thread that calls back."""
    GATE.reset()
    group = opened.native.Group(opened.models[:1], {})
    signature = group.signature("s", opened.description)
    done = threading.Event()
    signature.predict_async(request(1, first=BLOCKS), opened.native.Call(), lambda *_: done.set())
    assert GATE.entered.acquire(timeout=WAIT)
    del group, signature
    gc.collect()
    GATE.opened.set()
    assert done.wait(WAIT)


def test_run_on(opened, make):
    group, signature = make(2)
    for executor in range(2):
        check(signature.run_on(executor, request(4)), request(4))
    assert failed(opened.native, lambda: signature.run_on(0, request(1, first=BAD))).code == "INVALID_ARGUMENT"
    with pytest.raises(IndexError, match="no executor 2"):
        signature.run_on(2, request(1))
    assert [one["runs"] for one in group.describe()["executors"]] == [0, 0]


def test_close(opened, make, pool):
    group, signature = make()
    blocked = block(group, signature, pool, opened.native)
    waiting = queue(group, signature, pool, request(1), opened.native.Call())
    closing = pool.submit(group.close, WAIT * 1_000_000_000)
    wait_until(lambda: group.describe()["closed"])
    assert failed(opened.native, lambda: signature.predict(request(1), opened.native.Call())).code == "UNAVAILABLE"
    GATE.opened.set()
    check(waiting.result(WAIT)[0], request(1))  # those inside are answered
    blocked[0].result(WAIT)
    assert closing.result(WAIT)


def test_close_without_patience(opened, make, pool):
    group, signature = make()
    blocked = block(group, signature, pool, opened.native)
    waiting = queue(group, signature, pool, request(1), opened.native.Call())
    assert not group.close(1_000_000)
    assert failed(opened.native, waiting).code == failed(opened.native, blocked[0]).code == "UNAVAILABLE"


def test_metrics(opened, make):
    """Triton #2685: buckets for the request and each of its stages."""
    group, signature = make(batching={"max_batch_rows": 100})
    for rows in (1, 5, 5):
        signature.predict(request(rows), opened.native.Call())
    failed(opened.native, lambda: signature.predict({}, opened.native.Call()))
    told = group.metrics()
    assert told["requests"] == {"OK": 3, "INVALID_ARGUMENT": 1}
    assert {"request", "pack", "queue", "run", "lookup", "dense", "reply"} <= set(told["histograms"])
    run = told["histograms"]["run"]
    assert sum(run["counts"]) == 3 and run["sum"] > 0 and len(run["counts"]) == len(run["buckets"]) + 1
    assert sum(told["histograms"]["request"]["counts"]) == 4
    assert told["batch_rows"]["sum"] == 11 and sum(told["batch_requests"]["counts"]) == 3
    quiet, signature = make(metrics=False)
    signature.predict(request(1), opened.native.Call())
    assert quiet.metrics()["requests"] == {}


def test_cpu_sets(opened, make):
    cpu = min(os.sched_getaffinity(0))
    group, signature = make(cpu_sets=[[cpu]])
    check(signature.predict(request(2), opened.native.Call())[0], request(2))
    threads = [Path("/proc/self/task", task) for task in os.listdir("/proc/self/task")]
    allowed = [
        line.split()[1]
        for thread in threads
        if (thread / "comm").read_text().startswith("tfctr_run_0")
        for line in (thread / "status").read_text().splitlines()
        if line.startswith("Cpus_allowed_list")
    ]
    assert str(cpu) in allowed
    with pytest.raises(ValueError, match="executor 0.*1023"):
        opened.native.Group(opened.models[:1], {"cpu_sets": [[1023]]})
    with pytest.raises(ValueError, match="2 sets for 1 executors"):
        opened.native.Group(opened.models[:1], {"cpu_sets": [[0], [0]]})
    pooled = opened.native.Model(str(opened.path), ["serve"], 2)
    group = opened.native.Group([pooled], {"cpu_sets": [[cpu]]})
    check(group.signature("s", opened.description).run_on(0, request(2)), request(2))
    with pytest.raises(ValueError, match="executor 0.*no CPU 5000"):
        opened.native.Group([pooled], {"cpu_sets": [[5000]]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"routing": "random"}, "neither least_loaded nor round_robin"),
        ({"queue": 5}, "'queue' is none of"),
        ({"queue_limit": -1}, "negative"),
        ({"batching": {}}, "max_batch_rows is missing"),
        ({"batching": {"max_batch_rows": 0}}, "below 1"),
        ({"batching": {"rows": 1}}, "'rows' is neither"),
    ],
)
def test_options(opened, options, message):
    with pytest.raises(ValueError, match=message):
        opened.native.Group(opened.models[:1], options)


def test_message(opened, make):
    """Request bytes to reply bytes; the same group takes arrays beside it."""
    apis = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
    _, signature = make(batching={"max_batch_rows": 100})
    inputs = request(4)
    flat = np.concatenate([np.array(ids, np.int64) for ids in inputs["ids"]])
    splits = np.cumsum([0, *(len(ids) for ids in inputs["ids"])]).astype(np.int64)
    message = apis.PredictRequest()
    for name, value in (("x", inputs["x"]), ("ids", flat), ("ids_1", splits)):
        message.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    call = opened.native.Call(reply_model_spec=("m", 3, "s"), output_filter=["score"])
    reply = signature.serve("tfs", message.SerializeToString(), call)
    response = apis.PredictResponse.FromString(reply.body)
    assert (response.model_spec.name, response.model_spec.version.value, list(response.outputs)) == ("m", 3, ["score"])
    np.testing.assert_allclose(tf.make_ndarray(response.outputs["score"]), expected(inputs), rtol=1e-5, atol=1e-5)
    parts = ("parse", "pack", "queue", "batch", "run", "split", "reply")
    assert sum(reply.timing[part] for part in parts) == reply.timing["total"] and reply.rows == 4
    error = failed(opened.native, lambda: signature.serve("tfs", b"\xff", opened.native.Call()))
    assert (error.code, error.stage) == ("INVALID_ARGUMENT", "parse")
    late = opened.native.Call(deadline_ns=1)
    error = failed(opened.native, lambda: signature.serve("tfs", message.SerializeToString(), late))
    assert (error.code, error.stage) == ("DEADLINE_EXCEEDED", "parse")
