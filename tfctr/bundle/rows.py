"""Choosing rows (examples) of a request: arrays by input name in, arrays by input name out; and finding its users.

``info`` is a signature's entry of the manifest: ``inputs`` (name, dtype, shape, domain) and ``features`` (which inputs
are the parts of one dense, sparse or ragged feature).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


def count_rows(arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> int:
    """Rows B of a request, read from its first feature that has a batch dimension; 0 where no feature has one."""
    like = _like(info)
    for feature in info["features"]:
        rows = _rows_of(arrays, feature) if feature["parts"]["values"] not in like else None
        if rows is not None:
            return rows
    return 0


def rows_of(arrays: Mapping[str, np.ndarray], info: Mapping[str, Any], inputs: Collection[str]) -> int | None:
    """As ``count_rows``, of the features whose values are among ``inputs``; None where none of them has rows."""
    chosen = [f for f in info["features"] if f["parts"]["values"] in inputs]
    found = [_rows_of(arrays, f) for f in chosen if f["parts"]["values"] not in _like(info)]
    return next((rows for rows in found if rows is not None), None)


def take_rows(
    arrays: Mapping[str, np.ndarray],
    info: Mapping[str, Any],
    rows: np.ndarray,
    inputs: Collection[str] | None = None,
) -> Arrays:
    """The request that holds rows ``rows`` (int64 [R], repeats allowed) of ``arrays``, in that order.

    inputs: only features whose values are among them; the others are passed on unchanged. None: all. Inputs without a
    batch dimension (rank 0) are passed on too.
    """
    taken: Arrays = {}
    picks: dict[str, np.ndarray] = {}  # values input -> which of its values
    like = _like(info)
    for feature in info["features"]:
        parts = feature["parts"]
        if not all(name in arrays for name in parts.values()):
            continue  # a missing part is reported by predict, which knows what was expected
        if parts["values"] in like or (inputs is not None and parts["values"] not in inputs):
            continue
        if feature["kind"] == "ragged":
            made, picks[parts["values"]] = _take_ragged(arrays, parts, rows)
        elif feature["kind"] == "sparse":
            made, picks[parts["values"]] = _take_sparse(arrays, parts, rows)
        else:
            values = arrays[parts["values"]]
            made = {parts["values"]: values[rows] if np.ndim(values) else values}
        taken |= made
    taken |= {name: arrays[name][picks[of]] for name, of in like.items() if name in arrays and of in picks}
    return taken | {name: value for name, value in arrays.items() if name not in taken}


def find_users(
    arrays: Mapping[str, np.ndarray], info: Mapping[str, Any], inputs: Collection[str]
) -> tuple[np.ndarray, np.ndarray]:
    """(first row of each user int64 [U], row_to_user int64 [B]): rows with equal ``inputs`` belong to one user."""
    like = _like(info)
    columns = [
        row_keys(arrays, feature)
        for feature in info["features"]
        if feature["parts"]["values"] in inputs and feature["parts"]["values"] not in like
    ]
    firsts: list[int] = []
    users: dict[tuple[bytes, ...], int] = {}
    row_to_user = []
    for row, key in enumerate(zip(*columns, strict=True)):
        if key not in users:
            users[key] = len(firsts)
            firsts.append(row)
        row_to_user.append(users[key])
    return np.array(firsts, np.int64), np.array(row_to_user, np.int64)


def row_keys(arrays: Mapping[str, np.ndarray], feature: Mapping[str, Any]) -> list[bytes]:
    """One key per row of a feature; rows have equal keys where they hold the same values in the same places."""
    parts = feature["parts"]
    keys = _value_keys(np.asarray(arrays[parts["values"]]))
    if feature["kind"] == "ragged":
        for role in reversed(split_roles(parts)):
            splits = np.asarray(arrays[parts[role]]).tolist()
            keys = [b"(" + b",".join(keys[a:b]) + b")" for a, b in itertools.pairwise(splits)]
        return keys
    if feature["kind"] != "sparse":
        return keys
    indices = np.asarray(arrays[parts["indices"]])
    found: list[list[bytes]] = [[] for _ in range(int(arrays[parts["dense_shape"]][0]))]
    for key, index in zip(keys, indices, strict=True):
        found[int(index[0])].append(index[1:].tobytes() + key)
    return [b",".join(entries) for entries in found]


def split_roles(parts: Mapping[str, str]) -> list[str]:
    """The roles of a ragged feature's row splits, outermost first: ``row_splits``, ``row_splits_1``..."""
    roles = [role for role in parts if role.startswith("row_splits")]
    return sorted(roles, key=lambda role: int(role.removeprefix("row_splits").lstrip("_") or 0))


def _like(info: Mapping[str, Any]) -> dict[str, str]:
    """Input -> the input whose values it goes with, one for one (weights of ids)."""
    domains = {entry["name"]: entry.get("domain") or {} for entry in info.get("inputs", ())}
    return {name: domain["like"] for name, domain in domains.items() if domain.get("like")}


def _rows_of(arrays: Mapping[str, np.ndarray], feature: Mapping[str, Any]) -> int | None:
    parts = feature["parts"]
    if feature["kind"] == "ragged" and parts["row_splits"] in arrays:
        return len(arrays[parts["row_splits"]]) - 1
    if feature["kind"] == "sparse" and parts["dense_shape"] in arrays:
        return int(arrays[parts["dense_shape"]][0])
    if feature["kind"] == "dense" and np.ndim(arrays.get(parts["values"], 0)) > 0:
        return int(arrays[parts["values"]].shape[0])
    return None


def _value_keys(values: np.ndarray) -> list[bytes]:
    if values.dtype == object:
        return [repr(np.asarray(value, object).tolist()).encode() for value in values]
    return [np.ascontiguousarray(value).tobytes() for value in values]


def _take_ragged(arrays: Mapping[str, np.ndarray], parts: Mapping[str, str], rows: np.ndarray) -> tuple[Arrays, Any]:
    taken: Arrays = {}
    picked = rows
    for role in split_roles(parts):
        splits = np.asarray(arrays[parts[role]])
        lengths = (splits[1:] - splits[:-1])[picked]
        new_splits = np.concatenate([[0], np.cumsum(lengths)]).astype(splits.dtype)
        picked = np.repeat(splits[:-1][picked] - new_splits[:-1], lengths) + np.arange(new_splits[-1])
        taken[parts[role]] = new_splits
    return taken | {parts["values"]: arrays[parts["values"]][picked]}, picked


def _take_sparse(arrays: Mapping[str, np.ndarray], parts: Mapping[str, str], rows: np.ndarray) -> tuple[Arrays, Any]:
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
    return {parts["indices"]: new_indices, parts["values"]: values[picked], parts["dense_shape"]: shape}, picked
