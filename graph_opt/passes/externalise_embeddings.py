"""Embedding variables become hash files (``TfctrHashLookup``), shared by all sessions.

A table of an embedding variable that serving only reads is a frozen map from key to row. Its rows go from checkpoint
to file with an index, and every lookup becomes stock operations over them, which ``fuse_lookups`` takes like those of
static tables. Each kind of lookup of the model is run beside the embedding variable's own op over a small table of
random rows first; a difference ends the conversion. So does what a frozen table can't do: training lookups, sizes and
counts in a signature, lookups inside control flow.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from tensorflow.core.framework import node_def_pb2, types_pb2

from graph_opt.embeddings.calls import LOOKUP_OP, EvLookup, read_call, table_config, training_input
from graph_opt.embeddings.lowering import lower
from graph_opt.embeddings.proof import prove_lowering
from graph_opt.functionals import FUNCTIONALS
from graph_opt.hash_files import add_hash, tensor_key
from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.passes.prune_training import prune
from graph_opt.report import PassOutcome, Refused
from graph_opt.resources import CONTROL_FLOW, cut_loose, uses_of
from graph_opt.restore_map import EMBEDDING_VARIABLE
from graph_opt.store_files import Checkpoint, store_node
from graph_opt.view import GraphView, canonical, is_control
from tfctr.errors import UsageError

OPTIONS = ()
REASONS = {
    "training": "{where} looks it up with training={value} ({node}), and a bundle's table never changes: save the "
    "model with training=False in its signatures",
    "used": "{where} asks it by {op} ({node}), which a bundle's table has no answer to: save the model without that",
    "in_body": "{where} looks it up inside control flow ({op} {node}): look ids up before it, and hand the rows in",
    "missing": "its rows are not in the checkpoint {prefix}: no tensor {key!r}",
}
EXAMPLE = """\
before  t = TfctrEvHandle;  y = TfctrEvLookup(t, ids, row_splits, training=false), combiner mean
after   u, i = Unique(ids);  rows = TfctrHashLookup(store, u, index=0);  y = SparseSegmentMean(rows, i, row numbers)
"""


def externalise_embeddings(item: GraphItem, options: ConvertOptions) -> PassOutcome:
    """See the module docstring. UsageError names variable, signature and node of what can't be converted; a model that
    is only analysed keeps its lookups then, and the outcome says why.
    """
    del options
    view = GraphView(item.graph_def)
    needed = view.ancestors(item.keep())
    handles = {name: names for names in _variables(view).values() for name in names if name in needed}
    if not handles:
        return PassOutcome()
    try:
        for name in handles:
            _check_uses(item, view, name, needed)
    except UsageError as error:
        if item.work_dir is not None:
            raise
        return PassOutcome(refused=(Refused(what="embedding variables", reason=str(error), nodes=tuple(handles)),))
    calls = {n.name: read_call(view, n) for n in view if n.op == LOOKUP_OP and n.name in needed}
    proof: dict[str, Any] = {}
    if item.work_dir is not None:
        configs = {name: table_config(view.node(name)) for name in handles}
        proof = prove_lowering([(lookup, configs[lookup.handle]) for call in calls.values() for lookup in call])
    checkpoint = Checkpoint((item.source_path or _no_source()) / "variables" / "variables")
    looked_up = dict.fromkeys(lookup.handle for call in calls.values() for lookup in call)
    file_of = {name: _add_file(item, view, checkpoint, handles[name]) for name in looked_up}
    for name, call in calls.items():
        store = store_node(item, view)
        _replace(view, name, [lower(view, f"{name}/{i}", store, file_of[o.handle], o) for i, o in enumerate(call)])
    for name in handles:
        cut_loose(view, [name, *uses_of(view, name).chain])
    prune(item)
    return _outcome(item, calls, file_of, proof)


def _no_source() -> NoReturn:
    raise ValueError("the item has no source_path, so its tables' rows are unknown")


def _variables(view: GraphView) -> dict[tuple[bytes, bytes], list[str]]:
    """Handle nodes by the table that they name."""
    groups: dict[tuple[bytes, bytes], list[str]] = defaultdict(list)
    for node in view:
        if node.op == EMBEDDING_VARIABLE:
            groups[node.attr["container"].s, node.attr["shared_name"].s or node.name.encode()].append(node.name)
    return groups


def _check_uses(item: GraphItem, view: GraphView, handle: str, needed: set[str]) -> None:
    fed = set(item.feeds())
    for user, _ in uses_of(view, handle).nodes:
        if user.name not in needed:
            continue
        if user.op != LOOKUP_OP:
            kind = "in_body" if user.op in FUNCTIONALS or user.op in CONTROL_FLOW else "used"
            _refuse(item, view, handle, user, kind, op=user.op)
        training = training_input(view, user, fed)
        if training is not False:
            _refuse(item, view, handle, user, "training", value=training or "a value that is not constant")


def _refuse(
    item: GraphItem, view: GraphView, handle: str, node: node_def_pb2.NodeDef, kind: str, **words: object
) -> NoReturn:
    of = [name for name in sorted(item.signatures) if node.name in view.ancestors(item.fetches(name))]
    where = f"signature {of[0]!r}" if of else "the initialiser"
    reason = REASONS[kind].format(where=where, node=node.name, **words)
    raise UsageError(f"{item.source_path}: embedding variable {_name(view, handle)!r}: {reason}")


def _name(view: GraphView, handle: str) -> str:
    return str(table_config(view.node(handle))["name"])


def _add_file(item: GraphItem, view: GraphView, checkpoint: Checkpoint, handles: list[str]) -> int:
    name = _name(view, handles[0])
    places = [item.embedding_tables[h] for h in handles if h in item.embedding_tables]
    place = places[0] if places else name
    for part in ("keys", "values", "config"):
        key = tensor_key(place, part)
        if key not in checkpoint.entries:
            reason = REASONS["missing"].format(prefix=checkpoint.prefix, key=key)
            raise UsageError(f"{item.source_path}: embedding variable {name!r}: {reason}")
    return add_hash(item, checkpoint, place, name)


def _replace(view: GraphView, name: str, results: list[str]) -> None:
    """Readers of the call read ``results``; a call that is itself an output keeps its name."""
    node = view.node(name)
    waits = [i for i in node.input if is_control(i)]
    for port, result in enumerate(results):
        view.replace_tensor(f"{name}:{port}", canonical(result))
        made = view.producer(result)
        view.set_inputs(made.name, [*made.input, *(w for w in waits if w not in made.input)])
    view.set_inputs(name, results)
    node.op = "IdentityN"
    node.attr.clear()
    node.attr["T"].list.type.extend([types_pb2.DT_FLOAT] * len(results))


def _outcome(
    item: GraphItem, calls: Mapping[str, Sequence[EvLookup]], file_of: Mapping[str, int], proof: dict[str, Any]
) -> PassOutcome:
    lookups = Counter(file_of[lookup.handle] for call in calls.values() for lookup in call)
    tables: list[dict[str, Any]] = []
    for index in sorted(lookups):
        rows, dim = item.files[index].shape
        tables.append(
            {"table": item.files[index].name, "index": index, "rows": rows, "dim": dim, "lookups": lookups[index]}
        )
    total = sum(table["rows"] for table in tables)
    notes = [f"{len(tables)} embedding variables became hash files of {total} rows"] if tables else []
    notes += [proof["told"]] if tables and proof else []
    return PassOutcome(fired=len(tables), notes=tuple(notes), details={"tables": tables, "proof": proof})
