"""Choosing rows (examples) of a request: arrays by input name in, arrays by input name out.

``info`` is a signature's entry of the manifest: ``inputs`` (name, dtype, shape) and ``features`` (which inputs are the
parts of one dense, sparse or ragged feature).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


def count_rows(arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> int:
    """Rows B of a request, read from its first feature that has a batch dimension; 0 where no feature has one."""
    for feature in info["features"]:
        parts = feature["parts"]
        if feature["kind"] == "ragged" and parts["row_splits"] in arrays:
            return len(arrays[parts["row_splits"]]) - 1
        if feature["kind"] == "sparse" and parts["dense_shape"] in arrays:
            return int(arrays[parts["dense_shape"]][0])
        if feature["kind"] == "dense" and np.ndim(arrays.get(parts["values"], 0)) > 0:
            return int(arrays[parts["values"]].shape[0])
    return 0


def take_rows(arrays: Mapping[str, np.ndarray], info: Mapping[str, Any], rows: np.ndarray) -> Arrays:
    """The request that holds rows ``rows`` (int64 [R], repeats allowed) of ``arrays``, in that order.

    Inputs without a batch dimension (rank 0) are passed on unchanged.
    """
    taken: Arrays = {}
    for feature in info["features"]:
        parts = feature["parts"]
        if not all(name in arrays for name in parts.values()):
            continue  # a missing part is reported by predict, which knows what was expected
        if feature["kind"] == "ragged":
            taken |= _take_ragged(arrays, parts, rows)
        elif feature["kind"] == "sparse":
            taken |= _take_sparse(arrays, parts, rows)
        else:
            values = arrays[parts["values"]]
            taken[parts["values"]] = values[rows] if np.ndim(values) else values
    return taken | {name: value for name, value in arrays.items() if name not in taken}


def split_roles(parts: Mapping[str, str]) -> list[str]:
    """The roles of a ragged feature's row splits, outermost first: ``row_splits``, ``row_splits_1``..."""
    roles = [role for role in parts if role.startswith("row_splits")]
    return sorted(roles, key=lambda role: int(role.removeprefix("row_splits").lstrip("_") or 0))


def _take_ragged(arrays: Mapping[str, np.ndarray], parts: Mapping[str, str], rows: np.ndarray) -> Arrays:
    taken: Arrays = {}
    picked = rows
    for role in split_roles(parts):
        splits = np.asarray(arrays[parts[role]])
        lengths = (splits[1:] - splits[:-1])[picked]
        new_splits = np.concatenate([[0], np.cumsum(lengths)]).astype(splits.dtype)
        picked = np.repeat(splits[:-1][picked] - new_splits[:-1], lengths) + np.arange(new_splits[-1])
        taken[parts[role]] = new_splits
    return taken | {parts["values"]: arrays[parts["values"]][picked]}


def _take_sparse(arrays: Mapping[str, np.ndarray], parts: Mapping[str, str], rows: np.ndarray) -> Arrays:
    indices, values = arrays[parts["indices"]], arrays[parts["values"]]
    shape = np.array(arrays[parts["dense_shape"]])
    by_row = np.argsort(indices[:, 0], kind="stable")
    begin = np.searchsorted(indices[by_row, 0], rows, side="left")
    lengths = np.searchsorted(indices[by_row, 0], rows, side="right") - begin
    ends = np.cumsum(lengths)
    picked = by_row[np.repeat(begin - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)]
    new_indices = indices[picked].copy()
    new_indices[:, 0] = np.repeat(np.arange(len(rows)), lengths)
    shape[0] = len(rows)
    return {parts["indices"]: new_indices, parts["values"]: values[picked], parts["dense_shape"]: shape}
