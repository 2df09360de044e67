"""A synchronous gRPC server that only waits: what gRPC itself costs around a model.

Run: python -m benchmarks.bare_server MILLISECONDS [--core 0]

Its one method takes any message, keeps its thread busy for as long as a model would (so that the client's core goes to
sleep as it does then) and answers 420 bytes, as many as 100 scores take. Prints "ready PORT"; ends with its standard
input.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent import futures

METHOD = "/tensorflow.serving.PredictionService/Predict"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("busy_ms", type=float)
    parser.add_argument("--core", type=int, help="run on this core only")
    args = parser.parse_args()
    if args.core is not None:
        os.sched_setaffinity(0, {args.core})
    import grpc

    reply = bytes(420)

    def answer(_: bytes, __: object) -> bytes:
        end = time.perf_counter() + args.busy_ms / 1e3
        while time.perf_counter() < end:
            pass
        return reply

    server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.max_receive_message_length", -1)])
    service, method = METHOD.strip("/").split("/")
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"ready {port}", flush=True)
    sys.stdin.read()
    server.stop(0).wait()


if __name__ == "__main__":
    main()
