"""Who uses a variable or lookup table, stepping over the Identity chains that inlining leaves."""

from __future__ import annotations

import dataclasses

from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework import tensor_util

from graph_opt.functionals import FUNCTIONALS, Functionals
from graph_opt.view import GraphView, canonical, is_control, node_of

USED = "written or used by {op} ({node})"
WRITTEN = "written by {op} ({node})"

_CHAINS = ("Identity", "RefIdentity")

# Uses of a resource variable that only read it.
READS = (
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "VariableShape",
    "VarIsInitializedOp",
    "DisableCopyOnRead",
)
# Uses of a reference variable (TF1) that write it. Everything else takes its value.
_REF_WRITES = ("Assign", "AssignAdd", "AssignSub", "CountUpTo", "DestroyTemporaryVariable")
_REF_WRITE_PREFIXES = ("Scatter", "Apply", "SparseApply", "Sparse_apply", "Ref")
# Ops that read rows of their first input.
ROW_READERS = (
    "SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN",
    "SparseSegmentSumWithNumSegments", "SparseSegmentMeanWithNumSegments", "SparseSegmentSqrtNWithNumSegments",
)  # fmt: skip
CONTROL_FLOW = ("If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase", "Switch", "Enter")


@dataclasses.dataclass(frozen=True)
class Uses:
    """Uses of one resource. nodes: (consumer, input number), chains stepped over; chain: the Identity nodes on the
    way.
    """

    nodes: tuple[tuple[node_def_pb2.NodeDef, int], ...]
    chain: tuple[str, ...]


def uses_of(view: GraphView, name: str) -> Uses:
    """All data uses of output 0 of node ``name``, behind any chain of Identity nodes."""
    found: list[tuple[node_def_pb2.NodeDef, int]] = []
    chain: list[str] = []
    pending = [canonical(name)]
    while pending:
        for node, index in view.consumers(pending.pop()):
            if node.op in _CHAINS:
                chain.append(node.name)
                pending.append(canonical(node.name))
            else:
                found.append((node, index))
    return Uses(tuple(found), tuple(chain))


def why_not_constant(view: GraphView, name: str) -> str | None:
    """Why variable ``name`` can't become a constant, None where every use only reads it."""
    node = view.node(name)
    if node.op != "VarHandleOp":
        return _ref_write(view, name)
    functionals = Functionals(view.graph_def)
    for user, index in uses_of(view, name).nodes:
        if user.op in READS:
            continue
        if user.op in FUNCTIONALS:
            if (reason := functionals.why_not(user, index)) is not None:
                return reason
            continue
        return USED.format(op=user.op, node=user.name)
    return None


def _ref_write(view: GraphView, name: str) -> str | None:
    pending = [name]
    while pending:
        for user, index in view.data_consumers(pending.pop()):
            if user.op in _REF_WRITES or (user.op.startswith(_REF_WRITE_PREFIXES) and _takes_ref(user.op, index)):
                return WRITTEN.format(op=user.op, node=user.name)
            if user.op == "RefIdentity":
                pending.append(user.name)
    return None


def _takes_ref(op: str, index: int) -> bool:
    from tensorflow.python.framework import op_def_registry

    op_def = op_def_registry.get(op)
    return op_def is not None and index < len(op_def.input_arg) and op_def.input_arg[index].is_ref


def reads_rows(view: GraphView, name: str) -> bool:
    """Whether variable or constant ``name`` is read by row numbers somewhere (a table), not only as a whole."""
    pending = [canonical(name)]
    while pending:
        for user, index in view.consumers(pending.pop()):
            if user.op == "ResourceGather" and index == 0:
                return True
            if user.op in FUNCTIONALS and Functionals(view.graph_def).reads_rows(user, index):
                return True
            if user.op in (*_CHAINS, "ReadVariableOp") and index == 0:
                pending.append(canonical(user.name))
            elif index == 0 and (user.op in ROW_READERS or is_row_gather(view, user)):
                return True
    return False


def is_row_gather(view: GraphView, node: node_def_pb2.NodeDef) -> bool:
    """Gather, or GatherV2 on axis 0 without batch dims."""
    if node.op == "Gather":
        return True
    if node.op != "GatherV2" or node.attr["batch_dims"].i != 0:
        return False
    axis = constant(view, node.input[2])
    return axis is not None and axis.size == 1 and int(axis.reshape(-1)[0]) == 0


def constant(view: GraphView, tensor: str):  # type: ignore[no-untyped-def]
    """The value (ndarray) of ``tensor`` where a Const makes it, else None."""
    node = view.producer(tensor)
    while node.op == "Identity":
        node = view.node(node_of(node.input[0]))
    return tensor_util.MakeNdarray(node.attr["value"].tensor) if node.op == "Const" else None


def cut_loose(view: GraphView, names: list[str]) -> None:
    """Drops every control edge that waits for one of ``names`` (nodes without side effects that are about to go)."""
    for name in names:
        view.replace_control(name, None)


def drop_control(node: node_def_pb2.NodeDef) -> list[str]:
    return [i for i in node.input if not is_control(i)]
