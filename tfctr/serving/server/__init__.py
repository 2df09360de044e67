"""`tfctr serve`: TF Serving's and KServe's protocols over gRPC and HTTP, configuration, metrics, logs."""

import os


def read_on_own_thread() -> None:
    """For a process that is a server, before anything imports grpc: the thread that waits for gRPC's events reads its
    sockets too. By default a pool of gRPC's reads them and hands over to that thread, which costs twice as many changes
    of threads a request. What ``GRPC_EXPERIMENTS`` says already stays."""
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
