"""uvicorn on a thread of its own, with an event loop of its own, over a socket that is bound already.

Beside uvicorn's own protocol: headers have a size limit and must be complete in time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tfctr.errors import InternalError
from tfctr.serving.server.context import SERVER_NAME
from tfctr.serving.server.http_app import WHOLE, HttpApp
from tfctr.serving.server.limits import Limits

_BACKLOG = 1024
_START_S = 10
_FORCED_S = 2
_LOG = logging.getLogger("tfctr.server.http")


def _protocol(limits: Limits) -> type[HttpToolsProtocol]:
    """uvicorn's protocol with the limits that it lacks, and bodies handed over whole."""

    class LimitedProtocol(HttpToolsProtocol):
        _header_bytes = 0
        _pieces: list[bytes] | None = None  # of a body that is handed over whole
        _header_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_headers()  # a client that connects must ask

        def connection_lost(self, exc: Exception | None) -> None:
            self._headers_done()
            super().connection_lost(exc)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._header_bytes = 0
            self._expect_headers()

        def on_url(self, url: bytes) -> None:
            self._count(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._count(len(name) + len(value))
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._headers_done()
            self._pieces = [] if 0 < _length(self.headers) <= WHOLE else None
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            """Bodies of a known, moderate length are read without a pause; uvicorn would stop reading after each 64 KiB
            until the application, which wants all of it, has taken them."""
            if self._pieces is None or self.cycle.response_complete:
                return super().on_body(body)
            self._pieces.append(body)

        def on_message_complete(self) -> None:
            pieces, self._pieces = self._pieces, None
            if pieces and not self.cycle.response_complete:
                self.cycle.body = b"".join(pieces)  # type: ignore[assignment]  # it is only copied
            super().on_message_complete()

        def _count(self, size: int) -> None:
            self._header_bytes += size
            if self._header_bytes > limits.max_header_bytes:
                raise ValueError(f"headers of more than {limits.max_header_bytes} bytes")

        def _expect_headers(self) -> None:
            if self._header_timer is None:
                self._header_timer = self.loop.call_later(limits.idle_seconds, self.transport.close)

        def _headers_done(self) -> None:
            if self._header_timer is not None:
                self._header_timer.cancel()
                self._header_timer = None

    return LimitedProtocol


def _length(headers: list[tuple[bytes, bytes]]) -> int:
    """Of the body; 0: not told."""
    for name, value in headers:
        if name == b"content-length":
            return int(value)  # the parser has checked it
    return 0


class HttpServer:
    """One application on one port. One start and one stop.

    Args:
      name: "http" or "admin", for threads and messages.
      app: of build_http_app or build_admin_app; closed with the server.
      sock: bound to where it serves (``ports.listen``, :func:`bound`); closed with the server.
      limits: of headers and idle connections.
      tls: uvicorn's ssl arguments (``tls.http_arguments``).
    """

    def __init__(self, name: str, app: HttpApp, sock: socket.socket, limits: Limits, tls: dict[str, Any] | None = None):
        self.app = app
        self._socket = sock
        self.host, self.port = sock.getsockname()[:2]
        self.scheme = "https" if tls else "http"
        config = uvicorn.Config(
            app,
            http=_protocol(limits),
            loop="uvloop",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            headers=[("server", SERVER_NAME)],
            backlog=_BACKLOG,
            timeout_keep_alive=limits.idle_seconds,
            proxy_headers=False,
            **(tls or {}),
        )
        self._server = uvicorn.Server(config)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"tfctr-{name}-loop", daemon=True)

    @property
    def url(self) -> str:
        """http://127.0.0.1:8501"""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def start(self) -> None:
        """Returns when requests are taken. InternalError: the event loop did not come up."""
        self._thread.start()
        until = time.monotonic() + _START_S
        while not self._server.started and self._failure is None and time.monotonic() < until:
            self._thread.join(0.005)
        if not self._server.started:
            self._socket.close()
            raise InternalError(f"{self.url}: the HTTP server did not start: {self._failure}")

    def ask_to_stop(self) -> None:
        """Takes no new connections from now on; those that are idle are closed, requests inside go on."""
        self._server.should_exit = True

    def join(self, until: float) -> bool:
        """Waits for the requests inside until ``until`` (time.monotonic), gives up those that are left.

        Returns:
          Whether all of them ended in time.
        """
        self.ask_to_stop()
        clean = True
        if self._thread.ident is not None:
            self._thread.join(max(0.0, until - time.monotonic()))
            clean = not self._thread.is_alive()
            if not clean:
                self._server.force_exit = True
                self._server.config.timeout_graceful_shutdown = 0
                self._thread.join(_FORCED_S)
        self._socket.close()
        self.app.close(wait=clean)
        return clean

    def stop(self, grace_s: float = 30.0) -> bool:
        """:meth:`join`, ``grace_s`` seconds from now."""
        return self.join(time.monotonic() + grace_s)

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except BaseException as error:  # of a thread: start() tells it
            self._failure = error
            _LOG.error("the HTTP server ended", exc_info=error)


def bound(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """A socket bound to an address. OSError: it is taken, or none of this machine's."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made
