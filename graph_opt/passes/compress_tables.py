"""Float32 tables that only fused lookups read are stored as fp16, bf16 or int8 (``--table-dtype``), as far as the
accuracy gate passes.

The narrow file lies beside the float32 one; lookups turn its rows into float32 while they gather them, so nothing else
of the graph changes. The model's outputs before and after are judged on the samples (``graph_opt.gate``). Where they
do not pass with every table narrow, each table is judged alone, and the largest set, in the order of their effects,
that passes is kept; the others stay float32 and are reported with their numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graph_opt.gate import GateLimits, GateResult
from graph_opt.hash_files import HASH_LOOKUP
from graph_opt.item import GraphItem, StoreFile
from graph_opt.narrowing import STORAGE, NarrowTable, saves_bytes, storage_of, use_narrow, write_narrow
from graph_opt.options import ConvertOptions
from graph_opt.report import PassOutcome, Refused
from graph_opt.table_gate import (
    CannotJudge,
    GateInputs,
    TableGate,
    describe_item,
    gate_inputs,
    limits_of,
    op_times,
    saved_state,
)
from graph_opt.view import GraphView

OPTIONS = (
    "--table-dtype fp16|bf16|int8: what to store tables as; fp32, the default, leaves them as they are",
    "--max-dp, --max-bias, --max-auc-delta: limits of the accuracy gate",
    "--samples FILE: rows to judge on, with labels in the column --label; else generated ones, without AUC",
    "--strict: a table that does not pass the gate ends the conversion",
)
REASONS = {
    "narrow": "is stored as {storage} already",
    "dtype": "is {dtype}; only float32 tables are stored as {storage}",
    "also_read": "is also read by {reader}, which needs float32",
    "unfused": "no fused lookup reads it, but {reader}, which needs float32",
    "analysed": "was only analysed",
    "small": "has {rows} rows of {width}: its file, padded to pages of 4096 bytes, would not be smaller as {storage}",
    "value": "table {table}: row {row} holds {value}, so it can't be stored as {storage}",
    "inputs": "the model refuses the inputs to judge on: {error}",
    "gate": "stays float32: accuracy gate: {numbers}",
}
EXAMPLE = """\
before  TfctrFusedLookup, spec "lookup table=0 table_dtype=float32 ..."; file 0: float32 [V, D]
after   TfctrFusedLookup, spec "lookup table=0 table_dtype=float32 storage=int8 ..."; file 0: uint8 [V, 4 + D]
"""
# Tables judged alone, one run of the model each, where all of them together do not pass.
MAX_ALONE = 64


def compress_tables(item: GraphItem, options: ConvertOptions) -> PassOutcome:
    """See the module docstring. ``details``: dtype, judged_on, gate (by signature), tables, left, bytes and speed."""
    if options.table_dtype == "fp32":
        return PassOutcome(notes=("tables stay as they are (--table-dtype asks for smaller ones)",))
    storage = STORAGE[options.table_dtype]
    suited, refused = _suited(item, storage)
    if not suited:
        none = {"dtype": options.table_dtype, "tables": [], "left": _left(refused)}
        return PassOutcome(refused=tuple(refused), notes=("no table to make smaller",), details=none)
    chosen = {k: f for k, f in suited.items() if options.wants(f.name)}
    made, failed = _write(item, chosen, storage)
    kept: set[int] = set()
    try:
        outcome = _judge(item, made, storage, options)
        kept = set(outcome.kept)
        use_narrow(item, {k: made[k] for k in kept}, storage)
    finally:
        for index, table in made.items():
            if index not in kept and table.file.path is not None:
                table.file.path.unlink(missing_ok=True)
    refused += [*failed, *outcome.refused]
    details = {
        "dtype": options.table_dtype,
        **outcome.details,
        "tables": [_table_entry(made[k], storage) for k in sorted(kept)],
        "left": _left(refused),
        "bytes_before": sum(made[k].original.bytes for k in kept),
        "bytes_after": sum(made[k].file.bytes for k in kept),
    }
    return PassOutcome(
        fired=len(kept),
        refused=tuple(refused),
        notes=outcome.notes,
        details=details,
        rewrites=tuple(f.name for f in suited.values()),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Judged:
    """Which tables may be narrow. kept: their indices."""

    kept: Sequence[int] = ()
    refused: Sequence[Refused] = ()
    notes: tuple[str, ...] = ()
    details: dict[str, Any] = dataclasses.field(default_factory=dict)


def _suited(item: GraphItem, storage: str) -> tuple[dict[int, StoreFile], list[Refused]]:
    """Tables of fused lookups that can be stored so, by index; the others with the reason."""
    view = GraphView(item.graph_def)
    readers: dict[int, str] = {}
    for node in view:
        if node.op in ("TfctrTable", HASH_LOOKUP):
            readers.setdefault(node.attr["index"].i, _reader(item, view, node.name))
    suited: dict[int, StoreFile] = {}
    refused = []
    for index in sorted({spec.table for group in item.groups for spec, _ in group.lookups}):
        file = item.files[index]
        reason = _why_not(file, storage, readers.get(index))
        if reason is None:
            suited[index] = file
        elif storage_of(file) != storage:
            refused.append(Refused(what=f"table {file.name}", reason=reason))
    for index, reader in readers.items():
        file = item.files[index]
        if file.dtype == "float32" and not any(spec.table == index for g in item.groups for spec, _ in g.lookups):
            reason = REASONS["unfused"].format(reader=reader)
            refused.append(Refused(what=f"table {file.name}", reason=reason))
    return suited, refused


def _reader(item: GraphItem, view: GraphView, table: str) -> str:
    """Who reads ``table`` as a tensor (or, of a hash file, its rows), in words; with its signature where that one is
    not optimised.
    """
    node = view.node(table)
    users = [(node, 0)] if node.op == HASH_LOOKUP else view.data_consumers(table)
    if not users:
        return "an output of the model"
    reader = users[0][0].name
    others = [name for name in item.signatures if name not in item.optimise]
    if reader in view.ancestors([t for name in item.optimise for t in item.fetches(name)]):
        others = []
    of = next((name for name in others if reader in view.ancestors(item.fetches(name))), None)
    return f"{users[0][0].op} {reader!r}" + (f" of signature {of} (not optimised)" if of else "")


def _left(refused: Sequence[Refused]) -> list[dict[str, str]]:
    return [{"table": r.what, "reason": r.reason} for r in refused]


def _why_not(file: StoreFile, storage: str, reader: str | None) -> str | None:
    if file.narrowed_from is not None:
        return REASONS["narrow"].format(storage=storage_of(file))
    if file.dtype != "float32":
        return REASONS["dtype"].format(dtype=file.dtype, storage=storage)
    if reader is not None:
        return REASONS["also_read"].format(reader=reader)
    if file.path is None:
        return REASONS["analysed"]
    if not saves_bytes(file, storage):
        return REASONS["small"].format(rows=file.shape[0], width=math.prod(file.shape[1:]), storage=storage)
    return None


def _write(
    item: GraphItem, tables: Mapping[int, StoreFile], storage: str
) -> tuple[dict[int, NarrowTable], list[Refused]]:
    """Narrow files of ``tables``; a table that holds what can't be stored so is refused."""
    made: dict[int, NarrowTable] = {}
    refused = []
    try:
        for index, file in tables.items():
            assert file.path is not None
            try:
                made[index] = write_narrow(file, index, storage, item.work_dir or file.path.parent, item.on_copied)
            except ValueError as error:
                refused.append(Refused(what=f"table {file.name}", reason=str(error)))
    except BaseException:
        for table in made.values():
            if table.file.path is not None:
                table.file.path.unlink(missing_ok=True)
        raise
    return made, refused


