"""What one request, and all of them together, may cost the server; the same for HTTP and gRPC."""

from __future__ import annotations

import dataclasses
import threading

from tfctr.errors import InputError, OverloadedError, UsageError


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits that hold before a request costs anything.

    max_body_bytes: of a request's body, and of what a compressed body unpacks to. max_total_body_bytes: of all bodies
    that the server holds at once, over HTTP and gRPC; what is over it is refused. max_rows: rows of one request.
    max_json_depth: lists and objects inside each other in a JSON body. max_concurrent: requests inside the server at
    once, for each of the two fronts; more are refused at once (RESOURCE_EXHAUSTED, 429). max_streams: ModelStreamInfer
    calls that are open at once; one more is RESOURCE_EXHAUSTED. max_header_bytes: request line
    and headers of one HTTP request. idle_seconds: an HTTP connection without a request is closed after it.
    body_seconds: a request whose body, or message, isn't complete after it is given up.
    """

    max_body_bytes: int = 64 << 20
    max_total_body_bytes: int = 1 << 30
    max_rows: int = 100_000
    max_json_depth: int = 32
    max_concurrent: int = 256
    max_streams: int = 64
    max_header_bytes: int = 64 << 10
    idle_seconds: int = 60
    body_seconds: int = 60

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"limits: {field.name} is {value!r}, expected a positive whole number")
        if self.max_total_body_bytes < self.max_body_bytes:
            raise UsageError(
                f"limits: max_total_body_bytes is {self.max_total_body_bytes}, expected at least max_body_bytes, "
                f"{self.max_body_bytes}: a body must fit"
            )


class TooLargeError(InputError):
    """A body over :attr:`Limits.max_body_bytes`: RESOURCE_EXHAUSTED in gRPC, 413 in HTTP."""


class Gate:
    """Counts the requests inside; never waits.

    >>> gate = Gate(1)
    >>> gate.enter(), gate.enter()
    (True, False)
    >>> gate.leave()
    """

    def __init__(self, limit: int, what: str = "requests in work", name: str = "max_concurrent"):
        self.limit = limit
        self._what = f"the server has {limit} {what}, its limit ({name}); try again later"
        self._inside = 0
        self._lock = threading.Lock()

    @property
    def inside(self) -> int:
        """Requests that entered and have not left."""
        return self._inside

    def enter(self) -> bool:
        """Whether the request may go on; then :meth:`leave` must follow."""
        with self._lock:
            if self._inside >= self.limit:
                return False
            self._inside += 1
            return True

    def leave(self) -> None:
        """The request is done."""
        with self._lock:
            self._inside -= 1

    def message(self) -> str:
        """What a refused request is told."""
        return self._what


class Bodies:
    """Counts the bytes of request bodies that the server holds, of all fronts; never waits.

    Attributes:
      limit: bytes.
      held: now.
      refused: bodies since the start that were over the limit.
    """

    def __init__(self, limit: int):
        self.limit = limit
        self.held = 0
        self.refused = 0
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Counts ``size`` more bytes, until :meth:`give`. OverloadedError, and nothing is counted: they are over the
        limit."""
        with self._lock:
            if self.held + size <= self.limit:
                self.held += size
                return
            self.refused += 1
        raise OverloadedError(self.message())

    def give(self, size: int) -> None:
        """These bytes are held no more."""
        with self._lock:
            self.held -= size

    def message(self) -> str:
        """What a refused request is told."""
        return (
            f"the bodies of all requests would take more than {self.limit} bytes, the server's limit "
            "(max_total_body_bytes); try again later"
        )
