"""The admin port: what is loaded; loading, unloading, rolling back, labels, profiling. For ``tfctr admin`` and curl.

Every reply is JSON; of a change, the model's status after it. Changes of one model wait for each other in the manager.
"""

from __future__ import annotations

import functools
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from tfctr.errors import InputError
from tfctr.serving.server import json_body
from tfctr.serving.server.admin_profile import profile
from tfctr.serving.server.auth import AccessError, Auth
from tfctr.serving.server.config import is_loopback
from tfctr.serving.server.context import ServerContext
from tfctr.serving.server.http_app import Endpoint, HttpApp, add_common
from tfctr.serving.server.http_calls import HttpCall, HttpReply, json_reply

_THREADS = 4
_ACCEPT = "accept_changed_inputs"
_KEYS = {
    "load": frozenset({"version", _ACCEPT}),
    "unload": frozenset({"version"}),
    "reload": frozenset({"version", _ACCEPT}),
    "rollback": frozenset({"version"}),
    "label": frozenset({"label", "version"}),
}


def build_admin_app(ctx: ServerContext) -> HttpApp:
    """Administration, health and metrics, for the admin port."""
    app = HttpApp(ctx, "admin", _THREADS, functools.partial(check, ctx.auth))
    app.add("/v1/status", Endpoint(app, "admin", "status", status))
    for verb in _KEYS:
        app.add(
            f"/v1/models/{{model}}:{verb}", Endpoint(app, "admin", verb, handler(verb), http=("POST",), changes=True)
        )
    app.add("/v1/models/{model}:profile", Endpoint(app, "admin", "profile", profile, http=("GET", "POST")))
    app.add("/v1/models/{model}", Endpoint(app, "admin", "status", model_status))
    add_common(app)
    return app


def check(auth: Auth, headers: Mapping[bytes, bytes]) -> None:
    """Whether a request may administer.

    Without an admin token, whoever reaches the loopback port may; but web pages that a browser on this machine shows
    reach it too. Their requests have an ``origin``, or say that they come from another site; those of a page whose name
    was made to mean 127.0.0.1 (DNS rebinding) have that name as ``host``.

    Raises:
      AccessError: UNAUTHENTICATED (no admin token, or a wrong one), PERMISSION_DENIED (a web page).
    """
    auth.check_admin(headers.get(b"authorization"))
    if auth.admin_token is not None:
        return
    if b"origin" in headers or headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
        raise _denied("requests of web pages are refused (origin, sec-fetch-site)")
    host = headers.get(b"host", b"127.0.0.1").decode("latin-1")
    try:
        name = urllib.parse.urlsplit(f"//{host}").hostname or ""
    except ValueError:
        name = ""
    if not is_loopback(name):
        raise _denied(f"host {host[:80]!r} is no name of this machine's loopback, such as 127.0.0.1 or localhost")


def _denied(why: str) -> AccessError:
    return AccessError("PERMISSION_DENIED", f"the admin port: {why}; with an admin token (--admin-token-file) it may")


def status(call: HttpCall) -> HttpReply:
    """GET /v1/status"""
    ctx = call.ctx
    return json_reply(
        {
            "server": ctx.name,
            "server_version": ctx.version,
            "ready": ctx.ready(),
            "draining": ctx.state.draining,
            "models": [described(one) for one in ctx.manager.status()],
        }
    )


def model_status(call: HttpCall) -> HttpReply:
    """GET /v1/models/M"""
    call.model = call.params["model"]
    return json_reply(_model(call))


def handler(verb: str) -> Callable[[HttpCall], HttpReply]:
    """POST /v1/models/M:verb with {"version": 3} or nothing; for load and reload also {"accept_changed_inputs": true};
    for label {"label": "stable", "version": 3}, where version null takes the label away."""

    def change(call: HttpCall) -> HttpReply:
        call.model = call.params["model"]
        body = json_body.read(call.body, call.ctx.limits) if call.body.strip() else {}
        unknown = sorted(body.keys() - _KEYS[verb])
        if unknown:
            raise InputError(f"{verb}: unknown {unknown[0][:80]!r}; there is: {', '.join(sorted(_KEYS[verb]))}")
        version = _version(body.get("version"))
        manager = call.ctx.manager
        if verb == "label":
            label = json_body.text_of(body, "label")
            if not label or "version" not in body:
                raise InputError('label: expected {"label": name, "version": number, or null to take it away}')
            manager.set_label(call.model, label, version)
        elif verb in ("load", "reload"):
            getattr(manager, verb)(call.model, version, accept_changed_inputs=_flag(body, _ACCEPT))
        else:
            getattr(manager, verb)(call.model, version)
        call.version = version
        return json_reply(_model(call))

    return change


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if type(value) is not bool:
        raise InputError(f"{name!r} is {str(value)[:40]!r}, expected true or false")
    return value


def _version(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is str and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise InputError(f"'version' is {str(value)[:40]!r}, expected a whole number")
    return value


def _model(call: HttpCall) -> dict[str, Any]:
    (found,) = call.ctx.manager.status(call.model)
    return described(found)


def described(model: Any) -> dict[str, Any]:
    """A ModelStatus as JSON has it."""
    return {
        "name": model.name,
        "default": model.default,
        "labels": dict(model.labels),
        "labels_unloaded": dict(model.labels_unloaded),
        "error": model.error,
        "versions": [dict(vars(one)) for one in model.versions],
    }