def _judge(item: GraphItem, made: Mapping[int, NarrowTable], storage: str, options: ConvertOptions) -> _Judged:
    if not made:
        return _Judged()
    inputs = gate_inputs(describe_item(item), item.optimise, options)
    limits = limits_of(options)

    def with_narrow(indices: Sequence[int]) -> GraphItem:
        after = item.copy()
        use_narrow(after, {k: made[k] for k in indices}, storage)
        return after

    with saved_state(item) as restore:
        try:
            gate = TableGate(item, inputs, limits, options, restore)
        except CannotJudge as error:
            return _unjudged(made, REASONS["inputs"].format(error=error), inputs)
        results = gate.judge(with_narrow(list(made)))
        kept: list[int] = list(made)
        refused: list[Refused] = []
        if not _passed(results):
            kept, refused = _largest(made, lambda indices: gate.judge(with_narrow(indices)), limits)
            results = gate.judge(with_narrow(kept)) if kept else results
        speed = op_times(item, with_narrow(kept), inputs, restore) if kept else None
    details = {
        "judged_on": inputs.told,
        "generated": inputs.generated,
        "limits": dataclasses.asdict(limits),
        "gate": {name: result.to_json() for name, result in results.items()},
        "gate_runs": gate.runs,
        "speed": speed,
    }
    notes = (
        *(f"accuracy gate, {name}: {result.text}" for name, result in results.items()),
        f"judged on {inputs.told}",
    )
    return _Judged(kept=kept, refused=refused, notes=notes, details=details)


