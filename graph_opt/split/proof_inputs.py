"""What the inputs of a signature may hold, read from its graph and from the specs of its fused lookups."""

from __future__ import annotations

from typing import Any

from graph_opt.describe import with_keys
from graph_opt.domains import WIDE, Domains
from graph_opt.item import GraphItem
from graph_opt.lookup_spec import LookupSpec, Step
from graph_opt.recognise.facts import Facts
from graph_opt.rows.feeds import Feeds
from graph_opt.signature_info import signature_info
from graph_opt.view import GraphView, canonical

Domain = dict[str, Any]


def described_inputs(item: GraphItem, name: str, feeds: Feeds) -> dict[str, Any]:
    """The signature as a manifest describes it: inputs with their domains, features."""
    view = GraphView(item.graph_def)
    facts = Facts(view)
    info = signature_info(item.signatures[name])
    info["features"] = feeds.features
    tensors = {canonical(entry["tensor"]): entry for entry in info["inputs"]}
    domains = Domains(view, set(tensors), facts)
    for group in item.groups:
        for spec, _ in group.lookups:
            domains.state(spec.ids, before_steps(spec))
    for tensor, entry in tensors.items():
        domain = domains.of.get(tensor)
        if domain is not None:
            entry["domain"] = with_keys(item, domain, entry["dtype"])
    values = {f["name"]: f["parts"]["values"] for f in feeds.features if f["kind"] != "dense"}
    for feature, inputs in feeds.inputs.items():
        for one in inputs:
            parts = next((f["parts"].values() for f in feeds.features if f["name"] == feature), ())
            if feature in values and one not in parts:
                next(e for e in info["inputs"] if e["name"] == one)["domain"] = {
                    "kind": "weights",
                    "like": values[feature],
                }
    return info


def before_steps(spec: LookupSpec) -> Domain:
    """What raw ids may be for the lookup to find rows of its table."""
    domain: Domain = {"kind": "ids", "low": 0, "high": spec.table_rows}
    if spec.hashed:
        domain = {"kind": "table_keys", "file": spec.table}
    for step in reversed(spec.steps):
        domain = _before(step, domain)
    return domain


def _before(step: Step, domain: Domain) -> Domain:
    if step.kind in ("hash_fast", "hash_strong", "fingerprint"):
        return {"kind": "text"}
    if step.kind in ("vocab", "vocab_oov"):
        return {"kind": "keys", "file": int(step.args[0])}
    if step.kind == "bucketize":
        bounds = [float(b) for b in step.args]
        spread = max(bounds[-1] - bounds[0], 1.0) if bounds else 1.0
        return {"kind": "float", "low": bounds[0] - spread / 4, "high": bounds[-1] + spread / 4} if bounds else domain
    if domain["kind"] != "ids":
        return domain
    low, high = domain["low"], domain["high"]
    if step.kind in ("mod", "as_string"):
        return {"kind": "ids", "low": 0, "high": WIDE}
    if step.kind == "add":
        return {"kind": "ids", "low": low - int(step.args[0]), "high": high - int(step.args[0])}
    if step.kind == "divide":
        return {"kind": "ids", "low": low * int(step.args[0]), "high": high * int(step.args[0])}
    if step.kind == "mul":
        return {"kind": "ids", "low": low // int(step.args[0]), "high": max(high // int(step.args[0]), 1)}
    if step.kind == "addcol":
        offsets = [int(a) for a in step.args]
        return {"kind": "ids", "low": low - min(offsets), "high": high - max(offsets)}
    return domain
