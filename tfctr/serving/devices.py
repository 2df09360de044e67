"""Devices that a model's nodes ask for, and what became of them in this session (soft placement)."""

from __future__ import annotations

import logging
from typing import Any

_log = logging.getLogger("tfctr")
_SHOWN = 5


def device_report(where: str, found: dict[str, Any], *, quiet: bool = False) -> dict[str, Any]:
    """``asked``: device -> nodes that ask for it; ``session``: the session's devices; ``fell_back``: per device that
    is not there {device, nodes, ops {type: nodes}}. Logs one warning when something fell back,
    unless ``quiet``.

    found: ``_native.Model.devices()``.
    """
    asked = {device: sum(ops.values()) for device, ops, _ in found["asked"] if device}
    fell_back = [
        {"device": device, "nodes": sum(ops.values()), "ops": dict(sorted(ops.items(), key=lambda one: -one[1]))}
        for device, ops, present in found["asked"]
        if not present
    ]
    if fell_back and not quiet:
        told = "; ".join(f"{one['nodes']} nodes ask for {one['device']} ({_ops(one['ops'])})" for one in fell_back)
        _log.warning("%s: devices that are not here, so other devices run their nodes: %s", where, told)
    return {"asked": asked, "session": list(found["session"]), "fell_back": fell_back}


def _ops(ops: dict[str, int]) -> str:
    told = [f"{count} {op}" for op, count in list(ops.items())[:_SHOWN]]
    return ", ".join(told) + (f" and {len(ops) - _SHOWN} more types" if len(ops) > _SHOWN else "")
