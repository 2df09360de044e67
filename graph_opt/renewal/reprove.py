"""Proving again what held because of a value: lookups over changed vocabularies or constants, and split forms."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from graph_opt.candidates import Candidate
from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.passes.prune_training import prune
from graph_opt.prove import prove_all
from graph_opt.recognise.facts import Facts
from graph_opt.renewal.rebuild import Changes, resized
from graph_opt.renewal.record import Record
from graph_opt.rows.feeds import feed_kinds
from graph_opt.split.proof import prove as prove_split
from graph_opt.view import GraphView
from tfctr.errors import ConvertAnewError


def prove_lookups(record: Record, reference: GraphItem, gathers: Collection[str], changes: Changes) -> list[str]:
    """Proves the lookups of ``gathers`` again, over the new values. Returns one line each; ConvertAnewError names one
    that does not hold.
    """
    wanted = [p for p in record.template.proven if p.gather in gathers]
    candidates = [
        Candidate(
            spec=resized(p.spec, changes.sizes),
            output=p.output,
            nodes=frozenset(),
            gather=p.gather,
            parts=p.parts,
            strategy=p.strategy,
        )
        for p in wanted
    ]
    told = []
    for lookup, proof in zip(wanted, prove_all(reference, candidates), strict=True):
        what = _what_changed(record, lookup.files, lookup.constants, changes)
        if not proof.ok:
            raise ConvertAnewError(
                f"lookup {lookup.spec.name!r} ({lookup.gather}) was proven with {what}, which changed; with the new "
                f"contents it does not hold: {proof.reason}; convert the new model"
            )
        told.append(f"lookup {lookup.spec.name}: {what} changed; proven on {proof.probes} probes")
    return told


def _what_changed(record: Record, files: Collection[int], constants: Collection[str], changes: Changes) -> str:
    names = [f"vocabulary {record.reference.files[k].name!r}" for k in sorted(set(files) & changes.vocabularies)]
    names += [f"constant {name!r}" for name in sorted(set(constants) & changes.weights)]
    return ", ".join(names)


def prove_splits(template: GraphItem, options: ConvertOptions) -> tuple[list[str], Mapping[str, str]]:
    """Runs each split form against its plain form with the new weights. Returns one line each, and why forms were
    dropped: those that do not hold go, as in a conversion.
    """
    told: list[str] = []
    dropped: dict[str, str] = {}
    for name, form in list(template.split.items()):
        feeds = feed_kinds(template, name, Facts(GraphView(template.graph_def)))
        verdict = prove_split(template, name, feeds, frozenset(form.user_features), options)
        if verdict.ok:
            told.append(f"split form {form.signature}: proven on {verdict.requests} requests")
            continue
        dropped[name] = verdict.reason
        del template.split[name], template.signatures[form.signature]
        prune(template)
        left = {node.name for node in template.graph_def.node}
        template.groups = [g for g in template.groups if g.node in left]
        template.tables = {node: index for node, index in template.tables.items() if node in left}
        told.append(f"split form {form.signature}: dropped: {verdict.reason}")
    return told, dropped


def narrow_again(options: ConvertOptions, record: Record) -> ConvertOptions:
    """Options by which the pass of smaller tables judges those tables that were small, and no others."""
    names = frozenset(record.template.files[k].name for k in record.narrow)
    return dataclasses.replace(options, only_rewrites=names)
