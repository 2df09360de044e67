"""The models and servers that the tests of the protocols share."""

from __future__ import annotations

from collections.abc import Iterator
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


@pytest.fixture(scope="session")
def grpc_front(grpc_models: Any) -> Iterator[Any]:
    """Front: a server of them with default limits and nobody asked for a token."""
    from tests.serving.server import grpc_serving

    with grpc_serving.serving(grpc_models.manager) as front:
        yield front
