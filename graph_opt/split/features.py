"""Which features of a signature are the user's: named by patterns, or found in samples."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.recognise.facts import Facts
from graph_opt.rows.feeds import Feeds, feed_kinds
from graph_opt.signature_info import signature_info
from graph_opt.split.request_rows import row_texts
from graph_opt.view import GraphView
from tfctr.errors import UsageError

_NEAREST = 3


def matching(feeds: Feeds, patterns: Iterable[str]) -> frozenset[str]:
    """Features whose name, or one of whose inputs' names, matches one of the shell patterns."""
    found = set()
    for pattern in patterns:
        for feature, inputs in feeds.inputs.items():
            if any(fnmatch.fnmatchcase(name, pattern) for name in (feature, *inputs)):
                found.add(feature)
    return frozenset(found)


def check_patterns(item: GraphItem, options: ConvertOptions) -> None:
    """UsageError where a pattern of ``user_features`` matches nothing in any signature that is to be optimised."""
    if not options.user_features:
        return
    facts = Facts(GraphView(item.graph_def))
    names: dict[str, None] = {}
    for signature in item.optimise:
        feeds = feed_kinds(item, signature, facts)
        for feature, inputs in feeds.inputs.items():
            names |= dict.fromkeys((feature, *inputs))
    for pattern in options.user_features:
        if any(fnmatch.fnmatchcase(name, pattern) for name in names):
            continue
        near = difflib.get_close_matches(pattern, names, _NEAREST, 0.3) or list(names)[:_NEAREST]
        raise UsageError(
            f"--user-features {pattern}: no feature or input has such a name; the nearest are: {', '.join(near)}"
        )


def from_samples(item: GraphItem, name: str, feeds: Feeds, options: ConvertOptions) -> frozenset[str]:
    """Features that do not vary over the rows of the samples (of each request of them)."""
    if options.read_samples is None:
        raise UsageError("--user-features auto: needs --samples FILE with the rows of some requests to look at")
    info = {**signature_info(item.signatures[name]), "features": feeds.features}
    arrays = options.read_samples(info)
    requests = options.read_sample_columns(info).request_ids if options.read_sample_columns is not None else None
    count = _rows(feeds, arrays)
    groups = _groups(count, requests)
    if all(len(group) < 2 for group in groups):
        raise UsageError(
            f"{options.samples_path}: user features can't be found in samples of one row per request; give requests "
            "of several rows, or name the features"
        )
    found = set()
    for feature in feeds.features:
        texts = row_texts(feature, arrays)
        if texts is not None and len(texts) == count and _constant(texts, groups):
            found.add(feature["name"])
    return frozenset(f for f in found if f in feeds.inputs)


def _rows(feeds: Feeds, arrays: Mapping[str, Any]) -> int:
    for feature in feeds.features:
        texts = row_texts(feature, arrays)
        if texts is not None:
            return len(texts)
    return 0


def _groups(count: int, requests: npt.NDArray[Any] | None) -> list[list[int]]:
    if requests is None:
        return [list(range(count))]
    groups: dict[Any, list[int]] = {}
    for row, request in enumerate(np.asarray(requests).tolist()):
        groups.setdefault(request, []).append(row)
    return list(groups.values())


def _constant(texts: Sequence[bytes], groups: Sequence[Sequence[int]]) -> bool:
    return all(len({texts[row] for row in group}) == 1 for group in groups)
