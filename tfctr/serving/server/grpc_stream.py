"""ModelStreamInfer: many requests over one stream, answered in their order, several in work at once.

Streams are bounded, so that those which say nothing keep no other waiting.
A thread per stream reads; requests of all streams run on the server's threads, so that those of one stream fill a
batch; replies are written by the handler. A failed request is an answer with an error message, the stream goes on.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from tfctr.core import library
from tfctr.errors import OverloadedError
from tfctr.serving.failures import with_model
from tfctr.serving.server import kserve_protos as protos
from tfctr.serving.server.context import REQUEST_ID, ServerContext
from tfctr.serving.server.grpc_calls import Rpc, status_of
from tfctr.serving.server.limits import Gate

WINDOW = 32
"""Requests of one stream that are read ahead of its replies."""

_FINAL = "triton_final_response"
_WANTS_FINAL = "triton_enable_empty_final_response"
_LOOK_SECONDS = 0.5  # how soon an idle stream sees that the server drains


class Streams:
    """The stream handler of one server.

    Args:
      ctx: of the server.
      answer: request bytes to reply bytes, as for ModelInfer.
      workers: threads that run requests.
      gate: counts the requests of the server.
    """

    def __init__(self, ctx: ServerContext, answer: Callable[[Rpc, bytes], bytes], workers: Any, gate: Gate):
        self._ctx = ctx
        self._answer = answer
        self._workers = workers
        self._gate = gate
        self._open = Gate(ctx.limits.max_streams, "open streams (ModelStreamInfer)", "max_streams")
        self._final = protos.ModelInferResponse()
        self._final.parameters[_FINAL].bool_param = True

    def handler(self, streams: Any) -> Any:
        """streams: one thread for each stream that may be open, and some for those that are refused."""

        def handle(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            if not self._open.enter():
                self._refuse(context)
            if not context.add_callback(self._open.leave):
                self._open.leave()  # it is over already
                return iter(())
            waiting: queue.Queue[Any] = queue.Queue(WINDOW)
            reader = threading.Thread(
                target=self._read, args=(requests, context, waiting), name="tfctr-stream", daemon=True
            )
            reader.start()
            return self._replies(context, waiting)

        handle.experimental_thread_pool = streams  # type: ignore[attr-defined]
        return grpc.stream_stream_rpc_method_handler(handle)

    def _refuse(self, context: Any) -> None:
        rpc = Rpc(self._ctx, context, "kserve", "ModelStreamInfer")
        rpc.read_request_id()
        rpc.record_failure("RESOURCE_EXHAUSTED", self._open.message(), "")
        context.set_trailing_metadata([(REQUEST_ID, rpc.request_id)])
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, self._open.message())

    def _read(self, requests: Iterator[bytes], context: Any, waiting: queue.Queue[Any]) -> None:
        """Puts a future for each request, None at the end."""
        try:
            for body in requests:
                if not self._put(waiting, self._start(body, context), context):
                    return
        except grpc.RpcError:
            pass  # the client is gone: there is no more to read
        self._put(waiting, None, context)

    def _put(self, waiting: queue.Queue[Any], item: Any, context: Any) -> bool:
        """False: nobody reads replies any more."""
        while context.is_active():
            try:
                waiting.put(item, timeout=_LOOK_SECONDS)
                return True
            except queue.Full:
                continue
        return False

    def _start(self, body: bytes, context: Any) -> Any:
        if self._ctx.state.draining or self._gate.inside >= self._gate.limit:
            rpc = Rpc(self._ctx, context, "kserve", "ModelStreamInfer")
            code = "UNAVAILABLE" if self._ctx.state.draining else "RESOURCE_EXHAUSTED"
            message = "the server is shutting down" if self._ctx.state.draining else self._gate.message()
            rpc.record_failure(code, message, "")
            return self._failure(message, body)
        bodies, size = self._ctx.bodies, len(body)
        try:
            bodies.take(size)
        except OverloadedError as error:
            Rpc(self._ctx, context, "kserve", "ModelStreamInfer").record_failure("RESOURCE_EXHAUSTED", str(error), "")
            return self._failure(str(error), body)
        work = self._workers.submit(self._run, body, context)
        work.add_done_callback(lambda _: bodies.give(size))
        return work

    def _replies(self, context: Any, waiting: queue.Queue[Any]) -> Iterator[bytes]:
        while True:
            try:
                item = waiting.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if self._ctx.state.draining or not context.is_active():
                    return
                continue
            if item is None:
                return
            yield item if isinstance(item, bytes) else item.result()

    def _run(self, body: bytes, context: Any) -> bytes:
        """One request to the bytes of its ModelStreamInferResponse."""
        rpc = Rpc(self._ctx, context, "kserve", "ModelStreamInfer")
        try:
            rpc.read_metadata()
            reply = self._answer(rpc, body)
            if self._wants_final(body):
                reply += self._final.SerializeToString()  # concatenated messages are a merged message
        except Exception as error:
            code, message, stage = status_of(error)
            message = with_model(code, message, rpc.model)
            rpc.record_failure(code, message, stage)
            return self._failure(message, body)
        rpc.answered()
        return _field(2, reply)

    def _wants_final(self, body: bytes) -> bool:
        return bool(library.native().peek_kserve(body)[3].get(_WANTS_FINAL))

    def _failure(self, message: str, body: bytes) -> bytes:
        """With the id of the request, where it can be read, so that the client knows which one failed."""
        made = protos.ModelStreamInferResponse(error_message=message)
        try:
            made.infer_response.id = library.native().peek_kserve(body)[2]
        except Exception:
            made.ClearField("infer_response")
        return made.SerializeToString()  # type: ignore[no-any-return]


def _field(number: int, payload: bytes) -> bytes:
    """``payload`` as a length-delimited field of a protobuf message."""
    head = bytearray([number << 3 | 2])
    size = len(payload)
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return bytes(head) + payload
