"""KServe's v2 REST interface with the binary extension, for the unchanged ``tritonclient.http`` client.

An infer body is JSON, or JSON whose length the header ``inference-header-content-length`` gives, followed by the
bytes of those inputs that have ``binary_data_size``. Replies are made the same way.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import orjson

from tfctr.core import library
from tfctr.errors import InputError, UnimplementedError
from tfctr.serving.server import json_body, kserve_models, models
from tfctr.serving.server.http_calls import (
    HttpCall,
    HttpReply,
    check_rows,
    error_reply,
    flat_outputs,
    json_reply,
    predict_json,
)
from tfctr.serving.server.kserve_grpc import EXTENSIONS
from tfctr.serving.server.model_choice import (
    kserve_scheduling,
    kserve_signature,
    kserve_user_inputs,
    version_choice,
)

HEADER_LENGTH = b"inference-header-content-length"
_BINARY = b"application/octet-stream"
_LENGTH_DIGITS = 18
_KEYS = frozenset({"id", "parameters", "inputs", "outputs", "model_name", "model_version"})
_INPUT_KEYS = frozenset({"name", "shape", "datatype", "data", "parameters"})


def infer(call: HttpCall) -> HttpReply:
    """POST /v2/models/M[/versions/V]/infer"""
    native = library.native()
    start = time.perf_counter_ns()
    request, body = _plain(call)
    inputs: dict[str, Any] | None = None
    if request is None:
        body, inputs = _general(call)
    parameters = _parameters(body, "parameters")
    request_id = json_body.text_of(body, "id")
    wanted = _outputs(body)
    priority, timeout_us = kserve_scheduling(parameters)
    route = lambda field: native.field_hash("kserve", inputs or _general(call)[1], field)  # noqa: E731
    with _acquire(call, route) as lease:
        served = lease.version
        name, handle = kserve_signature(call.model, served, parameters)
        native_call = call.native_call(
            (call.model, served.number, name),
            priority=priority,
            timeout_us=timeout_us,
            users=kserve_user_inputs(parameters),
        )
        parsed = time.perf_counter_ns()
        found = None if request is None else predict_json(handle, request, native_call)
        if found is None:
            inputs = inputs or _general(call)[1]
            check_rows(call.ctx.limits.max_rows, handle, inputs)
            parsed = time.perf_counter_ns()
            found = handle.predict(inputs, native_call)
        ran = time.perf_counter_ns()
    outputs, timing = found
    call.rows = timing.rows
    tensors = outputs if handle.dense_only else flat_outputs(handle.outputs, outputs)
    reply = _reply(call, tensors, wanted, parameters.get("binary_data_output") is True, request_id)
    call.ran(timing.as_dict(), parsed - start, time.perf_counter_ns() - ran)
    return reply


def _plain(call: HttpCall) -> tuple[Any, dict[str, Any]]:
    """(request whose inputs all lie behind the JSON and stay in C++, its JSON without "inputs"); (None, {}): it is none
    of these."""
    length = call.headers.get(HEADER_LENGTH, b"")
    if not length.isdigit() or len(length) > _LENGTH_DIGITS:
        return None, {}
    limits = call.ctx.limits
    request = library.native().json_infer(call.body, int(length), limits.max_json_depth, limits.max_rows)
    if request is None:
        return None, {}
    try:
        body = json_body.read(request.rest, limits)
    except InputError:  # said by the other way, with the place in the whole JSON
        return None, {}
    return (None, {}) if body.keys() - _KEYS else (request, body)


def _general(call: HttpCall) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the JSON, its inputs as arrays)."""
    body, tail = _split(call)
    return body, library.native().kserve_inputs(_inputs(body), tail)


