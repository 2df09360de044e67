"""Drops store files that nothing reads any more (parts of tables that were merged) and renumbers the rest."""

from __future__ import annotations

import dataclasses

from graph_opt.item import FusedGroup, GraphItem
from graph_opt.lookup_spec import LookupSpec, Step, spec_text
from graph_opt.options import ConvertOptions
from graph_opt.report import PassOutcome
from graph_opt.view import GraphView

EXAMPLE = """\
before  files: emb/part_0, emb/part_1, emb (merged); the fused lookup reads emb
after   files: emb
"""

_INDEXED = ("TfctrTable", "TfctrVocabFind", "TfctrHashLookup")
DENSE_OP = "TfctrDenseEngine"
_VOCABULARY_STEPS = ("vocab", "vocab_oov")


def drop_unused_files(item: GraphItem, options: ConvertOptions) -> PassOutcome:
    """See the module docstring. The files themselves stay on disk until the bundle is written (the reference graph
    reads them).
    """
    del options
    view = GraphView(item.graph_def)
    used = {node.attr["index"].i for node in view if node.op in _INDEXED}
    used |= {index for node in view if node.op == DENSE_OP for index in node.attr["files"].list.i}
    for group in item.groups:
        for spec, _ in group.lookups:
            used |= {spec.table} | {int(s.args[0]) for s in spec.steps if s.kind in _VOCABULARY_STEPS}
    if len(used) == len(item.files):
        return PassOutcome()
    dropped = [f.name for k, f in enumerate(item.files) if k not in used]
    number = {old: new for new, old in enumerate(sorted(used))}
    item.files = [f for k, f in enumerate(item.files) if k in used]
    for node in view:
        if node.op in _INDEXED:
            node.attr["index"].i = number[node.attr["index"].i]
        elif node.op == DENSE_OP:
            node.attr["files"].list.i[:] = [number[index] for index in node.attr["files"].list.i]
    item.tables = {name: number[index] for name, index in item.tables.items() if name in view}
    item.groups = [_renumber(group, number) for group in item.groups]
    for group in item.groups:
        text = spec_text(group.lookups, group.outputs, group.bind, group.copies)
        view.node(group.node).attr["spec"].s = text.encode()
    return PassOutcome(
        fired=len(dropped), notes=(f"{len(dropped)} files that nothing reads: {', '.join(dropped[:8])}",)
    )


def _renumber(group: FusedGroup, number: dict[int, int]) -> FusedGroup:
    lookups = tuple((_renumber_spec(spec, number), place) for spec, place in group.lookups)
    return dataclasses.replace(group, lookups=lookups)


def _renumber_spec(spec: LookupSpec, number: dict[int, int]) -> LookupSpec:
    steps = tuple(
        Step(s.kind, (str(number[int(s.args[0])]), *s.args[1:])) if s.kind in _VOCABULARY_STEPS else s
        for s in spec.steps
    )
    return dataclasses.replace(spec, table=number[spec.table], steps=steps)
