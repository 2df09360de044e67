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
_MIX = "*"  # stands for "of several features"


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
        features, tables = self._lookup_parts(graph)
        alone = self._alone(graph, features)
        found = {}
        for name, node in graph.nodes.items():
            pass_name, rule = _made_by(node)
            mine = features.get(name) or alone.get(name, ())
            tag = Tags(
                features=tuple(sorted(mine)),
                pass_name=pass_name,
                rule=rule,
                tables=tuple(sorted(tables.get(name, ()))),
            )
            if tag != NO_TAGS:
                found[name] = tag
        return found

    def _lookup_parts(self, graph: RunGraph) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
        """Features and tables of every node on the way to the result of a lookup."""
        features: dict[str, set[str]] = {}
        tables: dict[str, set[str]] = {}
        edges = graph.edges()
        for node, names, read in self._results(graph):
            for part in _ancestors(node, edges):
                features.setdefault(part, set()).update(names)
                tables.setdefault(part, set()).update(read)
        return features, tables

    def _results(self, graph: RunGraph) -> list[tuple[str, set[str], set[str]]]:
        """(node with the result, features, tables) of each lookup of the graph that ran."""
        at = self._by_plain_name(graph)
        found: dict[str, tuple[set[str], set[str]]] = {}
        for entry in self._info["lookups"]:
            feature = entry.get("feature") or entry["name"]
            table = entry.get("table_name") or self._tables.get(entry.get("table", -1)) or "table"
            names = [node_of(entry[key]) for key in ("output", "node") if entry.get(key)]
            there = next((at[name] for name in names if name in at), ())
            for node in there:
                mine = found.setdefault(node, (set(), set()))
                mine[0].add(feature)
                mine[1].add(table)
        for name, node in graph.nodes.items():
            if node.op == _FUSED and name not in found:  # of a form that the manifest does not describe
                names, read = self._of_spec(node)
                found[name] = (names, read)
        return [(node, *parts) for node, parts in found.items()]

    def _of_spec(self, node: node_def_pb2.NodeDef) -> tuple[set[str], set[str]]:
        lines = [words for words in _spec_lines(node) if words["kind"] == "lookup"]
        known = set(self.feature_names)
        names = {urllib.parse.unquote(words["name"]) for words in lines}
        tables = {self._tables.get(int(words["table"]), f"table {words['table']}") for words in lines}
        return {self._spec_feature(name, known) for name in names}, tables

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

    def _alone(self, graph: RunGraph, parts: Mapping[str, set[str]]) -> dict[str, tuple[str, ...]]:
        """Nodes outside of lookups that depend on the inputs of one feature only."""
        of: dict[str, str] = {}  # tensor or node -> its feature, _MIX for several
        for name, stands_for in graph.fed.items():
            if feature := self._feature_of.get(stands_for):
                of[name] = feature
        order = _topological(graph)
        for name in order:
            node = graph.nodes[name]
            if node.op == _UNPACK:
                for port, number in enumerate(node.attr["emit"].list.i):
                    of[f"{name}:{port}"] = self._input_features[number]
                of[name] = _MIX
                continue
            if name in of:
                continue
            seen = {
                found for tensor in node.input if not tensor.startswith("^") and (found := of.get(_source(tensor, of)))
            }
            if name in parts and len(parts[name]) > 1:
                seen.add(_MIX)
            if seen:
                of[name] = seen.pop() if len(seen) == 1 else _MIX
        found = {name: (feature,) for name, feature in of.items() if feature != _MIX and ":" not in name}
        return found | {
            name: tuple({of[f"{name}:{port}"]: None for port in range(len(node.attr["emit"].list.i))})
            for name, node in graph.nodes.items()
            if node.op == _UNPACK and f"{name}:0" in of
        }


def _source(tensor: str, known: Mapping[str, str]) -> str:
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
