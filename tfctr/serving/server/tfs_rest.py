"""TF Serving's REST interface: predict in row and column form, classify, regress, metadata and status.

A row-form body is ``{"instances": [{input: value}, ...]}``, or bare values where the signature has one input; a column
form ``{"inputs": {input: values}}``. Bytes are ``{"b64": "..."}``. Beyond TF Serving: a feature may be given as a whole
by its name, and ``"user": {input: value}`` beside "instances" or "inputs" gives what all rows have in common once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf import json_format
from tensorflow.core.example import example_pb2

from tfctr.core import library
from tfctr.errors import InputError
from tfctr.serving.server import json_body, tfs_examples
from tfctr.serving.server.http_calls import HttpCall, HttpReply, check_rows, flat_outputs, json_reply, predict_json
from tfctr.serving.server.model_choice import DEFAULT_SIGNATURE, signature_of
from tfctr.serving.server.tfs_metadata import signature_definitions, version_status

_PREDICT_KEYS = frozenset({"signature_name", "instances", "inputs", "user"})
_EXAMPLE_KEYS = frozenset({"signature_name", "examples", "context"})


def predict(call: HttpCall) -> HttpReply:
    """POST /v1/models/M[/versions/N|/labels/L]:predict"""
    limits = call.ctx.limits
    start = time.perf_counter_ns()
    request = library.native().json_predict(call.body, limits.max_json_depth, limits.max_rows)
    reply = None if request is None else _predict_plain(call, request, start)
    return reply or _predict_general(call, start)


def _predict_plain(call: HttpCall, request: Any, start: int) -> HttpReply | None:
    """A request of the ordinary kind: its values go from the text into the packed form, in C++. None: it is not."""
    name = request.signature or DEFAULT_SIGNATURE
    with _acquire(call, lambda field: library.native().field_hash("tfs", _read_body(call)[2], field)) as lease:
        served = lease.version
        call.version = served.number
        handle = served.signatures.get(name)
        if handle is None:
            return None
        native_call = call.native_call((call.model, served.number, name))
        parsed = time.perf_counter_ns()
        found = predict_json(handle, request, native_call)
        return None if found is None else _reply(call, name, handle, found, request.rows, parsed - start)


def _predict_general(call: HttpCall, start: int) -> HttpReply:
    """Any request, over Python's objects."""
    name, user, columns, rows = _read_body(call)
    with _acquire(call, lambda field: _hash(columns, user, field)) as lease:
        served = lease.version
        call.version = served.number
        handle = served.signatures.get(name) or signature_of(call.model, served, name)
        inputs, users = _inputs(_where(call, name), handle, columns, user)
        check_rows(call.ctx.limits.max_rows, handle, inputs)
        native_call = call.native_call((call.model, served.number, name), users=users)
        parsed = time.perf_counter_ns()
        return _reply(call, name, handle, handle.predict(inputs, native_call), rows, parsed - start)


def _read_body(call: HttpCall) -> tuple[str, Any, dict[str, Any], int | None]:
    """(signature, "user", columns, rows in row form)."""
    body = json_body.read(call.body, call.ctx.limits)
    name = json_body.text_of(body, "signature_name") or DEFAULT_SIGNATURE
    columns, rows = _read(call, *_form(body))
    return name, body.get("user"), columns, rows


def _reply(
    call: HttpCall, name: str, handle: Any, found: tuple[dict[str, Any], Any], rows: int | None, parse_ns: int
) -> HttpReply:
    """In the form of the request. rows: of the row form."""
    native = library.native()
    ran = time.perf_counter_ns()
    outputs, timing = found
    call.rows = timing.rows
    if rows is None:
        tensors = outputs if handle.dense_only else flat_outputs(handle.outputs, outputs)
        text = b'{"outputs": ' + native.write_json(tensors, "columns") + b"}"
    else:
        _check_rows(_where(call, name), outputs, rows)
        text = b'{"predictions": ' + native.write_json(outputs, "rows") + b"}"
    call.ran(timing.as_dict(), parse_ns, time.perf_counter_ns() - ran)
    return HttpReply(text)


def _hash(columns: Mapping[str, Any], user: Any, field: str) -> int | None:
    """Of the first value of an input, wherever the request has it."""
    native = library.native()
    if type(user) is dict and field in user:
        columns = {field: [native.without_base64(user[field], f"user.{field}")]}
    return native.field_hash("tfs", columns, field)  # type: ignore[no-any-return]


