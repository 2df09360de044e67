"""Reading model inputs from ``.npz`` and ``.jsonl`` files.

``.npz`` holds one array per signature input name. ``.jsonl`` holds one example per line, a JSON object from feature
name to a value, a list for a multi-valued feature, ``{"b64": "..."}`` for bytes. In both, the column ``label`` holds
labels and ``request_id`` (or the column the caller names) tells requests apart; neither reaches the model unless the
signature has an input of that name.

Both may give user features once per user: ``.npz`` with user inputs of 1 row, or of U rows and ``row_to_user``;
``.jsonl`` with one request per line (``request_lines``).
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfctr.bundle.rows import split_roles, take_rows
from tfctr.bundle.user_rows import repeat_user_rows, row_to_user_name
from tfctr.data import npz
from tfctr.data.request_lines import RequestRows, are_requests, candidate_rows
from tfctr.errors import InputError

LABEL = "label"
REQUEST_ID = "request_id"


@dataclasses.dataclass(frozen=True)
class InputFile:
    """Inputs of one file: arrays by signature input name, and what travels beside them."""

    inputs: dict[str, np.ndarray]
    labels: np.ndarray | None = None  # float32 [B]
    request_ids: np.ndarray | None = None  # [B]


def read_inputs(
    path: str, info: Mapping[str, Any], label: str = LABEL, request_column: str = "", *, once: bool = False
) -> InputFile:
    """Reads ``path`` for the signature described by ``info`` (a manifest signature entry).

    once: user inputs that the file gives once per user come so, with ``row_to_user``: what ``ServingSession.predict``
    takes. Otherwise their rows are repeated, and every input has B rows.

    request_column: whose values are the request ids; "": ``request_id``, where the file has it. It may be an input of
    the signature (a user id), which it then stays.

    Raises:
      InputError: the file is missing, of another kind, does not parse (line named), lacks ``request_column``, or a
        column does not fit.
    """
    file = pathlib.Path(path)
    if not file.is_file():
        raise InputError(f"{path}: no such input file")
    if file.suffix == ".npz":
        found = _read_npz(file, info, label, request_column)
        return found if once else dataclasses.replace(found, inputs=repeat_user_rows(found.inputs, info, path))
    if file.suffix == ".jsonl":
        return _read_jsonl(file, info, label, request_column, once)
    raise InputError(f"{path}: an input file is .npz (arrays by input name) or .jsonl (one example per line)")


def _read_npz(file: pathlib.Path, info: Mapping[str, Any], label: str, request_column: str) -> InputFile:
    try:
        arrays = npz.read_npz(file)
    except npz.ERRORS as e:
        raise InputError(f"{file}: not a readable .npz file: {e}") from e
    names = {entry["name"] for entry in info["inputs"]}
    labels = arrays.pop(label) if label in arrays and label not in names else None
    has = sorted(arrays)
    if labels is None and label not in (LABEL, *names):
        raise InputError(f"{file}: no column {label!r} of labels; it has {', '.join(has)}")
    ids = arrays.pop(REQUEST_ID) if REQUEST_ID in arrays and REQUEST_ID not in names else None
    if request_column and request_column != REQUEST_ID:
        ids = arrays.get(request_column) if request_column in names else arrays.pop(request_column, None)
    elif request_column in names:
        ids = arrays.get(request_column)
    if request_column and ids is None:
        raise InputError(f"{file}: no request column {request_column!r}; it has {', '.join(has)}")
    if request_column and ids is not None:
        ids = _request_ids(file, request_column, ids)
    return InputFile(arrays, _labels(labels, file), ids)


def _request_ids(file: pathlib.Path, column: str, ids: np.ndarray) -> np.ndarray:
    """``ids`` as a vector: one value per row."""
    if ids.ndim == 0 or ids.size != len(ids):
        raise InputError(
            f"{file}: request column {column!r} has the shape {list(ids.shape)}; expected one value per row"
        )
    return ids.reshape(-1)


def _read_jsonl(file: pathlib.Path, info: Mapping[str, Any], label: str, request_column: str, once: bool) -> InputFile:
    rows: Sequence[Mapping[str, Any]] = [
        _parse_line(file, number, line) for number, line in enumerate(file.read_bytes().splitlines(), 1) if line.strip()
    ]
    if not rows:
        raise InputError(f"{file}: holds no example")
    names = [f"example {number}" for number in range(1, len(rows) + 1)]
    requests = None
    if are_requests(rows, {feature["name"] for feature in info["features"]}):
        requests = candidate_rows(file, rows)
        rows, names = requests.rows, requests.names
    dtypes = {entry["name"]: entry["dtype"] for entry in info["inputs"]}
    shapes = {entry["name"]: entry["shape"] for entry in info["inputs"]}
    inputs: dict[str, np.ndarray] = {}
    known = {LABEL, REQUEST_ID, label} | ({request_column} if request_column else set())
    for feature in info["features"]:
        name, parts = feature["name"], feature["parts"]
        known.add(name)
        column = [_cell(file, what, row, name) for what, row in zip(names, rows, strict=True)]
        values = parts["values"]
        if feature["kind"] == "dense":
            inputs[values] = _dense(file, name, column, names, dtypes[values], shapes[values])
        else:
            inputs |= _multi_valued(file, name, column, feature["kind"], parts, dtypes)
    extra = sorted({key for row in rows for key in row} - known)
    if extra:
        raise InputError(
            f"{file}: unknown feature {extra[0]!r}; the signature has {', '.join(sorted(known - {label}))}"
        )
    inner = {feature["name"] for feature in info["features"]}  # an input of that name is an input
    labels = None
    if label not in inner and (label != LABEL or any(label in row for row in rows)):
        labels = [_cell(file, what, row, label) for what, row in zip(names, rows, strict=True)]
    ids = _line_ids(file, rows, names, inner, request_column)
    if once and requests is not None:
        inputs = _users_once(inputs, info, requests)
    return InputFile(inputs, _labels(labels, file), ids)


def _users_once(inputs: dict[str, np.ndarray], info: Mapping[str, Any], requests: RequestRows) -> dict[str, np.ndarray]:
    """User inputs with one row per request, where the model takes them so and every line writes them under its user."""
    users = set((info.get("user") or {}).get("inputs", ()))
    features = {f["name"] for f in info["features"] if f["parts"]["values"] in users}
    if not features or not features <= requests.user_keys:
        return inputs
    taken = take_rows(inputs, info, np.array(requests.firsts, np.int64), users)
    return taken | {row_to_user_name(info): np.array(requests.row_to_user, np.int64)}


def _line_ids(
    file: pathlib.Path,
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    inner: Collection[str],
    request_column: str,
) -> np.ndarray | None:
    """The request column of a .jsonl file; None where there is none and none was asked for."""
    if not request_column:
        found = REQUEST_ID not in inner and all(REQUEST_ID in row for row in rows)
        return np.array([row[REQUEST_ID] for row in rows]) if found else None
    ids = []
    for what, row in zip(names, rows, strict=True):
        cell = row.get(request_column)
        cell = cell[0] if isinstance(cell, list) and len(cell) == 1 else cell
        if cell is None or isinstance(cell, list):
            has = "no" if cell is None else f"{len(cell)} values in the"
            raise InputError(f"{file}: {what} has {has} request column {request_column!r}; expected one value")
        ids.append(cell if isinstance(cell, str) else json.dumps(cell, sort_keys=True))
    return np.array(ids)


def _parse_line(file: pathlib.Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise InputError(f"{file}:{number}: not JSON: {e}") from e
    if not isinstance(row, dict):
        raise InputError(f"{file}:{number}: expected an object of feature names and values, got {type(row).__name__}")
    return row


def _cell(file: pathlib.Path, what: str, row: Mapping[str, Any], name: str) -> Any:
    if name not in row:
        raise InputError(f"{file}: {what} lacks feature {name!r}; it has {', '.join(sorted(row)) or 'nothing'}")
    return row[name]


def _scalar(value: Any) -> Any:
    """Text to bytes, ``{"b64": ...}`` to bytes, numbers as they are."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and set(value) == {"b64"}:
        return base64.b64decode(value["b64"], validate=True)
    return value


