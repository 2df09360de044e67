"""TF Serving's Classify, Regress and MultiInference speak in ``tf.Example``: examples to inputs, outputs to results.

A signature whose only input is a vector of strings gets the serialized examples, as TF Serving has it. Any other
signature (what ``model.export`` and Keras write) gets its own inputs, read from the examples by name: ``[batch]`` and
``[batch, k]`` inputs must be in every example, parts of a sparse or ragged feature may hold any number of values.

Used by gRPC and HTTP alike. Costs per request: one serialisation per example, one parse of all of them in C++.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import classification_pb2, input_pb2, regression_pb2

from tfctr.errors import InputError, TfctrError
from tfctr.serving.signature_info import Feature, Input

CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"
PREDICT = "tensorflow/serving/predict"

_EXAMPLE_TYPES = {"float32": tf.float32, "float64": tf.float32, "float16": tf.float32, "bfloat16": tf.float32}


def serialized_examples(given: input_pb2.Input) -> list[bytes]:
    """The examples of a request, each with the features of the shared context beside its own (which win).

    InputError: there are none.
    """
    kind = given.WhichOneof("kind")
    if kind == "example_list_with_context":
        # Concatenated messages are a merged message: map entries that come later replace earlier ones.
        context = given.example_list_with_context.context.SerializeToString()
        examples = [context + one.SerializeToString() for one in given.example_list_with_context.examples]
    else:
        examples = [one.SerializeToString() for one in given.example_list.examples]
    if not examples:
        raise InputError("input: no examples in it (example_list, or example_list_with_context)")
    return examples


def check_method(where: str, method_name: str, wanted: str) -> None:
    """InputError where a signature of ``method_name`` can't answer ``wanted`` (CLASSIFY or REGRESS). A signature for
    Predict, the only kind that TF2 writes, can where its outputs fit."""
    if method_name not in (wanted, PREDICT, ""):
        raise InputError(f"{where}: expected a signature with method name {wanted}, it has {method_name}")


@dataclasses.dataclass(frozen=True)
class ExampleReader:
    """How one signature reads examples; made once per signature, see :func:`reader_of`. spec: what
    ``tf.io.parse_example`` is asked for; None where the serialized examples themselves are the input ``name``."""

    where: str
    name: str
    spec: Mapping[str, Any] | None

    def inputs(self, examples: Sequence[bytes]) -> dict[str, Any]:
        """What ``predict`` takes, of as many rows as there are examples.

        InputError: a feature that is missing in an example or has another type or length; names it.
        """
        if self.spec is None:
            strings = np.empty(len(examples), dtype=object)
            strings[:] = examples
            return {self.name: strings}
        try:
            return dict(tf.io.parse_example(list(examples), self.spec))
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as error:
            raise InputError(f"{self.where}: {_parse_problem(error)}") from error


def reader_of(where: str, inputs: Sequence[Input], features: Sequence[Feature]) -> ExampleReader:
    """The reader of a signature with these inputs. InputError: one of them can't come from an example.

    where: the model and signature, for messages.
    """
    if len(inputs) == 1 and inputs[0].dtype == "string" and (inputs[0].shape is None or len(inputs[0].shape) == 1):
        return ExampleReader(where, inputs[0].name, None)
    by_name = {one.name: one for one in inputs}
    parts = {part for feature in features for part in feature.parts.values()}
    spec: dict[str, Any] = {}
    for feature in features:
        if len(feature.row_splits()) > 1:
            raise InputError(f"{where}: feature {feature.name!r} has several ragged levels, an example has one")
        dtype = _example_type(where, by_name[feature.parts["values"]])
        if feature.kind == "ragged":
            spec[feature.name] = tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)
        else:
            spec[feature.name] = tf.io.VarLenFeature(dtype)
    for one in inputs:
        if one.name not in parts:
            spec[one.name] = tf.io.FixedLenFeature(_row_shape(where, one), _example_type(where, one))
    return ExampleReader(where, "", spec)


def _example_type(where: str, given: Input) -> tf.DType:
    if given.dtype == "string":
        return tf.string
    if given.dtype in _EXAMPLE_TYPES:
        return _EXAMPLE_TYPES[given.dtype]
    if given.dtype == "bool" or given.dtype.startswith(("int", "uint")):
        return tf.int64
    raise InputError(f"{where}: input {given.name!r} of type {given.dtype} can't come from an example")


def _row_shape(where: str, given: Input) -> tuple[int, ...]:
    if not given.shape or any(size < 0 for size in given.shape[1:]):
        shape = "unknown" if given.shape is None else list(given.shape)
        raise InputError(
            f"{where}: input {given.name!r} of shape {shape} can't come from an example, which has a fixed number of "
            "values per row; use Predict"
        )
    return tuple(given.shape[1:])


def _parse_problem(error: Exception) -> str:
    """TensorFlow's reason without the name of its op."""
    if isinstance(error, UnicodeDecodeError):
        return "an example does not parse as tf.Example"
    text = str(getattr(error, "message", error))
    text = text.rpartition("}} ")[2].partition(" [Op:")[0]
    return text.replace("Name: <unknown>, ", "").replace("Name: <unknown>", "").strip()


