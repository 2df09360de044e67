"""Embedding lookups become ``TfctrFusedLookup`` ops: recognised by meaning, proven by execution, then grouped.

A lookup that is not recognised, or does not give the same numbers and errors as the original on every probe, stays as
it is
and is reported with the reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

from graph_opt.candidates import Candidate, Proof, Refusal
from graph_opt.describe import feature_names
from graph_opt.fusing.levels import Member, find_levels
from graph_opt.fusing.plan import Planner
from graph_opt.fusing.rewrite import Rewriter, merged_specs
from graph_opt.fusing.shared import find_shared_work
from graph_opt.hash_files import lookup_files
from graph_opt.item import FusedGroup, GraphItem, ProvenLookup, StoreFile
from graph_opt.lookup_spec import LookupSpec, Placement
from graph_opt.options import ConvertOptions
from graph_opt.passes.prune_training import prune
from graph_opt.prove import prove_all
from graph_opt.prove.cone import extract_cone, inside_nodes
from graph_opt.recognise import find_lookups, reasons
from graph_opt.recognise.facts import Facts
from graph_opt.report import PassOutcome, Refused
from graph_opt.store_files import merge_tables
from graph_opt.view import GraphView, node_of

OPTIONS = (
    "--strict: a failed proof ends the conversion",
    "--require-fused PATTERN: so does a lookup of that name that was left",
    "only_lookups (Python): names of the lookups to fuse",
)
REASONS = {
    **{text: text for text in reasons.ALL},
    "not_chosen": "not among the lookups to fuse (only_lookups)",
    "not_proven": "not proven: {reason}",
}
EXAMPLE = """\
before  u, i = Unique(ids);  s = SparseSegmentMean(Gather(emb, u), i, rows);  ConcatV2(Where(empty, 0, s), ...)
after   TfctrFusedLookup(store, ids, rows, ...), spec "lookup table=0 combiner=mean ..." for every feature
"""

_NEARER_OUTPUTS = 3  # attempts after a failed proof, each ending nearer to the gather


def fuse_lookups(item: GraphItem, options: ConvertOptions) -> PassOutcome:
    """See the module docstring. ``details["lookups"]`` lists every lookup found, fused or left, for the manifest;
    ``same_as`` names the lookup whose result it shares, ``ids_shared_with`` the first one that reads the same ids.
    """
    if options.table_dtype != "fp32" or options.dense_passes:
        item.unfused = item.copy()
    view = GraphView(item.graph_def)
    facts = Facts(view)
    tables = lookup_files(item, view)
    fetches = [t for name in item.optimise or item.signatures for t in item.fetches(name)]
    names = feature_names(item, view)

    def find(avoid: Collection[str]) -> tuple[list[Candidate], list[Refusal]]:
        found, left = find_lookups(view, fetches, tables, inputs=names, facts=facts, avoid=avoid)
        chosen = [c for c in found if is_chosen(c, options.only_lookups)]
        left += [_not_chosen(c, item) for c in found if not is_chosen(c, options.only_lookups)]
        return [_with_row_output(c, facts) for c in chosen], left

    candidates, refusals = find(())
    proofs = _prove(item, candidates, find)
    proven = [(p.candidate, p.spec) for p in proofs if p.ok and p.spec is not None]
    item.proven += [_proven(view, c, spec) for c, spec in proven]
    groups = replace_lookups(item, view, facts, proven)
    refusals = [*refusals, *(_refusal(p, item) for p in proofs if not p.ok)]
    details = [_fused_details(g, item) for g in groups] + [[_left_details(r)] for r in refusals]
    return PassOutcome(
        fired=len(proven),
        refused=tuple(
            Refused(what=r.name or r.gather, reason=r.reason, nodes=r.nodes or (r.gather,), proof_failed=r.proof_failed)
            for r in refusals
        ),
        notes=_notes(groups, proofs),
        details={"lookups": [entry for entries in details for entry in entries]},
        rewrites=tuple(candidate.gather for candidate, _ in proven),
    )


def is_chosen(candidate: Candidate, only: Collection[str] | None) -> bool:
    """Whether ``ConvertOptions.only_lookups`` names this lookup: by its name (the feature's) or its gather node."""
    return only is None or candidate.spec.name in only or candidate.gather in only


def _not_chosen(candidate: Candidate, item: GraphItem) -> Refusal:
    return Refusal(
        gather=candidate.gather,
        reason=REASONS["not_chosen"],
        name=candidate.spec.name,
        table=_table_name(candidate.spec.table, item),
    )


def _prove(
    item: GraphItem,
    candidates: Sequence[Candidate],
    find: Callable[[Collection[str]], tuple[list[Candidate], list[Refusal]]],
) -> list[Proof]:
    """One proof per candidate. Where it fails, lookups that end nearer to the same gather are tried in its place."""
    proofs = prove_all(item, candidates)
    failed = {p.candidate.gather: k for k, p in enumerate(proofs) if not p.ok}
    avoid = {proofs[k].candidate.output for k in failed.values()}
    for _ in range(_NEARER_OUTPUTS if failed else 0):
        nearer = [c for c in find(avoid)[0] if c.gather in failed]
        for proof in prove_all(item, nearer):
            avoid.add(proof.candidate.output)
            if proof.ok:
                proofs[failed.pop(proof.candidate.gather)] = proof
        if not nearer or not failed:
            break
    return proofs


def replace_lookups(
    item: GraphItem, view: GraphView, facts: Facts, proven: Sequence[tuple[Candidate, LookupSpec]]
) -> list[FusedGroup]:
    """Replaces proven lookups by fused nodes, as few as possible, and prunes what they leave unused.

    ``view`` is over ``item.graph_def``. Appends to ``item.groups`` and returns the new groups.
    """
    if not proven:
        return []
    proven = [(_with_nodes_of(view, c, spec), spec) for c, spec in proven]
    reach = {name: view.ancestors(item.fetches(name)) for name in item.signatures}
    levels = find_levels(view, proven)
    members = [
        Member(c, spec, depth, frozenset(s for s, nodes in reach.items() if node_of(c.output) in nodes))
        for (c, spec), depth in zip(proven, levels.depth, strict=True)
    ]
    merged = {
        (c.parts, c.strategy): merge_tables(item, c.parts, c.strategy) for c, _ in proven if c.parts
    }  # fmt: skip
    plan = Planner(view, facts, levels, item.keep()).plan(merged_specs(members, merged))
    rewriter = Rewriter(item, view, facts)
    groups = [rewriter.apply(blocks) for _, blocks in sorted(plan.items(), key=lambda entry: entry[0][1])]
    rewriter.finish()
    prune(item)
    return groups


def _with_nodes_of(view: GraphView, candidate: Candidate, spec: LookupSpec) -> Candidate:
    """The candidate with the interior nodes of the reading that was proven."""
    cone = extract_cone(view, candidate.output, spec.sources())
    return dataclasses.replace(candidate, nodes=inside_nodes(view, cone))


def _proven(view: GraphView, candidate: Candidate, spec: LookupSpec) -> ProvenLookup:
    cone = extract_cone(view, candidate.output, spec.sources())
    return ProvenLookup(
        spec=spec,
        output=candidate.output,
        gather=candidate.gather,
        parts=candidate.parts,
        strategy=candidate.strategy,
        constants=tuple(sorted(n for n in cone.nodes if view.node(n).op == "Const")),
        files=tuple(sorted(cone.files)),
    )


def _with_row_output(candidate: Candidate, facts: Facts) -> Candidate:
    """A plain gather of a vector of ids [B] as rows of one id each, so that it shares an op with pooled lookups."""

    def changed(spec: LookupSpec) -> LookupSpec:
        if spec.combiner != "none" or spec.ids_per_row is not None or facts.rank(spec.ids) != 1:
            return spec
        return dataclasses.replace(spec, ids_per_row=1)

    alternatives = tuple(changed(s) for s in candidate.alternatives)
    return dataclasses.replace(candidate, spec=changed(candidate.spec), alternatives=alternatives)


def _refusal(proof: Proof, item: GraphItem) -> Refusal:
    candidate = proof.candidate
    more = f" (and {len(proof.tried) - 1} other readings failed)" if len(proof.tried) > 1 else ""
    return Refusal(
        gather=candidate.gather,
        reason=REASONS["not_proven"].format(reason=proof.reason + more),
        nodes=tuple(sorted(candidate.nodes)),
        name=candidate.spec.name,
        table=_table_name(candidate.spec.table, item),
        proof_failed=True,
    )


def _table_name(index: int, item: GraphItem) -> str:
    return item.files[index].name if 0 <= index < len(item.files) else ""


def _notes(groups: Sequence[FusedGroup], proofs: Sequence[Proof]) -> tuple[str, ...]:
    count = sum(len(g.lookups) + len(g.repeats) for g in groups)
    probes = sum(p.probes for p in proofs if p.ok)
    exact = sum(p.ok and p.bit_equal for p in proofs)
    if not count:
        return ("no lookup was fused",)
    return (
        f"{count} lookup{'s' if count != 1 else ''} became {len(groups)} fused op{'s' if len(groups) != 1 else ''}",
        f"proven on {probes} probes, {exact} of {count} lookups bit for bit",
        *_shared_notes(groups),
    )


def _shared_notes(groups: Sequence[FusedGroup]) -> list[str]:
    found = [find_shared_work([spec for spec, _ in g.lookups]) for g in groups]
    copied = sum(len(g.repeats) for g in groups) + sum(len(work.copied) for work in found)
    sharing, pipelines = sum(len(w.ids) for w in found), sum(len(set(w.ids.values())) for w in found)
    notes = []
    if copied:
        notes.append(f"{copied} lookups equal another one and are not computed again")
    if sharing:
        notes.append(f"{sharing} lookups read {pipelines} streams of hashed or looked-up ids, each resolved once")
    return notes


def _fused_details(group: FusedGroup, item: GraphItem) -> list[dict[str, Any]]:
    specs = [spec for spec, _ in group.lookups]
    work = find_shared_work(specs)
    at = {place: k for k, (_, place) in enumerate(group.lookups)}

    def entry(spec: LookupSpec, place: Placement, same_as: int | None, ids_of: int | None = None) -> dict[str, Any]:
        found = {
            **spec_details(spec, item.files),
            "status": "fused",
            "reason": "",
            "table_name": _table_name(spec.table, item),
            "node": group.node,
            "output": f"{group.node}:{place.output}",
            "column": place.column,
            "output_form": group.outputs[place.output].form,
            "output_columns": group.outputs[place.output].columns,
        }
        if same_as is not None:
            found["same_as"] = specs[same_as].name
        if ids_of is not None:
            found["ids_shared_with"] = specs[ids_of].name
        return found

    entries = [entry(spec, place, work.copied.get(k), work.ids.get(k)) for k, (spec, place) in enumerate(group.lookups)]
    for name, place in group.repeats:
        first = at[place]
        entries.append(entry(dataclasses.replace(specs[first], name=name), place, first))
    return entries


def _left_details(refusal: Refusal) -> dict[str, Any]:
    return {
        "name": refusal.name or refusal.gather,
        "status": "left",
        "reason": refusal.reason,
        "table_name": refusal.table,
        "node": refusal.gather,
    }


def spec_details(spec: LookupSpec, files: Sequence[StoreFile]) -> dict[str, Any]:
    """The fields of a spec that differ from their defaults, JSON-able; steps as text. Of a hash file: its rows."""
    fields = {
        f.name: getattr(spec, f.name)
        for f in dataclasses.fields(spec)
        if f.default is dataclasses.MISSING or getattr(spec, f.name) != f.default
    }
    hashed = {"hashed": True, "table_rows": files[spec.table].shape[0]} if spec.hashed else {}
    return {**fields, "steps": [s.text() for s in spec.steps], **hashed}