def _array(file: pathlib.Path, name: str, values: Sequence[Any], dtype: str) -> np.ndarray:
    """A flat array of ``dtype`` that holds ``values`` exactly (integers are not rounded, floats not cut)."""
    try:
        scalars = [_scalar(v) for v in values]
    except UnicodeEncodeError as e:
        raise InputError(f"{file}: feature {name!r}: text that is not valid Unicode: {e}") from e
    except (binascii.Error, TypeError, ValueError) as e:
        raise InputError(f"{file}: feature {name!r}: base64 does not decode: {e}") from e
    if dtype == "string":
        for wrong in (v for v in scalars if not isinstance(v, bytes)):
            raise InputError(f"{file}: feature {name!r} expects text, got {wrong!r}")
        return np.array(scalars, dtype=object)
    for wrong in (v for v in scalars if not isinstance(v, (int, float, bool))):
        raise InputError(f"{file}: feature {name!r} expects {dtype} numbers, got {wrong!r}")
    target = np.dtype(dtype)
    if target.kind in "iu":
        for wrong in (v for v in scalars if isinstance(v, float)):
            raise InputError(f"{file}: feature {name!r} expects {dtype}, got the number {wrong!r}")
    try:
        with np.errstate(over="raise"):  # 1e39 is no float32
            return np.array(scalars, dtype=target)
    except (FloatingPointError, OverflowError, ValueError) as e:
        raise InputError(f"{file}: feature {name!r}: {e} ({dtype} expected)") from e


