"""Splitting hand-made graphs and comparing both forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graph_opt.finish import finish
from graph_opt.item import GraphItem, SplitForm
from graph_opt.options import ConvertOptions
from graph_opt.passes.split_user_item import split_user_item
from graph_opt.report import PassOutcome
from graph_opt.sessions import ItemSession
from graph_opt.testing import SIGNATURE, apply

# (users, row_to_user)
PATTERNS: tuple[tuple[int, list[int]], ...] = (
    (1, [0, 0, 0, 0]),
    (3, [2, 0, 1, 1, 0, 2, 0]),
    (4, [3, 1, 1]),
    (5, [4, 2, 0, 1, 3]),
    (1, [0]),
    (2, []),
)


def split(
    item: GraphItem, *user: str, device_map: Mapping[str, str] | None = None, strict: bool = True
) -> tuple[GraphItem, PassOutcome]:
    """Runs the pass on a copy; a failed proof is an error."""
    options = ConvertOptions(user_features=user, device_map=dict(device_map or {}))
    after, outcome = apply(split_user_item, item, options)
    if strict:
        assert not any(r.proof_failed for r in outcome.refused), outcome.refused
    return after, outcome


def form_of(item: GraphItem) -> SplitForm:
    return item.split[SIGNATURE]


def new_ops(item: GraphItem) -> dict[str, int]:
    """Number of nodes of the split form by op, constants left out; "user/MatMul" for copies on user rows."""
    counts: dict[str, int] = {}
    prefix = f"{form_of(item).signature}/"
    for node in item.graph_def.node:
        if node.name.startswith(prefix) and node.op not in ("Const", "Placeholder"):
            name = f"user/{node.op}" if node.name.startswith(f"{prefix}user/") else node.op
            counts[name] = counts.get(name, 0) + 1
    return counts


def assert_same_numbers(
    item: GraphItem,
    once: Mapping[str, Any],
    items: Mapping[str, Any],
    shared: Mapping[str, Any] | None = None,
    patterns: Sequence[tuple[int, list[int]]] = PATTERNS,
) -> None:
    """Both forms on the first rows of ``once`` (per user) and ``items`` (per item row), for several kinds of users."""
    form = form_of(item)
    ready = item.copy()
    finish(ready)
    with ItemSession(ready) as session:

        def run(signature: str, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
            info = ready.signatures[signature]
            names = sorted(info.outputs)
            values = session.run(
                [info.outputs[n].name for n in names], {info.inputs[n].name: v for n, v in feeds.items()}
            )
            return dict(zip(names, values, strict=True))

        for users, row_to_user in patterns:
            mine = {name: value[:users] for name, value in once.items()}
            others = {name: value[: len(row_to_user)] for name, value in items.items()} | dict(shared or {})
            repeated = {name: value[np.array(row_to_user, np.int64)] for name, value in mine.items()}
            want = run(SIGNATURE, repeated | others)
            got = run(form.signature, mine | others | {form.row_to_user: np.array(row_to_user, np.int64)})
            _compare(got, want, f"{users} users")


def _compare(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], what: str) -> None:
    for name, value in want.items():
        assert got[name].shape == value.shape and got[name].dtype == value.dtype, what
        if value.dtype.kind == "f":
            np.testing.assert_allclose(got[name], value, 1e-5, 1e-6, err_msg=f"{what}, {name}")
        else:
            np.testing.assert_array_equal(got[name], value)


def broadcast_ops(item: GraphItem) -> list[str]:
    """Ops before which user rows were repeated."""
    return [entry["at"].split(" ")[0] for entry in form_of(item).details["broadcasts"]]
