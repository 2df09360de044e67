"""Inside a pass: the first tensor that has other values after it, and the lookups that are to blame."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from graph_opt.bisect.forms import Inputs, forms
from graph_opt.bisect.walk import Stage, Walk
from graph_opt.fused_node import FUSED_OP
from graph_opt.item import FusedGroup, GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.parity import compare
from graph_opt.verify import output_dtypes
from graph_opt.view import GraphView, node_of, port_of

FUSE = "fuse_lookups"
_COMPARED = ("f", "i", "u", "b", "V", "O")


def narrowed_options(stage: Stage, options: ConvertOptions, chosen: Sequence[str]) -> ConvertOptions:
    """``options`` under which the pass does only the rewrites ``chosen``."""
    if stage.one.name == FUSE:
        return dataclasses.replace(options, only_lookups=frozenset(chosen))
    return dataclasses.replace(options, only_rewrites=frozenset(chosen))


def first_wrong_tensor(walk: Walk, before: GraphItem, after: GraphItem, form: str, inputs: Inputs) -> str:
    """The first tensor in the order of computation that both graphs have and that has other values (or another shape)
    after the pass; "" where there is none, or one of the graphs does not run. Nodes of a packed or split form are held
    against the node they were copied from.
    """
    pairs = _common_tensors(before, after, walk.signature, form)
    if not pairs:
        return ""
    try:
        with walk.runner(before) as one, walk.runner(after) as two:
            old_form = form if form in forms(before, walk.signature) else "plain"
            want = _values(one, [old for old, _ in pairs], old_form, inputs)
            got = _values(two, [new for _, new in pairs], form, inputs)
    except (tf.errors.OpError, ValueError, TypeError):
        return ""
    for (_, name), a, b in zip(pairs, got, want, strict=True):
        if a is not None and b is not None and not _same(np.asarray(a), np.asarray(b)):
            return name
    return ""


def _same(got: np.ndarray, want: np.ndarray) -> bool:
    if got.shape != want.shape:
        return True  # the pass may have changed what the tensor holds (rows of users, columns of more lookups)
    return got.dtype.kind not in _COMPARED or compare("", "", got, want).ok


def _values(runner: Any, tensors: Sequence[str], form: str, inputs: Inputs) -> list[Any]:
    """Values of ``tensors``; None for one that can't be fetched (a dead branch, a resource)."""
    try:
        return list(runner.values(tensors, form, inputs))
    except (tf.errors.OpError, ValueError, TypeError):
        found: list[Any] = []
        for tensor in tensors:
            try:
                found += runner.values([tensor], form, inputs)
            except (tf.errors.OpError, ValueError, TypeError):
                found.append(None)
        return found


def _common_tensors(before: GraphItem, after: GraphItem, signature: str, form: str) -> list[tuple[str, str]]:
    """(tensor before, tensor after) in the order in which the graph after the pass computes them."""
    old, new = GraphView(before.graph_def), GraphView(after.graph_def)
    name = forms(after, signature)[form]
    needed = new.ancestors(after.fetches(name))
    depends = _depending(new, after.feeds(name))
    arena = after.signatures[name].inputs.get("arena") if form.endswith("packed") else None
    prefix = node_of(arena.name).removesuffix("arena") if arena is not None else name + "/"
    found = []
    for node in new.topological():
        if node.name not in needed or node.name not in depends or node.op in ("Placeholder", "PlaceholderWithDefault"):
            continue
        source = node.name if node.name in old else node.name.removeprefix(prefix)
        if source not in old or old.node(source).op != node.op:
            continue
        dtypes = [tf.as_dtype(d) for d in output_dtypes(node)]
        if any(d in (tf.resource, tf.variant) or d._is_ref_dtype for d in dtypes):
            continue
        found += [(f"{source}:{port}", f"{node.name}:{port}") for port in range(len(dtypes))]
    return found


def _depending(view: GraphView, tensors: Sequence[str]) -> set[str]:
    reached = {node_of(t) for t in tensors}
    for node in view.topological():
        if any(node_of(i) in reached for i in node.input):
            reached.add(node.name)
    return reached


def lookups_of(
    stage: Stage, after: GraphItem, options: ConvertOptions, tensor: str, walk: Walk, form: str, inputs: Inputs
) -> tuple[str, ...]:
    """Names of the lookups that make the difference: those that a narrowed ``fuse_lookups`` still fuses, or those in
    the wrong columns of ``tensor`` where that is the output of a fused op.
    """
    if stage.one.name == FUSE:
        if options.only_lookups is None and len(stage.report.rewrites) != 1:
            return ()
        return tuple(dict.fromkeys(spec.name for group in after.groups for spec, _ in group.lookups))
    view = GraphView(after.graph_def)
    node = view.get(tensor) if tensor else None
    if node is None or node.op != FUSED_OP:
        return ()
    plain = next((g for g in after.groups if node.name == g.node or node.name.endswith("/" + g.node)), None)
    if plain is None:
        return ()
    source = node.name if node.name in GraphView(stage.before.graph_def) else plain.node
    with walk.runner(stage.before) as one, walk.runner(after) as two:
        old_form = form if form in forms(stage.before, walk.signature) else "plain"
        (want,) = one.values([f"{source}:{port_of(tensor)}"], old_form, inputs)
        (got,) = two.values([tensor], form, inputs)
    return _in_columns(plain, port_of(tensor), np.asarray(got), np.asarray(want))


def _in_columns(group: FusedGroup, port: int, got: np.ndarray, want: np.ndarray) -> tuple[str, ...]:
    """Lookups of output ``port`` whose columns differ."""
    places = sorted((place.column, spec.name) for spec, place in group.lookups if place.output == port)
    ends = [column for column, _ in places[1:]] + [got.shape[-1] if got.ndim else 0]
    found = []
    for (begin, name), end in zip(places, ends, strict=True):
        if not compare("", "", got[..., begin:end], want[..., begin:end]).ok:
            found.append(name)
    return tuple(found)
