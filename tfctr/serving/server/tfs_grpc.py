"""TF Serving's PredictionService and ModelService over gRPC, for the unchanged ``tensorflow-serving-api`` client.

Predict never leaves C++: the model and signature are peeked from the message's bytes, the rest is one native call.
The other methods are rare and use the generated messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_pb2,
    regression_pb2,
)

from tfctr.core import library
from tfctr.errors import InputError
from tfctr.serving.server import tfs_examples
from tfctr.serving.server.context import ServerContext
from tfctr.serving.server.grpc_calls import Rpc, unary
from tfctr.serving.server.model_choice import DEFAULT_SIGNATURE, signature_of
from tfctr.serving.server.tfs_metadata import signature_definitions, version_status
from tfctr.serving.server.tfs_reload import apply_config

PREDICTION = "tensorflow.serving.PredictionService"
MODEL = "tensorflow.serving.ModelService"

_METHODS = {tfs_examples.CLASSIFY: "Classify", tfs_examples.REGRESS: "Regress"}


class TfServing:
    """Both services of one server."""

    def __init__(self, ctx: ServerContext):
        self._ctx = ctx
        self._native = library.native()

    def handlers(self, control: Any) -> dict[str, Any]:
        """Path of a method -> its handler. control: threads for methods that do not run a model."""
        ctx = self._ctx
        running: Mapping[str, Callable[[Rpc, bytes], bytes]] = {
            "Predict": self.predict,
            "Classify": self.classify,
            "Regress": self.regress,
            "MultiInference": self.multi_inference,
        }
        found = {f"/{PREDICTION}/{name}": unary(ctx, "tfs", name, answer) for name, answer in running.items()}
        found[f"/{PREDICTION}/GetModelMetadata"] = unary(ctx, "tfs", "GetModelMetadata", self.metadata, control)
        found[f"/{MODEL}/GetModelStatus"] = unary(ctx, "tfs", "GetModelStatus", self.status, control)
        reload = unary(ctx, "tfs", "HandleReloadConfigRequest", self.reload, control)
        found[f"/{MODEL}/HandleReloadConfigRequest"] = reload
        return found

    def predict(self, rpc: Rpc, body: bytes) -> bytes:
        model, version, label, signature, _ = self._native.peek_tfs(body)
        rpc.model = model
        with self._ctx.manager.acquire(model, version, label, lambda field: self._hash(body, field)) as lease:
            served = lease.version
            rpc.version = served.number
            name = signature or DEFAULT_SIGNATURE
            handle = served.signatures.get(name) or signature_of(model, served, name)
            return rpc.serve(handle, "tfs", body, (model, served.number, name))

    def _hash(self, body: bytes, field: str) -> int | None:
        return self._native.field_hash("tfs", body, field)  # type: ignore[no-any-return]

    def classify(self, rpc: Rpc, body: bytes) -> bytes:
        request = parse(classification_pb2.ClassificationRequest, body)
        return self._answer(rpc, request, classification_pb2.ClassificationResponse(), tfs_examples.CLASSIFY)

    def regress(self, rpc: Rpc, body: bytes) -> bytes:
        request = parse(regression_pb2.RegressionRequest, body)
        return self._answer(rpc, request, regression_pb2.RegressionResponse(), tfs_examples.REGRESS)

    def _answer(self, rpc: Rpc, request: Any, response: Any, method: str) -> bytes:
        """Of Classify and Regress, whose messages have the same fields."""
        rpc.model = request.model_spec.name
        examples = tfs_examples.serialized_examples(request.input)
        with self._acquire(rpc, request.model_spec) as lease:
            response.result.CopyFrom(self._run(rpc, lease.version, request.model_spec, examples, method))
            _fill_spec(response.model_spec, rpc, request.model_spec)
        return response.SerializeToString()  # type: ignore[no-any-return]

    def multi_inference(self, rpc: Rpc, body: bytes) -> bytes:
        """All tasks on one version, over one parse of the examples."""
        request = parse(inference_pb2.MultiInferenceRequest, body)
        rpc.model = request.tasks[0].model_spec.name if request.tasks else ""
        _check_tasks(request.tasks)
        examples = tfs_examples.serialized_examples(request.input)
        response = inference_pb2.MultiInferenceResponse()
        with self._acquire(rpc, request.tasks[0].model_spec) as lease:
            for task in request.tasks:
                result = response.results.add()
                answer = self._run(rpc, lease.version, task.model_spec, examples, task.method_name)
                if task.method_name == tfs_examples.CLASSIFY:
                    result.classification_result.CopyFrom(answer)
                else:
                    result.regression_result.CopyFrom(answer)
                _fill_spec(result.model_spec, rpc, task.model_spec)
        return response.SerializeToString()  # type: ignore[no-any-return]

    def _acquire(self, rpc: Rpc, spec: model_pb2.ModelSpec) -> Any:
        rpc.model = _model_name(spec)
        version, label = _version_choice(spec)
        lease = self._ctx.manager.acquire(rpc.model, version, label)
        rpc.version = lease.version.number
        return lease

    def _run(self, rpc: Rpc, served: Any, spec: model_pb2.ModelSpec, examples: list[bytes], method: str) -> Any:
        name = spec.signature_name or DEFAULT_SIGNATURE
        handle = signature_of(rpc.model, served, name)
        where = f"model {rpc.model!r} version {served.number}, signature {name!r}"
        tfs_examples.check_method(where, handle.method_name, method)
        inputs = tfs_examples.reader_of(where, handle.inputs, handle.features).inputs(examples)
        outputs, timing = handle.predict(inputs, rpc.call((rpc.model, served.number, name)))
        rpc.rows = len(examples)
        rpc.timing = timing.as_dict()
        if method == tfs_examples.CLASSIFY:
            return tfs_examples.classification_result(where, outputs, len(examples))
        return tfs_examples.regression_result(where, outputs, len(examples))

    def metadata(self, rpc: Rpc, body: bytes) -> bytes:
        request = parse(get_model_metadata_pb2.GetModelMetadataRequest, body)
        rpc.model = _model_name(request.model_spec)
        fields = set(request.metadata_field)
        if fields != {"signature_def"}:
            wrong = sorted(fields - {"signature_def"})
            came = f"{wrong[0]!r} is not known" if wrong else "none was asked for"
            raise InputError(f"model {rpc.model!r}: metadata_field: {came}; there is: 'signature_def'")
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        with self._acquire(rpc, request.model_spec) as lease:
            definitions = get_model_metadata_pb2.SignatureDefMap()
            for name, definition in signature_definitions(lease.version).items():
                definitions.signature_def[name].CopyFrom(definition)
            response.metadata["signature_def"].Pack(definitions)
            response.model_spec.name = rpc.model
            response.model_spec.version.value = lease.version.number
        return response.SerializeToString()  # type: ignore[no-any-return]

    def status(self, rpc: Rpc, body: bytes) -> bytes:
        request = parse(get_model_status_pb2.GetModelStatusRequest, body)
        rpc.model = _model_name(request.model_spec)
        version, label = _version_choice(request.model_spec)
        response = get_model_status_pb2.GetModelStatusResponse()
        for one in version_status(self._ctx.manager, rpc.model, version, label):
            entry = response.model_version_status.add(version=one.number, state=one.tfs_state)
            entry.status.error_code, entry.status.error_message = one.error_code, one.error
        return response.SerializeToString()  # type: ignore[no-any-return]

    def reload(self, rpc: Rpc, body: bytes) -> bytes:
        self._ctx.auth.check_public_admin(rpc.authorization, "HandleReloadConfigRequest")
        request = parse(model_management_pb2.ReloadConfigRequest, body)
        apply_config(self._ctx.manager, request.config)
        return model_management_pb2.ReloadConfigResponse().SerializeToString()  # type: ignore[no-any-return]


def parse(kind: Any, body: bytes) -> Any:
    """A message. InputError: the bytes are none."""
    try:
        return kind.FromString(body)
    except Exception as error:
        raise InputError(f"the message does not parse as {kind.DESCRIPTOR.full_name}") from error


def _model_name(spec: model_pb2.ModelSpec) -> str:
    if not spec.name:
        raise InputError("model_spec.name is missing")
    return str(spec.name)


def _version_choice(spec: model_pb2.ModelSpec) -> tuple[int | None, str | None]:
    choice = spec.WhichOneof("version_choice")
    if choice == "version":
        return int(spec.version.value), None
    return None, (str(spec.version_label) if choice == "version_label" else None)


def _fill_spec(filled: model_pb2.ModelSpec, rpc: Rpc, asked: model_pb2.ModelSpec) -> None:
    filled.name = rpc.model
    filled.version.value = rpc.version or 0
    filled.signature_name = asked.signature_name or DEFAULT_SIGNATURE


def _check_tasks(tasks: Any) -> None:
    """As TF Serving: one model, each signature once, Classify and Regress only."""
    if not tasks:
        raise InputError("tasks: none; expected one or more")
    seen: set[str] = set()
    for task in tasks:
        if task.model_spec.name != tasks[0].model_spec.name:
            raise InputError(
                f"tasks: all must name one model, got {tasks[0].model_spec.name!r} and {task.model_spec.name!r}"
            )
        if task.method_name not in _METHODS:
            raise InputError(f"tasks: method {task.method_name!r}; expected {' or '.join(_METHODS)}")
        name = task.model_spec.signature_name or DEFAULT_SIGNATURE
        if name in seen:
            raise InputError(f"tasks: signature {name!r} is asked for twice")
        seen.add(name)
