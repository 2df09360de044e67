"""Streams that say nothing keep nobody waiting; bodies of all requests have one bound, over gRPC too."""

import threading

import grpc
import pytest

from tests.serving.server.gate import until
from tests.serving.server.grpc_serving import request, serving
from tests.serving.server.test_grpc_faults import INFER, PREDICT, error_of, infer_body, predict_body
from tfctr.serving.server import kserve_protos
from tfctr.serving.server.limits import Limits

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


def test_idle_streams_are_bounded_and_unary_calls_go_on(grpc_models):
    end = threading.Event()

    def idle():
        end.wait(60)
        yield from ()

    with serving(grpc_models.manager, limits=Limits(max_streams=2), threads=2) as front:
        stream = front.channel.stream_stream(STREAM)
        calls = [stream(idle(), timeout=60) for _ in range(3)]
        told = front.record.wait_for("RESOURCE_EXHAUSTED")
        assert told.method == "ModelStreamInfer" and "2 open streams" in told.message and told.request_id
        until(lambda: not all(one.is_active() for one in calls))
        (refused,) = [one for one in calls if not one.is_active()]
        assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "max_streams" in refused.details()
        for _ in range(3):
            assert front.call(PREDICT, predict_body(request(1)))
        end.set()
        for one in calls:
            assert one is refused or list(one) == []

        def answered():
            try:
                return len(list(stream(iter([infer_body(request(1))]), timeout=120))) == 1
            except grpc.RpcError:
                return False

        until(answered)


def test_all_bodies_together(grpc_models):
    bodies = {PREDICT: predict_body(request(2)), INFER: infer_body(request(2))}
    with serving(grpc_models.manager, limits=Limits(max_body_bytes=4000, max_total_body_bytes=4000)) as front:
        count = front.ctx.bodies
        count.take(3990)  # of other requests
        for path, body in bodies.items():
            error = error_of(front, path, body)
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "max_total_body_bytes" in error.details()
        (answer,) = front.channel.stream_stream(STREAM)(iter([bodies[INFER]]), timeout=120)
        assert "max_total_body_bytes" in kserve_protos.ModelStreamInferResponse.FromString(answer).error_message
        assert (count.held, count.refused) == (3990, 3)
        count.give(3990)
        for path, body in bodies.items():
            assert front.call(path, body)
        assert list(front.channel.stream_stream(STREAM)(iter([bodies[INFER]]), timeout=120))
        until(lambda: count.held == 0)
        with pytest.raises(grpc.RpcError):
            front.call(PREDICT, b"\xff")
        until(lambda: count.held == 0)
