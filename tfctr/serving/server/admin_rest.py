"""The admin port: what is loaded, and loading, unloading, rolling back, labels. For ``tfctr admin`` and curl.

Every reply is JSON; of a change, the model's status after it. Changes of one model wait for each other in the manager.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfctr.errors import InputError
from tfctr.serving.server import json_body
from tfctr.serving.server.context import ServerContext
from tfctr.serving.server.http_app import Endpoint, HttpApp, add_common
from tfctr.serving.server.http_calls import HttpCall, HttpReply, json_reply

_THREADS = 4
_KEYS = {
    "load": frozenset({"version"}),
    "unload": frozenset({"version"}),
    "reload": frozenset({"version"}),
    "rollback": frozenset({"version"}),
    "label": frozenset({"label", "version"}),
}


def build_admin_app(ctx: ServerContext) -> HttpApp:
    """Administration, health and metrics, for the admin port."""
    app = HttpApp(ctx, "admin", _THREADS, ctx.auth.check_admin)
    app.add("/v1/status", Endpoint(app, "admin", "status", status))
    for verb in _KEYS:
        app.add(
            f"/v1/models/{{model}}:{verb}", Endpoint(app, "admin", verb, handler(verb), http=("POST",), changes=True)
        )
    app.add("/v1/models/{model}", Endpoint(app, "admin", "status", model_status))
    add_common(app)
    return app


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
    """POST /v1/models/M:verb with {"version": 3} or nothing; for label {"label": "stable", "version": 3}, where version
    null takes the label away."""

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
        else:
            getattr(manager, verb)(call.model, version)
        call.version = version
        return json_reply(_model(call))

    return change


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
        "error": model.error,
        "versions": [dict(vars(one)) for one in model.versions],
    }
