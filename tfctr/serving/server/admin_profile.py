"""``/v1/models/M:profile`` of the admin port: sampling on and off, recordings, and what came of them."""

from __future__ import annotations

from typing import Any

from tfctr.errors import InputError
from tfctr.serving.server import json_body
from tfctr.serving.server.http_calls import HttpCall, HttpReply, json_reply

_KEYS = frozenset({"every", "folder", "max_mb", "seconds"})


def profile(call: HttpCall) -> HttpReply:
    """GET, or POST without a body: what is on. POST {"every": 1000, "folder": "a", "max_mb": 50}: on; {"every": 0}:
    off; {"seconds": 2}: records the process that long. All answer with what is on then."""
    call.model = call.params["model"]
    profiles = call.ctx.profiles
    body = json_body.read(call.body, call.ctx.limits) if call.body.strip() else {}
    unknown = sorted(body.keys() - _KEYS)
    if unknown:
        raise InputError(f"profile: unknown {unknown[0][:80]!r}; there is: {', '.join(sorted(_KEYS))}")
    made: dict[str, Any] = {}
    if "seconds" in body:
        if len(body) > 1:
            raise InputError("profile: 'seconds' stands alone: it records the process, whatever is sampled")
        made["recorded"] = str(profiles.record(call.model, _number(body, "seconds")))
    elif body:
        _switch(call, body)
    return json_reply({"model": call.model, "profile": profiles.describe(call.model) | made})


def _switch(call: HttpCall, body: dict[str, Any]) -> None:
    profiles = call.ctx.profiles
    every = body.get("every")
    if type(every) is not int or every < 0:
        raise InputError(f"profile: 'every' is {str(every)[:40]!r}, expected a whole number; 0: off")
    if every == 0:
        if len(body) > 1:
            raise InputError("profile: 'every' 0 switches off, and takes nothing beside it")
        profiles.stop(call.model)
        return
    name = body.get("folder")
    if name is not None and type(name) is not str:
        raise InputError(f"profile: 'folder' is {str(name)[:40]!r}, expected a name")
    profiles.start(call.model, every, name, _number(body, "max_mb") if "max_mb" in body else None)


def _number(body: dict[str, Any], key: str) -> float:
    value = body[key]
    if type(value) not in (int, float):
        raise InputError(f"profile: {key!r} is {str(value)[:40]!r}, expected a number")
    return float(value)
