"""`SessionGroup`: several executors over one version of a model, behind one queue."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tfctr.core import library
from tfctr.errors import InputError, UnavailableError
from tfctr.serving.group_options import BatchingOptions, GroupOptions
from tfctr.serving.signature_handle import SignatureHandle
from tfctr.serving.version import ServedVersion, load_version

if TYPE_CHECKING:
    from tfctr.serving.profiles.group_profile import GroupProfile

__all__ = ["BatchingOptions", "GroupOptions", "SessionGroup", "deadline_ns", "predict_async"]

DEFAULT_SIGNATURE = "serving_default"


class SessionGroup:
    """Runs the signatures of a SavedModel or bundle on several executors that share its tables and engines.

        options = tfctr.GroupOptions(executors=4, batching=tfctr.BatchingOptions(max_delay_us=500))
        with tfctr.SessionGroup("bundle", options) as group:
            scores = group.predict({"user_id": ids, "tags": rows}, deadline_ms=30)["score"]

    Thread-safe. Every executor is loaded and warm when the constructor returns. Requests of different lengths run
    together where ``options.batching`` asks for it and the model's rows don't know of each other, which is tried at
    load (:meth:`describe` says why not); a request that is alone is never kept waiting. An executor that fails fails
    its requests, not the others.

    Args:
      path: as :class:`tfctr.ServingSession`.
      options: see :class:`GroupOptions`.

    Raises: as :class:`tfctr.ServingSession`.
    """

    def __init__(self, path: str | os.PathLike[str], options: GroupOptions | None = None) -> None:
        folder = Path(path)
        number = int(folder.name) if folder.name.isdecimal() else 1
        self._version = load_version(folder, number, options or GroupOptions())
        self._profiling = threading.Lock()
        self._profile: GroupProfile | None = None

    def predict(
        self,
        inputs: Mapping[str, Any],
        *,
        signature: str = DEFAULT_SIGNATURE,
        deadline_ms: float | None = None,
        user_inputs: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Runs a request and waits for it; inputs and outputs as of ``ServingSession.predict``.

        Args:
          deadline_ms: milliseconds from now after which nobody wants the answer.
          user_inputs: as ``ServingSession.predict``.

        Raises:
          InputError: as ``ServingSession.predict``.
          DeadlineError: the time was over; not started after it. ``stage`` says where.
          OverloadedError: ``queue_limit`` requests wait already.
          NotFoundError: no such signature.
          UnavailableError: the group is closed.
        """
        outputs, _ = self._signature(signature).predict(inputs, call_until(deadline_ms, user_inputs))
        return outputs

    def predict_async(
        self,
        inputs: Mapping[str, Any],
        *,
        signature: str = DEFAULT_SIGNATURE,
        deadline_ms: float | None = None,
        user_inputs: Sequence[str] = (),
    ) -> Future[dict[str, Any]]:
        """As :meth:`predict`, without waiting; ``cancel()`` of the future gives the request up."""
        return predict_async(self._signature(signature), inputs, deadline_ms, user_inputs)

    @property
    def version(self) -> ServedVersion:
        """What is served: signatures, group, manifest."""
        return self._version

    @property
    def signatures(self) -> tuple[str, ...]:
        return tuple(self._version.signatures)

    def describe(self) -> dict[str, Any]:
        """See ``ServedVersion.describe``."""
        return self._version.describe()

    def profile(
        self, every: int | None = None, *, folder: str | os.PathLike[str] | None = None, max_mb: float = 100.0
    ) -> dict[str, Any]:
        """Traces one request in ``every`` from now on, 0: none; without arguments, only tells what is on.

        Args:
          folder: of the traces and the page of the latest; None: a temporary one.
          max_mb: megabytes that they may take; the oldest go.

        Returns:
          ``every``, ``folder``, ``files``, ``bytes``, counts of traces, ``error``: docs/profiling.md.

        Raises:
          UsageError: a setting that can't be; the folder can't be written to.
        """
        with self._profiling:
            if self._profile is None:
                from tfctr.serving.profiles.group_profile import GroupProfile

                self._profile = GroupProfile(self._version)
        if every is not None:
            if self._version.closed:
                raise UnavailableError(f"{self._version.folder}: this SessionGroup is closed")
            self._profile.set(every, folder, max_mb)
        return self._profile.describe()

    def close(self, drain_s: float = 30.0) -> bool:
        """No new requests; waits at most ``drain_s`` for those inside. Whether all had been answered."""
        if self._profile is not None:
            self._profile.close()
        return self._version.close(drain_s)

    def _signature(self, name: str) -> SignatureHandle:
        if self._version.closed:
            raise UnavailableError(f"{self._version.folder}: this SessionGroup is closed")
        return self._version.signature(name)

    def __enter__(self) -> SessionGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def deadline_ns(deadline_ms: float | None) -> int:
    """Milliseconds from now as a time of the monotonic clock; 0 for None. InputError: no number above 0."""
    if deadline_ms is None:
        return 0
    if not 0 < deadline_ms < float("inf"):
        raise InputError(f"deadline_ms is {deadline_ms}, expected a number above 0")
    return time.monotonic_ns() + int(deadline_ms * 1e6)


def call_until(deadline_ms: float | None, user_inputs: Sequence[str] = ()) -> Any:
    """A native call with this deadline, whose ``user_inputs`` have one row."""
    names = [user_inputs] if isinstance(user_inputs, str) else list(user_inputs)
    return library.native().Call(deadline_ns=deadline_ns(deadline_ms), user_inputs=names)


def predict_async(
    handle: SignatureHandle, inputs: Mapping[str, Any], deadline_ms: float | None, user_inputs: Sequence[str] = ()
) -> Future[dict[str, Any]]:
    """A future of the outputs."""
    call = call_until(deadline_ms, user_inputs)
    future = _Future(call)

    def done(outputs: dict[str, Any] | None, error: BaseException | None, _: Any) -> None:
        if not future.set_running_or_notify_cancel():
            return
        if error is not None or outputs is None:
            future.set_exception(error)
        else:
            future.set_result(outputs)

    handle.predict_async(inputs, call, done)
    return future


class _Future(Future[dict[str, Any]]):
    """Cancelling it takes the request out of the queue."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self._call = call

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if cancelled:
            self._call.cancel()
        return cancelled
