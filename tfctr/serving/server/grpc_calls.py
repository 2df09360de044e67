"""One gRPC request: who asks, until when, and how it is answered, refused, given up and recorded.

Handlers get a :class:`Rpc` and the bytes of the message, and return the bytes of the reply or raise one of tfctr's
errors; everything that all methods share is here, in O(1) Python steps a request.
"""

from __future__ import annotations

import contextvars
import itertools
import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import grpc

from tfctr.core import library
from tfctr.errors import CancelledError, InputError
from tfctr.serving.failures import code_of, error_of, stage_of, with_model
from tfctr.serving.server.auth import AccessError
from tfctr.serving.server.context import DEADLINE_MS, REQUEST_ID, TIMING, USER_INPUTS, ServerContext
from tfctr.serving.server.grpc_messages import Message
from tfctr.serving.server.limits import Gate
from tfctr.serving.server.model_choice import user_inputs

STAGE = "x-tfctr-stage"
"""Trailing metadata of a failed request: the stage it failed in."""

_LOG = logging.getLogger("tfctr.server.grpc")
_FOREVER_S = 365 * 24 * 3600.0
_LONGEST_DETAILS = 2000  # of a status message: it travels in trailers, whose size clients limit (8 KB)
_LONGEST_ID = 128
_ARRIVED: contextvars.ContextVar[float] = contextvars.ContextVar("arrived")
_STAGES = ("parse", "pack", "queue", "batch", "run", "split", "reply")
_IDS = itertools.count(1)
_PROCESS = secrets.token_hex(4)

Answer = Callable[["Rpc", bytes], bytes]


