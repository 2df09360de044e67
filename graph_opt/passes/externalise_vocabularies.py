"""Static lookup tables become vocabulary files of the shared store.

A ``HashTableV2`` that is filled once by the init op and only looked up afterwards is a constant map. String or int64
keys with int64 values go into a file (``TfctrVocabFind``), one copy for all sessions; other kinds, and every table
that serving can change, stay with their initialisers and are reported.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2

from graph_opt.item import GraphItem, MutableState
from graph_opt.options import ConvertOptions
from graph_opt.passes.prune_training import prune
from graph_opt.report import PassOutcome, Refused
from graph_opt.resources import cut_loose, uses_of
from graph_opt.sessions import asset_feeds, plain_config, what_happened
from graph_opt.store_files import add_vocabulary, constant_node, store_node
from graph_opt.view import GraphView, canonical

STATIC_TABLES = ("HashTableV2", "AnonymousHashTable")
MUTABLE_TABLES = (
    "MutableHashTableV2", "MutableHashTableOfTensorsV2", "MutableDenseHashTableV2",
    "AnonymousMutableHashTable", "AnonymousMutableHashTableOfTensors", "AnonymousMutableDenseHashTable",
)  # fmt: skip
_OLD_TABLES = ("HashTable", "MutableHashTable", "MutableHashTableOfTensors", "MutableDenseHashTable")
_INITIALISERS = ("LookupTableImportV2", "InitializeTableV2", "InitializeTableFromTextFileV2")
_KEY_DTYPES = (types_pb2.DT_STRING, types_pb2.DT_INT64)


@dataclasses.dataclass
class _Table:
    """One static table: its handle nodes, the Identity chains behind them, and who uses it."""

    handles: list[str]
    chain: list[str]
    users: list[node_def_pb2.NodeDef]

    def of(self, *ops: str) -> list[node_def_pb2.NodeDef]:
        return [u for u in self.users if u.op in ops]


REASONS = {
    "types": "stays a hash table: maps {key} to {value}; files hold string or int64 keys and int64 values",
    "used": "stays a hash table: used by {op} ({node})",
    "several": "stays a hash table: it has {count} initialisers",
    "none": "stays a hash table: nothing initialises it",
    "serving": "stays a hash table: serving itself fills it ({node})",
    "initialiser": "stays a hash table: its initialiser can't be run on its own: {error}",
    "mutable": "a table that serving can change stays in each session",
}
EXAMPLE = """\
before  h = HashTableV2, filled from assets/words.txt;  row = LookupTableFindV2(h, key, -1)
after   row = TfctrVocabFind(store, key, -1, index=3)
"""


def externalise_vocabularies(item: GraphItem, options: ConvertOptions) -> PassOutcome:
    """See the module docstring."""
    del options
    view = GraphView(item.graph_def)
    refused = []
    converted = 0
    for table in _static_tables(view):
        reason = _why_stays(view, item, table)
        if reason is None:
            try:
                keys, values = _contents(item, view, table)
            except tf.errors.OpError as error:
                reason = REASONS["initialiser"].format(error=what_happened(str(error.message)))
        if reason is not None:
            refused.append(_refuse(view, table.handles, reason))
            continue
        _replace(item, view, table, keys, values)
        converted += 1
    for node in list(view):
        if node.op in MUTABLE_TABLES + _OLD_TABLES:
            refused.append(_keep_mutable(item, view, node))
    prune(item)
    notes = (f"{converted} static tables became vocabulary files",) if converted else ()
    return PassOutcome(fired=converted, refused=tuple(refused), notes=notes)


def _static_tables(view: GraphView) -> list[_Table]:
    groups: dict[tuple[bytes, bytes], _Table] = defaultdict(lambda: _Table([], [], []))
    for node in list(view):
        if node.op in STATIC_TABLES:
            table = groups[node.attr["container"].s, node.attr["shared_name"].s or node.name.encode()]
            uses = uses_of(view, node.name)
            table.handles.append(node.name)
            table.chain += uses.chain
            table.users += [user for user, _ in uses.nodes]
    return list(groups.values())


def _why_stays(view: GraphView, item: GraphItem, table: _Table) -> str | None:
    handle = view.node(table.handles[0])
    key, value = handle.attr["key_dtype"].type, handle.attr["value_dtype"].type
    if key not in _KEY_DTYPES or value != types_pb2.DT_INT64:
        names = (tf.as_dtype(key).name, tf.as_dtype(value).name)
        return REASONS["types"].format(key=names[0], value=names[1])
    others = [u for u in table.users if u.op not in (*_INITIALISERS, "LookupTableFindV2", "LookupTableSizeV2")]
    if others:
        return REASONS["used"].format(op=others[0].op, node=others[0].name)
    fillers = table.of(*_INITIALISERS)
    if len({f.name for f in fillers}) != 1:
        return REASONS["several"].format(count=len(fillers)) if fillers else REASONS["none"]
    serving = view.ancestors(item.fetches())
    if fillers[0].name in serving:
        return REASONS["serving"].format(node=fillers[0].name)
    return None


def _contents(item: GraphItem, view: GraphView, table: _Table) -> tuple[list[Any], np.ndarray]:
    """Keys and values, by running the table's own initialiser in a session of its own; sorted by value, then key."""
    filler = table.of(*_INITIALISERS)[0]
    graph_def = graph_pb2.GraphDef(versions=item.graph_def.versions, library=item.graph_def.library)
    needed = view.ancestors([filler.name])
    graph_def.node.extend(node for node in view if node.name in needed)
    handle = view.node(table.handles[0])
    export = node_def_pb2.NodeDef(
        name="tfctr/export", op="LookupTableExportV2", input=[filler.input[0], "^" + filler.name]
    )
    export.attr["Tkeys"].type = handle.attr["key_dtype"].type
    export.attr["Tvalues"].type = handle.attr["value_dtype"].type
    graph_def.node.append(export)
    feeds = {t: path for t, path in asset_feeds(item).items() if t.split(":")[0] in needed}
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session(graph=graph, config=plain_config()) as session:
            keys, values = session.run(["tfctr/export:0", "tfctr/export:1"], feeds)
    order = np.lexsort((keys, values))
    return keys[order].tolist(), values[order]


