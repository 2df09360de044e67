"""Where the nodes of a graph that ran come from: which features they work for, which tables they read, and which pass
and rule of a conversion made them.

Features flow forward from the fed tensors. Everything on the way to a lookup's result belongs to that lookup, the
reads of its table included; behind the results a node has a feature only where it depends on that one alone.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorflow.core.framework import node_def_pb2

from tfctr.bundle.naming import RULE_ATTR
from tfctr.profiling.timeline.events import NO_TAGS, Tags
from tfctr.profiling.timeline.run_metadata import RunGraph, node_of

# Ops that one pass alone makes: for bundles whose nodes carry no such mark.
_MADE_BY = {
    "TfctrFusedLookup": "fuse_lookups",
    "TfctrTable": "externalise_tables",
    "TfctrHashLookup": "externalise_embeddings",
    "TfctrVocabFind": "externalise_vocabularies",
    "TfctrDenseEngine": "dense_engine",
    "TfctrUnpack": "pack_inputs",
}
_RULES = {
    "TfctrTable": "variable to table file",
    "TfctrHashLookup": "embedding variable to hash file",
    "TfctrVocabFind": "static hash table to vocabulary file",
}
_FUSED = "TfctrFusedLookup"
_UNPACK = "TfctrUnpack"
_Read = tuple[str, str]  # feature, table


class Provenance:
    """Tags of the nodes of one signature.

    info: the signature's entry in a manifest, or of an analysed SavedModel: ``inputs``, ``features``, ``lookups``, and
    of a bundle its forms. files: of the store: names of tables by index.
    """

    def __init__(self, info: Mapping[str, Any], files: Sequence[Mapping[str, Any]] = ()) -> None:
        self._info = info
        self._tables = {int(file.get("index", k)): str(file["name"]) for k, file in enumerate(files)}
        part_of = {part: f["name"] for f in info["features"] for part in f["parts"].values()}
        by_tensor = {  # one that stands under two names is fed once
            entry.get("tensor") or entry["name"]: part_of.get(entry["name"], entry["name"])
            for entry in reversed(info["inputs"])
        }
        order = dict.fromkeys(entry.get("tensor") or entry["name"] for entry in info["inputs"])
        self._input_features = [by_tensor[tensor] for tensor in order]  # in the order of a packed request
        self._feature_of = {node_of(tensor): feature for tensor, feature in by_tensor.items()}
        self._forms = _form_prefixes(info)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(feature["name"] for feature in self._info["features"])

    def tags(self, graph: RunGraph) -> dict[str, Tags]:
        """Node -> its tags; nodes without any are left out."""
        results = self._results(graph)
        parts: dict[str, set[_Read]] = {}  # what is on the way to a lookup's result
        edges = graph.edges()
        for node, reads in results.items():
            for part in _ancestors(node, edges):
                parts.setdefault(part, set()).update(reads)
        flowing = self._flow(graph, results)
        found = {}
        for name, node in graph.nodes.items():
            features, tables = _of_lookups(parts.get(name, set()), flowing.get(name, frozenset()), name in results)
            pass_name, rule = _made_by(node)
            tag = Tags(features=features, pass_name=pass_name, rule=rule, tables=tables)
            if tag != NO_TAGS:
                found[name] = tag
        return found

    def _results(self, graph: RunGraph) -> dict[str, set[_Read]]:
        """Node with the result of lookups in the graph that ran -> (feature, table) of each of them."""
        at = self._by_plain_name(graph)
        found: dict[str, set[_Read]] = {}
        for entry in self._info["lookups"]:
            table = entry.get("table_name") or self._tables.get(entry.get("table", -1)) or "table"
            names = [node_of(entry[key]) for key in ("output", "node") if entry.get(key)]
            for node in next((at[name] for name in names if name in at), ()):
                found.setdefault(node, set()).add((entry.get("feature") or entry["name"], table))
        for name, node in graph.nodes.items():
            if node.op == _FUSED and name not in found:  # of a form that the manifest does not describe
                found[name] = self._of_spec(node)
        return found

    def _of_spec(self, node: node_def_pb2.NodeDef) -> set[_Read]:
        known = set(self.feature_names)
        return {
            (
                self._spec_feature(urllib.parse.unquote(words["name"]), known),
                self._tables.get(int(words["table"]), f"table {words['table']}"),
            )
            for words in _spec_lines(node)
            if words["kind"] == "lookup"
        }

    def _spec_feature(self, name: str, known: set[str]) -> str:
        return name if name in known else self._feature_of.get(name, name)

    def _by_plain_name(self, graph: RunGraph) -> dict[str, list[str]]:
        """Name of a node without the prefixes of packed and other forms -> the nodes that ran."""
        found: dict[str, list[str]] = {}
        for name in graph.nodes:
            found.setdefault(self._plain(name), []).append(name)
        return found

    def _plain(self, name: str) -> str:
        while match := self._forms.match(name):
            name = name[match.end() :]
        return name

    def _flow(self, graph: RunGraph, results: Mapping[str, set[_Read]]) -> dict[str, frozenset[str]]:
        """Tensor ("node:1") or node -> the features whose inputs it depends on, as far as they are known one by one."""
        of: dict[str, frozenset[str]] = {
            name: frozenset((self._feature_of[stands_for],))
            for name, stands_for in graph.fed.items()
            if stands_for in self._feature_of
        }
        for name in _topological(graph):
            node = graph.nodes[name]
            if node.op == _UNPACK:
                emitted = [self._input_features[number] for number in node.attr["emit"].list.i]
                of |= {f"{name}:{port}": frozenset((feature,)) for port, feature in enumerate(emitted)}
                of[name] = frozenset(emitted)
            elif name in results:
                of[name] = frozenset(feature for feature, _ in results[name])
            elif name not in of:
                data = [of.get(_source(i, of)) for i in node.input if not i.startswith("^")]
                of[name] = frozenset().union(*filter(None, data))
        return of


def _of_lookups(reads: set[_Read], flowing: frozenset[str], result: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(features, tables) of a node. reads: of the lookups on whose way it lies; result: it is the end of this way.

    Before the result a node works for the features that it depends on; the read of a table, which depends on none, for
    all. Outside of lookups only one feature means something: more have met in the dense part.
    """
    if not reads:
        return (tuple(flowing) if len(flowing) == 1 else ()), ()
    features = {feature for feature, _ in reads} if result or not flowing else set(flowing)
    tables = {table for feature, table in reads if feature in features} or {table for _, table in reads}
    return tuple(sorted(features)), tuple(sorted(tables))


