"""One HTTP request: who asks, until when, and how it is answered, refused, given up and recorded.

Handlers get an :class:`HttpCall`, whose body was read, on a thread of the pool, and return a :class:`HttpReply` or
raise one of tfctr's errors. What all of them share is here.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import math
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from tfctr.core import library
from tfctr.errors import CancelledError, InputError
from tfctr.serving import failures
from tfctr.serving.feature_map import flat_name
from tfctr.serving.server import json_body
from tfctr.serving.server.auth import AccessError
from tfctr.serving.server.context import DEADLINE_MS, REQUEST_ID, TIMING, USER_INPUTS, ServerContext
from tfctr.serving.server.limits import TooLargeError
from tfctr.serving.server.model_choice import user_inputs
from tfctr.serving.signature_handle import SignatureHandle
from tfctr.serving.signature_info import Output

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
STAGE = b"x-tfctr-stage"
"""Header of a failed request: the stage it failed in."""

_LOG = logging.getLogger("tfctr.server.http")
_LONGEST_MESSAGE = 2000
_LONGEST_ID = 128
_IDS = itertools.count(1)
_PROCESS = secrets.token_hex(4)
_REQUEST_ID, _DEADLINE, _TIMING = REQUEST_ID.encode(), DEADLINE_MS.encode(), TIMING.encode()
_USER_INPUTS = USER_INPUTS.encode()
_OFF = (b"0", b"false", b"")
_STAGES = ("parse", "pack", "queue", "batch", "run", "split", "reply")


@dataclasses.dataclass(slots=True)
class HttpReply:
    """An answer. code: name of a gRPC status, for the record."""

    body: bytes
    content_type: bytes = JSON
    status: int = 200
    headers: list[tuple[bytes, bytes]] = dataclasses.field(default_factory=list)
    code: str = "OK"


class HttpCall:
    """A request in work. model: of the path; version, rows: known once the body was read; the record of the answer
    names them."""

    __slots__ = (
        "_cancelled", "_native", "_read_ns", "_waited_ns", "api", "arrived", "body", "ctx", "deadline_ns", "headers",
        "held", "method", "model", "params", "query", "request_id", "rows", "timing", "unpacked", "version",
        "wants_timing",
    )  # fmt: skip

    def __init__(self, ctx: ServerContext, api: str, method: str, scope: Mapping[str, Any]):
        self.ctx = ctx
        self.api = api
        self.method = method
        self.arrived = time.perf_counter_ns()
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.params: dict[str, str] = scope.get("path_params", {})
        self.query: bytes = scope.get("query_string", b"")
        self.body = b""
        self.held = self.unpacked = 0  # bytes of the body that are counted, as they came and unpacked
        self.model = self.params.get("model", "")  # what fails before it is looked up is recorded with it, too
        self.version: int | None = None
        self.rows = 0
        self.deadline_ns = 0
        self.timing: dict[str, int] | None = None
        self.wants_timing = self.headers.get(_TIMING, b"0") not in _OFF
        self._cancelled = False
        self._native: Any = None
        self._read_ns = self._waited_ns = 0
        given = self.headers.get(_REQUEST_ID)
        # Printable only: it goes back as a header and into the log.
        printable = given is not None and given.isascii() and given.decode().isprintable()
        self.request_id = given[:_LONGEST_ID].decode() if given and printable else f"{_PROCESS}-{next(_IDS)}"

    def header(self, name: bytes) -> str:
        """A header's value; "" where it is not there."""
        return self.headers.get(name, b"").decode("latin-1")

    def read_deadline(self) -> None:
        """The least of the deadlines that are known before the body is. InputError: no positive number."""
        left_ms = self.ctx.default_deadline_ms
        asked = self.headers.get(_DEADLINE)
        if asked is not None:
            wanted = _milliseconds(asked)
            left_ms = wanted if left_ms is None else min(wanted, left_ms)
        if left_ms is not None:
            waited = time.perf_counter_ns() - self.arrived
            self.deadline_ns = max(1, time.monotonic_ns() - waited + int(min(left_ms, 1e12) * 1e6))

    def hold(self, size: int) -> None:
        """Bytes of the body have come. OverloadedError: all requests together hold too many."""
        self.ctx.bodies.take(size)
        self.held += size

    def _unpacks(self, size: int) -> None:
        self.ctx.bodies.take(size)
        self.unpacked += size

    def body_read(self, body: bytes) -> None:
        """The whole body is here."""
        self.body = body
        self._read_ns = time.perf_counter_ns()

    def started(self) -> None:
        """A thread has taken the request up: unpacks its body. CancelledError: the client is gone already."""
        self._waited_ns = time.perf_counter_ns()
        if self._cancelled:
            raise CancelledError("the client is gone")
        encoding = self.headers.get(b"content-encoding")
        if encoding is not None:
            name = encoding.decode("latin-1").strip().lower()
            self.body = json_body.unpack(self.body, name, self.ctx.limits.max_body_bytes, self._unpacks)

    def native_call(
        self, spec: tuple[str, int, str], *, priority: int = 0, timeout_us: int = 0, users: Sequence[str] = ()
    ) -> Any:
        """The native description of this request, given up when the client is gone. users: inputs that the body names
        as the user's, beside those of the header."""
        deadline = self.deadline_ns
        if timeout_us > 0:
            its = time.monotonic_ns() - (time.perf_counter_ns() - self.arrived) + min(timeout_us, 10**15) * 1000
            deadline = max(1, min(deadline, its) if deadline else its)
        call = library.native().Call(
            deadline_ns=deadline,
            priority=priority,
            timing=True,
            reply_model_spec=spec,
            request_id=self.request_id,
            user_inputs=[*users, *user_inputs(self.header(_USER_INPUTS))],
        )
        self._native = call
        if self._cancelled:
            raise CancelledError("the client is gone")
        return call

    def cancel(self) -> None:
        """The client is gone: a request that waits leaves the queue; one that runs has its result dropped."""
        self._cancelled = True
        call = self._native
        if call is not None:
            call.cancel()

    def ran(self, timing: Mapping[str, int], parse_ns: int, reply_ns: int) -> None:
        """The native call is done. parse_ns, reply_ns: spent on the text of request and reply outside of it."""
        merged = dict(timing)
        merged["parse"] = merged.get("parse", 0) + parse_ns
        merged["reply"] = merged.get("reply", 0) + reply_ns
        self.timing = merged

    def timing_block(self) -> bytes:
        """JSON: nanoseconds by stage. ``receive`` (body), ``wait`` (for a thread), the stages, and ``other`` add up to
        ``server``; lookup and dense are parts of run."""
        server = time.perf_counter_ns() - self.arrived
        block = dict(self.timing or {})
        block["receive"] = max(0, self._read_ns - self.arrived)
        block["wait"] = max(0, self._waited_ns - self._read_ns)
        block["other"] = server - block["receive"] - block["wait"] - sum(block.get(stage, 0) for stage in _STAGES)
        block["server"] = server
        return json.dumps(block, separators=(",", ":")).encode()

    def record(self, code: str, stage: str = "", message: str = "") -> None:
        """For metrics and log."""
        self.ctx.answered(
            transport="http",
            api=self.api,
            method=self.method,
            model=self.model,
            version=self.version,
            code=code,
            seconds=(time.perf_counter_ns() - self.arrived) / 1e9,
            request_id=self.request_id,
            stage=stage,
            message=message,
            rows=self.rows,
            timing=self.timing,
        )

    def failed(self, error: BaseException) -> HttpReply:
        """The reply to a request that failed; both protocols write {"error": text}."""
        code, message, stage = status_of(error)
        message = failures.with_model(code, message, self.model)
        reply = error_reply(code, message)
        if isinstance(error, TooLargeError):
            reply.status = 413
        if stage:
            reply.headers.append((STAGE, stage.encode()))
        if reply.status == 401:
            reply.headers.append((b"www-authenticate", b"Bearer"))
        if self.api:
            self.record(code, stage, message)
        return reply


