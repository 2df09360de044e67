"""The message of a call with one message: waited for, but not for ever.

A client may open a call and never send its message. gRPC's synchronous server then waits on one of its threads, without
an end; a few such calls would keep everybody else waiting. So handlers take the stream of messages that every call is,
read the first one here, and a thread gives up those that have waited for too long.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from tfctr.errors import CancelledError, DeadlineError, InputError

_LOOKS = 4  # in the time that a message may take


class Message:
    """The message of a call, or why there is none, known before a thread has taken the call up (``grpc_pool``)."""

    __slots__ = ("_body", "_error")

    def __init__(self, body: bytes = b"", error: Exception | None = None):
        self._body = body
        self._error = error

    def take(self) -> bytes:
        if self._error is not None:
            raise self._error
        return self._body


class Messages:
    """Thread-safe. Has a thread, from the first message on and as long as the object lives.

    Args:
      seconds: how long a message may take.
      clock: seconds, monotonic.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic):
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        # What can be cancelled -> when its wait began; the first has waited longest.
        self._waiting: dict[Any, float] = {}
        self._watched = False

    def read(self, requests: Iterator[Any], context: Any) -> Any:
        """The message.

        Raises:
          InputError: the call has none. DeadlineError: given up. CancelledError: the client is gone.
        """
        self.expect(context)
        try:
            return next(requests)
        except StopIteration:
            raise InputError("the call has no message, expected one") from None
        except grpc.RpcError:
            with self._lock:
                given_up = context not in self._waiting
            if given_up:
                raise self.late() from None
            raise CancelledError("the client is gone") from None
        finally:
            with self._lock:
                self._waiting.pop(context, None)

    def expect(self, call: Any) -> None:
        """The message of ``call``, which has a method ``cancel``, is waited for from now on."""
        with self._lock:
            self._waiting[call] = self._clock()
            if not self._watched:
                self._watched = True
                self._watch()

    def came(self, call: Any) -> bool:
        """It is here, or will not come; False: the call was given up."""
        with self._lock:
            return self._waiting.pop(call, None) is not None

    def late(self) -> DeadlineError:
        """What a call that was given up ends with."""
        return DeadlineError(f"the message had not come after {self._seconds} s (body_seconds)")

    def _watch(self) -> None:
        over = threading.Event()
        weakref.finalize(self, over.set)
        given = weakref.ref(self), over, self._seconds / _LOOKS
        threading.Thread(target=_give_up, args=given, name="tfctr-grpc-late", daemon=True).start()

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


def _give_up(messages: weakref.ref[Messages], over: threading.Event, every_s: float) -> None:
    """Looks for late messages until the object is gone."""
    while not over.wait(every_s):
        one = messages()
        if one is None:
            return
        one.give_up_late()
        del one