def _form(body: Mapping[str, Any]) -> tuple[str, Any]:
    """("instances" | "inputs", its value)."""
    unknown = sorted(body.keys() - _PREDICT_KEYS)
    if unknown:
        raise InputError(f"the request body has {unknown[0][:80]!r}; there is: {', '.join(sorted(_PREDICT_KEYS))}")
    forms = [form for form in ("instances", "inputs") if form in body]
    if len(forms) != 1:
        came = "both" if forms else "neither"
        raise InputError(f"the request body has {came}, expected either 'instances' (rows) or 'inputs' (columns)")
    return forms[0], body[forms[0]]


def _read(call: HttpCall, form: str, given: Any) -> tuple[dict[str, Any], int | None]:
    """(input name -> column, rows in row form). "" is the name of an only input that goes unnamed."""
    native = library.native()
    if form == "inputs":
        if type(given) is not dict or given.keys() == {"b64"}:
            return {"": native.without_base64(given, "inputs")}, None
        if b"b64" in call.body:
            given = {key: native.without_base64(value, f"inputs.{key}") for key, value in given.items()}
        return given, None
    if type(given) is not list or not given:
        raise InputError("'instances': expected a list of one or more rows")
    _limit_rows(call, len(given))
    return native.instances_to_columns(given), len(given)


def _limit_rows(call: HttpCall, rows: int) -> None:
    limit = call.ctx.limits.max_rows
    if rows > limit:
        raise InputError(f"the request has {rows} rows, the limit is {limit} (max_rows)")


def _where(call: HttpCall, signature: str) -> str:
    """How errors begin, as those of C++ do."""
    return f"model {call.model!r} version {call.version}, signature {signature!r}"


def _inputs(where: str, handle: Any, columns: dict[str, Any], user: Any) -> tuple[dict[str, Any], list[str]]:
    """What the signature is run with, and which inputs of it the request gives once."""
    if "" in columns:
        names = [one.name for one in handle.inputs]
        if len(names) != 1 or len(columns) != 1:
            raise InputError(
                f"{where}: got values without a name, expected objects: it has {len(names)} inputs, "
                f"{', '.join(names[:8])}"
            )
        columns = {names[0]: columns[""]}
    if user is None:
        return columns, []
    if type(user) is not dict:
        raise InputError(f"{where}: 'user': expected an object, one value per user feature")
    made = dict(columns)
    without_base64 = library.native().without_base64
    for key, value in user.items():
        if key in made:
            raise InputError(f"{where}: {key[:80]!r} is given by 'user' and beside it")
        made[key] = [without_base64(value, f"user.{key}")]
    return made, list(user)


def _check_rows(where: str, outputs: Mapping[str, Any], rows: int) -> None:
    """Row form needs outputs that have rows."""
    for output, value in outputs.items():
        shape = getattr(value, "shape", None)
        if shape is None or not len(shape) or shape[0] != rows:
            found = "is sparse or ragged" if shape is None else f"has shape {list(shape)}"
            raise InputError(
                f"{where}: output {output!r} {found} for {rows} instances; ask with 'inputs' (column form)"
            )


def classify(call: HttpCall) -> HttpReply:
    """POST /v1/models/M:classify"""
    result, _ = _on_examples(call, tfs_examples.CLASSIFY)
    rows = [[[one.label, one.score] for one in row.classes] for row in result.classifications]
    return json_reply({"results": rows})


def regress(call: HttpCall) -> HttpReply:
    """POST /v1/models/M:regress"""
    result, _ = _on_examples(call, tfs_examples.REGRESS)
    return json_reply({"results": [one.value for one in result.regressions]})


