"""One model, loaded once for all tests of the HTTP front, and servers over it on ports of their own."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def served_folder(tmp_path_factory: pytest.TempPathFactory, towers_stay: None) -> Path:
    """``ranker/1`` and ``ranker/2``, bundles; the second one's scores are twice as large."""
    from tests.serving.server import served_model
    from tfctr import convert

    folder = tmp_path_factory.mktemp("served")
    for version, scale in ((1, 1.0), (2, 2.0)):
        plain = served_model.save(folder / f"plain{version}", scale)
        convert(str(plain), str(folder / "ranker" / str(version)))
    return folder / "ranker"


@pytest.fixture(scope="session")
def served_manager(served_folder: Path) -> Iterator[Any]:
    """Model "ranker": versions 1 (label stable) and 2 (label canary), both loaded."""
    from tfctr.serving.versions import All, ModelManager, ModelSpec

    spec = ModelSpec(
        name="ranker", base_path=served_folder, policy=All(), labels={"stable": 1, "canary": 2}, poll_seconds=0
    )
    manager = ModelManager([spec])
    assert manager.wait(240), manager.status()
    yield manager
    manager.close(5)


@pytest.fixture(scope="session")
def make_http(served_manager: Any) -> Iterator[Callable[..., Any]]:
    """make_http(admin=False, **of the context): a running HttpServer on a free port, its context as ``ctx``."""
    from tfctr.serving.server.admin_rest import build_admin_app
    from tfctr.serving.server.context import ServerContext
    from tfctr.serving.server.http_app import build_http_app
    from tfctr.serving.server.http_server import HttpServer, bound
    from tfctr.serving.server.logs import RequestLog
    from tfctr.serving.server.metrics import Metrics

    running = []

    def make(admin: bool = False, **options: Any) -> Any:
        log = RequestLog(stream=io.StringIO())
        ctx = ServerContext(**{"manager": served_manager, "metrics": Metrics(log=log), "log": log, **options})
        app = build_admin_app(ctx) if admin else build_http_app(ctx)
        server = HttpServer("test", app, bound(), ctx.limits)
        server.start()
        server.ctx = ctx
        running.append(server)
        return server

    yield make
    for server in running:
        server.ctx.profiles.close()
        assert server.stop(120)


@pytest.fixture(scope="session")
def http_server(make_http: Callable[..., Any]) -> Any:
    """The server that most tests share."""
    return make_http()
