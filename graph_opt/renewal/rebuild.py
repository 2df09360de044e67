"""The reference graph and the converted graph of a bundle again, over new values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from graph_opt.item import FusedGroup, GraphItem, StoreFile
from graph_opt.lookup_spec import LookupSpec, Step, spec_text
from graph_opt.renewal.encode import contents_hash
from graph_opt.renewal.record import Record, all_finite
from graph_opt.renewal.values import NewValues
from graph_opt.renewal.weights import Array, Part, content_hash, fill, part_of, unmark, value_of
from graph_opt.store_files import add_array, merge_tables
from graph_opt.view import GraphView, node_of
from tfctr.errors import ConvertAnewError, UsageError

_VOCABULARY_STEPS = ("vocab", "vocab_oov")


@dataclasses.dataclass(frozen=True)
class Changes:
    """What is not as it was. weights: names in the reference graph; vocabularies: file numbers; sizes: of them, those
    with another number of entries -> (old, new)."""

    weights: frozenset[str]
    vocabularies: frozenset[int]
    sizes: dict[int, tuple[int, int]]


def find_changes(record: Record, values: NewValues) -> Changes:
    """Compares by content."""
    files = list(enumerate(zip(record.reference.files, values.files, strict=True)))
    read = [] if values.same_export else [(k, a, b.path) for k, (a, b) in files if a.kind == "vocab"]
    vocabularies = {k for k, a, path in read if path is None or a.fingerprint != contents_hash(path)}
    sizes = {k: (a.shape[0], b.shape[0]) for k, (a, b) in files if a.kind == "vocab" and a.shape != b.shape}
    weights = {name for name, value in values.weights.items() if content_hash(value) != record.hashes[name]}
    return Changes(frozenset(weights), frozenset(vocabularies), sizes)


def check_finite(record: Record, values: NewValues) -> None:
    """UsageError names a weight that holds NaN or infinity, and did not in the bundle."""
    for name, value in values.weights.items():
        if name not in record.nonfinite and not all_finite(value):
            wide = value.astype(np.float64)
            where = np.argwhere(~np.isfinite(wide))[0].tolist()
            count = int((~np.isfinite(wide)).sum())
            raise UsageError(
                f"weight {name.removeprefix('tfctr/constant/')!r} of the new model: {count} of {value.size} values are "
                f"NaN or infinite, the first at {where}: {wide[tuple(where)]}; the bundle's had none"
            )


def check_readings(record: Record, changes: Changes) -> set[str]:
    """Lookups (their gathers) whose proof took a value that changed: to be proven again. ConvertAnewError where a
    rewrite took one that can't be told again.
    """
    proven = record.template.proven
    again = {p.gather for p in proven if changes.vocabularies & set(p.files) or changes.weights & set(p.constants)}
    taken = {name for p in proven for name in p.constants}
    for name in sorted(changes.weights - taken):
        if name in record.consumed:
            raise _value_taken(name, "a rewrite took its value into something else")
        reason = _why_structure(record.reference, name)
        if reason is not None and name not in record.reference.vocabulary_sizes:
            raise _value_taken(name, reason)
    return again


def _value_taken(name: str, reason: str) -> ConvertAnewError:
    return ConvertAnewError(
        f"weight {name.removeprefix('tfctr/constant/')!r} changed, and {reason}; convert the new model"
    )


def _why_structure(reference: GraphItem, name: str) -> str | None:
    """An integer weight that is only turned into numbers of the model or given out is data. Anything else may have been
    read as a size or an index."""
    view = GraphView(reference.graph_def)
    if tf.as_dtype(view.node(name).attr["dtype"].type).is_floating:
        return None
    for user, _ in view.data_consumers(name):
        target = tf.as_dtype(user.attr["DstT"].type) if user.op == "Cast" else None
        if target is None or not target.is_floating:
            return f"{user.op} {user.name!r} may have read it as structure"
    return None


def rebuild(
    record: Record, values: NewValues, work: GraphItem, source_path: Path, changes: Changes
) -> tuple[GraphItem, GraphItem]:
    """(reference graph, converted graph before the passes of the dense tower): copies of the record's, over ``values``.
    Tables that were merged, and parts of dense ones, are written again.
    """
    reference, template = record.reference.copy(), record.template.copy()
    own = {
        n.name: value_of(n) for n in reference.graph_def.node if n.name in record.hashes and n.name not in record.empty
    }
    weights = {**own, **values.weights}
    for node in reference.graph_def.node:
        if node.name in record.hashes:
            fill(node, weights[node.name])
    for item in (reference, template):
        item.store_name, item.work_dir, item.on_copied = work.store_name, work.work_dir, work.on_copied
        item.source_path, item.assets = source_path, list(values.assets)
        item.mutable_state, item.variables = list(values.mutable_state), dict(values.variables)
        item.constants = dict(values.constants)
    reference.files = list(values.files)
    derived = template.files[len(values.files) :]
    template.files = list(values.files)
    _derive_files(template, derived, weights)
    for node in template.graph_def.node:
        part = part_of(node) if node.op == "Const" else None
        if part is not None:
            fill(node, part.of(weights[part.weight]) if part.weight else part.of(_table(template.files[part.file])))
    unmark(template.graph_def)
    template.unfused = reference
    resize(template, changes.sizes)
    return reference, template


def _derive_files(template: GraphItem, derived: list[StoreFile], weights: Mapping[str, Array]) -> None:
    by_number = {index: node for node, index in template.tables.items()}
    for file in derived:
        if file.merged is not None:
            strategy, parts = file.merged
            # The parts' table nodes may be gone with the lookups that read them.
            for index in parts:
                template.tables.setdefault(by_number.get(index, f"tfctr/part/{index}"), index)
            nodes = {index: node for node, index in template.tables.items()}
            merge_tables(template, [nodes[index] for index in parts], strategy)
        else:
            part = Part.parse(file.part)
            value = weights[part.weight] if part.weight else _table(template.files[part.file])
            add_array(template, part.of(value), file.name, file.part)
    view = GraphView(template.graph_def)
    template.tables = {node: index for node, index in template.tables.items() if node in view}


def _table(file: StoreFile) -> Array:
    """The rows of a table file, mapped."""
    assert file.path is not None
    return np.memmap(file.path, dtype=tf.as_dtype(file.dtype).as_numpy_dtype, mode="r", shape=file.shape)


def resize(template: GraphItem, sizes: Mapping[int, tuple[int, int]]) -> None:
    """Lookups that say how large a vocabulary is say its new size."""
    if not sizes:
        return
    template.proven = [dataclasses.replace(p, spec=resized(p.spec, sizes)) for p in template.proven]
    view = GraphView(template.graph_def)
    groups: list[FusedGroup] = []
    for group in template.groups:
        lookups: tuple[Any, ...] = tuple((resized(spec, sizes), place) for spec, place in group.lookups)
        changed = dataclasses.replace(group, lookups=lookups)
        view.node(node_of(group.node)).attr["spec"].s = spec_text(
            changed.lookups, changed.outputs, changed.bind, changed.copies
        ).encode()
        groups.append(changed)
    template.groups = groups


def resized(spec: LookupSpec, sizes: Mapping[int, tuple[int, int]]) -> LookupSpec:
    """``spec`` with the new sizes of vocabularies: keys that are in none get the numbers after the last entry."""

    def step(one: Step) -> Step:
        if one.kind != "vocab_oov" or int(one.args[0]) not in sizes:
            return one
        old, new = sizes[int(one.args[0])]
        return Step(one.kind, (one.args[0], str(new), *one.args[2:])) if one.args[1] == str(old) else one

    return dataclasses.replace(spec, steps=tuple(step(s) for s in spec.steps))