def _on_examples(call: HttpCall, method: str) -> tuple[Any, int]:
    start = time.perf_counter_ns()
    body = json_body.read(call.body, call.ctx.limits)
    unknown = sorted(body.keys() - _EXAMPLE_KEYS)
    if unknown:
        raise InputError(f"the request body has {unknown[0][:80]!r}; there is: {', '.join(sorted(_EXAMPLE_KEYS))}")
    name = json_body.text_of(body, "signature_name") or DEFAULT_SIGNATURE
    examples = _examples(body)
    rows = call.rows = len(examples)
    _limit_rows(call, rows)
    with _acquire(call, None) as lease:
        served = lease.version
        call.version = served.number
        handle = signature_of(call.model, served, name)
        where = _where(call, name)
        tfs_examples.check_method(where, handle.method_name, method)
        inputs = tfs_examples.reader_of(where, handle.inputs, handle.features).inputs(examples)
        parsed = time.perf_counter_ns()
        outputs, timing = handle.predict(inputs, call.native_call((call.model, served.number, name)))
        ran = time.perf_counter_ns()
        make = tfs_examples.classification_result if method == tfs_examples.CLASSIFY else tfs_examples.regression_result
        result = make(where, outputs, rows)
    call.ran(timing.as_dict(), parsed - start, time.perf_counter_ns() - ran)
    return result, rows


def _examples(body: Mapping[str, Any]) -> list[bytes]:
    """Serialized tf.Examples; each has the features of "context" beside its own, which win."""
    given, context = body.get("examples"), body.get("context", {})
    if type(given) is not list or not given:
        raise InputError("'examples': expected a list of one or more objects")
    if type(context) is not dict:
        raise InputError("'context': expected an object")
    common = _example(context, "context").SerializeToString()
    made = []
    for k, features in enumerate(given):
        if type(features) is not dict:
            raise InputError(f"examples[{k}]: expected an object, feature name -> value or list")
        made.append(common + _example(features, f"examples[{k}]").SerializeToString())
    return made


def _example(features: Mapping[str, Any], path: str) -> example_pb2.Example:
    """Whole numbers are int64, others float, texts and b64 bytes; a list has values of one kind."""
    example = example_pb2.Example()
    without_base64 = library.native().without_base64
    for name, value in features.items():
        where = f"{path}.{name}"
        values = without_base64(value, where)
        _fill(example.features.feature[name], values if type(values) is list else [values], where)
    return example


def _fill(feature: Any, values: Sequence[Any], where: str) -> None:
    kinds = set(map(type, values))
    if kinds <= {int, float} and kinds:
        if kinds == {int}:
            if any(not -(1 << 63) <= value < 1 << 63 for value in values):
                raise InputError(f"{where}: found a number that no int64 holds")
            feature.int64_list.value.extend(values)
        else:
            limit = float(np.finfo(np.float32).max)
            if any(abs(value) > limit for value in values):
                raise InputError(f"{where}: found a number that no float holds")
            feature.float_list.value.extend(values)
    elif kinds <= {str, bytes}:
        feature.bytes_list.value.extend(value.encode() if type(value) is str else value for value in values)
    else:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"{where}: found {names}; expected numbers, or texts, or a flat list of one of them")


def metadata(call: HttpCall) -> HttpReply:
    """GET /v1/models/M[/versions/N|/labels/L]/metadata"""
    with _acquire(call, None) as lease:
        call.version = lease.version.number
        definitions = {
            name: json_format.MessageToDict(
                one, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
            for name, one in signature_definitions(lease.version).items()
        }
    return json_reply(
        {
            "model_spec": {"name": call.model, "signature_name": "", "version": str(call.version)},
            "metadata": {"signature_def": {"signature_def": definitions}},
        }
    )


def status(call: HttpCall) -> HttpReply:
    """GET /v1/models/M[/versions/N|/labels/L]"""
    version, label = _choice(call)
    entries = version_status(call.ctx.manager, call.model, version, label)
    return json_reply(
        {
            "model_version_status": [
                {
                    "version": str(one.number),
                    "state": one.state,
                    "status": {"error_code": "UNKNOWN" if one.error_code else "OK", "error_message": one.error},
                }
                for one in entries
            ]
        }
    )


def _acquire(call: HttpCall, route: Any) -> Any:
    version, label = _choice(call)
    return call.ctx.manager.acquire(call.model, version, label, route)


def _choice(call: HttpCall) -> tuple[int | None, str | None]:
    """The path's model, and its version or label."""
    call.model = call.params["model"]
    text = call.params.get("version")
    if text is None:
        return None, call.params.get("label")
    if not (text.isascii() and text.isdigit() and int(text[:20]) < 1 << 63 and len(text) < 20):
        raise InputError(f"model {call.model!r}: version {text[:40]!r} in the path, expected a whole number")
    return int(text), None
