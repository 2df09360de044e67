"""Native groups of executors: answers, batches, deadlines, cancellation, limits and failures."""

import time

from tests.serving import native_group
from tests.serving.native_group import (
    BAD,
    BLOCKS,
    BROKEN,
    GATE,
    WAIT,
    block,
    check,
    failed,
    in_ms,
    queue,
    request,
    too_late,
    wait_until,
)

opened, make, pool = native_group.opened, native_group.make, native_group.pool


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
    group, signature = make()

    def ask(first=None):
        return lambda call: pool.submit(signature.predict, request(1, first=first), call)

    def holds_the_executor(_):
        wait_until(lambda: GATE.runs or not group.describe()["executors"][0]["running"])
        return GATE.runs

    assert too_late(opened.native, ask(BLOCKS), holds_the_executor).stage == "run"
    assert GATE.entered.acquire(timeout=WAIT)
    assert too_late(opened.native, ask(), lambda error: error.stage != "pack").stage == "queue"
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
