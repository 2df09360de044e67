"""Whether requests of a signature may run together: shown by running it, when a version is loaded.

Rows of two requests are put together by hand, run, and compared with what each gave alone. A model whose rows know of
each other (a softmax over the batch, batch statistics, a sort) fails that and runs every request by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfctr.bundle import sample_inputs
from tfctr.errors import InputError
from tfctr.serving import turns
from tfctr.serving.signature_handle import SignatureHandle

Array = npt.NDArray[Any]
Request = Mapping[str, Array]
SIZES = ((1, 4), (3, 2))  # rows of the two requests
# Engines choose other kernels for other batch sizes: relative and absolute difference by size of the number.
_TOLERANCE = {2: (2e-2, 2e-2), 4: (1e-3, 1e-5), 8: (1e-6, 1e-9)}


def sample_info(handle: SignatureHandle) -> Mapping[str, Any]:
    """What ``sample_inputs.generate`` needs: the manifest's entry, or as much as a plain SavedModel says."""
    if handle.entry:
        return handle.entry
    inputs = [{"name": i.name, "dtype": i.dtype, "shape": i.shape} for i in handle.inputs]
    features = [{"name": f.name, "kind": f.kind, "parts": f.parts} for f in handle.features]
    return {"inputs": inputs, "features": features}


def why_not(handle: SignatureHandle) -> str:
    """Why requests of this signature may not share a run; "" where they may. Runs it on executor 0."""
    info = sample_info(handle)
    try:
        for number, sizes in enumerate(SIZES):
            parts = [
                sample_inputs.generate(info, rows, 17 + number * 2 + k, between=turns.give)
                for k, rows in enumerate(sizes)
            ]
            reason = _differs(handle, parts, sizes, joined(handle, parts))
            if reason:
                return reason
        if handle.row_to_user is not None:
            return _users_differ(handle, info)
    except InputError as error:
        return f"it could not be shown with generated requests: {error}"
    return ""


def joined(handle: SignatureHandle, parts: list[dict[str, Array]]) -> dict[str, Array]:
    """One request with the rows of all."""
    made: dict[str, Array] = {}
    for feature in handle.features:
        turns.give()
        names = feature.parts
        made[names["values"]] = np.concatenate([one[names["values"]] for one in parts])
        if feature.kind == "ragged":
            for name in feature.row_splits():
                made[name] = _row_splits([one[name] for one in parts])
        else:
            made |= _sparse(names["indices"], names["dense_shape"], parts)
    for one in handle.inputs:
        if one.name in made:
            continue
        values = [part[one.name] for part in parts]
        if one.shape is not None and (not one.shape or one.shape[0] >= 0):
            made[one.name] = values[0]  # has no rows: the same in all requests of a batch
            for part in parts:
                part[one.name] = values[0]
        else:
            made[one.name] = np.concatenate(values)
    return made


def _row_splits(parts: list[Array]) -> Array:
    made, last = [parts[0]], parts[0][-1]
    for one in parts[1:]:
        made.append(one[1:] + last)
        last = made[-1][-1] if len(made[-1]) else last
    return np.concatenate(made)


def _sparse(indices: str, shape: str, parts: list[dict[str, Array]]) -> dict[str, Array]:
    rows, made = 0, []
    for part in parts:
        moved = part[indices].copy()
        moved[:, 0] += rows
        rows += int(part[shape][0])
        made.append(moved)
    inner = np.max([part[shape][1:] for part in parts], axis=0)
    return {indices: np.concatenate(made), shape: np.concatenate([[rows], inner]).astype(np.int64)}


def _users_differ(handle: SignatureHandle, info: Mapping[str, Any]) -> str:
    """The same for requests of one user each, whose rows are told apart by ``row_to_user``."""
    assert handle.row_to_user is not None
    users = user_inputs(handle)
    sizes = SIZES[1]
    parts = [sample_inputs.generate(info, rows, 31 + k, 1, users, turns.give) for k, rows in enumerate(sizes)]
    together = joined(handle, parts)
    together[handle.row_to_user] = np.repeat(np.arange(len(sizes)), sizes)
    reason = _differs(handle, parts, sizes, together)
    return f"with user rows: {reason}" if reason else ""


def user_inputs(handle: SignatureHandle) -> Collection[str]:
    """The inputs behind the features that may come once per user."""
    names = set(handle.user_features)
    of_features = {part for f in handle.features if f.name in names for part in f.parts.values()}
    in_features = {part for f in handle.features for part in f.parts.values()}
    return of_features | {i.name for i in handle.inputs if i.name in names and i.name not in in_features}


def _differs(handle: SignatureHandle, parts: list[dict[str, Array]], sizes: tuple[int, ...], whole: Request) -> str:
    apart = [handle.run_on(0, part) for part in parts]
    together = handle.run_on(0, whole)
    for name, value in together.items():
        turns.give()
        start = 0
        for alone, rows in zip(apart, sizes, strict=True):
            reason = _unlike(value, alone[name], start, rows, sum(sizes))
            if reason:
                return f"output {name!r} {reason}"
            start += rows
    return ""


def _unlike(whole: Any, alone: Any, start: int, rows: int, all_rows: int) -> str:
    if not isinstance(whole, np.ndarray):
        whole, alone = _as_rows(whole), _as_rows(alone)
        if whole[start : start + rows] != alone:
            return "differs between rows that run together and apart"
        return ""
    if whole.ndim == 0 or len(whole) != all_rows or len(alone) != rows:
        return f"has the shape {list(whole.shape)} for {all_rows} rows"
    part = whole[start : start + rows]
    if part.shape != alone.shape or not _equal(part, alone):
        return "differs between rows that run together and apart"
    return ""


def _as_rows(value: Any) -> list[Any]:
    if isinstance(value, tf.compat.v1.SparseTensorValue):
        rows: list[Any] = [[] for _ in range(int(value.dense_shape[0]))]
        for index, one in zip(np.asarray(value.indices).tolist(), np.asarray(value.values).tolist(), strict=True):
            rows[index[0]].append((index[1:], one))
        return rows
    return list(value.to_list())


def _equal(one: Array, other: Array) -> bool:
    kind = one.dtype.kind
    if kind in "biuOSUM":
        return bool(np.array_equal(one, other))
    relative, absolute = _TOLERANCE.get(one.dtype.itemsize, (1e-6, 1e-9))
    if kind == "V" or one.dtype.itemsize == 2:
        one, other = one.astype(np.float32), other.astype(np.float32)
    return bool(np.allclose(one, other, relative, absolute, equal_nan=True))
