"""Requests with user inputs once per user, in NumPy: for files, comparisons and stock TensorFlow, which takes all
inputs with B rows. Serving does it in C++ (``tfctr/core/runtime/user_rows.h``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from tfctr.bundle.rows import Arrays, rows_of, take_rows
from tfctr.errors import InputError

ROW_TO_USER = "row_to_user"


def row_to_user_name(info: Mapping[str, Any]) -> str:
    """Name of the input that says which user row each row belongs to."""
    if info.get("split"):
        return str(info["split"]["row_to_user"])
    return free_name({*(entry["name"] for entry in info["inputs"]), *(f["name"] for f in info["features"])})


def free_name(taken: Collection[str]) -> str:
    """``row_to_user``, or with a number where an input or feature has that name."""
    name, number = ROW_TO_USER, 0
    while name in taken:
        number += 1
        name = f"{ROW_TO_USER}_{number}"
    return name


def repeat_user_rows(arrays: Mapping[str, Any], info: Mapping[str, Any], where: str) -> Arrays:
    """``arrays`` with all inputs at B rows: what a client sends that knows of no users.

    info: a signature's entry, whose ``user`` says which inputs may come once per user; without it nothing is repeated.
    where: starts the message of an InputError (row counts that do not fit, row_to_user outside the user rows).
    """
    users = (info.get("user") or {}).get("inputs", ())
    found = dict(arrays)
    if not users:
        return found
    name = row_to_user_name(info)
    given = found.pop(name, None)
    user_rows = rows_of(found, info, users)
    rows = rows_of(found, info, {entry["name"] for entry in info["inputs"]} - set(users))
    if user_rows is None or (given is None and (rows is None or user_rows == rows)):
        return found
    if given is not None:
        row_to_user = _checked(np.asarray(given), user_rows, rows, f"{where}: {name}")
    elif user_rows == 1:
        row_to_user = np.zeros(rows or 0, np.int64)
    else:
        raise InputError(
            f"{where}: user inputs have {user_rows} rows and the others {rows}; expected as many, one row, or {name!r}"
        )
    return take_rows(found, info, row_to_user, users)


def _checked(row_to_user: Any, user_rows: int, rows: int | None, where: str) -> Any:
    if row_to_user.ndim != 1 or row_to_user.dtype.kind not in "iu":
        raise InputError(f"{where}: got {row_to_user.dtype} {list(row_to_user.shape)}, expected int64 [rows]")
    if rows is not None and len(row_to_user) != rows:
        raise InputError(f"{where}: got {len(row_to_user)} numbers, expected one for each of the {rows} rows")
    outside = [int(one) for one in row_to_user if not 0 <= one < user_rows]
    if outside:
        raise InputError(f"{where}: got {outside[0]}, expected user rows from 0 to {user_rows - 1}")
    return row_to_user.astype(np.int64)