def _dense(
    file: pathlib.Path,
    name: str,
    column: list[Any],
    rows: Sequence[str],
    dtype: str,
    shape: Sequence[int | None] | None,
) -> np.ndarray:
    """rows: what each cell's row is called in messages."""
    flat: list[Any] = []
    first = _measure(column[0])
    for row, cell in zip(rows, column, strict=True):
        if _measure(cell) != first:
            raise InputError(
                f"{file}: feature {name!r}: {row} has shape {_measure(cell)}, {rows[0]} has {first}; "
                "a dense feature has one shape"
            )
        _flatten(cell, flat)
    array = _array(file, name, flat, dtype).reshape((len(column), *first))
    if shape is not None and len(shape) == array.ndim + 1 and shape[-1] == 1:
        array = array[..., None]  # a plain number for an input [B, 1]
    return array


def _measure(cell: Any) -> tuple[int, ...]:
    shape = []
    while isinstance(cell, list):
        shape.append(len(cell))
        cell = cell[0] if cell else None
    return tuple(shape)


def _flatten(cell: Any, out: list[Any]) -> None:
    if isinstance(cell, list):
        for item in cell:
            _flatten(item, out)
    else:
        out.append(cell)


def _ragged(
    file: pathlib.Path, name: str, column: list[Any], parts: Mapping[str, str], dtypes: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """One list of values per row; lists of lists where the feature has further levels of row splits."""
    found: dict[str, np.ndarray] = {}
    for role in split_roles(parts):
        cells = [cell if isinstance(cell, list) else [cell] for cell in column]
        splits = np.cumsum([0, *(len(cell) for cell in cells)])
        found[parts[role]] = splits.astype(dtypes[parts[role]])
        column = [value for cell in cells for value in cell]
    return {parts["values"]: _array(file, name, column, dtypes[parts["values"]]), **found}


def _multi_valued(
    file: pathlib.Path,
    name: str,
    column: list[Any],
    kind: str,
    parts: Mapping[str, str],
    dtypes: Mapping[str, str],
) -> dict[str, np.ndarray]:
    if kind == "ragged":
        return _ragged(file, name, column, parts, dtypes)
    cells = [cell if isinstance(cell, list) else [cell] for cell in column]
    lengths = np.array([len(cell) for cell in cells], np.int64)
    values = _array(file, name, [v for cell in cells for v in cell], dtypes[parts["values"]])
    splits = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.repeat(np.arange(len(cells)), lengths)
    columns = np.arange(len(values)) - np.repeat(splits[:-1], lengths)
    return {
        parts["values"]: values,
        parts["indices"]: np.stack([rows, columns], axis=1).astype(np.int64),
        parts["dense_shape"]: np.array([len(cells), max(1, int(lengths.max(initial=0)))], np.int64),
    }


def _labels(labels: npt.ArrayLike | None, file: pathlib.Path) -> np.ndarray | None:
    if labels is None:
        return None
    try:
        numbers = np.asarray(labels, np.float32).reshape(-1)
    except (TypeError, ValueError) as e:
        raise InputError(f"{file}: labels are not numbers: {e}") from e
    if np.isnan(numbers).any():
        raise InputError(f"{file}: the label of row {int(np.isnan(numbers).argmax())} is NaN; expected a number")
    return numbers