def _split(call: HttpCall) -> tuple[dict[str, Any], bytes]:
    """(the JSON, the bytes after it)."""
    text = call.headers.get(HEADER_LENGTH)
    body = call.body
    tail = b""
    if text is not None:
        if not text.isdigit() or len(text) > _LENGTH_DIGITS or int(text) > len(body):
            shown = text[:40].decode("latin-1")
            raise InputError(f"header Inference-Header-Content-Length is {shown!r}, the body has {len(body)} bytes")
        length = int(text)
        tail = body[length:]
        body = body[:length]
    parsed = json_body.read(body, call.ctx.limits, "the request's JSON")
    unknown = sorted(parsed.keys() - _KEYS)
    if unknown:
        raise InputError(f"the request's JSON has {unknown[0][:80]!r}; there is: {', '.join(sorted(_KEYS))}")
    return parsed, tail


def _parameters(holder: Mapping[str, Any], where: str) -> dict[str, Any]:
    found = holder.get("parameters", {})
    if type(found) is not dict:
        raise InputError(f"{where}: expected an object")
    for name in found:
        if name.startswith("shared_memory_"):
            raise UnimplementedError(f"{where}: {name}: shared memory is not supported; send the data in the request")
    return found


def _inputs(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The inputs, checked as far as their values do not matter."""
    found = body.get("inputs")
    if type(found) is not list or not found:
        raise InputError("'inputs': expected a list of one or more tensors")
    seen: set[str] = set()
    for k, one in enumerate(found):
        if type(one) is not dict:
            raise InputError(f"inputs[{k}]: expected an object with name, shape, datatype and data")
        name = one.get("name")
        if type(name) is not str or not name:
            raise InputError(f"inputs[{k}].name: expected a string")
        if name in seen:
            raise InputError(f"input {name[:80]!r} is there twice")
        seen.add(name)
        unknown = sorted(one.keys() - _INPUT_KEYS)
        if unknown:
            raise InputError(f"input {name[:80]!r} has {unknown[0][:80]!r}; there is: {', '.join(sorted(_INPUT_KEYS))}")
        if "parameters" in one:
            _parameters(one, f"input {name[:80]!r}: parameters")
    return found


def _outputs(body: Mapping[str, Any]) -> list[tuple[str, bool | None]] | None:
    """[(output asked for, binary or not or as the request says)]; None: all."""
    found = body.get("outputs")
    if found is None or found == []:
        return None
    if type(found) is not list:
        raise InputError("'outputs': expected a list of objects")
    wanted: list[tuple[str, bool | None]] = []
    for k, one in enumerate(found):
        if type(one) is not dict or type(one.get("name")) is not str:
            raise InputError(f"outputs[{k}]: expected an object with a name")
        parameters = _parameters(one, f"outputs[{k}].parameters")
        if parameters.get("classification"):
            raise UnimplementedError(f"output {one['name'][:80]!r}: the classification extension is not supported")
        binary = parameters.get("binary_data")
        if binary is not None and type(binary) is not bool:
            raise InputError(f"output {one['name'][:80]!r}: binary_data: expected true or false")
        wanted.append((one["name"], binary))
    return wanted


def _reply(
    call: HttpCall, tensors: dict[str, Any], wanted: list[tuple[str, bool | None]] | None, binary: bool, request_id: str
) -> HttpReply:
    """Outputs in the order asked for; binary ones lie behind the JSON. binary: of those that say nothing."""
    own: dict[str, bool | None] = {}
    if wanted is not None:
        own = dict(wanted)
        missing = own.keys() - tensors.keys()
        if missing:
            where = f"model {call.model!r} version {call.version}"
            raise InputError(f"{where}: no output {min(missing)[:80]!r}; there is: {', '.join(tensors)}")
        tensors = {name: tensors[name] for name in own}
    in_tail = [name for name in tensors if (binary if own.get(name) is None else own[name])]
    listed, tail = library.native().write_kserve_json(tensors, in_tail, False)
    head: dict[str, Any] = {"model_name": call.model, "model_version": str(call.version)}
    if request_id:
        head["id"] = request_id
    text = orjson.dumps(head)[:-1] + b',"outputs":' + listed + b"}"
    if not in_tail:
        return HttpReply(text)
    return HttpReply(text + tail, _BINARY, headers=[(HEADER_LENGTH, b"%d" % len(text))])


def live(call: HttpCall) -> HttpReply:
    """GET /v2/health/live"""
    return json_reply({"live": True})


def ready(call: HttpCall) -> HttpReply:
    """GET /v2/health/ready"""
    if call.ctx.ready():
        return json_reply({"ready": True})
    if call.ctx.state.draining:
        return error_reply("UNAVAILABLE", "the server is shutting down")
    return error_reply("UNAVAILABLE", models.not_ready(call.ctx.manager.statuses()) or "try again")


def model_ready(call: HttpCall) -> HttpReply:
    """GET /v2/models/M[/versions/V]/ready"""
    call.model = call.params["model"]
    choice = version_choice(call.model, call.params.get("version", ""))
    if kserve_models.model_ready(call.ctx.manager, call.model, *choice):
        return json_reply({"name": call.model, "ready": True})
    return error_reply("UNAVAILABLE", f"model {call.model!r} has no such version that serves")


def server_metadata(call: HttpCall) -> HttpReply:
    """GET /v2"""
    return json_reply({"name": call.ctx.name, "version": call.ctx.version, "extensions": list(EXTENSIONS)})


def metadata(call: HttpCall) -> HttpReply:
    """GET /v2/models/M[/versions/V]"""
    with _acquire(call, None) as lease:
        return json_reply(kserve_models.model_metadata(call.ctx.manager, call.model, lease.version))


def config(call: HttpCall) -> HttpReply:
    """GET /v2/models/M[/versions/V]/config"""
    with _acquire(call, None) as lease:
        return json_reply(kserve_models.model_config(call.model, lease.version))


def statistics(call: HttpCall) -> HttpReply:
    """GET /v2/models[/M[/versions/V]]/stats"""
    manager = call.ctx.manager
    call.model = call.params.get("model", "")
    version = call.params.get("version", "")
    found = []
    if version:
        chosen = [(call.model, version_choice(call.model, version))]
    else:
        chosen = [
            (status.name, (one.number, None))
            for status in manager.status(call.model or None)
            for one in status.versions
            if one.state == kserve_models.READY
        ]
    for name, choice in chosen:
        with manager.acquire(name, *choice) as lease:
            found.append(kserve_models.model_statistics(name, lease.version))
    return json_reply({"model_stats": found})


def index(call: HttpCall) -> HttpReply:
    """POST /v2/repository/index"""
    body = json_body.read(call.body, call.ctx.limits) if call.body.strip() else {}
    return json_reply(kserve_models.repository_index(call.ctx.manager, body.get("ready") is True))


def load(call: HttpCall) -> HttpReply:
    """POST /v2/repository/models/M/load"""
    call.model = call.params["model"]
    call.ctx.auth.check_public_admin(call.headers.get(b"authorization"), "load")
    body = json_body.read(call.body, call.ctx.limits) if call.body.strip() else {}
    parameters = _parameters(body, "parameters")
    if parameters:
        names = ", ".join(repr(name[:80]) for name in sorted(parameters))
        raise InputError(f"model {call.model!r}: load takes no parameters, got {names}")
    call.ctx.manager.load(call.model)
    return json_reply({})


def unload(call: HttpCall) -> HttpReply:
    """POST /v2/repository/models/M/unload"""
    call.model = call.params["model"]
    call.ctx.auth.check_public_admin(call.headers.get(b"authorization"), "unload")
    call.ctx.manager.unload(call.model)
    return json_reply({})


def no_shared_memory(call: HttpCall) -> HttpReply:
    """Whatever is asked of /v2/systemsharedmemory and /v2/cudasharedmemory."""
    raise UnimplementedError("shared memory is not supported; send the data in the request")


def no_settings(call: HttpCall) -> HttpReply:
    """Trace and log settings."""
    raise UnimplementedError("this server has no such settings")


def _acquire(call: HttpCall, route: Any) -> Any:
    call.model = call.params["model"]
    number, label = version_choice(call.model, call.params.get("version", ""))
    lease = call.ctx.manager.acquire(call.model, number, label, route)
    call.version = lease.version.number
    return lease