def classification_result(where: str, outputs: Mapping[str, Any], rows: int) -> classification_pb2.ClassificationResult:
    """Outputs ``classes`` (strings) and ``scores`` (floats), both ``[rows, k]`` or ``[rows]``, one of them at least; a
    signature of one float output of such a shape, whatever its name, gives scores.

    InputError: outputs that are no classification.
    """
    classes, scores = outputs.get("classes"), outputs.get("scores")
    if classes is None and scores is None:
        scores = _only_float(where, outputs, "classification", "'classes' (strings) or 'scores' (floats)")
    labels = None if classes is None else _labels(where, _matrix(where, "classes", classes, rows))
    values = None if scores is None else _floats(where, "scores", _matrix(where, "scores", scores, rows))
    if labels is not None and values is not None and len(labels[0]) != values.shape[1]:
        raise InputError(f"{where}: {len(labels[0])} classes and {values.shape[1]} scores per row")
    result = classification_pb2.ClassificationResult()
    wide = len(labels[0]) if labels is not None else values.shape[1] if values is not None else 0
    score_rows = [[0.0] * wide] * rows if values is None else values.tolist()
    label_rows = [[""] * wide] * rows if labels is None else labels
    for some_labels, some_scores in zip(label_rows, score_rows, strict=True):
        row = result.classifications.add()
        for label, score in zip(some_labels, some_scores, strict=True):
            row.classes.add(label=label, score=score)
    return result


def regression_result(where: str, outputs: Mapping[str, Any], rows: int) -> regression_pb2.RegressionResult:
    """Output ``outputs``, or the only float output, of shape ``[rows]`` or ``[rows, 1]``. InputError: there is none."""
    values = outputs.get("outputs")
    if values is None:
        values = _only_float(where, outputs, "regression", "'outputs' (floats)")
    matrix = _floats(where, "outputs", _matrix(where, "outputs", values, rows))
    if matrix.shape[1] != 1:
        raise InputError(f"{where}: a regression has one value per row, output 'outputs' has {matrix.shape[1]}")
    result = regression_pb2.RegressionResult()
    for value in matrix[:, 0].tolist():
        result.regressions.add(value=value)
    return result


def _only_float(where: str, outputs: Mapping[str, Any], kind: str, wanted: str) -> Any:
    floats = [value for value in outputs.values() if isinstance(value, np.ndarray) and value.dtype.kind == "f"]
    if len(floats) != 1:
        raise InputError(f"{where}: no {kind}: expected output {wanted}, it has {', '.join(sorted(outputs))}")
    return floats[0]


def _matrix(where: str, name: str, value: Any, rows: int) -> np.ndarray:
    """``value`` as ``[rows, k]``."""
    if not isinstance(value, np.ndarray) or value.ndim not in (1, 2):
        shape = f"shape {list(value.shape)}" if isinstance(value, np.ndarray) else "a sparse or ragged form"
        raise InputError(f"{where}: output {name!r} has {shape}, expected [batch] or [batch, k]")
    if value.shape[0] != rows:
        raise InputError(f"{where}: output {name!r} has {value.shape[0]} rows for {rows} examples")
    return value.reshape(rows, -1)


def _floats(where: str, name: str, value: np.ndarray) -> np.ndarray:
    if value.dtype.kind != "f":
        raise InputError(f"{where}: output {name!r} is of type {value.dtype}, expected floats")
    return value.astype(np.float32, copy=False)


def _labels(where: str, value: np.ndarray) -> list[list[str]]:
    try:
        return [[bytes(one).decode() for one in row] for row in value.tolist()]
    except UnicodeDecodeError as error:
        raise TfctrError(f"{where}: output 'classes' holds a label that is not UTF-8 text") from error
    except TypeError as error:
        raise InputError(f"{where}: output 'classes' is of type {value.dtype}, expected strings") from error
