"""``.jsonl`` files with one request per line: ``{"user": {...}, "candidates": [{...}, ...]}``.

The user's features are written once, those of each candidate in its own object. Anything else on the line (a request
id, a label) belongs to every candidate.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tfctr.errors import InputError

USER, CANDIDATES = "user", "candidates"

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class RequestRows:
    """The candidates of all lines as plain rows, each with its user's features.

    names: of the rows, for messages. row_to_user: which user (line with candidates) each row belongs to. firsts: the
    first row of each user. user_keys: features that every line writes under ``user``.
    """

    rows: list[Row]
    names: list[str]
    row_to_user: list[int]
    firsts: list[int]
    user_keys: frozenset[str]


def are_requests(rows: Sequence[Mapping[str, Any]], features: Collection[str]) -> bool:
    """Whether the lines are requests; a signature with features of these very names has examples."""
    return not {USER, CANDIDATES} <= set(features) and any({USER, CANDIDATES} <= set(row) for row in rows)


def candidate_rows(file: pathlib.Path, lines: Sequence[Mapping[str, Any]]) -> RequestRows:
    """The candidates of request lines, in order; InputError names the line and what is wrong with it."""
    rows: list[Row] = []
    names: list[str] = []
    row_to_user: list[int] = []
    firsts: list[int] = []
    user_keys: set[str] | None = None
    for number, line in enumerate(lines, 1):
        user, candidates = _sides(file, number, line)
        if not candidates:
            continue
        user_keys = set(user) if user_keys is None else user_keys & set(user)
        firsts.append(len(rows))
        shared = {key: value for key, value in line.items() if key not in (USER, CANDIDATES)}
        for place, candidate in enumerate(candidates, 1):
            if not isinstance(candidate, dict):
                raise InputError(
                    f"{file}: request {number}, candidate {place}: expected an object, got {type(candidate).__name__}"
                )
            twice = sorted(set(user) & set(candidate))
            if twice:
                raise InputError(
                    f"{file}: request {number}, candidate {place} has feature {twice[0]!r}, which its user has too"
                )
            rows.append({**shared, **user, **candidate})
            names.append(f"request {number}, candidate {place}")
            row_to_user.append(len(firsts) - 1)
    if not rows:
        raise InputError(f"{file}: holds no candidate")
    return RequestRows(rows, names, row_to_user, firsts, frozenset(user_keys or ()))


def _sides(file: pathlib.Path, number: int, line: Mapping[str, Any]) -> tuple[Row, list[Any]]:
    for key, kind, what in ((USER, dict, "an object"), (CANDIDATES, list, "a list of objects")):
        if key not in line:
            raise InputError(
                f"{file}: request {number} has no {key!r}; other lines are requests of a user's candidates"
            )
        if not isinstance(line[key], kind):
            raise InputError(
                f"{file}: request {number}: {key!r} is a {type(line[key]).__name__}, expected {what} of features"
            )
    return line[USER], line[CANDIDATES]
