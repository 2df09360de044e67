"""A clock that only the test moves, channels that take its time, and two small servers that answer everything."""

import contextlib
import http.server
import json
import threading
from concurrent import futures

import grpc

from tfctr.loadtest.channel import PLAIN_OK, Answer, Prepared


class FakeClock:
    def __init__(self):
        self.now = 1_000_000_000

    def now_ns(self):
        return self.now

    def sleep_until(self, moment_ns):
        self.now = max(self.now, moment_ns)


class FakeChannel:
    """A server with one connection; ``service_ms(number of the request)`` long each."""

    def __init__(self, clock, service_ms, answer=lambda number: PLAIN_OK):
        self.clock, self.service_ms, self.answer = clock, service_ms, answer
        self.seen = []
        self.timed = 0

    def connect(self):
        def call(request, timing):
            number = len(self.seen)
            self.seen.append(request)
            self.timed += timing
            self.clock.now += int(self.service_ms(number) * 1e6)
            return self.answer(number)

        return call

    def close(self):
        pass


class Inline:
    """In the place of ``Connections``: one connection, on the caller's thread."""

    def __init__(self, channel, send, limit):
        self.call, self.send, self.in_flight, self.count = channel.connect(), send, 0, 1

    def give(self, number):
        self.send(self.call, number)

    def drain(self, drop=False):
        pass


REQUESTS = [Prepared(b"a", 3), Prepared(b"b", 5)]
FAILED = Answer("UNAVAILABLE", "gone")


@contextlib.contextmanager
def grpc_server(handlers, service):
    """handlers: method -> function of (body, context) to bytes. Yields the port."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    methods = {name: grpc.unary_unary_rpc_method_handler(f) for name, f in handlers.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


@contextlib.contextmanager
def http_server(answer):
    """answer: (method, path, headers, body) -> (status, headers, body). Yields the port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, headers, reply = answer(self.command, self.path, self.headers, body)
            if status is None:  # the connection is closed without an answer
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(reply))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply)

        do_GET = do_POST = _do

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def as_json(value):
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()
