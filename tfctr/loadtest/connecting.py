"""Opens what a load test needs: the way to the model, and the page with the server's metrics."""

from __future__ import annotations

import dataclasses
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tfctr.errors import UsageError
from tfctr.loadtest import server_metrics
from tfctr.loadtest.channel import Channel
from tfctr.loadtest.process_channel import ProcessChannel
from tfctr.loadtest.target import Target

Headers = Sequence[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Secrets:
    """By what a server's certificate is checked; the system's authorities where nothing is said."""

    root_certificates: bytes | None = None
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, ca_file: str | None) -> Secrets:
        if ca_file is None:
            return cls(None, ssl.create_default_context())
        try:
            return cls(Path(ca_file).read_bytes(), ssl.create_default_context(cafile=ca_file))
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"{ca_file}: no readable certificate: {error}") from error


def open_channel(
    target: Target,
    headers: Headers = (),
    timeout_s: float = 30.0,
    secrets: Secrets | None = None,
    compress: bool = False,
) -> Channel:
    """For gRPC, ``headers`` travel with each request; over HTTP they are part of the prepared messages."""
    secrets = secrets or Secrets()
    if target.transport == "grpc":
        from tfctr.loadtest.grpc_channel import GrpcChannel

        return GrpcChannel(target, headers, timeout_s, secrets.root_certificates, compress)
    from tfctr.loadtest.http_channel import HttpChannel

    return HttpChannel(target, timeout_s, secrets.tls if target.tls else None)


def in_process(session: Any) -> Channel:
    """session: a ``ServingSession`` or ``SessionGroup``."""
    return ProcessChannel(session.predict, session.close)


def batch_reader(
    target: Target, url: str | None, headers: Headers, tls: ssl.SSLContext | None
) -> Callable[[], dict[str, float]] | None:
    """A function that tells the batches since it was last called; None where the server has no metrics.

    Raises:
      UsageError: ``url`` was named and nobody answers there.
    """
    where = url or server_metrics.guess_url(target)
    if where is None:
        return None
    context = tls if where.startswith("https") else None
    try:
        last = [server_metrics.read(where, target.model, dict(headers), context)]
    except OSError as error:
        if url is None:
            return None
        raise UsageError(f"--metrics {url}: {error}") from error

    def read() -> dict[str, float]:
        try:
            now = server_metrics.read(where, target.model, dict(headers), context)
        except OSError:  # too busy to answer: this run tells no batch sizes
            return {}
        told = server_metrics.achieved(last[0], now)
        last[0] = now
        return told

    return read