def status_of(error: BaseException) -> tuple[str, str, str]:
    """(name of the gRPC status, message, stage). What is none of tfctr's errors is a bug of the server: it is logged
    with its traceback, and the client is told its kind."""
    stage = failures.stage_of(error)
    message = str(error)
    if isinstance(error, AccessError):
        return error.code, message, ""
    if isinstance(error, TooLargeError):
        return "RESOURCE_EXHAUSTED", message, ""
    code = failures.code_of(error) if isinstance(error, Exception) else "CANCELLED"
    if code is None:
        _LOG.error("a request failed inside the server", exc_info=error)
        code, message = "INTERNAL", f"{type(error).__name__}: {error}"
    if stage and stage not in message:
        message = f"{message} (stage: {stage})"
    return code, message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}...", stage


def error_reply(code: str, message: str) -> HttpReply:
    """{"error": message} with the HTTP status of ``code``."""
    text = message.encode("utf-8", "backslashreplace").decode()
    return HttpReply(orjson.dumps({"error": text}), status=failures.HTTP_CODES[code], code=code)


def json_reply(value: Any) -> HttpReply:
    """``value`` as JSON; what JSON does not have is told as text."""
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    return HttpReply(orjson.dumps(value, default=str, option=options))


def predict_json(handle: SignatureHandle, request: Any, call: Any) -> tuple[dict[str, Any], Any] | None:
    """(outputs by name, timing) of a ``_native.JsonRequest``, whose values never become Python's objects; None, and the
    call is unused: it has to go over them. Raises as ``SignatureHandle.predict``."""
    try:
        found = handle.native.predict_json(request, call)
    except library.native().ServeFailed as failure:
        raise failures.error_of(failure) from None
    return None if found is None else (handle.assembled(found[0]), found[1])


def check_rows(limit: int, handle: SignatureHandle, inputs: Mapping[str, Any]) -> None:
    """InputError where a request has more than ``limit`` rows. Looks at one length per input."""
    for name, value in inputs.items():
        if type(value) is list:
            size = len(value)
        else:
            size = value.shape[0] if isinstance(value, np.ndarray) and value.ndim else 0
        if size > limit and _counts_rows(handle, name, value):
            raise InputError(f"input {name!r} has {size} rows, the limit is {limit} (max_rows)")


def _counts_rows(handle: SignatureHandle, name: str, value: Any) -> bool:
    """Whether a value's length is the number of rows: not of parts of a sparse or ragged feature."""
    if any(name in feature.parts.values() for feature in handle.features):
        return type(value) is list and type(value[0]) is list
    return True


def flat_outputs(described: Iterable[Output], outputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Every tensor by name; a sparse or ragged output ``x`` has several: ``x/values``, ``x/row_splits``, ..."""
    made: dict[str, Any] = {}
    for output in described:
        value = outputs.get(output.name)
        for role in output.parts:
            name = flat_name(output, role)
            if output.kind == "sparse":
                made[name] = getattr(value, role)
            elif output.kind == "ragged":
                level = int(role.removeprefix("row_splits").lstrip("_") or 0) if role != "values" else 0
                made[name] = value.flat_values if role == "values" else value.nested_row_splits[level]  # type: ignore
            else:
                made[name] = outputs[name]
    return made


def _milliseconds(text: bytes) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        shown = text[:40].decode("latin-1")
        raise InputError(f"header {DEADLINE_MS}: expected a positive number of milliseconds, got {shown!r}")
    return value