def _replace(item: GraphItem, view: GraphView, table: _Table, keys: Sequence[Any], values: np.ndarray) -> None:
    handle = view.node(table.handles[0])
    filler = table.of(*_INITIALISERS)[0]
    name = (handle.attr["shared_name"].s or handle.name.encode()).decode()
    index = add_vocabulary(
        item,
        name,
        f"table {handle.name} filled by {filler.name}",
        keys,
        values,
        tf.as_dtype(handle.attr["key_dtype"].type).name,
    )
    store = store_node(item, view)
    for user in table.of("LookupTableFindV2"):
        _, lookup_keys, default = view.inputs(user)
        controls = [i for i in user.input if i.startswith("^")]
        view.set_inputs(user.name, [store, lookup_keys, default, *controls])
        user.op = "TfctrVocabFind"
        user.attr.clear()
        user.attr["Tkeys"].type = handle.attr["key_dtype"].type
        user.attr["index"].i = index
    for user in table.of("LookupTableSizeV2"):
        size = view.add(constant_node(view.unique_name(f"{user.name}/size"), np.array(len(keys), np.int64)))
        item.vocabulary_sizes[size.name] = index
        cut_loose(view, [user.name])
        view.replace_tensor(canonical(user.name), size.name)
    cut_loose(view, [filler.name, *table.chain, *table.handles])


def _keep_mutable(item: GraphItem, view: GraphView, node: node_def_pb2.NodeDef) -> Refused:
    keys = item.restored_tables.get(node.name, ())
    reason = REASONS["mutable"]
    item.mutable_state.append(MutableState(node=node.name, kind="table", reason=reason, keys=tuple(keys)))
    if node.op.startswith("Anonymous"):
        _name_table(node)
    return _refuse(view, [node.name], reason)


def _name_table(node: node_def_pb2.NodeDef) -> None:
    # An anonymous table is a new, empty one in every run of a session; a named one lives as long as the session.
    node.op = node.op.removeprefix("Anonymous") + "V2"
    node.attr["shared_name"].s = node.name.encode()


def _refuse(view: GraphView, handles: Sequence[str], reason: str) -> Refused:
    node = view.node(handles[0])
    return Refused(what=f"{node.op} {node.name}", reason=reason, nodes=tuple(handles))
