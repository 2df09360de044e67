"""The models and servers that the tests of the protocols share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.server.http_fixtures import http_server, make_http, served_folder, served_manager

__all__ = ["http_server", "make_http", "served_folder", "served_manager"]


@pytest.fixture(scope="session")
def grpc_models(tmp_path_factory: pytest.TempPathFactory, towers_stay: None) -> Iterator[Any]:
    """Models: ranker in two versions, and slow."""
    from tests.serving.server import grpc_serving

    with grpc_serving.models(tmp_path_factory.mktemp("grpc")) as models:
        yield models


@pytest.fixture
def gate(grpc_models: Any, tmp_path: Path) -> Iterator[Any]:
    """Holds requests of the slow model until it is opened, or the test ends."""
    from tests.serving.server.gate import Gate

    made = Gate(tmp_path, grpc_models.manager)
    yield made
    made.close()


@pytest.fixture(scope="session")
def grpc_front(grpc_models: Any) -> Iterator[Any]:
    """Front: a server of them with default limits and nobody asked for a token."""
    from tests.serving.server import grpc_serving

    with grpc_serving.serving(grpc_models.manager) as front:
        yield front
