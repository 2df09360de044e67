"""What a request asks for beside its inputs: signature, version or label, KServe's parameters. For gRPC and HTTP alike,
so that both mean the same.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from tfctr.errors import InputError

DEFAULT_SIGNATURE = "serving_default"

SIGNATURE_PARAMETER = "signature_name"
"""KServe has no signatures: this parameter of a request chooses one; without it the default signature answers, or the
only one."""

USER_PARAMETER = "user_inputs"
"""KServe's parameter for what TF Serving's requests say in metadata or a header (``context.USER_INPUTS``)."""

NORMAL_PRIORITY = 2
"""The priority of KServe requests that give none, or 0. As in Triton, 1 is served first and larger numbers later."""

_MOST_DIGITS = 19  # of an int64
_MOST_MICROSECONDS = 1 << 53


def signature_of(model: str, served: Any, name: str) -> Any:
    """The handle of a signature. InputError: there is none of this name; tells those there are."""
    handle = served.signatures.get(name)
    if handle is not None:
        return handle
    names = sorted(served.signatures)
    near = difflib.get_close_matches(name, names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    where = f"model {model!r} version {served.number}"
    raise InputError(f"{where}: no signature {name!r}; there is: {', '.join(names) or 'none'}{hint}")


def version_choice(model: str, text: str) -> tuple[int | None, str | None]:
    """KServe's version, a string: (version, label); "" is neither. InputError: a number out of range."""
    if not text:
        return None, None
    if not (text.isascii() and text.isdigit()):
        return None, text
    digits = text.lstrip("0") or "0"
    if len(digits) > _MOST_DIGITS or int(digits) >= 1 << 63:
        raise InputError(f"model {model!r}: version {text[:40]} is out of range")
    return int(digits), None


def kserve_signature(model: str, served: Any, parameters: Mapping[str, Any]) -> tuple[str, Any]:
    """(name, handle) of the signature that a KServe request asks for. InputError: there is none of this name."""
    wanted = parameters.get(SIGNATURE_PARAMETER)
    if wanted is None:
        handle = served.signatures.get(DEFAULT_SIGNATURE)
        if handle is not None:
            return DEFAULT_SIGNATURE, handle
        if len(served.signatures) == 1:
            return next(iter(served.signatures.items()))  # type: ignore[no-any-return]
        wanted = DEFAULT_SIGNATURE
    elif not isinstance(wanted, str):
        raise InputError(f"parameters: {SIGNATURE_PARAMETER!r}: expected a string, got {wanted!r}")
    return wanted, signature_of(model, served, wanted)


def kserve_scheduling(parameters: Mapping[str, Any]) -> tuple[int, int]:
    """(priority as the dispatcher has it: higher first, 0 normal; timeout in microseconds, 0: none).

    InputError: one of them is no whole number, or negative; a sequence was asked for, which no model here has.
    """
    if not parameters:
        return 0, 0
    priority = _whole(parameters, "priority")
    timeout = _whole(parameters, "timeout")
    if parameters.get("sequence_id"):
        raise InputError("parameters: 'sequence_id': this server has no models that keep state between requests")
    return (NORMAL_PRIORITY - min(priority, 1 << 20)) if priority else 0, min(timeout, _MOST_MICROSECONDS)


def user_inputs(text: str) -> list[str]:
    """Names of inputs, as header, metadata and KServe's parameter have them: with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()] if text else []


def kserve_user_inputs(parameters: Mapping[str, Any]) -> list[str]:
    """The inputs that a KServe request names as the user's. InputError: the parameter is no text."""
    text = parameters.get(USER_PARAMETER, "")
    if not isinstance(text, str):
        raise InputError(f"parameters: {USER_PARAMETER!r}: expected names with commas between them, got {text!r}")
    return user_inputs(text)


def _whole(parameters: Mapping[str, Any], name: str) -> int:
    value = parameters.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"parameters: {name!r}: expected a whole number of 0 or more, got {value!r}")
    return value
