"""Native groups of executors: asynchronous requests, the way down, metrics, options, messages."""

import contextlib
import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.serving import native_group
from tests.serving.native_group import (
    BAD,
    BLOCKS,
    DEADLINES_MS,
    GATE,
    WAIT,
    block,
    check,
    expected,
    failed,
    in_ms,
    queue,
    request,
    wait_until,
)

opened, make, pool = native_group.opened, native_group.make, native_group.pool


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

    for milliseconds in DEADLINES_MS:
        with contextlib.suppress(opened.native.ServeFailed):  # it was over before the queue
            signature.predict_async(request(1), opened.native.Call(deadline_ns=in_ms(milliseconds)), take)
            break
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


def allowed_cpus(name):
    """Of every thread of this process that is called so."""
    found = []
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            lines = (thread / "status").read_text().splitlines()
            if (thread / "comm").read_text().startswith(name):
                found += [line.split()[1] for line in lines if line.startswith("Cpus_allowed_list")]
    return found


def test_cpu_sets(opened, make):
    cpu = min(os.sched_getaffinity(0))
    group, signature = make(cpu_sets=[[cpu]])
    check(signature.predict(request(2), opened.native.Call())[0], request(2))
    assert str(cpu) in allowed_cpus("tfctr_run_0")
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
