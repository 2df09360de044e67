"""What a failed request is called: errors of tfctr, gRPC statuses, HTTP codes. One place for every front.

The native side raises ``ServeFailed(code, message, stage)``; :func:`error_of` makes one of tfctr's errors of it, with
the stage kept in ``error.stage``.
"""

from __future__ import annotations

from tfctr.errors import (
    CancelledError,
    DeadlineError,
    InputError,
    InternalError,
    NotFoundError,
    OverloadedError,
    TfctrError,
    UnavailableError,
    UnimplementedError,
    UsageError,
    VersionRefusedError,
)

_CLASSES: dict[str, type[TfctrError]] = {
    "INVALID_ARGUMENT": InputError,
    "DEADLINE_EXCEEDED": DeadlineError,
    "RESOURCE_EXHAUSTED": OverloadedError,
    "UNAVAILABLE": UnavailableError,
    "CANCELLED": CancelledError,
    "NOT_FOUND": NotFoundError,
    "UNIMPLEMENTED": UnimplementedError,
    "INTERNAL": InternalError,
}
# Subclasses before their bases.
_CODES: tuple[tuple[type[TfctrError], str], ...] = (
    (InputError, "INVALID_ARGUMENT"),
    (DeadlineError, "DEADLINE_EXCEEDED"),
    (OverloadedError, "RESOURCE_EXHAUSTED"),
    (UnavailableError, "UNAVAILABLE"),
    (CancelledError, "CANCELLED"),
    (NotFoundError, "NOT_FOUND"),
    (UnimplementedError, "UNIMPLEMENTED"),
    (UsageError, "INVALID_ARGUMENT"),
    (VersionRefusedError, "FAILED_PRECONDITION"),
    (TfctrError, "INTERNAL"),
)
_LONGEST_NAME = 80
HTTP_CODES = {
    "OK": 200,
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "FAILED_PRECONDITION": 412,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""gRPC status -> HTTP code (499: the client is gone, as web servers log it)."""


def error_of(failure: BaseException) -> TfctrError:
    """The error of tfctr for a native ``ServeFailed``; ``stage`` is an attribute of each."""
    code, message, stage = failure.code, failure.message, failure.stage  # type: ignore[attr-defined]
    error = _CLASSES.get(code, InternalError)(message)
    error.stage = stage  # type: ignore[attr-defined]
    return error


def code_of(error: BaseException) -> str | None:
    """Name of the gRPC status for ``error``; None for what is none of tfctr's errors (a bug of whoever serves)."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return None


def with_model(code: str, message: str, model: str) -> str:
    """What is wrong with a request names the model that it was for; where reading failed, nobody has named it yet."""
    if code != "INVALID_ARGUMENT" or not model or f"model {model!r}" in message:
        return message
    return f"model {model[:_LONGEST_NAME]!r}: {message}"


def http_code_of(error: BaseException) -> int:
    """HTTP code for ``error``; 500 for what is none of tfctr's."""
    return HTTP_CODES[code_of(error) or "INTERNAL"]


def stage_of(error: BaseException) -> str:
    """Where the request was when it failed; "" where that is not known."""
    return str(getattr(error, "stage", "") or "")
