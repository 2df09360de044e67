"""Runs the plain and the split form of a signature on the same requests, in fresh sessions, and compares them.

The plain form gets the user features repeated for each item row; the split form gets them once per user, with
``row_to_user``. Several patterns of users are tried: one, several interleaved, one that no row refers to, as many as
rows in another order, one row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from graph_opt.finish import finish
from graph_opt.item import GraphItem, tensor_names
from graph_opt.options import ConvertOptions
from graph_opt.parity import compare
from graph_opt.rows.feeds import Feeds
from graph_opt.sessions import ItemSession, what_happened
from graph_opt.signature_info import signature_info
from graph_opt.split.proof_inputs import described_inputs
from graph_opt.split.request_rows import take
from tfctr.bundle.sample_inputs import generate
from tfctr.errors import InputError

_ROWS = 7
_PATTERNS: tuple[tuple[str, int, tuple[int, ...]], ...] = (
    ("one user", 1, (0, 0, 0, 0, 0)),
    ("three users, interleaved", 3, (2, 0, 1, 0, 2, 2, 1)),
    ("a user that no row refers to", 3, (0, 2, 2, 0)),
    ("as many users as rows", 5, (4, 2, 0, 3, 1)),
    ("one row", 2, (1,)),
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """ok: the forms agree. reason: why not; different: they ran and gave other numbers (or one failed)."""

    ok: bool
    reason: str = ""
    different: bool = False
    requests: int = 0
    worst: float = 0.0


def prove(item: GraphItem, name: str, feeds: Feeds, user: frozenset[str], options: ConvertOptions) -> Verdict:
    """Compares signature ``name`` with ``item.split[name]``. The item is not changed."""
    ready = item.copy()
    finish(ready)
    form = item.split[name]
    info = described_inputs(item, name, feeds)
    requests = 0
    worst = 0.0
    with ItemSession(ready) as session:
        for number, (what, users, row_to_user) in enumerate(_PATTERNS):
            once, repeated = _request(info, feeds, user, users, row_to_user, options, number)
            split_feeds = {**once, form.row_to_user: np.array(row_to_user, np.int64)}
            want = _run(session, ready, name, repeated)
            got = _run(session, ready, form.signature, split_feeds)
            if isinstance(want, str):
                if isinstance(got, str) or number:
                    continue  # nothing to compare: the model refuses these inputs
                return Verdict(False, f"{what}: the plain form fails ({want}), the split form does not", True)
            if isinstance(got, str):
                return Verdict(False, f"{what}: the split form fails: {got}", True)
            for tensor, a, b in zip(_fetches(ready, name), got, want, strict=True):
                found = compare(name, tensor, np.asarray(a), np.asarray(b), reordered=True)
                if not found.ok:
                    return Verdict(False, f"{what}: output {tensor} {found.reason}", True)
                worst = max(worst, found.worst)
            requests += 1
    if not requests:
        return Verdict(False, "the model refuses generated inputs, so nothing could be compared; give --samples FILE")
    return Verdict(True, requests=requests, worst=worst)


def _request(
    info: Mapping[str, Any],
    feeds: Feeds,
    user: frozenset[str],
    users: int,
    row_to_user: Sequence[int],
    options: ConvertOptions,
    number: int,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(inputs of the split form, inputs of the plain form)."""
    rows = len(row_to_user)
    source = _source(info, options, max(users, rows), number)
    once: dict[str, Any] = {}
    repeated: dict[str, Any] = {}
    for feature in info["features"]:
        if feature["name"] not in feeds.inputs:
            continue  # an input that goes with another feature's values
        aligned = [n for n in feeds.inputs[feature["name"]] if n not in feature["parts"].values()]
        mine = feature["name"] in user
        once |= take(feature, aligned, source, range(users if mine else rows))
        repeated |= take(feature, aligned, source, list(row_to_user) if mine else range(rows))
    return once, repeated


def _source(info: Mapping[str, Any], options: ConvertOptions, rows: int, number: int) -> dict[str, Any]:
    """Rows to pick from: of the samples, where there are as many, else generated ones."""
    if options.read_samples is not None:
        samples = dict(options.read_samples(info))
        missing = [entry["name"] for entry in info["inputs"] if entry["name"] not in samples]
        if missing:
            raise InputError(f"{options.samples_path}: the signature needs the input {missing[0]!r}")
        counts = [len(take_rows) for f in info["features"] if (take_rows := _row_count(f, samples)) is not None]
        if counts and min(counts) >= rows:
            return samples
    return generate(info, rows, options.seed + number)


def _row_count(feature: Mapping[str, Any], arrays: Mapping[str, Any]) -> range | None:
    parts = feature["parts"]
    if feature["kind"] == "sparse":
        return range(int(np.asarray(arrays[parts["dense_shape"]])[0]))
    if feature["kind"] == "ragged":
        return range(len(arrays[parts["row_splits"]]) - 1)
    value = np.asarray(arrays[parts["values"]])
    return None if value.ndim == 0 else range(len(value))


def _run(session: ItemSession, item: GraphItem, name: str, arrays: Mapping[str, Any]) -> list[Any] | str:
    """Outputs of a signature, or what went wrong."""
    entries = signature_info(item.signatures[name])["inputs"]
    try:
        return session.run(_fetches(item, name), {e["tensor"]: _as(e["dtype"], arrays[e["name"]]) for e in entries})
    except (tf.errors.OpError, ValueError, TypeError) as error:
        return what_happened(str(getattr(error, "message", error)))


def _fetches(item: GraphItem, name: str) -> list[str]:
    """Output tensors by output name, repeats kept: both forms have the same order."""
    outputs = item.signatures[name].outputs
    return [tensor for output in sorted(outputs) for tensor in tensor_names(outputs[output])]


def _as(dtype: str, value: Any) -> Any:
    array = np.asarray(value)
    if dtype == "string":
        return array.astype(object)
    return array if dtype == "bfloat16" else array.astype(dtype)
