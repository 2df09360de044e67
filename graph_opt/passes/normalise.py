"""Removes what only inlining and automatic control dependencies put in: Identity chains, and waits for nodes without
effects.

Under ``tf.function`` every output waits (through NoOps) for every read of a variable. Those waits keep dead lookups
alive and hide the data flow. A control edge stays where its source, or something the source needs, has an effect:
writes, asserts, prints, random numbers, reads of state that serving writes.

A table that is cast as a whole and then read by rows is read by rows first: the same numbers, without a second table.
"""

from __future__ import annotations

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework import op_def_registry

from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.passes.prune_training import prune
from graph_opt.report import PassOutcome
from graph_opt.resources import CONTROL_FLOW
from graph_opt.verify import output_dtypes
from graph_opt.view import GraphView, canonical, is_control, node_of

EXAMPLE = """\
before  rows = GatherV2(Identity(table), Identity(ids), ^read_other_table)
after   rows = GatherV2(table, ids)
"""

_PASSING = ("Identity", "StopGradient", "PreventGradient", "Snapshot")
# Stateful by their registration only (they own a resource), or read-only over constant state.
_EFFECT_FREE = frozenset(
    ("TfctrStore", "TfctrTable", "TfctrVocabFind", "TfctrHashLookup", "TfctrFusedLookup", "VarHandleOp", "VariableV2",
     "HashTableV2", "Placeholder", "Const", "NoOp", "ReadVariableOp", "ResourceGather", "LookupTableFindV2",
     "LookupTableSizeV2", "MutableHashTableV2", "MutableDenseHashTableV2", "MutableHashTableOfTensorsV2")
)  # fmt: skip
_TF1_LOOPS = frozenset(
    ("Switch", "RefSwitch", "Merge", "RefMerge", "Enter", "RefEnter", "Exit", "NextIteration", "LoopCond")
)


def normalise(item: GraphItem, options: ConvertOptions) -> PassOutcome:
    """See the module docstring."""
    del options
    view = GraphView(item.graph_def)
    edges = _drop_control(item, view)
    identities = _drop_identities(item, view)
    casts = _gather_before_casts(item, view)
    nodes = prune(item)
    notes = [f"{edges} control edges and {identities} identities that say nothing; {nodes} nodes behind them"]
    if casts:
        notes.append(f"{casts} gathers read the table and cast rows, instead of casting the table")
    return PassOutcome(fired=edges + identities + casts, notes=tuple(notes))


def _drop_control(item: GraphItem, view: GraphView) -> int:
    state = {m.node for m in item.mutable_state}
    if any(node.op in _TF1_LOOPS for node in view):
        return 0  # there, a control edge can mean "in this branch"
    effects: dict[str, frozenset[str]] = {}
    handles = _handles(view, state)
    for node in view.topological():
        # The nearest nodes with an effect that running `node` implies.
        if _has_effect(node, handles):
            effects[node.name] = frozenset((node.name,))
        else:
            effects[node.name] = frozenset().union(*(effects[node_of(i)] for i in node.input))
    dropped = 0
    for node in list(view):
        if node.name == item.init_op or not any(is_control(i) for i in node.input):
            continue
        data = [i for i in node.input if not is_control(i)]
        implied = frozenset().union(*(effects[node_of(i)] for i in data))
        waits = frozenset().union(*(effects[node_of(i)] for i in node.input if is_control(i))) - implied - {node.name}
        dropped += len(node.input) - len(data) - len(waits)
        view.set_inputs(node.name, [*data, *("^" + w for w in sorted(waits))])
    return max(dropped, 0)


def _handles(view: GraphView, state: set[str]) -> set[str]:
    """Nodes that are, or pass on, a handle of mutable state."""
    found = set(state)
    pending = list(state)
    while pending:
        for user, _ in view.data_consumers(pending.pop()):
            if user.op == "Identity" and user.name not in found:
                found.add(user.name)
                pending.append(user.name)
    return found


def _has_effect(node: node_def_pb2.NodeDef, handles: set[str]) -> bool:
    if any(node_of(i) in handles for i in node.input if not is_control(i)) and node.op != "Identity":
        return True
    if node.op in _EFFECT_FREE:
        return False
    if node.op in CONTROL_FLOW:
        return True
    op_def = op_def_registry.get(node.op)
    return op_def is None or op_def.is_stateful


def _drop_identities(item: GraphItem, view: GraphView) -> int:
    keep = item.keep()
    gone = []
    for node in list(view):
        if node.op not in _PASSING or node.name in keep or any(is_control(i) for i in node.input):
            continue
        if view.control_consumers(node.name) or _is_ref(view, node.input[0]):
            continue
        view.replace_tensor(canonical(node.name), node.input[0])
        gone.append(node.name)
    view.remove(gone)
    return len(gone)


def _gather_before_casts(item: GraphItem, view: GraphView) -> int:
    """``Gather(Cast(table), ids)`` becomes ``Cast(Gather(table, ids))``."""
    keep = item.keep()
    moved = 0
    for node in list(view):
        if node.op not in ("GatherV2", "Gather") or node.name in keep or not _selects_rows(view, node):
            continue
        cast = view.producer(view.inputs(node)[0])
        if cast.op != "Cast" or view.control_inputs(cast) or view.control_consumers(node.name):
            continue
        if view.producer(view.inputs(cast)[0]).op != "TfctrTable":
            continue
        rows = node_def_pb2.NodeDef()
        rows.CopyFrom(node)
        rows.name = view.unique_name(f"{node.name}/rows")
        rows.input[0] = cast.input[0]
        rows.attr["Tparams"].type = cast.attr["SrcT"].type
        view.add(rows)
        after = node_def_pb2.NodeDef(name=view.unique_name(f"{node.name}/cast"), op="Cast", input=[rows.name])
        for name in ("SrcT", "DstT", "Truncate"):
            after.attr[name].CopyFrom(cast.attr[name])
        view.add(after)
        view.replace_tensor(canonical(node.name), after.name)
        view.remove([node.name])
        moved += 1
    return moved


def _selects_rows(view: GraphView, node: node_def_pb2.NodeDef) -> bool:
    """True for a gather along axis 0 without batch dimensions."""
    if node.attr["batch_dims"].i:
        return False
    if node.op == "Gather":
        return True
    axis = view.producer(view.inputs(node)[2])
    return axis.op == "Const" and tf.make_ndarray(axis.attr["value"].tensor).tolist() == 0


def _is_ref(view: GraphView, tensor: str) -> bool:
    producer = view.producer(tensor)
    if producer.op in _TF1_LOOPS:
        return True
    try:
        return any(dtype >= 100 for dtype in output_dtypes(producer))
    except Exception:  # a function call's signature is not in the op registry
        return False
