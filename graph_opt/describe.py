"""Puts together what a manifest says about each signature: inputs with their domains, features, outputs, lookups,
boundary.
"""

from __future__ import annotations

import base64
import importlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from graph_opt.domains import PARSERS, Domains, parser_features
from graph_opt.hash_files import sample_keys
from graph_opt.item import GraphItem
from graph_opt.lookup_spec import LookupSpec
from graph_opt.recognise import input_names
from graph_opt.recognise.facts import Facts
from graph_opt.recorded import recorded_features
from graph_opt.signature_info import signature_info, stem
from graph_opt.streams import Streams, unused
from graph_opt.verify import output_dtypes
from graph_opt.view import GraphView, canonical, node_of

_SAMPLE_KEYS = 64
_MAY_BE_UNKNOWN = (0, 1, -1, 10**6, -(10**12))


def feature_names(item: GraphItem, view: GraphView) -> dict[str, str]:
    """Graph tensor of each signature input -> the name a lookup over it goes by: the feature's, for the values of a
    sparse or ragged feature (`a`, where the signature has `a`, `a_1`, `a_2`), else the input's."""
    names = input_names(item.signatures)
    for name, signature in item.signatures.items():
        streams = Streams(view, item.feeds(name))
        info = signature_info(signature, [*recorded_features(item, name), *streams.features()])
        tensors = {entry["name"]: entry["tensor"] for entry in info["inputs"]}
        for feature in info["features"]:
            names[canonical(tensors[feature["parts"]["values"]])] = feature["name"]
    return names


def describe(
    item: GraphItem,
    lookups: Sequence[dict[str, Any]],
    specs: Iterable[LookupSpec] = (),
    final: GraphItem | None = None,
) -> dict[str, Any]:
    """signature -> info of every signature of the reference graph ``item``.

    lookups: the fuse pass's (or an analysis's) entries; each goes to the signatures whose outputs need its node in
    ``final`` (the rewritten graph; default ``item``). specs: of the found lookups; they tell which inputs belong
    together.
    """
    view = GraphView(item.graph_def)
    final_view = GraphView(final.graph_def) if final is not None else view
    specs = list(specs)
    facts = Facts(view)
    described = {}
    for name, signature in item.signatures.items():
        needed = final_view.ancestors(item.fetches(name))
        feeds = item.feeds(name)
        streams = Streams(view, feeds, specs)
        pair_unused(view, feeds, streams)
        info = signature_info(signature, [*recorded_features(item, name), *streams.features()])
        _add_domains(item, facts, info, streams)
        feature_of = {part: f["name"] for f in info["features"] for part in f["parts"].values()}
        info["lookups"] = [
            {**entry, "feature": feature_of.get(entry["name"], entry["name"])}
            for entry in lookups
            if entry["node"] in needed
        ]
        described[name] = {"packed": None, **info, "boundary": [], "optimised": name in item.optimise}
    return described


def pair_unused(view: GraphView, feeds: Sequence[str], streams: Streams) -> None:
    """Dense shapes that nothing reads (plain sparse lookups ignore them) go to the indices they are named after."""
    for feed in unused(view, feeds):
        node = view.node(feed)
        dims = [d.size for d in node.attr["shape"].shape.dim]
        if node.attr["dtype"].type != tf.int64.as_datatype_enum or len(dims) != 1:
            continue
        open_features = [i for i, e in streams.sparse.items() if e["dense_shape"] is None and e["values"]]
        named = [i for i in open_features if stem([node_of(i), node_of(feed), node_of(streams.sparse[i]["values"][0])])]
        if named:
            best = max(named, key=lambda i: len(stem([node_of(i), node_of(feed)])))
            streams.sparse[best]["dense_shape"] = feed


def _add_domains(item: GraphItem, facts: Facts, info: dict[str, Any], streams: Streams) -> None:
    tensors = {entry["tensor"]: entry for entry in info["inputs"]}
    view = facts.view
    domains = Domains(view, set(tensors), facts)
    for tensor, entry in tensors.items():
        domain = domains.of.get(tensor)
        if domain is not None:
            entry["domain"] = with_keys(item, domain, entry["dtype"])
    aligned = streams.aligned()
    for feed, values in aligned.items():
        if feed in tensors and values in tensors and tensors[feed]["dtype"].startswith(("float", "bfloat")):
            tensors[feed]["domain"] = {"kind": "weights", "like": tensors[values]["name"]}
    for node in view:
        source = canonical(node.input[0]) if node.op in PARSERS and node.input else ""
        if source in tensors:
            features = parser_features(view, node, domains)
            for feature in features:
                if feature["domain"] is not None:
                    feature["domain"] = with_keys(item, feature["domain"], feature["dtype"])
            tensors[source]["domain"] = {"kind": "examples", "features": features}


def with_keys(item: GraphItem, domain: dict[str, Any], dtype: str) -> dict[str, Any]:
    """Replaces the index of a vocabulary or hash file by some of its keys, as far as an input of ``dtype`` holds them;
    a hash file's have some beside them that it may not have.
    """
    if domain["kind"] == "table_keys":
        return _table_keys(item, domain["file"], dtype)
    if domain["kind"] != "keys":
        return domain
    path = item.files[domain["file"]].path
    if path is None:
        keys: list[Any] = list(item.sample_keys.get(domain["file"], ()))
    else:
        keys = list(importlib.import_module("tfctr.core._native").vocab_sample_keys(path, _SAMPLE_KEYS))
    return {"kind": "keys", "keys": [_json_key(k) for k in keys]}


def _table_keys(item: GraphItem, file: int, dtype: str) -> dict[str, Any]:
    limits = np.iinfo(dtype) if dtype.startswith(("int", "uint")) else np.iinfo(np.int64)
    keys = [*sample_keys(item.files[file], _SAMPLE_KEYS), *_MAY_BE_UNKNOWN]
    return {"kind": "keys", "keys": [k for k in keys if limits.min <= k <= limits.max]}


def _json_key(key: Any) -> Any:
    if not isinstance(key, bytes):
        return int(key)
    try:
        return key.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(key).decode()}


def boundary(item: GraphItem, lookups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lookup results that the dense part reads: {tensor, dtype, shape} of fused outputs and of gathers that were
    left.
    """
    view = GraphView(item.graph_def)
    names = dict.fromkeys(canonical(e.get("output") or e["node"]) for e in lookups)
    tensors = [t for t in names if t in _outputs_of(view, t)]
    if not tensors:
        return []
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(item.graph_def, name="")
    found = []
    for name in tensors:
        tensor = graph.get_tensor_by_name(name)
        shape = None if tensor.shape.rank is None else [-1 if n is None else n for n in tensor.shape.as_list()]
        found.append({"tensor": name, "dtype": tensor.dtype.name, "shape": shape})
    return found


def _outputs_of(view: GraphView, tensor: str) -> list[str]:
    node = view.get(tensor)
    if node is None:
        return []
    return [f"{node.name}:{k}" for k in range(len(output_dtypes(node)))]