def _source(tensor: str, known: Mapping[str, object]) -> str:
    """The key of a data input in ``known``: of the port where its op has features by port, else of the op."""
    port = tensor if ":" in tensor else f"{tensor}:0"
    return port if port in known else node_of(tensor)


def _made_by(node: node_def_pb2.NodeDef) -> tuple[str, str]:
    """(pass, rule) that made a node; "" for nodes of the model."""
    mark = node.attr[RULE_ATTR].s.decode() if RULE_ATTR in node.attr else ""
    name, _, rule = mark.partition(":")
    name = name or _MADE_BY.get(node.op, "")
    return name, rule or (_rule_of_op(node) if name else "")


def _rule_of_op(node: node_def_pb2.NodeDef) -> str:
    """What a pass did that marks no rule, in words; "" where the op does not tell."""
    if node.op == _FUSED:
        return _fused_rule(node)
    if node.op == _UNPACK:
        count = len(node.attr["emit"].list.i)
        return f"{count} input{'s' if count != 1 else ''} out of the packed request"
    if node.op == "TfctrDenseEngine":
        return f"tower by {node.attr['provider'].s.decode()}, {node.attr['precision'].s.decode()}"
    return _RULES.get(node.op, "")


def _fused_rule(node: node_def_pb2.NodeDef) -> str:
    """What was fused, in words: "3 lookups: dense, sparse mean"."""
    lookups = [words for words in _spec_lines(node) if words["kind"] == "lookup"]
    kinds = {" ".join(w for w in (words["form"], words["combiner"]) if w != "none") for words in lookups}
    return f"{len(lookups)} lookup{'s' if len(lookups) != 1 else ''} in one op: {', '.join(sorted(kinds))}"


def _spec_lines(node: node_def_pb2.NodeDef) -> list[dict[str, str]]:
    """The words of a fused op's spec, line by line; "kind": output, lookup or copy."""
    found = []
    for line in node.attr["spec"].s.decode().splitlines()[1:]:
        kind, *words = line.split(" ")
        found.append({"kind": kind} | dict(word.split("=", 1) for word in words if "=" in word))
    return found


def _form_prefixes(info: Mapping[str, Any]) -> re.Pattern[str]:
    """Scopes under which the forms of a signature hold copies of its nodes."""
    split = info.get("split") or {}
    dense = [form.get("dense") or {} for form in (info, split)]
    names = [info.get("packed"), split.get("signature"), split.get("packed")]
    names += [one.get(key) for one in dense for key in ("form", "packed")]
    safe = sorted({re.sub(r"[^A-Za-z0-9_.-]", "_", name) for name in names if name}, key=len, reverse=True)
    scopes = "|".join(f"s?{re.escape(name)}(?:_\\d+)?" for name in safe)
    return re.compile(f"(?:{scopes})/(?:(?:user|item)/)?" if scopes else r"(?!)")


def _ancestors(name: str, edges: Mapping[str, Iterable[str]]) -> set[str]:
    pending, seen = [name], set()
    while pending:
        one = pending.pop()
        if one not in seen:
            seen.add(one)
            pending += edges.get(one, ())
    return seen


def _topological(graph: RunGraph) -> list[str]:
    """Names, producers first; back edges of loops are left aside."""
    edges = graph.edges()
    done: dict[str, None] = {}
    for root in edges:
        stack: list[tuple[str, bool]] = [(root, False)]
        entered: set[str] = set()
        while stack:
            name, left = stack.pop()
            if left:
                done.setdefault(name)
            elif name not in done and name not in entered and name in graph.nodes:
                entered.add(name)
                stack.append((name, True))
                stack += [(source, False) for source in edges.get(name, ())]
    return list(done)