class Rpc:
    """A request in work. model, version: known once the message was read; the record of the answer names them."""

    __slots__ = (
        "_call", "_context", "_ctx", "_waited", "api", "arrived", "authorization", "deadline_ns", "method", "model",
        "request_id", "rows", "timing", "users", "version", "wants_timing",
    )  # fmt: skip

    def __init__(self, ctx: ServerContext, context: Any, api: str, method: str):
        self._ctx = ctx
        self._context = context
        self._call: Any = None
        self.api = api
        self.method = method
        self.arrived = _ARRIVED.get(0.0) or time.perf_counter()
        self.model = ""
        self.version: int | None = None
        self.rows = 0
        self.request_id = ""
        self.authorization: str | bytes | None = None
        self.wants_timing = False
        self.users = ""
        self.timing: dict[str, int] | None = None
        self.deadline_ns = 0
        self._waited = time.perf_counter()

    def read_request_id(self) -> None:
        """All that a request which is refused before it is read needs."""
        given = dict(self._context.invocation_metadata() or ()).get(REQUEST_ID, "")
        self.request_id = given[:_LONGEST_ID] or f"{_PROCESS}-{next(_IDS)}"

    def read_metadata(self) -> None:
        """Request id, timing, and the least of the deadlines that are known before the message is read.

        InputError: a deadline that is no positive number.
        """
        remaining = self._context.time_remaining()
        left = _FOREVER_S if remaining is None else min(remaining, _FOREVER_S)
        default_ms = self._ctx.default_deadline_ms
        if default_ms is not None:
            left = min(left, default_ms / 1000 - (time.perf_counter() - self.arrived))
        asked = None
        for key, value in self._context.invocation_metadata() or ():
            if key == REQUEST_ID:
                self.request_id = value[:_LONGEST_ID]
            elif key == DEADLINE_MS:
                asked = value
            elif key == TIMING:
                self.wants_timing = value not in ("0", "false", "")
            elif key == USER_INPUTS:
                self.users = value
            elif key == "authorization":
                self.authorization = value
        if not self.request_id:
            self.request_id = f"{_PROCESS}-{next(_IDS)}"
        if asked is not None:
            left = min(left, _milliseconds(asked) / 1000)
        if left < _FOREVER_S:
            self.deadline_ns = time.monotonic_ns() + max(0, int(left * 1e9))

    def serve(
        self,
        handle: Any,
        protocol: str,
        body: bytes,
        spec: tuple[str, int, str],
        *,
        priority: int = 0,
        timeout_us: int = 0,
        users: Sequence[str] = (),
    ) -> bytes:
        """The request's bytes to the reply's, in one native call. spec: what the reply says: model, version, signature.

        A client that goes away, or whose deadline passes, leaves the queue; the rest of its batch is served.
        """
        call = self.call(spec, priority=priority, timeout_us=timeout_us, users=users)
        reply = handle.serve(protocol, body, call)
        self.timing, self.rows = reply.timing, reply.rows
        return reply.body  # type: ignore[no-any-return]

    def call(
        self,
        spec: tuple[str, int, str],
        *,
        priority: int = 0,
        timeout_us: int = 0,
        outputs: Sequence[str] = (),
        users: Sequence[str] = (),
    ) -> Any:
        """The native description of this request, given up when the client is gone. users: inputs that the message
        names as the user's, beside those of the metadata."""
        deadline = self.deadline_ns
        if timeout_us > 0:
            its = time.monotonic_ns() + timeout_us * 1000
            deadline = min(deadline, its) if deadline else its
        names = [*users, *user_inputs(self.users)] if users or self.users else []
        # deadline, priority, timing, outputs, what the reply says, id, user inputs
        call = library.native().Call(deadline, priority, True, list(outputs), spec, self.request_id, names)
        self._call = call
        if not self._context.add_callback(self._ended):
            raise CancelledError("the client is gone")
        return call

    def _ended(self) -> None:
        """The call is over, on gRPC's thread: while the request is in work, that means that its client is gone."""
        call = self._call
        if call is not None:
            call.cancel()

    def answered(self) -> None:
        """The request succeeded: trailing metadata, record."""
        self._call = None
        trailing = [(REQUEST_ID, self.request_id)]
        if self.wants_timing:
            trailing.append((TIMING, self._timing_block()))
        self._context.set_trailing_metadata(trailing)
        self._ctx.answered(
            transport="grpc",
            api=self.api,
            method=self.method,
            model=self.model,
            version=self.version,
            code="OK",
            seconds=time.perf_counter() - self.arrived,
            request_id=self.request_id,
            rows=self.rows,
            timing=self.timing,
        )

    def _timing_block(self) -> str:
        """JSON: nanoseconds by stage. ``wait`` (for the message and a thread), the stages, and ``other`` add up to
        ``server``; lookup and dense are parts of run."""
        server = time.perf_counter() - self.arrived
        block = dict(self.timing or {})
        block["wait"] = round((self._waited - self.arrived) * 1e9)
        block["server"] = round(server * 1e9)
        block["other"] = block["server"] - block["wait"] - sum(block.get(stage, 0) for stage in _STAGES)
        return json.dumps(block, separators=(",", ":"))

    def failed(self, error: Exception) -> tuple[Any, str]:
        """The request failed: (status, its message); recorded."""
        code, message, stage = status_of(error)
        message = with_model(code, message, self.model)
        trailing = [(REQUEST_ID, self.request_id)]
        if stage:
            trailing.append((STAGE, stage))
        self._context.set_trailing_metadata(trailing)
        self.record_failure(code, message, stage)
        return grpc.StatusCode[code], message

    def record_failure(self, code: str, message: str, stage: str) -> None:
        """For metrics and log."""
        self._call = None
        self._ctx.answered(
            transport="grpc",
            api=self.api,
            method=self.method,
            model=self.model,
            version=self.version,
            code=code,
            seconds=time.perf_counter() - self.arrived,
            request_id=self.request_id,
            stage=stage,
            message=message,
        )


