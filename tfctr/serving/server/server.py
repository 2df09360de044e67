"""The server: ports first, then the fronts (alive, not ready), then the models; and the way down again.

    with Server(config) as server:
        server.start()
        server.wait_ready()
        ...

`tfctr serve` is :func:`serve`: the same, with signals. SIGTERM or SIGINT: readiness is false, requests inside are
finished, nothing new is taken, exit 0. A second signal ends the process at once.
"""

from __future__ import annotations

import contextlib
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
from tfctr.serving.server.config import PortsConfig, ServerConfig, is_loopback, read_token
from tfctr.serving.server.context import ServerContext
from tfctr.serving.server.logs import RequestLog
from tfctr.serving.server.metrics import Metrics

if TYPE_CHECKING:
    from tfctr.serving.server.http_server import HttpServer
    from tfctr.serving.versions import ModelManager

_POLL_S = 0.05
_REFUSING_S = 0.1  # requests that gRPC is handing over get there within a few milliseconds


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
      manager: of the models, which stays the caller's; default: made of the configuration, and closed with the server.
      log: default: as the configuration says.
    """

    def __init__(self, config: ServerConfig, *, manager: ModelManager | None = None, log: RequestLog | None = None):
        self.config = config
        self.log = log or RequestLog(config.logs)
        self._given = manager
        self._manager: ModelManager | None = None  # our own
        self._grpc: Any = None
        self._http: HttpServer | None = None
        self._admin: HttpServer | None = None
        self.context: ServerContext | None = None
        self.endpoints = Endpoints(None, None, None)
        self._stopped = False
        self.stuck = False
        """After :meth:`stop`: a thread still loads a model, so the process had better end by ``os._exit``."""

    def start(self) -> Endpoints:
        """Opens the ports, starts the fronts and begins to load the models.

        Raises:
          UsageError: a port is taken, a TLS file or token is wrong, an op library can't be loaded.
        """
        config = self.config
        if config.tls:
            tls.check(config.tls)
        tokens = read_token(config.tokens.serving_file), read_token(config.tokens.admin_file)
        where = ports.resolved(config.server)
        admin = f"{'https' if config.tls else 'http'}://{ports.address(where.admin_host, where.admin_port or 0)}"
        if where.admin_port is None:
            admin = "not open on this server (--admin-port)"
        auth = Auth(*tokens, admin)
        try:
            library.load()
            library.load_op_libraries(config.op_libraries)
            self.context = self._make_context(auth)
            self.context.profiles.start_configured()
            self.endpoints = self._start_fronts(where)
            self.context.manager.start()  # the ports answer by now: alive, not ready
        except BaseException:
            self.stop()
            raise
        self._say_open(auth)
        return self.endpoints

    def wait_ready(self, given_up: threading.Event | None = None) -> bool:
        """Waits until every model serves, or its first load is over without one.

        Returns:
          Whether all are ready; False too once ``given_up`` is set.

        Raises:
          UnavailableError: not one model serves; with each one's reason.
        """
        manager = self._open().manager
        stop = given_up or threading.Event()
        settled = threading.Event()

        def wait() -> None:
            manager.wait()
            settled.set()

        threading.Thread(target=wait, name="tfctr-first-load", daemon=True).start()
        while not settled.wait(_POLL_S):
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

    def stop(self) -> bool:
        """The way down; False where requests were still inside when ``drain_seconds`` were over. Again: nothing."""
        if self._stopped:
            return True
        self._stopped = True
        where = self.config.server
        if self.context is not None:
            self.context.state.drain()
            if where.lameduck_seconds:
                threading.Event().wait(where.lameduck_seconds)
            self.context.state.refuse()
            if self._grpc is not None:
                # What gRPC has read but not handed over when it stops is CANCELLED, as if the client had given up.
                threading.Event().wait(_REFUSING_S)
        until = time.monotonic() + where.drain_seconds

        def left() -> float:
            return max(0.0, until - time.monotonic())

        clean = True
        grpc_stopped = None if self._grpc is None else self._grpc.stop(where.drain_seconds)
        if self._http is not None:
            clean = self._http.join(until)
        if grpc_stopped is not None:
            clean = grpc_stopped.wait(left() + 1) and clean
        if self.context is not None:
            self.context.profiles.close()
        if self._manager is not None:
            clean = self._close_models(self._manager, left()) and clean
        if self._admin is not None:
            self._admin.join(time.monotonic() + 1)
        self._grpc = self._http = self._admin = self._manager = None
        if self.context is not None:
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
        from tfctr.serving.server import models
        from tfctr.serving.versions import ModelManager

        config = self.config
        if self._given is None:
            self._manager = ModelManager(models.specs(config), start=False)
        manager: Any = self._given or self._manager
        metrics = Metrics(enabled=config.metrics.enabled, log=self.log)
        context = ServerContext(
            manager=manager,
            metrics=metrics,
            log=self.log,
            profile=config.profile,
            limits=config.limits,
            auth=auth,
            default_deadline_ms=config.server.default_deadline_ms,
            grpc_threads=config.server.grpc_threads,
            http_threads=config.server.http_threads,
        )
        metrics.watch(manager, context.ready, context.bodies, context.profiles)
        return context

    def _start_fronts(self, where: PortsConfig) -> Endpoints:
        from tfctr.serving.server.admin_rest import build_admin_app
        from tfctr.serving.server.grpc_server import build_grpc_server
        from tfctr.serving.server.http_app import build_http_app
        from tfctr.serving.server.http_server import HttpServer

        context, limits, options = self._open(), self.config.limits, tls.http_arguments(self.config.tls)
        grpc_address = None
        if where.admin_port is not None:
            socket = ports.listen(where.admin_host, where.admin_port, "--admin-port")
            self._admin = HttpServer("admin", build_admin_app(context), socket, limits, options)
        if where.http_port is not None:
            socket = ports.listen(where.host, where.http_port, "--http-port")
            self._http = HttpServer("http", build_http_app(context), socket, limits, options)
        if where.grpc_port is not None:
            self._grpc = build_grpc_server(context)
            grpc_address = ports.bind_grpc(self._grpc, where, self.config.tls)
        for front in (self._admin, self._http, self._grpc):
            if front is not None:
                front.start()
        http, admin = (None if front is None else front.url for front in (self._http, self._admin))
        return Endpoints(grpc_address, http, admin)

    def _close_models(self, manager: ModelManager, seconds: float) -> bool:
        """A load that is under way can't be stopped; it is not waited for longer than for requests."""
        drained: list[bool] = []
        closing = threading.Thread(target=lambda: drained.append(manager.close(seconds)), daemon=True)
        closing.start()
        closing.join(seconds + 1)
        self.stuck = closing.is_alive()
        return bool(drained and drained[0])

    def _open(self) -> ServerContext:
        if self.context is None:
            raise UnavailableError("the server was not started")
        return self.context

    def _reasons(self) -> list[str]:
        """Of each model that does not serve: why."""
        from tfctr.serving.server import models

        paths = {model.name: str(model.path) for model in self.config.models}
        statuses = self._open().manager.statuses()
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
    stop = threading.Event()
    _on_signals(stop)
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
        server.stop()
        raise
    code = 0 if server.stop() else 1
    if server.stuck:
        os._exit(code)
    return code


def _on_signals(stop: threading.Event) -> None:
    def handle(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            with contextlib.suppress(OSError):  # nobody may be reading stderr
                os.write(2, f"tfctr: second {signal.Signals(number).name}: ends at once\n".encode())
            os._exit(128 + number)
        stop.set()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, handle)
