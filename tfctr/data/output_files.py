"""Writing model outputs to ``.npz`` and ``.jsonl`` files, the mirror of :mod:`tfctr.data.input_files`."""

from __future__ import annotations

import base64
import itertools
import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any, TextIO

import numpy as np

from tfctr.data import npz
from tfctr.errors import InputError


def flatten_outputs(outputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Arrays by name: a ragged output gives ``name/values`` and ``name/row_splits`` (then
    ``name/row_splits_1``... inwards), a sparse one ``name/indices``,
    ``name/values`` and ``name/dense_shape``, any other its own array."""
    flat: dict[str, np.ndarray] = {}
    for name, value in outputs.items():
        if hasattr(value, "row_splits"):
            values, levels = _levels(value)
            flat[f"{name}/values"] = values
            flat |= {f"{name}/row_splits" + (f"_{k}" if k else ""): splits for k, splits in enumerate(levels)}
        elif hasattr(value, "dense_shape"):
            for part in ("indices", "values", "dense_shape"):
                flat[f"{name}/{part}"] = np.asarray(getattr(value, part))
        else:
            flat[name] = np.asarray(value)
    return flat


def write_outputs(path: str, outputs: Mapping[str, Any]) -> None:
    """Writes ``outputs`` to ``path`` (``.npz`` or ``.jsonl``) under a temporary name, then renames it."""
    file = pathlib.Path(path)
    if file.suffix not in (".npz", ".jsonl"):
        raise InputError(f"{path}: an output file is .npz or .jsonl")
    if file.is_dir():
        raise InputError(f"{path}: is a folder")
    if not file.parent.is_dir():
        raise InputError(f"{path}: folder {file.parent} does not exist")
    temporary = file.with_name(f".{file.name}.tmp-{os.getpid()}")
    try:
        if file.suffix == ".npz":
            with temporary.open("wb") as out:
                npz.write_npz(out, flatten_outputs(outputs))
                os.fsync(out.fileno())
        else:
            with temporary.open("w", encoding="utf-8") as lines:
                write_lines(lines, outputs)
                lines.flush()
                os.fsync(lines.fileno())
        temporary.replace(file)
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_lines(lines: TextIO, outputs: Mapping[str, Any]) -> None:
    """One JSON object per row: output name to value, lists for rows with several values."""
    columns = {name: _rows(value) for name, value in outputs.items()}
    for i in range(max((len(rows) for rows in columns.values()), default=0)):
        row = {name: _plain(rows[i]) for name, rows in columns.items() if i < len(rows)}
        lines.write(json.dumps(row, allow_nan=False) + "\n")


def _levels(value: Any) -> tuple[Any, list[np.ndarray]]:
    """Values of a ragged tensor, and its row splits, outermost first."""
    levels = []
    while hasattr(value, "row_splits"):
        levels.append(np.asarray(value.row_splits))
        value = value.values
    return np.asarray(value), levels


def _rows(value: Any) -> Any:
    if hasattr(value, "row_splits"):
        rows, levels = _levels(value)
        for splits in reversed(levels):
            rows = [rows[a:b] for a, b in itertools.pairwise(splits)]
        return rows
    if hasattr(value, "dense_shape"):
        indices, values = np.asarray(value.indices), np.asarray(value.values)
        return [values[indices[:, 0] == i] for i in range(int(np.asarray(value.dense_shape)[0]))]
    array = np.asarray(value)
    return list(array) if array.ndim else [array]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_plain(v) for v in value] if value.ndim else _plain(value.item())
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"b64": base64.b64encode(value).decode()}
    if isinstance(value, np.generic):
        return _plain(float(value)) if value.dtype.kind not in "biuOSU" else _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no such numbers
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
