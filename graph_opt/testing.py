"""Public helpers for writing and testing passes: small graphs by hand, and assertions on what a pass did to them.

    item = graph_item(build, tables={"emb": rows}, work_dir=tmp_path)
    after = assert_rewrites(my_pass, item, feeds={"ids": ids})
    print(graph_text(after))

``build`` is called inside a fresh graph, gets its tables (``TfctrTable`` tensors), frozen embedding variables and
vocabularies, and returns the outputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from graph_opt.finish import finish
from graph_opt.hash_files import add_built_hash
from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.report import Pass, PassOutcome
from graph_opt.sessions import ItemSession
from graph_opt.store_files import add_array, add_vocabulary, store_node, table_node
from graph_opt.verify import verify
from graph_opt.view import GraphView
from tfctr.core.library import load

Rule = Callable[[GraphItem, ConvertOptions], PassOutcome] | Pass
SIGNATURE = "serving_default"


class Tables:
    """What ``build`` gets: tables, frozen embedding variables and vocabularies by name, as tensors and lookups of the
    graph being built.
    """

    def __init__(
        self,
        tensors: Mapping[str, tf.Tensor],
        store: tf.Tensor | None,
        vocabularies: Mapping[str, int],
        embeddings: Mapping[str, tuple[int, int]],
    ) -> None:
        self._tensors = tensors
        self._store = store
        self._vocabularies = vocabularies
        self._embeddings = embeddings

    def __getitem__(self, name: str) -> tf.Tensor:
        """The table ``name`` as a tensor [V, D]."""
        return self._tensors[name]

    def find(self, vocabulary: str, keys: tf.Tensor, default: int = -1) -> tf.Tensor:
        """int64 value of each key in ``vocabulary``, ``default`` where it is absent; the shape of ``keys``."""
        return load().tfctr_vocab_find(
            self._store, keys, tf.constant(default, tf.int64), index=self._vocabularies[vocabulary]
        )

    def rows(self, embedding: str, keys: tf.Tensor) -> tf.Tensor:
        """Rows of int64 keys in a frozen embedding variable, keys.shape + [D]."""
        index, dim = self._embeddings[embedding]
        return load().tfctr_hash_lookup(self._store, keys, index=index, dim=dim)


def graph_item(
    build: Callable[[Tables], Mapping[str, tf.Tensor]],
    *,
    tables: Mapping[str, np.ndarray] | None = None,
    vocabularies: Mapping[str, Mapping[Any, int]] | None = None,
    embeddings: Mapping[str, Mapping[int | None, Any]] | None = None,
    work_dir: Path,
) -> GraphItem:
    """A reference graph: what a pass sees once tables and vocabularies are files.

    build: gets :class:`Tables`, makes the graph with ``tf.compat.v1.placeholder(dtype, shape, name)`` for the inputs,
    and
    returns outputs by name. tables: float arrays [V, D]. vocabularies: key (str, bytes or int) -> row. embeddings: of a
    frozen embedding variable, int64 key -> row of floats, None -> the default row. work_dir: for their files.
    The item has one signature, ``serving_default``, whose inputs are the placeholders by name.
    """
    item = GraphItem(graph_def=tf.compat.v1.GraphDef(), signatures={}, store_name="tfctr_test", work_dir=Path(work_dir))
    view = GraphView(item.graph_def)
    nodes = {name: table_node(item, view, add_array(item, value, name)) for name, value in (tables or {}).items()}
    found = {name: _add_vocabulary(item, name, entries) for name, entries in (vocabularies or {}).items()}
    frozen = {name: _add_embedding(item, name, rows) for name, rows in (embeddings or {}).items()}
    if found or frozen:
        store_node(item, view)
    load()
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(item.graph_def, name="")
        store = graph.get_tensor_by_name(f"{item.store_node}:0") if item.store_node else None
        tensors = {name: graph.get_tensor_by_name(f"{node}:0") for name, node in nodes.items()}
        given = Tables(tensors, store, found, frozen)
        outputs = {name: tf.identity(value, name=f"output/{name}") for name, value in build(given).items()}
    item.graph_def.CopyFrom(graph.as_graph_def())
    inputs = [op.outputs[0] for op in graph.get_operations() if op.type == "Placeholder"]
    item.signatures[SIGNATURE] = _signature({t.op.name: t for t in inputs}, outputs)
    item.optimise = (SIGNATURE,)
    return item


def run_item(item: GraphItem, feeds: Mapping[str, Any], signature: str = SIGNATURE) -> dict[str, np.ndarray]:
    """Outputs of one signature by name, in a fresh session without optimisers. ``feeds``: by signature input name.

    The item is not changed. TensorFlow's own errors pass through.
    """
    ready = item.copy()
    finish(ready)
    info = ready.signatures[signature]
    names = list(info.outputs)
    with ItemSession(ready) as session:
        values = session.run(
            [info.outputs[n].name for n in names], {info.inputs[n].name: value for n, value in feeds.items()}
        )
    return dict(zip(names, values, strict=True))


def apply(rule: Rule, item: GraphItem, options: ConvertOptions | None = None) -> tuple[GraphItem, PassOutcome]:
    """Runs a pass (function or :class:`Pass`) on a copy of ``item``; the copy is verified. Returns it and the
    outcome.
    """
    after = item.copy()
    run = rule.run if isinstance(rule, Pass) else rule
    outcome = run(after, options or ConvertOptions())
    verify(after)
    return after, outcome


def assert_rewrites(
    rule: Rule,
    item: GraphItem,
    *,
    feeds: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
    fired: int | None = None,
    exact: bool = True,
    options: ConvertOptions | None = None,
) -> GraphItem:
    """Asserts that ``rule`` changes ``item`` and keeps its numbers; returns the rewritten item.

    feeds: one or several sets of inputs; outputs are compared on each (``exact``: bit for bit, else 1e-6 + 1e-5 |b|).
    fired: the number of rewrites expected (None: at least one). A second run must find nothing left to do.
    """
    after, outcome = apply(rule, item, options)
    reasons = "; ".join(f"{r.what}: {r.reason}" for r in outcome.refused) or "nothing was refused"
    if outcome.fired == 0 or (fired is not None and outcome.fired != fired):
        raise AssertionError(f"the rule fired {outcome.fired} times, expected {fired or 'at least once'} ({reasons})")
    for one in [feeds] if isinstance(feeds, Mapping) else feeds:
        _assert_same(run_item(item, one), run_item(after, one), exact)
    again, second = apply(rule, after, options)
    if second.fired or graph_text(again) != graph_text(after):
        raise AssertionError(f"a second run of the rule fired {second.fired} times and must change nothing")
    return after


def assert_refused(rule: Rule, item: GraphItem, reason: str, *, options: ConvertOptions | None = None) -> PassOutcome:
    """Asserts that ``rule`` leaves ``item`` as it is and gives a reason that matches the regular expression
    ``reason``.
    """
    after, outcome = apply(rule, item, options)
    if outcome.fired:
        raise AssertionError(f"the rule fired {outcome.fired} times, expected a refusal")
    found = [r.reason for r in outcome.refused]
    if not any(re.search(reason, r) for r in found):
        raise AssertionError(f"no refusal matches {reason!r}; the reasons are {found}")
    if graph_text(after) != graph_text(item):
        raise AssertionError("the rule refused, yet changed the graph")
    return outcome


def graph_text(item: GraphItem, *, attrs: Sequence[str] = ()) -> str:
    """One line per node, producers first: ``name = Op(inputs) {attrs}``; constants show their values where they are
    small.
    """
    return "\n".join(_node_line(node, attrs) for node in GraphView(item.graph_def).topological())


def op_counts(item: GraphItem) -> dict[str, int]:
    """Number of nodes by op type, constants left out."""
    counts: dict[str, int] = {}
    for node in item.graph_def.node:
        if node.op != "Const":
            counts[node.op] = counts.get(node.op, 0) + 1
    return counts


def _node_line(node: node_def_pb2.NodeDef, attrs: Sequence[str]) -> str:
    shown = {name: node.attr[name] for name in attrs if name in node.attr}
    text = f"{node.name} = {node.op}({', '.join(node.input)})"
    if node.op == "Const":
        value = tf.make_ndarray(node.attr["value"].tensor)
        text += f" {value.tolist()}" if value.size <= 16 else f" {value.dtype}{list(value.shape)}"
    if node.op == "TfctrFusedLookup":
        text += "\n    " + node.attr["spec"].s.decode().strip().replace("\n", "\n    ")
    return text + "".join(f" {name}={str(value).strip()}" for name, value in shown.items())


def _assert_same(expected: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray], exact: bool) -> None:
    for name, value in expected.items():
        if value.dtype != got[name].dtype or value.shape != got[name].shape:
            kinds = [f"{v.dtype}{list(v.shape)}" for v in (got[name], value)]
            raise AssertionError(f"output {name!r} is {kinds[0]}, expected {kinds[1]}")
        if value.dtype.kind in "fV":  # V: bfloat16
            a, b = got[name].astype(np.float64), value.astype(np.float64)
            rtol, atol = (0.0, 0.0) if exact else (1e-5, 1e-6)
            np.testing.assert_allclose(a, b, rtol, atol, equal_nan=True, err_msg=f"output {name!r}")
        else:
            np.testing.assert_array_equal(got[name], value, err_msg=f"output {name!r}")


def _add_vocabulary(item: GraphItem, name: str, entries: Mapping[Any, int]) -> int:
    keys = [k.encode() if isinstance(k, str) else k for k in entries]
    dtype = "int64" if keys and isinstance(keys[0], int) else "string"
    return add_vocabulary(item, name, f"test {name}", keys, np.asarray(list(entries.values()), np.int64), dtype)


def _add_embedding(item: GraphItem, name: str, rows: Mapping[int | None, Any]) -> tuple[int, int]:
    """Index and width of the hash file of ``rows``."""
    keys = np.array([key for key in rows if key is not None], np.int64)
    default = np.asarray(rows[None], np.float32)
    values = np.array([rows[int(key)] for key in keys], np.float32).reshape(len(keys), len(default))
    return add_built_hash(item, name, keys, values, default), len(default)


def _signature(inputs: Mapping[str, tf.Tensor], outputs: Mapping[str, tf.Tensor]) -> meta_graph_pb2.SignatureDef:
    signature = meta_graph_pb2.SignatureDef(method_name="tensorflow/serving/predict")
    for side, tensors in ((signature.inputs, inputs), (signature.outputs, outputs)):
        for name, tensor in tensors.items():
            side[name].name = tensor.name
            side[name].dtype = tensor.dtype.as_datatype_enum
            side[name].tensor_shape.CopyFrom(tensor.shape.as_proto())
    return signature
