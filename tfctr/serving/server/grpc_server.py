"""The gRPC front: TF Serving's and KServe's services, health and reflection on one server.

The synchronous server of grpc with raw-bytes handlers: it measured faster here than the asynchronous one, and a
request waits in C++ without the GIL. Threads are split, so that one kind of request never keeps another waiting:

=============  =====================================================
requests       ``ctx.grpc_threads``: everything that runs a model
streams        one for each open ModelStreamInfer, of which there are ``limits.max_streams``
control        metadata, status, health checks, refusals
changes        loads and unloads
reflection     reflection
=============  =====================================================
"""

from __future__ import annotations

from concurrent import futures
from typing import Any

import grpc

from tfctr.serving.server import grpc_health, kserve_grpc, tfs_grpc
from tfctr.serving.server.context import ServerContext
from tfctr.serving.server.grpc_calls import Services
from tfctr.serving.server.grpc_pool import RequestPool
from tfctr.serving.server.grpc_stream import Streams
from tfctr.serving.server.limits import Gate

SERVICES = (tfs_grpc.PREDICTION, tfs_grpc.MODEL, kserve_grpc.SERVICE)

_CONTROL_THREADS = 4
_CHANGE_THREADS = 4
_SPARE_STREAM_THREADS = 8  # for streams that are refused, and those whose thread has not seen yet that they ended


def build_grpc_server(ctx: ServerContext) -> grpc.Server:
    """A server without ports, not started: the caller adds ports (``add_insecure_port``, ``add_secure_port``), starts
    and stops it.

    Requests over ``ctx.limits.max_body_bytes``, or more than ``max_concurrent`` at once, are RESOURCE_EXHAUSTED. With a
    token in ``ctx.auth`` every request but health checks must carry it (metadata ``authorization: Bearer TOKEN``).
    """
    gate = Gate(ctx.limits.max_concurrent)
    requests = RequestPool(ctx.grpc_threads, gate, ctx.messages, ctx.bodies, "tfctr-grpc")
    control = futures.ThreadPoolExecutor(_CONTROL_THREADS, "tfctr-grpc-control")
    changes = futures.ThreadPoolExecutor(_CHANGE_THREADS, "tfctr-grpc-changes")
    reflection = futures.ThreadPoolExecutor(_CONTROL_THREADS, "tfctr-grpc-reflection")
    open_streams = futures.ThreadPoolExecutor(ctx.limits.max_streams + _SPARE_STREAM_THREADS, "tfctr-grpc-streams")

    inference = kserve_grpc.KServe(ctx)
    streams = Streams(ctx, inference.infer, requests, gate)
    health = grpc_health.health_handlers(ctx, SERVICES, control)
    handlers: dict[str, Any] = {
        **tfs_grpc.TfServing(ctx).handlers(control),
        **inference.handlers(control, changes),
        f"/{kserve_grpc.SERVICE}/ModelStreamInfer": streams.handler(open_streams),
        **grpc_health.reflection_handlers(SERVICES, reflection),
        **health,
    }
    server = grpc.server(requests, options=_options(ctx))
    # As over HTTP: who asks whether the server is up needs no token and is never refused for load.
    probes = [*health, *(f"/{kserve_grpc.SERVICE}/{method}" for method in ("ServerLive", "ServerReady"))]
    server.add_generic_rpc_handlers((Services(ctx, handlers, probes, gate, control),))
    return server


def _options(ctx: ServerContext) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", ctx.limits.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        # A port that is taken is an error, not a share of it.
        ("grpc.so_reuseport", 0),
        # Clients may keep idle connections alive.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ]
