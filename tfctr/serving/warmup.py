"""First runs of a version, before anybody waits for them: on every executor, with recorded requests where the model has
them (``assets.extra/tf_serving_warmup_requests``, TFRecords of TF Serving's PredictionLog), else with generated ones.
"""

from __future__ import annotations

import dataclasses
import logging
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfctr.bundle import sample_inputs
from tfctr.core import library
from tfctr.errors import CorruptFileError, InputError, UsageError
from tfctr.serving import turns
from tfctr.serving.proving import sample_info, user_inputs
from tfctr.serving.signature_handle import SignatureHandle

FILE = "assets.extra/tf_serving_warmup_requests"
MAX_RECORDS = 1000  # as TF Serving
ROWS = (1, 16, 128)  # of generated requests: engines choose their kernels by the batch
_LONGEST_RECORD = 1 << 30
_DEFAULT_SIGNATURE = "serving_default"

_log = logging.getLogger("tfctr")
Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmUp:
    """source: "recorded", "generated" or "none". requests: run on each executor. notes: what could not be run."""

    source: str
    requests: int
    executors: int
    seconds: float
    notes: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"notes": list(self.notes)}


@dataclasses.dataclass(frozen=True)
class _Request:
    handle: SignatureHandle
    inputs: Mapping[str, Any]


def warm_up(
    where: str,
    folder: Path,
    handles: Mapping[str, SignatureHandle],
    executors: int,
    *,
    writes_state: bool = False,
    progress: Progress = lambda _: None,
) -> WarmUp:
    """Runs the requests on every executor, at low priority.

    writes_state: the graph changes tables of its own when it runs, so that nothing is generated for it.

    Raises:
      CorruptFileError: the file of recorded requests is damaged.
      UsageError: a recorded request does not fit the model: its version is not what was recorded for.
      TfctrError: the model fails, other than over the values of generated requests.
    """
    start = time.perf_counter()
    notes: list[str] = []
    file = folder / FILE
    recorded = file.is_file()
    if recorded and not _reads_logs():
        notes.append(f"{FILE} was not read: tensorflow-serving-api is not installed (pip install 'tfctr[serve]')")
        _log.warning("%s: %s", where, notes[-1])
        recorded = False
    if recorded:
        count = _run_recorded(where, file, handles, executors, progress)
        source = "recorded"
    elif writes_state:
        notes.append("the graph writes tables when it runs: no request was made up for it")
        count, source = 0, "none"
    else:
        count = _run_generated(where, handles, executors, notes, progress)
        source = "generated" if count else "none"
    return WarmUp(
        source=source,
        requests=count,
        executors=executors,
        seconds=round(time.perf_counter() - start, 3),
        notes=tuple(notes),
    )


def _run_recorded(
    where: str, file: Path, handles: Mapping[str, SignatureHandle], executors: int, progress: Progress
) -> int:
    count = 0
    for number, record in enumerate(records(file)):
        if number == MAX_RECORDS:
            _log.warning("%s: %s: only the first %d requests are run", where, FILE, MAX_RECORDS)
            break
        progress(f"warm-up request {number}")
        for request in _recorded(f"{file}: request {number}", record, handles):
            count += 1
            for executor in range(executors):
                try:
                    request.handle.run_on(executor, request.inputs)
                except InputError as error:
                    raise UsageError(
                        f"{file}: request {number} does not fit the model, which is refused: {error}"
                    ) from error
    return count


def _run_generated(
    where: str, handles: Mapping[str, SignatureHandle], executors: int, notes: list[str], progress: Progress
) -> int:
    count = 0
    for name, handle in handles.items():
        progress(f"warm-up of {name}")
        try:
            for inputs in generated(handle):
                for executor in range(executors):
                    handle.run_on(executor, inputs)
                count += 1
        except InputError as error:
            # Made up of names and types: a model may rightly refuse them.
            notes.append(f"signature {name!r}: a generated request was refused: {error}")
            _log.warning("%s: no warm-up: %s", where, notes[-1])
    return count


def generated(handle: SignatureHandle) -> Iterator[dict[str, Any]]:
    """Requests of 1, 16 and 128 rows; where users may come once, the same again with one user row."""
    info = sample_info(handle)
    for rows in ROWS:
        yield sample_inputs.generate(info, rows, rows, between=turns.give)
        if handle.row_to_user is not None:
            yield sample_inputs.generate(info, rows, rows, 1, user_inputs(handle), turns.give)


def records(file: Path) -> Iterator[bytes]:
    """The records of a TFRecord file. CorruptFileError: a checksum is wrong, or the file ends within a record."""
    checksum = library.native().masked_crc32c
    with file.open("rb") as source:
        number = 0
        while head := source.read(12):
            where = f"{file}: record {number}"
            if len(head) < 12 or struct.unpack("<I", head[8:])[0] != checksum(head[:8]):
                raise CorruptFileError(f"{where}: its length is damaged or cut off; expected TFRecords")
            (length,) = struct.unpack("<Q", head[:8])
            if length > _LONGEST_RECORD:
                raise CorruptFileError(f"{where}: {length} bytes, expected at most {_LONGEST_RECORD}")
            data, foot = source.read(length), source.read(4)
            if len(data) < length or len(foot) < 4 or struct.unpack("<I", foot)[0] != checksum(data):
                raise CorruptFileError(f"{where}: its bytes are damaged or cut off")
            yield data
            number += 1


def _reads_logs() -> bool:
    try:
        import tensorflow_serving.apis.prediction_log_pb2  # noqa: F401
    except ImportError:
        return False
    return True


def _recorded(where: str, record: bytes, handles: Mapping[str, SignatureHandle]) -> Iterator[_Request]:
    """What one PredictionLog asks for."""
    from google.protobuf import message
    from tensorflow_serving.apis import prediction_log_pb2

    try:
        log = prediction_log_pb2.PredictionLog.FromString(record)
    except message.DecodeError as error:
        raise CorruptFileError(f"{where}: is no PredictionLog") from error
    kind = log.WhichOneof("log_type")
    if kind == "predict_log":
        request = log.predict_log.request
        handle = _handle(where, request.model_spec.signature_name, handles)
        yield _Request(handle, {name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()})
    elif kind in ("classify_log", "regress_log"):
        request = getattr(log, kind).request
        yield _examples(where, request.model_spec.signature_name, request.input, handles)
    elif kind == "multi_inference_log":
        request = log.multi_inference_log.request
        for task in request.tasks:
            yield _examples(where, task.model_spec.signature_name, request.input, handles)
    else:
        raise UsageError(f"{where}: a log of the kind {kind}; expected predict, classify, regress or multi_inference")


def _examples(where: str, signature: str, given: Any, handles: Mapping[str, SignatureHandle]) -> _Request:
    from tfctr.serving.server import tfs_examples

    handle = _handle(where, signature, handles)
    try:
        examples = tfs_examples.serialized_examples(given)
        return _Request(handle, tfs_examples.reader_of(where, handle.inputs, handle.features).inputs(examples))
    except InputError as error:
        raise UsageError(f"{where}: does not fit the model, which is refused: {error}") from error


def _handle(where: str, signature: str, handles: Mapping[str, SignatureHandle]) -> SignatureHandle:
    name = signature or _DEFAULT_SIGNATURE
    if name not in handles:
        raise UsageError(f"{where}: there is no signature {name!r}; there is: {', '.join(handles)}")
    return handles[name]


def writes_state(manifest: Mapping[str, Any] | None) -> bool:
    """Whether the manifest says that running the graph changes it."""
    return bool(manifest and manifest.get("mutable_state"))
