"""Bearer tokens: who may predict, and who may change what is served."""

from __future__ import annotations

import dataclasses
import hmac

from tfctr.errors import TfctrError, UsageError

_SHORTEST = 8


class AccessError(TfctrError):
    """A request without the right token. code: "UNAUTHENTICATED" (401: no token, or a wrong one) or
    "PERMISSION_DENIED" (403: this can't be done here)."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


@dataclasses.dataclass(frozen=True)
class Auth:
    """Tokens of a server; never printed.

    token: every request on the public ports must carry it, save health checks; None: nobody is asked.
    admin_token: the admin port asks for it where set, and with it load and unload work on the public ports too; it also
    does what ``token`` does. admin_address: named to those who ask for administration on a public port.
    """

    token: str | None = dataclasses.field(default=None, repr=False)
    admin_token: str | None = dataclasses.field(default=None, repr=False)
    admin_address: str = "http://127.0.0.1:8502"

    def __post_init__(self) -> None:
        for name in ("token", "admin_token"):
            value = getattr(self, name)
            if value is None:
                continue
            if len(value) < _SHORTEST or not value.isascii() or not value.isprintable() or " " in value:
                raise UsageError(f"{name}: expected {_SHORTEST} or more printable ASCII characters without a space")

    def check(self, authorization: str | bytes | None) -> None:
        """A request on a public port. authorization: the header's (or metadata's) value.

        Raises:
          AccessError: UNAUTHENTICATED.
        """
        if self.token is None:
            return
        came = _bearer(authorization)
        # Both comparisons always run, so that time tells nothing.
        is_token = _same(came, self.token)
        is_admin = _same(came, self.admin_token)
        if not (is_token or is_admin):
            raise AccessError("UNAUTHENTICATED", _wanted(came))

    def check_admin(self, authorization: str | bytes | None) -> None:
        """A request on the admin port. Raises AccessError: UNAUTHENTICATED."""
        if self.admin_token is None:
            return
        came = _bearer(authorization)
        if not _same(came, self.admin_token):
            raise AccessError("UNAUTHENTICATED", _wanted(came))

    def check_public_admin(self, authorization: str | bytes | None, what: str) -> None:
        """``what`` (such as "load") on a public port. Raises AccessError: PERMISSION_DENIED, naming the admin port."""
        if self.admin_token is not None and _same(_bearer(authorization), self.admin_token):
            return
        raise AccessError(
            "PERMISSION_DENIED",
            f"{what}: not on this port without the admin token; the admin port is {self.admin_address}",
        )


def _bearer(authorization: str | bytes | None) -> str:
    if authorization is None:
        return ""
    text = authorization.decode("latin-1") if isinstance(authorization, bytes) else authorization
    scheme, _, token = text.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _same(came: str, token: str | None) -> bool:
    expected = (token or "").encode()
    return hmac.compare_digest(came.encode(), expected) and token is not None


def _wanted(came: str) -> str:
    return "wrong bearer token" if came else "this server asks for a token: authorization: Bearer TOKEN"
