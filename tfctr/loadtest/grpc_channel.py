"""Requests over gRPC: bytes in, bytes out, for both protocols."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import grpc

from tfctr.loadtest.channel import PLAIN_OK, Answer, Call, Prepared
from tfctr.loadtest.target import Target

METHODS = {
    "tfs": "/tensorflow.serving.PredictionService/Predict",
    "kserve": "/inference.GRPCInferenceService/ModelInfer",
}
TIMING = "x-tfctr-timing"
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]


class GrpcChannel:
    """headers: sent as metadata. timeout_s: of a request; the deadline that the server sees."""

    def __init__(
        self,
        target: Target,
        headers: Sequence[tuple[str, str]] = (),
        timeout_s: float = 30.0,
        root_certificates: bytes | None = None,
        compress: bool = False,
    ) -> None:
        self._channel = open_channel(target, root_certificates)
        self._method = METHODS[target.protocol]
        self._metadata = tuple((name.lower(), value) for name, value in headers) or None
        self._timed = (*(self._metadata or ()), (TIMING, "1"))
        self._timeout = timeout_s
        self._compression = grpc.Compression.Gzip if compress else None

    def connect(self) -> Call:
        send = self._channel.unary_unary(self._method)
        metadata, timed, timeout, compression = self._metadata, self._timed, self._timeout, self._compression

        def call(request: Prepared, timing: bool) -> Answer:
            try:
                if not timing:
                    send(request.payload(), timeout=timeout, metadata=metadata, compression=compression)
                    return PLAIN_OK
                _, state = send.with_call(request.payload(), timeout=timeout, metadata=timed, compression=compression)
                return _with_timing(state.trailing_metadata())
            except grpc.RpcError as error:
                return Answer(error.code().name, error.details() or "")

        return call

    def close(self) -> None:
        self._channel.close()


def open_channel(target: Target, root_certificates: bytes | None = None) -> Any:
    if not target.tls:
        return grpc.insecure_channel(target.address, options=_OPTIONS)
    return grpc.secure_channel(target.address, grpc.ssl_channel_credentials(root_certificates), options=_OPTIONS)


def _with_timing(metadata: Any) -> Answer:
    for name, value in metadata or ():
        if name == TIMING:
            return Answer("OK", timing=json.loads(value))
    return PLAIN_OK
