"""The message of a call with one message: waited for, but not for ever.

A client may open a call and never send its message. gRPC's synchronous server then waits on one of its threads, without
an end; a few such calls would keep everybody else waiting. So handlers take the stream of messages that every call is,
read the first one here, and the next call that arrives gives up those that have waited for too long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from tfctr.errors import CancelledError, DeadlineError, InputError


class Messages:
    """Thread-safe.

    Args:
      seconds: how long a message may take.
      clock: seconds, monotonic.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic):
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[Any, float] = {}  # context -> when its wait began; the first has waited longest

    def read(self, requests: Iterator[Any], context: Any) -> Any:
        """The message.

        Raises:
          InputError: the call has none. DeadlineError: given up. CancelledError: the client is gone.
        """
        with self._lock:
            self._waiting[context] = self._clock()
        try:
            return next(requests)
        except StopIteration:
            raise InputError("the call has no message, expected one") from None
        except grpc.RpcError:
            with self._lock:
                given_up = context not in self._waiting
            if given_up:
                raise DeadlineError(f"the message had not come after {self._seconds} s (body_seconds)") from None
            raise CancelledError("the client is gone") from None
        finally:
            with self._lock:
                self._waiting.pop(context, None)

    def give_up_late(self) -> None:
        """Cancels the calls whose message should have come by now."""
        until = self._clock() - self._seconds
        late = []
        with self._lock:
            while self._waiting:
                context, since = next(iter(self._waiting.items()))
                if since > until:
                    break
                del self._waiting[context]
                late.append(context)
        for context in late:
            context.cancel()
