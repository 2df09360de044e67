"""Both protocols, metrics and health on one HTTP port: an ASGI application over the server's context.

Starlette's router finds the handler. The event loop reads bodies and writes replies; a handler runs on a thread of a
bounded pool, where it waits for the model without the GIL. A client that goes away cancels its request.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from starlette.routing import Route, Router

from tfctr.errors import CancelledError, DeadlineError, NotFoundError, OverloadedError
from tfctr.serving.server import json_body, kserve_rest, tfs_rest
from tfctr.serving.server.context import REQUEST_ID, TIMING, ServerContext
from tfctr.serving.server.http_calls import HttpCall, HttpReply, error_reply
from tfctr.serving.server.limits import Gate, TooLargeError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Handler = Callable[[HttpCall], HttpReply]
Check = Callable[[Mapping[bytes, bytes]], None]
"""Raises where a request with these headers is not for this port."""

_REQUEST_ID, _TIMING = REQUEST_ID.encode(), TIMING.encode()
WHOLE = 1 << 20
"""Bytes: bodies of a known length up to this are handed over when they are complete (http_server.py)."""
_WATCH_AFTER_S = 0.005  # shorter requests end before their client's absence would matter
_CHANGES = 2  # threads that load and unload


class HttpApp:
    """An ASGI application with threads of its own; :meth:`close` ends them."""

    def __init__(self, ctx: ServerContext, name: str, threads: int, check: Check):
        self.ctx = ctx
        self.gate = Gate(ctx.limits.max_concurrent)
        self.check = check
        self.pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix=f"tfctr-{name}")
        self.changes = concurrent.futures.ThreadPoolExecutor(_CHANGES, thread_name_prefix=f"tfctr-{name}-change")
        self._router = Router(
            redirect_slashes=False, default=Endpoint(self, "", "", _nothing_here, open_=True, inline=True)
        )

    def add(self, path: str, endpoint: Endpoint) -> None:
        """Serves ``path`` (Starlette's notation)."""
        self._router.routes.append(Route(path, endpoint=endpoint))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._router(scope, receive, send)

    def close(self, wait: bool = True) -> None:
        """Ends the threads, after the handlers that run (wait); those that have not begun never do."""
        self.pool.shutdown(wait=wait, cancel_futures=True)
        self.changes.shutdown(wait=wait, cancel_futures=True)


class Endpoint:
    """One method of a protocol behind one path.

    api, method: as the record names it; "": not recorded (health, metrics). http: the methods that it takes. open_: no
    token is asked for and no limit of concurrency holds. inline: answers on the event loop, as it never waits. changes:
    on the threads that load models.
    """

    def __init__(
        self,
        app: HttpApp,
        api: str,
        method: str,
        handler: Handler,
        *,
        http: Sequence[str] = ("GET",),
        open_: bool = False,
        inline: bool = False,
        changes: bool = False,
    ):
        self._app = app
        self._api = api
        self._method = method
        self._handler = handler
        self._http = frozenset({*http, "HEAD"} if "GET" in http else http)
        self._open = open_
        self._inline = inline
        self._pool = app.changes if changes else app.pool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = HttpCall(self._app.ctx, self._api, self._method, scope)
        try:
            reply = await self._answer(call, scope, receive)
        except asyncio.CancelledError:
            call.cancel()
            raise
        except Exception as error:
            reply = call.failed(error)
        await _send(call, reply, send, head=scope["method"] == "HEAD")

    async def _answer(self, call: HttpCall, scope: Scope, receive: Receive) -> HttpReply:
        if scope["method"] not in self._http and self._handler is not _nothing_here:
            allowed = ", ".join(sorted(self._http))
            reply = error_reply("INVALID_ARGUMENT", f"{scope['method']} is not for this path; it takes {allowed}")
            reply.status = 405
            reply.headers.append((b"allow", allowed.encode()))
            return reply
        if self._open:
            return self._handler(call)
        app = self._app
        app.check(call.headers)
        if not app.gate.enter():
            raise OverloadedError(app.gate.message())
        try:
            call.read_deadline()
            call.body_read(await self._read_body(call, receive))
            return await self._run(call, receive)
        finally:
            app.gate.leave()
            call.ctx.bodies.give(call.held)

    async def _read_body(self, call: HttpCall, receive: Receive) -> bytes:
        limits = self._app.ctx.limits
        length = int(call.headers.get(b"content-length", b"0"))
        if length > limits.max_body_bytes:
            raise _too_large(limits.max_body_bytes)
        hold = call.hold
        if 0 < length <= WHOLE:  # nothing is seen of it before all of it is here
            call.hold(length)
            hold = lambda size: None  # noqa: E731
        try:
            async with asyncio.timeout(limits.body_seconds):
                return await _body(receive, limits.max_body_bytes, hold)
        except TimeoutError:
            raise DeadlineError(f"the body was not complete after {limits.body_seconds} s (body_seconds)") from None

    async def _run(self, call: HttpCall, receive: Receive) -> HttpReply:
        if self._inline:
            return self._handle(call)
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._pool, self._handle, call)
        watch: list[asyncio.Task[None]] = []
        later = loop.call_later(_WATCH_AFTER_S, lambda: watch.append(loop.create_task(_watch(call, receive))))
        try:
            return await work
        finally:
            later.cancel()
            for task in watch:
                task.cancel()

    def _handle(self, call: HttpCall) -> HttpReply:
        """On a thread of the pool: the handler, the record, compression."""
        try:
            call.started()
            reply = self._handler(call)
        except Exception as error:
            return call.failed(error)
        finally:
            call.ctx.bodies.give(call.unpacked)
        if self._api:
            call.record(reply.code)
        encoding = json_body.accepted(call.headers.get(b"accept-encoding"), len(reply.body))
        if encoding:
            reply.body = json_body.pack(reply.body, encoding)
            reply.headers.append((b"content-encoding", encoding.encode()))
            reply.headers.append((b"vary", b"accept-encoding"))
        return reply


