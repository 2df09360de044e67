"""Calls whose message does not come, and calls without one."""

import threading

import grpc
import pytest

from tests.serving.server.grpc_serving import MODEL, request, serving
from tests.serving.server.test_grpc_faults import PREDICT, predict_body
from tfctr.errors import CancelledError, DeadlineError, InputError
from tfctr.serving.server import grpc_server
from tfctr.serving.server.grpc_messages import Messages
from tfctr.serving.server.limits import Limits

STATUS = "/tensorflow.serving.ModelService/GetModelStatus"
GIVEN_UP = (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
HEALTH = "/grpc.health.v1.Health/Check"


class Context:
    """Of a call; its stream of messages fails once it is cancelled."""

    cancelled = False

    def cancel(self):
        self.cancelled = True


def _raises(error):
    raise error
    yield


def test_messages():
    now = [100.0]
    messages = Messages(5, lambda: now[0])
    assert messages.read(iter([b"x"]), Context()) == b"x"
    with pytest.raises(InputError, match="no message"):
        messages.read(iter([]), Context())
    with pytest.raises(CancelledError):
        messages.read(_raises(grpc.RpcError()), Context())

    def late(context, seconds):
        now[0] += seconds
        messages.give_up_late()
        if context.cancelled:
            raise grpc.RpcError
        yield b"y"

    assert messages.read(late(first := Context(), 4), first) == b"y"
    with pytest.raises(DeadlineError, match="after 5 s"):
        messages.read(late(second := Context(), 5), second)
    messages.give_up_late()
    assert second.cancelled and not first.cancelled


@pytest.mark.parametrize("path", [STATUS, HEALTH])
def test_half_open_calls_keep_nobody_waiting(grpc_models, path):
    """As many as there are threads, from a client that never sends."""
    end = threading.Event()

    def nothing():
        end.wait(240)
        yield from ()

    with serving(grpc_models.manager, limits=Limits(body_seconds=1)) as front:
        stuck = [
            front.channel.stream_unary(path).future(nothing(), timeout=240) for _ in range(grpc_server._CONTROL_THREADS)
        ]
        for call in stuck:  # without any other call that would look after them
            assert call.exception(timeout=120).code() in GIVEN_UP
        body = b"\n\x08\n\x06" + MODEL.encode() if path == STATUS else b""
        assert front.channel.unary_unary(path)(body, timeout=120)
        end.set()


def test_the_thread_ends_with_its_object():
    def late():
        return {one for one in threading.enumerate() if one.name == "tfctr-grpc-late"}

    before = late()
    messages = Messages(0.1)
    assert messages.read(iter([b"x"]), Context()) == b"x" and messages.read(iter([b"y"]), Context()) == b"y"
    (mine,) = late() - before
    del messages
    mine.join(120)
    assert not mine.is_alive()


def test_a_call_without_a_message(grpc_models):
    with serving(grpc_models.manager) as front:
        with pytest.raises(grpc.RpcError) as caught:
            front.channel.stream_unary(PREDICT)(iter(()), timeout=120)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "no message" in caught.value.details()
        assert front.call(PREDICT, predict_body(request(1)))
