"""Listening: sockets that are opened before anything is loaded, uvicorn on a thread of its own, gRPC's ports.

A port that is taken is told by name and option before a model is touched.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from typing import Any

from tfctr.errors import InternalError, UsageError
from tfctr.serving.server import tls
from tfctr.serving.server.config import PortsConfig, ServerConfig

_BACKLOG = 1024
_START_S = 30.0
_TICK_S = 0.01


class Sockets:
    """The listening sockets of HTTP and admin, opened at once; UsageError names the port and its option."""

    def __init__(self, where: PortsConfig):
        self._sockets: dict[str, socket.socket] = {}
        self._taken: dict[str, str] = {}
        try:
            for name, host, port in (
                ("http", where.host, where.http_port),
                ("admin", where.admin_host, where.admin_port),
            ):
                if port is not None:
                    self._sockets[name] = listen(host, port, f"--{name}-port")
                    self._taken[name] = address(host, self._sockets[name].getsockname()[1])
        except BaseException:
            self.close()
            raise

    def url(self, scheme: str, name: str) -> str | None:
        return f"{scheme}://{self._taken[name]}" if name in self._taken else None

    def take(self, name: str) -> socket.socket | None:
        """The socket, which is the caller's from now on."""
        return self._sockets.pop(name, None)

    def close(self) -> None:
        while self._sockets:
            self._sockets.popitem()[1].close()


def listen(host: str, port: int, option: str) -> socket.socket:
    """A listening TCP socket.

    Raises:
      UsageError: the port is taken, not ours to take, or the host is not this machine.
    """
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise UsageError(f"{host} is no address of this machine: {error.strerror or error}") from error
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(target)
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise UsageError(_refused(host, port, option, error)) from error
    made.setblocking(False)
    return made


def bind_grpc(server: Any, host: str, port: int, options: tls.TlsOptions | None) -> int:
    """Opens gRPC's port; returns its number. UsageError as :func:`listen`."""
    # gRPC says only that it failed; a socket of our own says why.
    probe = listen(host, port, "--grpc-port")
    if port == 0:
        port = int(probe.getsockname()[1])
    probe.close()
    target = address(host, port)
    try:
        if options:
            bound = server.add_secure_port(target, tls.grpc_credentials(options))
        else:
            bound = server.add_insecure_port(target)
    except RuntimeError as error:
        raise UsageError(f"{target}: gRPC can't listen there (--grpc-port): {error}") from error
    return int(bound)


def address(host: str, port: int) -> str:
    """host:port, with brackets around IPv6."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def _refused(host: str, port: int, option: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is taken by another process; stop it or choose another ({option})"
    if error.errno == errno.EACCES:
        return f"port {port} of {host} is not for this user; choose one above 1023 ({option})"
    return f"port {port} of {host}: {os.strerror(error.errno or 0)} ({option})"


class HttpFront:
    """uvicorn with one application, on a thread and event loop of its own."""

    def __init__(self, name: str, app: Any, listening: socket.socket, config: ServerConfig):
        import uvicorn

        self._name = name
        self._socket = listening
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="httptools",
                loop="uvloop",
                ws="none",
                lifespan="auto",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=_BACKLOG,
                timeout_keep_alive=config.limits.idle_seconds,
                timeout_graceful_shutdown=max(1, round(config.server.drain_seconds)),
                **tls.http_arguments(config.tls),
            )
        )
        self._thread = threading.Thread(target=self._run, name=f"tfctr-{name}", daemon=True)
        self._failed: BaseException | None = None

    def start(self) -> None:
        """Returns once requests are taken."""
        self._thread.start()
        until = time.monotonic() + _START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > until:
                raise InternalError(f"the {self._name} front did not start: {self._failed or 'no reason known'}")
            time.sleep(_TICK_S)

    def ask_to_stop(self) -> None:
        """No new connections; those with a request inside get its answer, the others are closed."""
        self._server.should_exit = True

    def join(self, until: float) -> bool:
        """Waits till ``until`` (time.monotonic); False where requests were cut off."""
        self._thread.join(max(0.0, until - time.monotonic()) + 0.5)
        if self._thread.is_alive():
            self._server.force_exit = True
            self._thread.join(1.0)
            return False
        return True

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except BaseException as error:  # SystemExit too: told by start()
            self._failed = error
        finally:
            self._socket.close()