def status_of(error: Exception) -> tuple[str, str, str]:
    """(name of the gRPC status, message, stage) of an error. What is none of tfctr's errors is a bug of the server: it
    is logged with its traceback, and the client is told its kind."""
    if isinstance(error, AccessError):
        return error.code, str(error), ""
    if isinstance(error, library.native().ServeFailed):
        error = error_of(error)
    code = code_of(error)
    stage = stage_of(error)
    if code is None:
        _LOG.exception("a request failed inside the server", exc_info=error)
        return "INTERNAL", _short(f"{type(error).__name__}: {error}"), stage
    message = str(error)
    if stage and stage not in message:
        message = f"{message} (stage: {stage})"
    return code, _short(message), stage


def _short(message: str) -> str:
    text = message if len(message) <= _LONGEST_DETAILS else f"{message[:_LONGEST_DETAILS]}..."
    return text.encode("utf-8", "replace").decode()


def _milliseconds(text: str | bytes) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"metadata {DEADLINE_MS}: expected a positive number of milliseconds, got {text!r}")
    return value


def unary(ctx: ServerContext, api: str, method: str, answer: Answer, pool: Any = None) -> Any:
    """A handler of raw messages, one for each call. pool: of its own; None: the server's."""

    def handle(requests: Iterator[bytes] | Message, context: Any) -> bytes:
        rpc = Rpc(ctx, context, api, method)
        held = 0
        try:
            if isinstance(requests, Message):  # RequestPool has it, and counts it
                body = requests.take()
            else:
                body = ctx.messages.read(requests, context)
                ctx.bodies.take(len(body))
                held = len(body)
            rpc.read_metadata()
            reply = answer(rpc, body)
        except Exception as error:
            code, details = rpc.failed(error)
        else:
            rpc.answered()
            return reply
        finally:
            ctx.bodies.give(held)
        context.abort(code, details)  # raises
        return b""

    if pool is not None:
        handle.experimental_thread_pool = pool  # type: ignore[attr-defined]
    handle.takes_message = True  # type: ignore[attr-defined]
    # On the wire a call with one message is a stream of one; see grpc_messages.
    return grpc.stream_unary_rpc_method_handler(handle)


class Services(grpc.GenericRpcHandler):
    """All methods of the server. A request without a token, or one too many, is refused before its message is read.

    handlers: "/service/Method" -> handler. open_methods: those that need no token and always fit (health, reflection).
    """

    def __init__(
        self, ctx: ServerContext, handlers: dict[str, Any], open_methods: Iterable[str], gate: Gate, refusing: Any
    ):
        self._ctx = ctx
        self._handlers = handlers
        self._open = frozenset(open_methods)
        self._gate = gate
        self._refusing = refusing
        self._needs_token = ctx.auth.token is not None

    def service(self, details: Any) -> Any:
        """The handler of a request, by gRPC's thread that reads events."""
        _ARRIVED.set(time.perf_counter())
        handler = self._handlers.get(details.method)
        if handler is None or details.method in self._open:
            return handler
        if self._ctx.state.refusing:
            return self._refused(details.method, "UNAVAILABLE", "the server is shutting down")
        if self._needs_token:
            try:
                self._ctx.auth.check(dict(details.invocation_metadata or ()).get("authorization"))
            except AccessError as error:
                return self._refused(details.method, error.code, str(error))
        if self._gate.inside >= self._gate.limit:
            return self._refused(details.method, "RESOURCE_EXHAUSTED", self._gate.message())
        return handler

    def _refused(self, path: str, code: str, message: str) -> Any:
        service, _, method = path.removeprefix("/").rpartition("/")
        api = "kserve" if service.startswith("inference.") else "tfs"

        def refuse(_: Any, context: Any) -> Any:
            rpc = Rpc(self._ctx, context, api, method)
            rpc.read_request_id()
            rpc.record_failure(code, message, "")
            context.set_trailing_metadata([(REQUEST_ID, rpc.request_id)])
            context.abort(grpc.StatusCode[code], message)

        refuse.experimental_thread_pool = self._refusing  # type: ignore[attr-defined]
        # Of a stream: gRPC then does not wait for a message.
        return grpc.stream_stream_rpc_method_handler(refuse)
