"""One signature of a served version, as fronts call it: bytes to bytes, or arrays to arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tensorflow.core.protobuf import meta_graph_pb2

from tfctr.core import library
from tfctr.errors import InputError
from tfctr.serving import feature_map
from tfctr.serving.failures import error_of
from tfctr.serving.signature_info import Feature, Input, Output

Done = Callable[[dict[str, Any] | None, BaseException | None, Any], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SignatureHandle:
    """Immutable; all methods from any number of threads.

    native: ``_native.ServedSignature``. inputs, features, outputs: see :class:`tfctr.ServingSession`. definition: the
    model's own. method_name: "tensorflow/serving/predict", ... batching: whether requests run together, and
    batching_reason: why not. optional_inputs: those that requests may leave out. entry: the manifest's, {} for plain
    SavedModels.
    """

    name: str
    native: Any
    inputs: tuple[Input, ...]
    features: tuple[Feature, ...]
    outputs: tuple[Output, ...]
    definition: meta_graph_pb2.SignatureDef
    packed: bool
    dense_only: bool
    user_features: tuple[str, ...] = ()
    row_to_user: str | None = None
    batching: bool = False
    batching_reason: str = ""
    optional_inputs: frozenset[str] = frozenset()
    entry: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def method_name(self) -> str:
        return str(self.definition.method_name)

    def serve(self, protocol: str, body: bytes, call: Any) -> Any:
        """A request message's bytes to a ``Reply`` (``body``, ``timing``, ``rows``, ``executor``, ...).

        Args:
          protocol: "tfs" (PredictRequest) or "kserve" (ModelInferRequest).
          call: ``_native.Call``; used once.

        Raises: InputError, DeadlineError, OverloadedError, UnavailableError, CancelledError, InternalError; each has
          the stage it came from as ``stage``.
        """
        try:
            return self.native.serve(protocol, body, call)
        except library.native().ServeFailed as failure:
            raise error_of(failure) from None

    def predict(self, inputs: Mapping[str, Any], call: Any = None) -> tuple[dict[str, Any], Any]:
        """(outputs by name, timing). inputs: as ``ServingSession.predict`` takes them. Raises as :meth:`serve`."""
        native = library.native()
        try:
            outputs, timing = self.native.predict(as_dict(inputs), native.Call() if call is None else call)
        except native.ServeFailed as failure:
            raise error_of(failure) from None
        return self.assembled(outputs), timing

    def predict_async(self, inputs: Mapping[str, Any], call: Any, done: Done) -> None:
        """The same without waiting: done(outputs, error, timing) is called once, from a thread of the group."""
        native = library.native()

        def told(outputs: Any, error: Any, timing: Any) -> None:
            if error is None:
                done(self.assembled(outputs), None, timing)
            else:
                done(None, as_error(error), timing)

        try:
            self.native.predict_async(as_dict(inputs), native.Call() if call is None else call, told)
        except native.ServeFailed as failure:
            raise error_of(failure) from None

    def run_on(self, executor: int, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Runs on this executor at low priority, past the queue: for warm-up and proofs."""
        try:
            return self.assembled(self.native.run_on(executor, as_dict(inputs)))
        except library.native().ServeFailed as failure:
            raise error_of(failure) from None

    def run_together(self, executor: int, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Puts requests together, runs them and takes the outputs apart, as a batch of the queue would be: for proofs.
        InputError with the stage "batch" where they, or their outputs, can't be."""
        try:
            answers = self.native.run_together(executor, requests)
        except library.native().ServeFailed as failure:
            raise error_of(failure) from None
        return [self.assembled(one) for one in answers]

    def assembled(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """Outputs by name from the fetched tensors."""
        return outputs if self.dense_only else feature_map.assemble(self.outputs, outputs)

    def describe(self) -> dict[str, Any]:
        return {
            "packed": self.packed,
            "batching": self.batching,
            "batching_reason": self.batching_reason,
            "user_features": list(self.user_features),
            "row_to_user": self.row_to_user,
        }


def as_dict(inputs: Any) -> dict[str, Any]:
    """InputError unless it is a mapping."""
    if type(inputs) is dict:
        return inputs
    if not isinstance(inputs, Mapping):
        raise InputError(f"inputs must be a mapping of input names to values, got {type(inputs).__name__}")
    return dict(inputs)


def as_error(error: BaseException) -> BaseException:
    """An error of tfctr where the native side failed."""
    if not isinstance(error, library.native().ServeFailed):
        return error
    return error_of(error)
