"""Whether requests of a signature may run together: shown by running it, when a version is loaded.

Two requests, with other numbers of rows and with rows of other lengths, are put together, run and taken apart as those
in the queue are, and compared with what each gives alone, shapes included. A model whose rows know of each other (a
softmax over the batch, batch statistics, a sort, padding to the longest row) fails that and runs every request by
itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfctr.bundle import sample_inputs
from tfctr.errors import InputError
from tfctr.serving import turns
from tfctr.serving.failures import stage_of
from tfctr.serving.signature_handle import SignatureHandle

Array = npt.NDArray[Any]
SIZES = ((1, 4), (3, 2))  # rows of the two requests
LENGTHS = ((1, 1), (2, 3))  # values in each row of their sparse and ragged features: from, to
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
            reason = _differs(handle, _requests(info, sizes, 17 + number * 2), sizes)
            if reason:
                return reason
        if handle.row_to_user is not None:
            return _users_differ(handle, info)
    except InputError as error:
        if stage_of(error) == "batch":
            return str(error)
        return f"it could not be shown with generated requests: {error}"
    return ""


def _requests(
    info: Mapping[str, Any],
    sizes: Sequence[int],
    seed: int,
    user_rows: int | None = None,
    users: Collection[str] | None = None,
) -> list[dict[str, Array]]:
    """Two requests of so many rows. Which of them has the longer rows depends on the seed."""
    lengths = LENGTHS if seed % 4 < 2 else LENGTHS[::-1]
    return [
        sample_inputs.generate(info, rows, seed + k, user_rows, users, turns.give, lengths[k])
        for k, rows in enumerate(sizes)
    ]


def _users_differ(handle: SignatureHandle, info: Mapping[str, Any]) -> str:
    """The same for requests of one user each, whose rows are told apart by ``row_to_user``."""
    parts = _requests(info, SIZES[1], 31, 1, user_inputs(handle))
    reason = _differs(handle, parts, SIZES[1])
    return f"with user rows: {reason}" if reason else ""


def user_inputs(handle: SignatureHandle) -> Collection[str]:
    """The inputs behind the features that may come once per user."""
    names = set(handle.user_features)
    of_features = {part for f in handle.features if f.name in names for part in f.parts.values()}
    in_features = {part for f in handle.features for part in f.parts.values()}
    return of_features | {i.name for i in handle.inputs if i.name in names and i.name not in in_features}


def _differs(handle: SignatureHandle, parts: list[dict[str, Array]], sizes: tuple[int, ...]) -> str:
    _share_constants(handle, parts)
    apart = [handle.run_on(0, part) for part in parts]
    together = handle.run_together(0, parts)
    for own, shared, rows in zip(apart, together, sizes, strict=True):
        for name, value in shared.items():
            turns.give()
            reason = _unlike(value, own[name], rows)
            if reason:
                return f"output {name!r} {reason}"
    return ""


def _share_constants(handle: SignatureHandle, parts: list[dict[str, Array]]) -> None:
    """What has no rows is the same in all requests of a batch."""
    in_features = {part for feature in handle.features for part in feature.parts.values()}
    for one in handle.inputs:
        if one.name not in in_features and one.shape is not None and (not one.shape or one.shape[0] >= 0):
            for part in parts:
                part[one.name] = parts[0][one.name]


def _unlike(shared: Any, alone: Any, rows: int) -> str:
    """How an output of ``rows`` rows that ran with others differs from the same that ran alone."""
    if not isinstance(shared, np.ndarray):
        if _as_rows(shared) != _as_rows(alone):
            return "differs between rows that run together and apart"
        shapes = [list(np.asarray(getattr(one, "dense_shape", ()))) for one in (shared, alone)]
    else:
        if alone.ndim == 0 or len(alone) != rows:
            return f"has the shape {list(alone.shape)} for {rows} rows"
        shapes = [list(shared.shape), list(alone.shape)]
    if shapes[0] != shapes[1]:
        together, apart = ([int(size) for size in shape] for shape in shapes)
        return f"has the shape {together} where its rows run with others, {apart} where they run alone"
    if isinstance(shared, np.ndarray) and not _equal(shared, alone):
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
