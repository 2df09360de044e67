"""What the manifest and the report say about a split form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from graph_opt.item import GraphItem
from graph_opt.report import PassReport
from graph_opt.split.item_side import OnItemSide
from graph_opt.split.splitter import Written
from graph_opt.view import node_of


def split_details(item: GraphItem, name: str, written: Written, item_side: Sequence[OnItemSide]) -> dict[str, Any]:
    """The ``split`` entry of a signature, as far as the pass knows it (JSON-able)."""
    return {
        "item_side": [{"feature": e.feature, "op": e.op, "node": e.node, "reason": e.reason} for e in item_side],
        "broadcasts": [
            {"tensor": b.tensor, "moved_past": list(b.past), "at": f"{b.op} {b.at}".strip() or "output"}
            for b in written.worlds.broadcasts
        ],
        "flops": {
            "before_per_row": written.flops.before,
            "user_per_row": written.flops.user,
            "item_per_row": written.flops.item,
        },
        "boundary": boundary(item, written),
    }


def split_entries(item: GraphItem, name: str, reports: Sequence[PassReport]) -> dict[str, Any]:
    """What a manifest's signature says of the split: ``split`` (None: there is none) and, where user features were
    declared, ``user``."""
    declared = {s: entry for r in reports for s, entry in r.details.get("user", {}).items()}
    entries: dict[str, Any] = {"split": None}
    if name in declared:
        entries["user"] = declared[name]
    form = item.split.get(name)
    if form is not None:
        entries["split"] = {
            "signature": form.signature,
            "packed": item.packed.get(form.signature),
            "row_to_user": form.row_to_user,
            "user_inputs": list(form.user_inputs),
            "user_features": list(form.user_features),
            **form.details,
        }
    return entries


def boundary(item: GraphItem, written: Written) -> list[dict[str, Any]]:
    """Results of lookups that the dense part reads, by side, and ``row_to_user``."""
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(item.graph_def, name="")
    found = []
    there = {group.node for group in item.groups}
    for group in (g for g in written.groups if g.node in there):  # those of which only a shape was wanted are gone
        side = "user" if node_of(group.node).startswith(f"{written.worlds.build.prefix}user/") else "item"
        for port in range(len(group.outputs)):
            found.append(_entry(graph, f"{group.node}:{port}", side))
    return [*found, _entry(graph, written.worlds.row_to_user, "row_to_user")]


def _entry(graph: tf.Graph, tensor: str, side: str) -> dict[str, Any]:
    found = graph.get_tensor_by_name(tensor)
    shape = None if found.shape.rank is None else [-1 if n is None else n for n in found.shape.as_list()]
    return {"tensor": tensor, "dtype": found.dtype.name, "shape": shape, "side": side}


def notes(name: str, features: Sequence[str], details: Mapping[str, Any]) -> list[str]:
    """The same in a few plain words; of the places where user rows are repeated, the one that is furthest on."""
    flops = details["flops"]
    said = [
        f"{name}: {len(features)} feature{'s' if len(features) != 1 else ''} once per user; "
        f"{flops['before_per_row']:,} operations per row became {flops['item_per_row']:,} per row and "
        f"{flops['user_per_row']:,} per user"
    ]
    places = details["broadcasts"]
    if places:  # the details have them all
        last = max(places, key=lambda entry: len(entry["moved_past"]))
        past = ", ".join(last["moved_past"]) or "nothing"
        more = "" if len(places) == 1 else f"; at {len(places)} places in all"
        said.append(f"{name}: user rows are repeated at {last['at']}, after {past}{more}")
    for entry in details["item_side"]:
        said.append(f"{name}: feature {entry['feature']} stays on the item side: {entry['op']} {entry['node']}: "
                    f"{entry['reason']}")  # fmt: skip
    return said
