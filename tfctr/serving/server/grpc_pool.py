"""Threads of gRPC requests, taken up when a request's message is here.

grpc's synchronous server gives a call to a thread first; the thread asks for the message and sleeps until the one that
reads events has it. That costs a change of threads there and back for each request, and lets a client that sends
nothing hold a thread. :class:`RequestPool` asks for the message itself and takes a thread when it has come.

It needs names of grpc that are not public (:data:`AHEAD` says whether this release has them); without them calls go
grpc's own way, which is slower and no different otherwise.
"""

from __future__ import annotations

from concurrent import futures
from typing import Any

from grpc import _server
from grpc._cython import cygrpc

from tfctr.errors import CancelledError, InputError, OverloadedError
from tfctr.serving.server.grpc_messages import Message, Messages
from tfctr.serving.server.limits import Bodies, Gate

_RUN = getattr(_server, "_unary_response_in_pool", None)
_FINISH = getattr(_server, "_possibly_finish_call", None)
_RECEIVE = getattr(cygrpc, "ReceiveMessageOperation", None)
_TOKEN = getattr(_server, "_RECEIVE_MESSAGE_TOKEN", None)
_CANCELLED = getattr(_server, "_CANCELLED", None)

AHEAD = None not in (_RUN, _FINISH, _RECEIVE, _TOKEN, _CANCELLED)

_ARGUMENTS = 7  # of _RUN, with itself: event, state, behavior, what gives the message, (de)serializer
_STARTED: futures.Future[None] = futures.Future()
_STARTED.set_result(None)


class RequestPool(futures.ThreadPoolExecutor):
    """Threads for requests; a gate counts those that wait or run, or whose message has not come.

    Args:
      messages: knows of the calls whose message is asked for.
      bodies: counts what is held from the message's arrival to the end of the request.
    """

    def __init__(self, threads: int, gate: Gate, messages: Messages, bodies: Bodies, name: str):
        super().__init__(threads, thread_name_prefix=name)
        self._gate = gate
        self._messages = messages
        self._bodies = bodies

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        entered = self._gate.enter()
        if AHEAD and len(args) == _ARGUMENTS and args[0] is _RUN and getattr(args[3], "takes_message", False):
            self._ask(fn, args, entered)
            return _STARTED  # grpc counts calls by it, which nobody here asks for
        future = super().submit(fn, *args, **kwargs)
        if entered:
            future.add_done_callback(self._leave)
        return future

    def _leave(self, _: Any) -> None:
        self._gate.leave()

    def _ask(self, fn: Any, args: tuple[Any, ...], entered: bool) -> None:
        """On the thread that reads events, which holds the state's lock."""
        run, event, state, behavior, _, deserializer, serializer = args
        call = event.call

        def arrived(received: Any) -> Any:
            """On the same thread, later."""
            body = received.batch_operations[0].message()
            in_time = self._messages.came(call)
            with state.condition:
                gone = state.client is _CANCELLED
                told = _FINISH(state, _TOKEN)  # type: ignore[misc]
            message, held = self._message(body, in_time, gone)
            given = run, event, state, behavior, lambda: message, deserializer, serializer
            super(RequestPool, self).submit(self._work, fn, given, entered, held)
            return told

        self._messages.expect(call)
        call.start_server_batch((_RECEIVE(0),), arrived)  # type: ignore[misc]
        state.due.add(_TOKEN)

    def _message(self, body: bytes | None, in_time: bool, gone: bool) -> tuple[Message, int]:
        """(what the handler gets, bytes to give back)."""
        if body is None:
            if not in_time:
                return Message(error=self._messages.late()), 0
            if gone:
                return Message(error=CancelledError("the client is gone")), 0
            return Message(error=InputError("the call has no message, expected one")), 0
        try:
            self._bodies.take(len(body))
        except OverloadedError as error:
            return Message(error=error), 0
        return Message(body), len(body)

    def _work(self, fn: Any, args: tuple[Any, ...], entered: bool, held: int) -> None:
        try:
            fn(*args)
        finally:
            self._bodies.give(held)
            if entered:
                self._gate.leave()
