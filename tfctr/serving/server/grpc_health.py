"""grpc.health.v1 over the server's readiness, and reflection over both protocols' descriptors.

``Check`` tells readiness as it is at that moment; ``Watch`` sends every change within :data:`WATCH_SECONDS` and ends
when the server drains. The services known are "" (the whole server) and those of both protocols; all have one state.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from tfctr.errors import TfctrError
from tfctr.serving.server import kserve_protos
from tfctr.serving.server.context import ServerContext

WATCH_SECONDS = 0.5
MOST_WATCHERS = 16
"""Streams of Watch at once; more wait until one ends."""

_States = health_pb2.HealthCheckResponse


def health_handlers(ctx: ServerContext, services: Iterable[str], pool: Any) -> dict[str, Any]:
    """Path of a method -> its handler.

    Args:
      ctx: whose readiness it tells.
      services: full names of the services beside "".
      pool: threads of its own, so that probes are answered while all others are busy.
    """
    names = frozenset(("", *services))
    never = threading.Event()

    def state(service: str) -> int:
        if service not in names:
            return int(_States.SERVICE_UNKNOWN)
        return int(_States.SERVING if ctx.ready() else _States.NOT_SERVING)

    def check(requests: Iterator[Any], context: Any) -> Any:
        try:
            request = ctx.messages.read(requests, context)
        except TfctrError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if request.service not in names:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r}; there is: {_listed(names)}")
        return health_pb2.HealthCheckResponse(status=state(request.service))

    def watch(request: Any, context: Any) -> Iterator[Any]:
        told = None
        while context.is_active():
            draining, now = ctx.state.draining, state(request.service)
            if now != told:
                yield health_pb2.HealthCheckResponse(status=now)
                told = now
            if draining:
                return
            never.wait(WATCH_SECONDS)

    check.experimental_thread_pool = pool  # type: ignore[attr-defined]
    watch.experimental_thread_pool = futures.ThreadPoolExecutor(MOST_WATCHERS, "tfctr-watch")  # type: ignore[attr-defined]
    codecs = {
        "request_deserializer": health_pb2.HealthCheckRequest.FromString,
        "response_serializer": health_pb2.HealthCheckResponse.SerializeToString,
    }
    return {
        f"/{health.SERVICE_NAME}/Check": grpc.stream_unary_rpc_method_handler(check, **codecs),
        f"/{health.SERVICE_NAME}/Watch": grpc.unary_stream_rpc_method_handler(watch, **codecs),
    }


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))


class _Pools:
    """Descriptors of several pools as one: what the first one that knows a name says."""

    def __init__(self, *pools: Any):
        self._pools = pools

    def _first(self, method: str, *args: Any) -> Any:
        for pool in self._pools:
            try:
                return getattr(pool, method)(*args)
            except KeyError:
                continue
        raise KeyError(args[0])

    def FindFileByName(self, name: str) -> Any:
        return self._first("FindFileByName", name)

    def FindFileContainingSymbol(self, name: str) -> Any:
        return self._first("FindFileContainingSymbol", name)

    def FindMessageTypeByName(self, name: str) -> Any:
        return self._first("FindMessageTypeByName", name)

    def FindExtensionByNumber(self, message: Any, number: int) -> Any:
        return self._pool_of(message).FindExtensionByNumber(message, number)

    def FindAllExtensions(self, message: Any) -> Any:
        return self._pool_of(message).FindAllExtensions(message)

    def _pool_of(self, message: Any) -> Any:
        return message.file.pool


def reflection_handlers(services: Sequence[str], pool: Any) -> dict[str, Any]:
    """Path -> handler of server reflection (v1alpha) for ``services``, KServe's from our pool, the rest from the
    default one."""
    names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
    servicer = reflection.ReflectionServicer(names, pool=_Pools(kserve_protos.POOL, descriptor_pool.Default()))

    def info(requests: Any, context: Any) -> Any:
        return servicer.ServerReflectionInfo(requests, context)

    info.experimental_thread_pool = pool  # type: ignore[attr-defined]
    handler = grpc.stream_stream_rpc_method_handler(
        info,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return {f"/{reflection.SERVICE_NAME}/ServerReflectionInfo": handler}