def _unjudged(made: Mapping[int, NarrowTable], reason: str, inputs: GateInputs) -> _Judged:
    refused = [Refused(what=f"table {t.original.name}", reason=reason, proof_failed=True) for t in made.values()]
    return _Judged(refused=refused, notes=(f"not judged: {reason}",), details={"judged_on": inputs.told})


def _largest(
    made: Mapping[int, NarrowTable],
    judge: Callable[[Sequence[int]], Mapping[str, GateResult]],
    limits: GateLimits,
) -> tuple[list[int], list[Refused]]:
    """Indices of the largest set of tables, in the order of the effects they have alone, that passes together; and the
    refusals of the others. Runs: one per table (of the ``MAX_ALONE`` whose values move most), and a binary search.
    """
    by_error = sorted(made, key=lambda k: made[k].max_abs_error, reverse=True)
    alone = {k: judge([k]) for k in by_error[:MAX_ALONE]}
    order = sorted(by_error[MAX_ALONE:], key=lambda k: made[k].max_abs_error)
    order += sorted((k for k in alone if _passed(alone[k])), key=lambda k: _effect(alone[k], limits))
    low, high = 0, len(order)  # order[:low] passes, order[:high + 1] does not
    if len(order) == len(made):
        high -= 1  # all together did not pass
    while low < high:
        middle = (low + high + 1) // 2
        if _passed(judge(order[:middle])):
            low = middle
        else:
            high = middle - 1
    kept = order[:low]
    refused = [_gate_refusal(made[k], alone.get(k)) for k in made if k not in kept]
    return sorted(kept), refused


def _gate_refusal(table: NarrowTable, alone: Mapping[str, GateResult] | None) -> Refused:
    if alone is None:
        numbers = f"its values move by up to {table.max_abs_error:.3g}; it was not judged alone"
    elif _passed(alone):
        numbers = f"it passes alone ({_numbers(alone)}), but not together with the tables that move scores less"
    else:
        numbers = "; ".join(r.text for r in alone.values() if not r.passed)
    return Refused(
        what=f"table {table.original.name}", reason=REASONS["gate"].format(numbers=numbers), proof_failed=True
    )


def _numbers(results: Mapping[str, GateResult]) -> str:
    worst = max(results.values(), key=lambda r: r.worst_dp)
    delta = worst.worst_auc_delta
    return f"max |dp| {worst.worst_dp:.2g}, mean bias {worst.worst_bias:+.2g}" + (
        "" if delta is None else f", AUC {delta:+.2g}"
    )


def _effect(results: Mapping[str, GateResult], limits: GateLimits) -> float:
    """How near to its limits a table comes alone."""
    tiny = 1e-30
    return max(
        max(
            r.worst_dp / max(limits.max_dp, tiny),
            abs(r.worst_bias) / max(limits.max_bias, tiny),
            abs(r.worst_auc_delta or 0.0) / max(limits.max_auc_delta, tiny),
        )
        for r in results.values()
    )


def _passed(results: Mapping[str, GateResult]) -> bool:
    return all(r.passed for r in results.values())


def _table_entry(table: NarrowTable, storage: str) -> dict[str, Any]:
    return {
        "table": table.original.name,
        "index": table.index,
        "storage": storage,
        "shape": list(table.original.shape),
        "bytes_before": table.original.bytes,
        "bytes_after": table.file.bytes,
        "max_abs_error": table.max_abs_error,
    }
