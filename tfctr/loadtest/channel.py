"""What every way to reach a model has in common: prepared requests go in, answers come out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tfctr.loadtest.fresh_ids import FreshArrays, FreshIds

OK = "OK"


@dataclasses.dataclass(frozen=True)
class Prepared:
    """One request, ready to go.

    body: the bytes of the message; in process the arrays by input name. rows: of its batch.
    fresh: where ids that no request had before are written into the body each time it is sent.
    """

    body: Any
    rows: int
    fresh: FreshIds | FreshArrays | None = None

    def payload(self) -> Any:
        """What is sent this time."""
        return self.body if self.fresh is None else self.fresh.fill(self.body)


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """code: "OK" or the protocol's own name of what went wrong. timing: the server's own, where it was asked for."""

    code: str
    message: str = ""
    timing: Mapping[str, Any] | None = None


PLAIN_OK = Answer(OK)
Call = Callable[[Prepared, bool], Answer]  # (request, whether to ask for the server's timing) -> answer; never raises


class Channel(Protocol):
    """A way to one model."""

    def connect(self) -> Call:
        """A function for one thread to send requests with, one at a time."""

    def close(self) -> None: ...
