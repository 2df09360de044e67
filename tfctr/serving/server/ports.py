"""Ports: that all are free is known before anything is loaded; a taken one is told by name and option."""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
from typing import Any

from tfctr.errors import UsageError
from tfctr.serving.server import tls
from tfctr.serving.server.config import PortsConfig


def resolved(where: PortsConfig) -> PortsConfig:
    """``where`` with a number for each port that was 0.

    Raises:
      UsageError: a port is taken or not for this user, or a host is not this machine.
    """
    found: dict[str, Any] = {}
    probes = []
    try:
        for option, host in (("grpc", where.host), ("http", where.host), ("admin", where.admin_host)):
            port = getattr(where, f"{option}_port")
            if port is not None:
                probes.append(listen(host, port, f"--{option}-port"))
                found[f"{option}_port"] = int(probes[-1].getsockname()[1])
    finally:
        for probe in probes:
            probe.close()
    return dataclasses.replace(where, **found)


def listen(host: str, port: int, option: str) -> socket.socket:
    """A bound socket; UsageError as :func:`resolved`."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"{host} is no address of this machine: {error.strerror or error}") from error
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(target)
        made.listen(1)
    except OSError as error:
        made.close()
        raise UsageError(_refused(host, port, option, error)) from error
    return made


def bind_grpc(server: Any, where: PortsConfig, options: tls.TlsOptions | None) -> str:
    """Opens gRPC's port; returns host:port."""
    target = address(where.host, where.grpc_port or 0)
    try:
        if options:
            port = server.add_secure_port(target, tls.grpc_credentials(options))
        else:
            port = server.add_insecure_port(target)
    except RuntimeError as error:
        raise UsageError(f"{target}: gRPC can't listen there (--grpc-port): {error}") from error
    return address(where.host, int(port))


def address(host: str, port: int) -> str:
    """host:port, with brackets around IPv6."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def _refused(host: str, port: int, option: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is taken by another process; stop it or choose another ({option})"
    if error.errno == errno.EACCES:
        return f"port {port} of {host} is not for this user; choose one above 1023 ({option})"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine ({option})"
    return f"port {port} of {host}: {os.strerror(error.errno or 0)} ({option})"
