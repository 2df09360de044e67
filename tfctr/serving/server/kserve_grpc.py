"""KServe's GRPCInferenceService, for the unchanged ``tritonclient.grpc`` client.

ModelInfer never leaves C++: model, version and parameters are peeked from the message's bytes, the rest is one native
call. Shared memory is refused as UNIMPLEMENTED; so are trace and log settings, which this server does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc

from tfctr.core import library
from tfctr.errors import InputError
from tfctr.serving.server import kserve_models as models
from tfctr.serving.server import kserve_protos as protos
from tfctr.serving.server.context import ServerContext
from tfctr.serving.server.grpc_calls import Rpc, unary
from tfctr.serving.server.model_choice import (
    kserve_scheduling,
    kserve_signature,
    kserve_user_inputs,
    version_choice,
)
from tfctr.serving.server.tfs_grpc import parse

SERVICE = protos.SERVICE
EXTENSIONS = ("model_repository", "model_configuration", "statistics", "binary_tensor_data", "parameters")
_SHARED_MEMORY = tuple(name for name in protos.UNARY_METHODS if "SharedMemory" in name)


class KServe:
    """The service of one server."""

    def __init__(self, ctx: ServerContext):
        self._ctx = ctx
        self._native = library.native()

    def handlers(self, control: Any, changes: Any) -> dict[str, Any]:
        """Path of a method -> its handler, but for the stream. control: threads for methods that do not run a model;
        changes: for those that load models."""
        ctx = self._ctx
        quick: Mapping[str, Callable[[Rpc, bytes], bytes]] = {
            "ServerLive": self.live,
            "ServerReady": self.ready,
            "ModelReady": self.model_ready,
            "ServerMetadata": self.server_metadata,
            "ModelMetadata": self.metadata,
            "ModelConfig": self.config,
            "ModelStatistics": self.statistics,
            "RepositoryIndex": self.index,
        }
        found = {f"/{SERVICE}/ModelInfer": unary(ctx, "kserve", "ModelInfer", self.infer)}
        for name, answer in quick.items():
            found[f"/{SERVICE}/{name}"] = unary(ctx, "kserve", name, answer, control)
        for name, answer in (("RepositoryModelLoad", self.load), ("RepositoryModelUnload", self.unload)):
            found[f"/{SERVICE}/{name}"] = unary(ctx, "kserve", name, answer, changes)
        for name in (*_SHARED_MEMORY, "TraceSetting", "LogSettings"):
            found[f"/{SERVICE}/{name}"] = _unimplemented(name, control)
        return found

    def infer(self, rpc: Rpc, body: bytes) -> bytes:
        model, version, _, parameters = self._native.peek_kserve(body)
        rpc.model = model
        number, label = version_choice(model, version)
        priority, timeout_us = kserve_scheduling(parameters)
        with self._ctx.manager.acquire(model, number, label, lambda field: self._hash(body, field)) as lease:
            served = lease.version
            rpc.version = served.number
            name, handle = kserve_signature(model, served, parameters)
            spec = (model, served.number, name)
            users = kserve_user_inputs(parameters)
            return rpc.serve(handle, "kserve", body, spec, priority=priority, timeout_us=timeout_us, users=users)

    def _hash(self, body: bytes, field: str) -> int | None:
        return self._native.field_hash("kserve", body, field)  # type: ignore[no-any-return]

    def live(self, rpc: Rpc, body: bytes) -> bytes:
        return protos.ServerLiveResponse(live=True).SerializeToString()  # type: ignore[no-any-return]

    def ready(self, rpc: Rpc, body: bytes) -> bytes:
        return protos.ServerReadyResponse(ready=self._ctx.ready()).SerializeToString()  # type: ignore[no-any-return]

    def model_ready(self, rpc: Rpc, body: bytes) -> bytes:
        request = parse(protos.ModelReadyRequest, body)
        rpc.model = request.name
        choice = version_choice(request.name, request.version)
        ready = models.model_ready(self._ctx.manager, request.name, *choice)
        return protos.ModelReadyResponse(ready=ready).SerializeToString()  # type: ignore[no-any-return]

    def server_metadata(self, rpc: Rpc, body: bytes) -> bytes:
        ctx = self._ctx
        made = protos.ServerMetadataResponse(name=ctx.name, version=ctx.version, extensions=EXTENSIONS)
        return made.SerializeToString()  # type: ignore[no-any-return]

    def metadata(self, rpc: Rpc, body: bytes) -> bytes:
        request = parse(protos.ModelMetadataRequest, body)
        with self._acquire(rpc, request) as lease:
            found = models.model_metadata(self._ctx.manager, rpc.model, lease.version)
        return protos.ModelMetadataResponse(**found).SerializeToString()  # type: ignore[no-any-return]

    def config(self, rpc: Rpc, body: bytes) -> bytes:
        request = parse(protos.ModelConfigRequest, body)
        with self._acquire(rpc, request) as lease:
            found = models.model_config(rpc.model, lease.version)
        return protos.ModelConfigResponse(config=found).SerializeToString()  # type: ignore[no-any-return]

    def statistics(self, rpc: Rpc, body: bytes) -> bytes:
        """Of one version, of all loaded versions of a model, or of all models."""
        request = parse(protos.ModelStatisticsRequest, body)
        rpc.model = request.name
        found = []
        for name, number in self._statistics_of(request.name, request.version):
            with self._ctx.manager.acquire(name, number) as lease:
                found.append(models.model_statistics(name, lease.version))
        return protos.ModelStatisticsResponse(model_stats=found).SerializeToString()  # type: ignore[no-any-return]

    def _statistics_of(self, model: str, version: str) -> list[tuple[str, int | None]]:
        if version:
            number, label = version_choice(model, version)
            if label is not None:
                with self._ctx.manager.acquire(model, None, label) as lease:
                    number = lease.version.number
            return [(model, number)]
        return [
            (status.name, one.number)
            for status in self._ctx.manager.status(model or None, describe=False)
            for one in status.versions
            if one.state == models.READY
        ]

    def _acquire(self, rpc: Rpc, request: Any) -> Any:
        rpc.model = request.name
        lease = self._ctx.manager.acquire(request.name, *version_choice(request.name, request.version))
        rpc.version = lease.version.number
        return lease

    def index(self, rpc: Rpc, body: bytes) -> bytes:
        request = parse(protos.RepositoryIndexRequest, body)
        found = models.repository_index(self._ctx.manager, request.ready)
        return protos.RepositoryIndexResponse(models=found).SerializeToString()  # type: ignore[no-any-return]

    def load(self, rpc: Rpc, body: bytes) -> bytes:
        self._ctx.auth.check_public_admin(rpc.authorization, "RepositoryModelLoad")
        request = parse(protos.RepositoryModelLoadRequest, body)
        rpc.model = request.model_name
        _no_parameters(request)
        self._ctx.manager.load(request.model_name)
        return b""

    def unload(self, rpc: Rpc, body: bytes) -> bytes:
        self._ctx.auth.check_public_admin(rpc.authorization, "RepositoryModelUnload")
        request = parse(protos.RepositoryModelUnloadRequest, body)
        rpc.model = request.model_name
        self._ctx.manager.unload(request.model_name)
        return b""


def _no_parameters(request: Any) -> None:
    """Triton's parameters of a load replace the model's configuration or files, which this server does not take."""
    if request.parameters:
        names = ", ".join(repr(name) for name in sorted(request.parameters))
        raise InputError(f"model {request.model_name!r}: load takes no parameters, got {names}")


def _unimplemented(method: str, pool: Any) -> Any:
    """Answers without a look at the message."""
    what = "shared memory is not supported" if "SharedMemory" in method else "this server has no such settings"

    def refuse(_: bytes, context: Any) -> bytes:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{method}: {what}")
        return b""

    refuse.experimental_thread_pool = pool  # type: ignore[attr-defined]
    return grpc.stream_unary_rpc_method_handler(refuse)  # no message is waited for
