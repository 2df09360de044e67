"""Requests as curl makes them, over http.client."""

from __future__ import annotations

import dataclasses
import http.client
import json
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


def ask(server: Any, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
    """body: bytes as they are; anything else as JSON."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
    try:
        connection.request(method, path, body=data, headers=dict(headers or {}))
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def get(server: Any, path: str, **headers: str) -> Answer:
    return ask(server, "GET", path, None, {k.replace("_", "-"): v for k, v in headers.items()})


def post(server: Any, path: str, body: Any, **headers: str) -> Answer:
    return ask(server, "POST", path, body, {k.replace("_", "-"): v for k, v in headers.items()})
