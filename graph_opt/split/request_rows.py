"""Rows of requests: which values one row has, and requests made of some rows of others."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def row_texts(feature: Mapping[str, Any], arrays: Mapping[str, Any]) -> list[bytes] | None:
    """What each row of a feature holds, as bytes that are equal where the values are; None where it has no rows."""
    parts = {role: np.asarray(arrays[name]) for role, name in feature["parts"].items() if name in arrays}
    if len(parts) != len(feature["parts"]):
        return None
    if feature["kind"] == "dense":
        values = parts["values"]
        return None if values.ndim == 0 else [repr(row.tolist()).encode() for row in values]
    bounds = _bounds(feature["kind"], parts)
    if bounds is None:
        return None
    values = parts["values"]
    return [repr(values[rows].tolist()).encode() for rows in bounds]


def _bounds(kind: str, parts: Mapping[str, Array]) -> list[Array] | None:
    """Positions of the values of each row."""
    if kind == "ragged":
        if set(parts) != {"values", "row_splits"}:
            return None
        splits = parts["row_splits"]
        return [np.arange(a, b) for a, b in itertools.pairwise(splits)]
    rows = parts["indices"][:, 0]
    return [np.flatnonzero(rows == row) for row in range(int(parts["dense_shape"][0]))]


def take(
    feature: Mapping[str, Any], aligned: Sequence[str], arrays: Mapping[str, Any], chosen: Sequence[int]
) -> dict[str, Array]:
    """The inputs of one feature with rows ``chosen``. aligned: inputs with one value per value of it (weights)."""
    parts = feature["parts"]
    if feature["kind"] == "dense":
        made = {}
        for name in (*parts.values(), *aligned):
            value = np.asarray(arrays[name])
            made[name] = value if value.ndim == 0 else value[np.asarray(chosen, np.int64)]
        return made
    bounds = _bounds(feature["kind"], {role: np.asarray(arrays[name]) for role, name in parts.items()})
    if bounds is None:
        raise ValueError(f"feature {feature['name']} has more than one level of rows")
    picked = [bounds[k] for k in chosen]
    order = np.concatenate([*picked, np.zeros(0, np.int64)]).astype(np.int64)
    lengths = np.array([len(p) for p in picked], np.int64)
    made = {name: np.asarray(arrays[name])[order] for name in (parts["values"], *aligned)}
    if feature["kind"] == "ragged":
        dtype = np.asarray(arrays[parts["row_splits"]]).dtype
        made[parts["row_splits"]] = np.concatenate([[0], np.cumsum(lengths)]).astype(dtype)
        return made
    indices = np.asarray(arrays[parts["indices"]])[order]
    indices = indices.copy()
    indices[:, 0] = np.repeat(np.arange(len(chosen)), lengths)
    shape = np.asarray(arrays[parts["dense_shape"]]).copy()
    shape[0] = len(chosen)
    return {**made, parts["indices"]: indices, parts["dense_shape"]: shape}
