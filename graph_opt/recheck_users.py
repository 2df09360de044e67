"""The last check of a split form: user rows once against the reference graph on repeated rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from graph_opt.item import GraphItem, SplitForm
from graph_opt.light_session import LightSession
from graph_opt.options import ConvertOptions
from graph_opt.parity import OutputParity, compare, with_drift
from graph_opt.sessions import what_happened
from graph_opt.signature_info import signature_info
from tfctr.bundle.rows import find_users, take_rows
from tfctr.bundle.sample_inputs import generate

# The split adds a row's products in another order: user part, then item part.
SPLIT_ATOL = 1e-5
_USERS = 3

Arrays = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class UserCase:
    """One request in both forms. split: user inputs with U rows, and row_to_user. repeated: all inputs with B rows."""

    split: Arrays
    repeated: Arrays


@dataclasses.dataclass(frozen=True)
class SplitRuns:
    """How the outputs of a signature are had, in order: of the reference, and of one form of the converted graph.

    names: of the outputs. reference: runs the signature as it was. forms: (signature, tensors of the outputs, feeds of
    a split request) of the split form and of its packed form.
    """

    names: Sequence[str]
    tensors: Sequence[str]
    feeds: Callable[[Arrays], Mapping[str, Any]]
    forms: Sequence[tuple[str, Sequence[str], Callable[[Arrays], Mapping[str, Any]]]]


def user_cases(
    info: Mapping[str, Any], form: SplitForm, options: ConvertOptions, samples: Mapping[str, Any] | None
) -> list[UserCase]:
    """Several users with their rows in any order, and one user alone; of the samples where there are some: rows with
    equal user inputs belong to one user.
    """
    if samples is not None:
        firsts, row_to_user = find_users(samples, info, form.user_inputs)
        if len(firsts) == 0:
            return []
        first = take_rows(samples, info, np.flatnonzero(row_to_user == 0))
        cases = [
            (dict(samples), firsts, row_to_user),
            (first, np.zeros(1, np.int64), np.zeros(_count(row_to_user), int)),
        ]
        return [
            UserCase(
                {**take_rows(whole, info, rows, form.user_inputs), form.row_to_user: place.astype(np.int64)}, whole
            )
            for whole, rows, place in cases
        ]
    random = np.random.default_rng(options.seed)
    rows = options.sample_rows
    found = []
    for users in sorted({max(1, min(_USERS, rows)), 1}, reverse=True):
        row_to_user = random.permutation(np.arange(rows) % users)
        split = generate(info, rows, options.seed, users, form.user_inputs)
        repeated = take_rows(split, info, row_to_user, form.user_inputs)
        found.append(UserCase({**split, form.row_to_user: row_to_user}, repeated))
    return found


def _count(row_to_user: Any) -> int:
    return int((row_to_user == 0).sum())


def compare_split(
    reference: GraphItem,
    item: GraphItem,
    runs: SplitRuns,
    cases: Sequence[UserCase],
    restore: str | None,
    *,
    drift: bool = True,
) -> list[OutputParity]:
    """Every output of every split form on every case: the worst of each output. One session per form, so that mutable
    state moves alike.
    """
    with LightSession(reference, restore=restore) as session:
        wants = [session.run(list(runs.tensors), dict(runs.feeds(case.repeated))) for case in cases]
    moved: Sequence[Any] = [None] * len(cases)
    if drift:
        with LightSession(reference, restore=restore, optimised=True) as session:
            moved = [session.run(list(runs.tensors), dict(runs.feeds(case.repeated))) for case in cases]
    found = []
    for signature, tensors, feeds in runs.forms:
        with LightSession(item, restore=restore) as session:
            by_case = []
            for case, want, drifted in zip(cases, wants, moved, strict=True):
                got, reason = _run(session, tensors, feeds(case.split), len(runs.names))
                by_case.append(_compare(signature, runs.names, got, want, drifted, reason))
        found += [max(one, key=_badness) for one in zip(*by_case, strict=True)]
    return found


def _run(session: LightSession, tensors: Sequence[str], feeds: Mapping[str, Any], count: int) -> tuple[list[Any], str]:
    try:
        return session.run(list(tensors), dict(feeds)), ""
    except tf.errors.OpError as error:
        return [np.zeros(0)] * count, f"raises: {what_happened(str(error.message))}"


def _compare(
    signature: str,
    names: Sequence[str],
    got: Sequence[Any],
    want: Sequence[Any],
    drifted: Sequence[Any] | None,
    reason: str,
) -> list[OutputParity]:
    found = []
    for name, a, b in zip(names, got, want, strict=True):
        one = compare(signature, name, np.asarray(a), np.asarray(b), SPLIT_ATOL, reordered=True)
        found.append(dataclasses.replace(one, reason=reason or one.reason))
    return with_drift(found, drifted, want)


def _badness(one: OutputParity) -> tuple[bool, float]:
    return not one.ok, one.worst


def split_feeds(item: GraphItem, signature: str) -> Callable[[Arrays], Mapping[str, Any]]:
    """Feeds of the split signature by graph tensor."""
    entries = signature_info(item.signatures[signature])["inputs"]
    return lambda inputs: {entry["tensor"]: inputs[entry["name"]] for entry in entries}


__all__ = ["SplitRuns", "UserCase", "compare_split", "split_feeds", "user_cases"]
