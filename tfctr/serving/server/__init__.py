"""`tfctr serve`: TF Serving's and KServe's protocols over gRPC and HTTP, configuration, metrics, logs."""

import importlib.util
import os

from tfctr.errors import UsageError

_PACKAGES = {
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "tensorflow_serving": "tensorflow-serving-api",
    "starlette": "starlette",
    "uvicorn": "uvicorn",
    "httptools": "httptools",
    "uvloop": "uvloop",
    "orjson": "orjson",
    "jsonschema": "jsonschema",
    "prometheus_client": "prometheus_client",
}


def check_packages(what: str) -> None:
    """UsageError where one of `tfctr[serve]` is not installed; imports none. what: the command that needs them."""
    missing = [name for module, name in _PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise UsageError(f"{what} needs what is not installed here: {', '.join(missing)} (pip install 'tfctr[serve]')")


def read_on_own_thread() -> None:
    """For a process that is a server, before anything imports grpc: the thread that waits for gRPC's events reads its
    sockets too. By default a pool of gRPC's reads them and hands over to that thread, which costs twice as many changes
    of threads a request. What ``GRPC_EXPERIMENTS`` says already stays."""
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
