"""TLS for all ports: one certificate, its key, and optionally the CA that clients' certificates must come from."""

from __future__ import annotations

import contextlib
import dataclasses
import ssl
import threading
from pathlib import Path
from typing import Any

from tfctr.errors import UsageError


@dataclasses.dataclass(frozen=True)
class TlsOptions:
    """PEM files. ``client_ca``: clients must show a certificate that it signed (mutual TLS)."""

    certificate: str
    key: str
    client_ca: str | None = None


def check(options: TlsOptions) -> None:
    """Reads all files once, so that a wrong one is told by name before a port is open.

    Raises:
      UsageError: a file is missing, no PEM, encrypted, or the key is not the certificate's.
    """
    _context(options)


def _context(options: TlsOptions) -> ssl.SSLContext:
    for path in filter(None, (options.certificate, options.key, options.client_ca)):
        _read(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.certificate, options.key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(
            f"{options.certificate}, {options.key}: expected a PEM certificate and its unencrypted key: {error}"
        ) from error
    if options.client_ca:
        try:
            context.load_verify_locations(options.client_ca)
        except ssl.SSLError as error:
            raise UsageError(f"{options.client_ca}: expected PEM certificates: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def grpc_credentials(options: TlsOptions) -> Any:
    """Server credentials of gRPC that read the files anew when they change: certificates are renewed without a stop."""
    import grpc

    def configuration() -> Any:
        return grpc.ssl_server_certificate_configuration(
            [(_read(options.key), _read(options.certificate))],
            root_certificates=_read(options.client_ca) if options.client_ca else None,
        )

    seen = _stamp(options)

    def renewed() -> Any:
        nonlocal seen
        now = _stamp(options)
        if now == seen:
            return None
        try:
            check(options)
            made = configuration()
        except UsageError:  # half-renewed files: the old certificate serves on, the next connection looks again
            return None
        seen = now
        return made

    return grpc.dynamic_ssl_server_credentials(
        configuration(), renewed, require_client_authentication=options.client_ca is not None
    )


def http_arguments(options: TlsOptions | None) -> dict[str, Any]:
    """What uvicorn is given."""
    if options is None:
        return {}
    return {"ssl_context_factory": lambda config, default: http_context(options)}


def http_context(options: TlsOptions) -> ssl.SSLContext:
    """A server's context whose connections get the certificate that is in the files when they begin.

    Raises:
      UsageError: as :func:`check`.
    """
    first = newest = _context(options)
    seen = _stamp(options)
    lock = threading.Lock()

    def begins(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        nonlocal newest, seen
        with lock:
            now = _stamp(options)
            if now != seen:
                # Half-renewed files: the old certificate serves on, the next connection looks again.
                with contextlib.suppress(UsageError):
                    newest, seen = _context(options), now
            if newest is not first:
                connection.context = newest

    first.sni_callback = begins  # called for every handshake, with or without a server name
    return first


def _stamp(options: TlsOptions) -> tuple[tuple[int, int], ...]:
    files = [Path(path) for path in (options.certificate, options.key, options.client_ca) if path]
    return tuple((path.stat().st_mtime_ns, path.stat().st_size) if path.exists() else (0, 0) for path in files)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: TLS file can't be read: {error.strerror}") from error
