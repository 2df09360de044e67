"""Requests over HTTP/1.1 with connections that stay open. The whole message, head and body, was made beforehand."""

from __future__ import annotations

import json
import socket
import ssl
from typing import Any

import httptools

from tfctr.loadtest.channel import PLAIN_OK, Answer, Call, Prepared
from tfctr.loadtest.target import Target

TIMING = "x-tfctr-timing"
_CHUNK = 1 << 18
_MESSAGE_LIMIT = 300  # characters of an error's body that are told


class HttpChannel:
    """timeout_s: of a request. tls: None, or the context by which the server is checked."""

    def __init__(self, target: Target, timeout_s: float = 30.0, tls: ssl.SSLContext | None = None) -> None:
        self._target = target
        self._timeout = timeout_s
        self._tls = tls

    def connect(self) -> Call:
        connection = _Connection(self._target, self._timeout, self._tls)
        return connection.call

    def close(self) -> None:
        """Connections close with the threads that hold them."""


class _Connection:
    def __init__(self, target: Target, timeout_s: float, tls: ssl.SSLContext | None) -> None:
        self._target, self._timeout, self._tls = target, timeout_s, tls
        self._socket: socket.socket | None = None

    def call(self, request: Prepared, timing: bool) -> Answer:
        message = request.payload()
        if timing:
            end = message.index(b"\r\n") + 2
            message = b"".join([message[:end], TIMING.encode(), b": 1\r\n", message[end:]])
        again = self._socket is not None  # a server may close a connection that was idle
        try:
            return self._exchange(message)
        except _ClosedBeforeAnswer:
            self._drop()
            if not again:
                return Answer("CONNECTION_CLOSED", "the server closed the connection before its answer")
        except TimeoutError:
            self._drop()
            return Answer("TIMEOUT", f"no answer within {self._timeout:g} s")
        except (OSError, httptools.HttpParserError) as error:
            self._drop()
            return Answer("CONNECTION_FAILED", str(error))
        return self.call(request, timing)

    def _exchange(self, message: bytes) -> Answer:
        if self._socket is None:
            self._socket = self._open()
        reply = _Reply()
        try:
            self._socket.sendall(message)
        except (BrokenPipeError, ConnectionResetError):
            raise _ClosedBeforeAnswer from None
        while not reply.complete:
            try:
                data = self._socket.recv(_CHUNK)
            except ConnectionResetError:
                data = b""
            if not data:
                raise _ClosedBeforeAnswer
            reply.parser.feed_data(data)
        if not reply.keep_alive:
            self._drop()
        return reply.answer()

    def _open(self) -> socket.socket:
        made = socket.create_connection((self._target.host, self._target.port), timeout=self._timeout)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made if self._tls is None else self._tls.wrap_socket(made, server_hostname=self._target.host)

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class _ClosedBeforeAnswer(Exception):
    pass


class _Reply:
    """Gets what httptools finds."""

    def __init__(self) -> None:
        self.complete = self.keep_alive = False
        self.parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._timing: Any = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == TIMING.encode():
            self._timing = json.loads(value)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self.keep_alive = self.parser.should_keep_alive()  # the parser knows it only now
        self.complete = True

    def answer(self) -> Answer:
        status = self.parser.get_status_code()
        if status == 200:
            return PLAIN_OK if self._timing is None else Answer("OK", timing=self._timing)
        return Answer(f"HTTP_{status}", b"".join(self._body)[:_MESSAGE_LIMIT].decode(errors="replace"))
