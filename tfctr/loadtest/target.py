"""What to load: `grpc://127.0.0.1:8500/ranker`, `http://127.0.0.1:8501/v2/models/ranker`, or a folder."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
import socket
import urllib.parse
from pathlib import Path

from tfctr.errors import UsageError

PROTOCOLS = ("tfs", "kserve")
_PORTS = {"grpc": 8500, "grpcs": 8500, "http": 8501, "https": 8501}
_TFS = re.compile(r"/v1/models/(?P<model>[^/:]+)(/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?(:predict)?/?")
_KSERVE = re.compile(r"/v2/models/(?P<model>[^/:]+)(/versions/(?P<version>[^/]+))?(/infer)?/?")
_PLAIN = re.compile(r"/(?P<model>[^/:]+)/?")


@dataclasses.dataclass(frozen=True)
class Target:
    """transport: "grpc", "http" or "process". protocol: "tfs" or "kserve"; "" in process. path: of the model there."""

    transport: str
    protocol: str
    host: str = ""
    port: int = 0
    model: str = ""
    version: str = ""
    label: str = ""
    tls: bool = False
    path: str = ""

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        if self.transport == "process":
            return self.path
        scheme = self.transport + ("s" if self.tls else "")
        at = f"/versions/{self.version}" if self.version else f"/labels/{self.label}" if self.label else ""
        form = "v1" if self.protocol == "tfs" else "v2"
        return f"{scheme}://{self.address}/{form}/models/{self.model}{at}"

    @property
    def infer_path(self) -> str:
        """Of a prediction over HTTP."""
        model = urllib.parse.quote(self.model, safe="")
        at = f"/versions/{self.version}" if self.version else f"/labels/{self.label}" if self.label else ""
        return f"/v1/models/{model}{at}:predict" if self.protocol == "tfs" else f"/v2/models/{model}{at}/infer"

    @property
    def metadata_path(self) -> str:
        return self.infer_path.removesuffix(":predict").removesuffix("/infer") + (
            "/metadata" if self.protocol == "tfs" else ""
        )


def parse_target(text: str, protocol: str | None = None) -> Target:
    """``text`` as a target. protocol: "tfs" or "kserve" where the path does not say it (default: tfs).

    Raises:
      UsageError: neither an address nor a folder; the path and ``protocol`` disagree.
    """
    if "://" not in text:
        if not Path(text).is_dir():
            raise UsageError(
                f"{text}: expected grpc://HOST:PORT/MODEL, http://HOST:PORT/v1/models/MODEL (or /v2/models/MODEL), "
                "or the folder of a model"
            )
        return Target("process", "", path=text)
    url = urllib.parse.urlsplit(text)
    if url.scheme not in _PORTS:
        raise UsageError(f"{text}: unknown scheme {url.scheme!r}; expected one of {', '.join(_PORTS)}")
    try:
        port = url.port or _PORTS[url.scheme]
    except ValueError:
        raise UsageError(f"{text}: the port is no number from 1 to 65535") from None
    if not url.hostname or url.query or url.fragment or url.username:
        raise UsageError(f"{text}: expected {url.scheme}://HOST:PORT/MODEL")
    found, said = _match(text, url.path)
    if said and protocol and said != protocol:
        raise UsageError(f"{text}: the path is of {said}, --protocol says {protocol}")
    names = {key: urllib.parse.unquote(value) for key, value in found.items() if value}
    transport = url.scheme.removesuffix("s")
    return Target(transport, said or protocol or "tfs", url.hostname, port, tls=url.scheme.endswith("s"), **names)


def _match(text: str, path: str) -> tuple[dict[str, str], str]:
    for pattern, protocol in ((_TFS, "tfs"), (_KSERVE, "kserve"), (_PLAIN, "")):
        match = pattern.fullmatch(path)
        if match:
            return match.groupdict(), protocol
    raise UsageError(
        f"{text}: no model in the path {path!r}; expected /MODEL, /v1/models/MODEL[/versions/N|/labels/L] or "
        "/v2/models/MODEL[/versions/N]"
    )


def check_is_local(target: Target, allow_remote: bool) -> None:
    """A load test takes a server's whole capacity: other machines only when asked for.

    Raises:
      UsageError: the target is not on this machine, or its name means nothing.
    """
    if target.transport == "process" or allow_remote:
        return
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise UsageError(f"{target.host}: no such host ({error.strerror or error})") from error
    other = sorted(str(one) for one in found if not ipaddress.ip_address(str(one).split("%")[0]).is_loopback)
    if other:
        raise UsageError(
            f"{target}: {other[0]} is not this machine; --allow-remote sends the load there (a load test takes all "
            "that a server can do)"
        )
