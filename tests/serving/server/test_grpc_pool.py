"""Requests get a thread when their message is here, in grpc's own way where grpc can't be asked ahead."""

import threading

import grpc
import pytest

from tests.serving.server.gate import until
from tests.serving.server.grpc_serving import MODEL, request, serving
from tests.serving.server.test_grpc_faults import PREDICT, predict_body
from tfctr.serving.server import grpc_pool
from tfctr.serving.server.limits import Limits


def silent(front, end, path=PREDICT):
    """A call whose client sends nothing."""

    def nothing():
        end.wait(60)
        yield from ()

    return front.channel.stream_unary(path).future(nothing(), timeout=60)


@pytest.fixture
def end():
    made = threading.Event()
    yield made
    made.set()


def test_this_release_of_grpc_can_be_asked_ahead():
    """Where this fails after an upgrade of grpcio, requests still work, and cost a change of threads more."""
    assert grpc_pool.AHEAD


def test_calls_without_a_message_hold_no_thread(grpc_models, end):
    with serving(grpc_models.manager, threads=1) as front:
        waiting = [silent(front, end) for _ in range(3)]
        for _ in range(3):
            assert front.call(PREDICT, predict_body(request(2)))
        assert not any(one.done() for one in waiting)
        end.set()
        for one in waiting:
            assert one.code() == grpc.StatusCode.INVALID_ARGUMENT and "no message" in one.details()
        until(lambda: front.ctx.bodies.held == 0)


def test_they_count_until_they_are_given_up(grpc_models, end):
    with serving(grpc_models.manager, limits=Limits(max_concurrent=1, body_seconds=1)) as front:
        waiting = silent(front, end)
        refused = []

        def answered():
            try:
                front.call(PREDICT, predict_body(request(1)))
            except grpc.RpcError as error:
                refused.append(error.code())
                return False
            return True

        until(answered)
        assert set(refused) <= {grpc.StatusCode.RESOURCE_EXHAUSTED}
        if refused:  # the silent call was there first
            assert waiting.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_a_client_that_goes_before_its_message(grpc_models, end):
    with serving(grpc_models.manager) as front:
        one = silent(front, end)
        one.cancel()
        assert front.call(PREDICT, predict_body(request(1)))
        end.set()
        until(lambda: front.ctx.bodies.held == 0)


def test_bodies_are_counted_while_they_are_held(grpc_models):
    body = predict_body(request(5))
    limits = Limits(max_body_bytes=2 * len(body), max_total_body_bytes=2 * len(body))
    with serving(grpc_models.manager, limits=limits) as front:
        front.ctx.bodies.take(len(body) + 1)  # of others
        with pytest.raises(grpc.RpcError) as caught:
            front.call(PREDICT, body)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "max_total_body_bytes" in caught.value.details()
        front.ctx.bodies.give(len(body) + 1)
        assert front.call(PREDICT, body)
        until(lambda: front.ctx.bodies.held == 0)


def test_without_asking_ahead(grpc_models, end, monkeypatch):
    monkeypatch.setattr(grpc_pool, "AHEAD", False)
    with serving(grpc_models.manager, limits=Limits(body_seconds=1), threads=1) as front:
        waiting = silent(front, end)
        assert front.call(PREDICT, predict_body(request(1)))
        with pytest.raises(grpc.RpcError) as caught:
            front.call(PREDICT, predict_body(request(1), "strange"))
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND and MODEL in caught.value.details()
        assert waiting.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
        until(lambda: front.ctx.bodies.held == 0)
