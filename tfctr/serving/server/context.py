"""What both protocol fronts get: the models, the limits, who may do what, and where an answer is recorded.

A front (gRPC, HTTP, admin) is built from one :class:`ServerContext` and holds nothing else of the server. It calls
``ctx.manager.acquire(...)`` for a model, enforces ``ctx.limits``, asks ``ctx.auth`` who may call what, and calls
``ctx.answered(...)`` once for every request, after its reply is known.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfctr.serving.server.auth import Auth
from tfctr.serving.server.config import ProfileConfig
from tfctr.serving.server.grpc_messages import Messages
from tfctr.serving.server.limits import Bodies, Limits
from tfctr.version import __version__

if TYPE_CHECKING:
    from tfctr.serving.server.logs import RequestLog
    from tfctr.serving.server.metrics import Metrics
    from tfctr.serving.server.profiles import Profiles
    from tfctr.serving.versions import ModelManager

SERVER_NAME = "tfctr"
"""What KServe's server metadata and the HTTP header ``server`` say."""

REQUEST_ID = "x-request-id"
"""Metadata key and HTTP header: taken from the request (or made), given back, and written to the log."""
DEADLINE_MS = "x-tfctr-deadline-ms"
TIMING = "x-tfctr-timing"
USER_INPUTS = "x-tfctr-user-inputs"
"""Names of inputs, with commas between them, that have one row for all rows of the request."""


class ServerState:
    """The one thing about a server that changes: whether it is on its way out."""

    def __init__(self) -> None:
        self._draining = threading.Event()
        self._refusing = threading.Event()

    @property
    def draining(self) -> bool:
        """True since SIGTERM: readiness is false, requests inside are finished, new connections are not accepted."""
        return self._draining.is_set()

    def drain(self) -> None:
        self._draining.set()

    @property
    def refusing(self) -> bool:
        """True from shortly before the ports close: new requests are UNAVAILABLE, which clients may send elsewhere."""
        return self._refusing.is_set()

    def refuse(self) -> None:
        self._refusing.set()


@dataclasses.dataclass(frozen=True)
class ServerContext:
    """Everything that a front may use. Immutable, but for :attr:`state`."""

    manager: ModelManager
    metrics: Metrics
    """``render() -> (content type, bytes)`` is the body of /metrics."""
    log: RequestLog
    limits: Limits = dataclasses.field(default_factory=Limits)
    auth: Auth = dataclasses.field(default_factory=Auth)
    default_deadline_ms: float | None = None
    """Of requests that bring no deadline of their own; also the most that any request gets."""
    grpc_threads: int = 64
    """Threads that answer gRPC requests; each waits without the GIL while its request is queued or runs."""
    http_threads: int = 64
    """Threads that answer HTTP requests."""
    name: str = SERVER_NAME
    version: str = __version__
    state: ServerState = dataclasses.field(default_factory=ServerState)
    profile: ProfileConfig = dataclasses.field(default_factory=ProfileConfig)
    profiles: Profiles = dataclasses.field(init=False)
    """Who is traced, and recordings; closed with the server."""
    messages: Messages = dataclasses.field(init=False)
    """Of gRPC calls."""
    bodies: Bodies = dataclasses.field(init=False)
    """Of requests of all fronts."""

    def __post_init__(self) -> None:
        from tfctr.serving.server.profiles import Profiles

        object.__setattr__(self, "profiles", Profiles(self.manager, self.profile))
        object.__setattr__(self, "messages", Messages(self.limits.body_seconds))
        object.__setattr__(self, "bodies", Bodies(self.limits.max_total_body_bytes))

    def ready(self) -> bool:
        """What readiness says: every model has a version that serves, and the server is not draining."""
        return not self.state.draining and self.manager.ready()

    def answered(
        self,
        *,
        transport: str,
        api: str,
        method: str,
        model: str,
        version: int | None,
        code: str,
        seconds: float,
        request_id: str = "",
        stage: str = "",
        message: str = "",
        rows: int = 0,
        timing: Mapping[str, int] | None = None,
    ) -> None:
        """Records one answer in metrics and log. Never raises, never blocks on a slow disk.

        Args:
          transport: "grpc" or "http".
          api: "tfs", "kserve" or "admin".
          method: "Predict", "Classify", "Regress", "MultiInference", "GetModelMetadata", "ModelInfer", ...
          model: as the request named it. A name that is not served is counted as "": strangers' names make no series.
          version: that answered; None where none did.
          code: name of the gRPC status: "OK", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", ...
          seconds: from the front's first sight of the request to its reply, by ``time.perf_counter``.
          request_id: of header ``x-request-id``.
          stage: of a failure: parse, pack, queue, batch, run, reply.
          message: of a failure.
          rows: of the request, where known.
          timing: nanoseconds by stage, as ``Reply.timing`` has them.
        """
        self.metrics.answered(transport, api, method, model, version, code, seconds)
        if self.log.wants(code, seconds):
            details: dict[str, Any] = {"stage": stage, "message": message, "rows": rows, "timing": timing}
            self.log.answered(transport, api, method, model, version, code, seconds, request_id, details)