async def _body(receive: Receive, limit: int, hold: Callable[[int], None]) -> bytes:
    """The whole body; as it is where it came in one piece. hold: is told of the bytes as they come."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        whole: bytes = message["body"]
        if len(whole) > limit:
            raise _too_large(limit)
        hold(len(whole))
        return whole
    body = bytearray()
    while True:
        if message["type"] == "http.disconnect":
            raise CancelledError("the client is gone")
        hold(len(message["body"]))
        body += message["body"]
        if len(body) > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return bytes(body)
        message = await receive()


async def _watch(call: HttpCall, receive: Receive) -> None:
    """Cancels the request when its client is gone."""
    message = await receive()
    if message["type"] == "http.disconnect":
        call.cancel()


async def _send(call: HttpCall, reply: HttpReply, send: Send, head: bool) -> None:
    headers = [
        (b"content-type", reply.content_type),
        (b"content-length", b"%d" % len(reply.body)),
        (_REQUEST_ID, call.request_id.encode()),
        *reply.headers,
    ]
    if call.wants_timing and call.timing is not None:
        headers.append((_TIMING, call.timing_block()))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head else reply.body})


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"the body has more than {limit} bytes, the limit (max_body_bytes)")


def _nothing_here(call: HttpCall) -> HttpReply:
    raise NotFoundError("no such path; there is /v1/models/MODEL:predict, /v2/models/MODEL/infer, /metrics, ...")


def _metrics(call: HttpCall) -> HttpReply:
    content_type, text = call.ctx.metrics.render()
    return HttpReply(text, content_type.encode())


def build_http_app(ctx: ServerContext) -> HttpApp:
    """TF Serving's REST, KServe's REST, health and metrics, for the public port."""
    app = HttpApp(ctx, "http", ctx.http_threads, lambda headers: ctx.auth.check(headers.get(b"authorization")))
    infer = Endpoint(app, "kserve", "ModelInfer", kserve_rest.infer, http=("POST",))
    app.add("/v2/models/{model}/infer", infer)  # what comes often comes first: routes are tried in turn
    app.add("/v2/models/{model}/versions/{version}/infer", infer)
    _add_tf_serving(app)
    _add_kserve(app)
    add_common(app)
    return app


def _add_tf_serving(app: HttpApp) -> None:
    model = "/v1/models/{model}"
    places = (model, model + "/versions/{version}", model + "/labels/{label}")
    verbs = (
        ("predict", "Predict", tfs_rest.predict),
        ("classify", "Classify", tfs_rest.classify),
        ("regress", "Regress", tfs_rest.regress),
    )
    for verb, method, handler in verbs:
        endpoint = Endpoint(app, "tfs", method, handler, http=("POST",))
        for place in places:
            app.add(f"{place}:{verb}", endpoint)
    for place in places:
        app.add(place + "/metadata", Endpoint(app, "tfs", "GetModelMetadata", tfs_rest.metadata))
        app.add(place, Endpoint(app, "tfs", "GetModelStatus", tfs_rest.status))


def _add_kserve(app: HttpApp) -> None:
    model = "/v2/models/{model}"
    stats = Endpoint(app, "kserve", "ModelStatistics", kserve_rest.statistics)
    app.add("/v2/models/stats", stats)
    for place in (model, model + "/versions/{version}"):
        app.add(place + "/ready", Endpoint(app, "kserve", "ModelReady", kserve_rest.model_ready, inline=True))
        app.add(place + "/config", Endpoint(app, "kserve", "ModelConfig", kserve_rest.config))
        app.add(place + "/stats", stats)
        app.add(place, Endpoint(app, "kserve", "ModelMetadata", kserve_rest.metadata))
    app.add("/v2", Endpoint(app, "kserve", "ServerMetadata", kserve_rest.server_metadata))
    app.add("/v2/repository/index", Endpoint(app, "kserve", "RepositoryIndex", kserve_rest.index, http=("POST",)))
    for verb, method, handler in (
        ("load", "RepositoryModelLoad", kserve_rest.load),
        ("unload", "RepositoryModelUnload", kserve_rest.unload),
    ):
        endpoint = Endpoint(app, "kserve", method, handler, http=("POST",), changes=True)
        app.add(f"/v2/repository/models/{{model}}/{verb}", endpoint)
    refused = ("systemsharedmemory", "cudasharedmemory")
    for path in refused:
        endpoint = Endpoint(app, "kserve", "SharedMemory", kserve_rest.no_shared_memory, http=("GET", "POST"))
        app.add(f"/v2/{path}/{{rest:path}}", endpoint)
    for path in ("/v2/trace/setting", "/v2/logging", "/v2/models/{model}/trace/setting"):
        app.add(path, Endpoint(app, "kserve", "Settings", kserve_rest.no_settings, http=("GET", "POST")))


def add_common(app: HttpApp) -> None:
    """Health and metrics."""
    for path in ("/v2/health/live", "/healthz"):
        app.add(path, Endpoint(app, "", "", kserve_rest.live, open_=True, inline=True))
    for path in ("/v2/health/ready", "/readyz"):
        app.add(path, Endpoint(app, "", "", kserve_rest.ready, open_=True, inline=True))
    for path in ("/metrics", "/monitoring/prometheus/metrics"):
        app.add(path, Endpoint(app, "", "", _metrics))
