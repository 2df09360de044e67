"""Requests that run until the test lets them go: their op writes to a named pipe, and waits until somebody reads it.

Slow requests would do on a fast machine; on a busy one they may be done before the test has its turn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tensorflow_serving.apis import predict_pb2

SLOW, SIGNATURE = "slow", "held"


class Gate:
    """Closed until it is opened; then requests that wait, and those that come later, go on.

    Args:
      folder: where the pipe is made.
      manager: has the model "slow" of grpc_serving.
    """

    def __init__(self, folder: Path, manager: Any):
        self._path = folder / "gate"
        self._manager = manager
        self._pipe: int | None = None
        os.mkfifo(self._path)

    @property
    def body(self) -> bytes:
        """A PredictRequest that is held."""
        made = predict_pb2.PredictRequest()
        made.model_spec.name, made.model_spec.signature_name = SLOW, SIGNATURE
        made.inputs["path"].dtype = 7
        made.inputs["path"].tensor_shape.dim.add().size = 1
        made.inputs["path"].string_val.append(os.fsencode(self._path))
        return made.SerializeToString()

    @property
    def json(self) -> dict[str, Any]:
        """The same for TF Serving's REST."""
        return {"signature_name": SIGNATURE, "inputs": {"path": [str(self._path)]}}

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        return {"path": np.array([os.fsencode(self._path)], object)}

    def running(self) -> int:
        """Requests on the executor of the slow model."""
        with self._manager.acquire(SLOW) as lease:
            return sum(one["running"] for one in lease.version.group.describe()["executors"])

    def waiting(self) -> int:
        with self._manager.acquire(SLOW) as lease:
            return int(lease.version.group.describe()["waiting"])

    def open(self) -> None:
        if self._pipe is None:
            self._pipe = os.open(self._path, os.O_RDWR)

    def close(self) -> None:
        """Opens it, and waits until nobody needs it any more."""
        self.open()
        until(lambda: not self.running() and not self.waiting())
        assert self._pipe is not None
        os.close(self._pipe)


def until(holds: Callable[[], Any], seconds: float = 60) -> None:
    """Waits; a condition that never holds fails the test."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)
