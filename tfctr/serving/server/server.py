"""The server: ports first, then the fronts (alive, not ready), then the models; and the way down again.

    with Server(config) as server:
        server.start()
        server.wait_ready()
        ...

`tfctr serve` is :func:`serve`: the same, with signals. SIGTERM or SIGINT: readiness is false, requests inside are
finished, nothing new is taken, exit 0. A second signal ends the process at once.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from tfctr.core import library
from tfctr.errors import UnavailableError
from tfctr.serving.server import ports, tls
from tfctr.serving.server.auth import Auth
from tfctr.serving.server.config import ServerConfig, is_loopback, read_token
from tfctr.serving.server.context import ServerContext
from tfctr.serving.server.logs import RequestLog
from tfctr.serving.server.metrics import Metrics

if TYPE_CHECKING:
    from tfctr.serving.versions import ModelManager

_POLL_S = 0.05


@dataclasses.dataclass(frozen=True)
class Endpoints:
    """Where a server listens; None: not there. ``grpc`` is host:port, the others are URLs."""

    grpc: str | None
    http: str | None
    admin: str | None


class Server:
    """Models behind both protocols. One start and one stop; not to be used again.

    Args:
      config: of :func:`tfctr.serving.server.config.build`.
      manager: of the models; default: made of the configuration.
      log: default: as the configuration says.
    """

    def __init__(self, config: ServerConfig, *, manager: ModelManager | None = None, log: RequestLog | None = None):
        self.config = config
        self.log = log or RequestLog(config.logs)
        self._manager = manager
        self._grpc: Any = None
        self._fronts: list[ports.HttpFront] = []
        self._admin: ports.HttpFront | None = None
        self.context: ServerContext | None = None
        self.endpoints = Endpoints(None, None, None)

    def start(self) -> Endpoints:
        """Opens the ports, starts the fronts and begins to load the models.

        Raises:
          UsageError: a port is taken, a TLS file or token is wrong, an op library can't be loaded.
        """
        config, where = self.config, self.config.server
        if config.tls:
            tls.check(config.tls)
        auth = Auth(read_token(config.tokens.serving_file), read_token(config.tokens.admin_file))
        scheme = "https" if config.tls else "http"
        sockets = ports.Sockets(where)
        try:
            admin = sockets.url(scheme, "admin")
            auth = dataclasses.replace(auth, admin_address=admin or "not open on this server (--admin-port)")
            library.load()
            library.load_op_libraries(config.op_libraries)
            self.context = self._make_context(auth)
            grpc_address = self._start_grpc()
            self._start_http(sockets)
        except BaseException:
            sockets.close()
            self.stop()
            raise
        self.endpoints = Endpoints(grpc_address, sockets.url(scheme, "http"), admin)
        self._say_open(auth)
        return self.endpoints

    def wait_ready(self, given_up: threading.Event | None = None) -> bool:
        """Waits until every model serves, or its first load is over without one.

        Returns:
          Whether all are ready; False too once ``given_up`` is set.

        Raises:
          UnavailableError: not one model serves; with each one's reason.
        """
        from tfctr.serving.server import models

        manager = self._open().manager
        stop = given_up or threading.Event()
        while not stop.is_set() and not models.settled(manager.status()):
            stop.wait(_POLL_S)
        if stop.is_set():
            return False
        reasons = self._reasons()
        if reasons and len(reasons) == len(self.config.models):
            raise UnavailableError("; ".join(reasons))
        for one in reasons:
            self.log.event("model does not serve", level=logging.ERROR, reason=one)
        gc.collect()
        gc.freeze()  # what was made so far lives as long as the process: no collection looks at it again
        return not reasons

    def stop(self, hurry: threading.Event | None = None) -> bool:
        """The way down; False where requests were still inside when ``drain_seconds`` were over.

        Args:
          hurry: once set, nothing is waited for.
        """
        hurry = hurry or threading.Event()
        where = self.config.server
        if self.context is not None:
            self.context.state.drain()
            if self._grpc is not None and where.lameduck_seconds:
                hurry.wait(where.lameduck_seconds)
        until = time.monotonic() + where.drain_seconds
        stopped = None if self._grpc is None else self._grpc.stop(where.drain_seconds)
        clean = True
        for front in self._fronts:
            front.ask_to_stop()
        for front in self._fronts:
            clean = front.join(until) and clean
        if stopped is not None:
            clean = stopped.wait(max(0.0, until - time.monotonic()) + 1) and clean
        if self._manager is not None:
            clean = bool(self._manager.close(max(0.0, until - time.monotonic()))) and clean
        if self._admin is not None:
            self._admin.ask_to_stop()
            self._admin.join(time.monotonic() + 1)
        self._grpc, self._fronts, self._admin, self._manager = None, [], None, None
        self.log.event("stopped", clean=clean)
        self.log.close()
        return clean

    @property
    def manager(self) -> ModelManager:
        """Of the models; UnavailableError before the start."""
        return self._open().manager

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _make_context(self, auth: Auth) -> ServerContext:
        from tfctr.serving.server.models import Served, make_manager

        config = self.config
        if self._manager is None:
            self._manager = make_manager(config, self.log)
        metrics = Metrics(enabled=config.metrics.enabled, log=self.log)
        context = ServerContext(
            manager=self._manager,
            metrics=metrics,
            log=self.log,
            limits=config.limits,
            auth=auth,
            default_deadline_ms=config.server.default_deadline_ms,
            grpc_threads=config.server.grpc_threads,
            http_threads=config.server.http_threads,
        )
        metrics.watch(Served(self._manager), context.ready)
        return context

    def _start_grpc(self) -> str | None:
        where = self.config.server
        if where.grpc_port is None:
            return None
        from tfctr.serving.server.grpc_server import build_grpc_server

        self._grpc = build_grpc_server(self._open())
        port = ports.bind_grpc(self._grpc, where.host, where.grpc_port, self.config.tls)
        self._grpc.start()
        return ports.address(where.host, port)

    def _start_http(self, sockets: ports.Sockets) -> None:
        from tfctr.serving.server.admin_rest import build_admin_app
        from tfctr.serving.server.http_app import build_http_app

        for name, build in (("admin", build_admin_app), ("http", build_http_app)):
            socket = sockets.take(name)
            if socket is None:
                continue
            front = ports.HttpFront(name, build(self._open()), socket, self.config)
            front.start()
            if name == "admin":
                self._admin = front
            else:
                self._fronts.append(front)

    def _open(self) -> ServerContext:
        if self.context is None:
            raise UnavailableError("the server was not started")
        return self.context

    def _reasons(self) -> list[str]:
        """Of each model that does not serve: why."""
        from tfctr.serving.server import models

        paths = {model.name: str(model.path) for model in self.config.models}
        statuses = self._open().manager.status()
        return [models.why_not(one, paths.get(one.name, "")) for one in statuses if not models.serves(one)]

    def _say_open(self, auth: Auth) -> None:
        where = self.config.server
        self.log.event("listening", **dataclasses.asdict(self.endpoints), pid=os.getpid())
        if not is_loopback(where.host) and not (self.config.tls and auth.token):
            self.log.event(
                "other machines can reach this server without TLS or without a token",
                level=logging.WARNING,
                host=where.host,
                tls=bool(self.config.tls),
                token=auth.token is not None,
            )


def serve(config: ServerConfig, ready: Callable[[Server], None]) -> int:
    """Runs a server until a signal; the process is the server's from here on.

    Args:
      config: what to serve and where.
      ready: called once, when all models serve (or some do and the others have failed).

    Returns:
      The exit code: 0 after a stop in which every request inside was answered, 1 where some were cut off.
    """
    stop, hurry = threading.Event(), threading.Event()
    _on_signals(stop, hurry)
    server = Server(config)
    server.log.take_over()
    try:
        server.start()
        server.wait_ready(stop)
        if not stop.is_set():
            ready(server)
        stop.wait()
        server.log.event("stopping")
    except BaseException:
        server.stop(hurry)
        raise
    return 0 if server.stop(hurry) else 1


def _on_signals(stop: threading.Event, hurry: threading.Event) -> None:
    def handle(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            os.write(2, f"tfctr: second {signal.Signals(number).name}: ends at once\n".encode())
            os._exit(128 + number)
        stop.set()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, handle)
