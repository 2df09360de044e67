"""Proof that a lowered lookup gives what ``TfctrEvLookup`` gives, by running both over one small table.

Every kind of lookup of a model (combiner, weights, max_norm, width) is run beside the embedding variable's own op: a
live table and a hash file hold the same random rows and the same random default row; keys are present, unknown and the
extremes of int64, rows of the batch are empty, weights are zero, negative and cancel each other. Largest difference
allowed: 1e-6 of the largest result.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from graph_opt.embeddings.calls import LOOKUP_OP, EvLookup, read_call
from graph_opt.embeddings.lowering import lower
from graph_opt.finish import finish
from graph_opt.hash_files import add_built_hash
from graph_opt.item import GraphItem
from graph_opt.sessions import ItemSession
from graph_opt.store_files import store_node
from graph_opt.view import GraphView, node_of
from tfctr.core import library
from tfctr.errors import InternalError, UsageError

TOLERANCE = 1e-6
_KEYS = np.array([-(1 << 63), -(1 << 63) + 1, -5, -1, 0, 1, 2, 3, 1 << 31, 1 << 40, (1 << 63) - 1], np.int64)
_UNKNOWN = np.array([-2, 7, (1 << 63) - 2, 1 << 32], np.int64)
# Values per row of the batch; where stock's order of additions changes, and empty rows everywhere.
_LENGTHS = (0, 1, 3, 0, 2, 9, 10, 17, 33, 1, 0, 0)


@dataclasses.dataclass(frozen=True)
class _Kind:
    """What the lookups of one proof have in common."""

    combiner: str
    weighted: bool
    max_norm: float | None
    dim: int


def prove_lowering(lookups: Sequence[tuple[EvLookup, Mapping[str, Any]]]) -> dict[str, Any]:
    """Proves every kind of lookup among ``lookups`` (each with its table's configuration); what was done, for the
    report. UsageError names a variable whose lookup gives other numbers.
    """
    kinds: dict[_Kind, Mapping[str, Any]] = {}
    for lookup, config in lookups:
        kind = _Kind(lookup.combiner, lookup.weights is not None, lookup.max_norm, lookup.dim)
        kinds.setdefault(kind, config)
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="tfctr-embeddings-") as folder:
        for kind, config in kinds.items():
            difference = _difference(kind, config, Path(folder))
            if not difference <= TOLERANCE:
                raise UsageError(
                    f"embedding variable {config['name']!r}: its lookup ({_words(kind)}) gives other numbers as stock "
                    f"operations over a hash file: they differ by {difference:.3g} of the largest, expected at most "
                    f"{TOLERANCE:g}"
                )
            worst = max(worst, difference)
    told = f"{len(kinds)} kinds of lookups give what TfctrEvLookup gives, within {worst:.1e}"
    return {"kinds": [_words(k) for k in kinds], "largest_difference": worst, "tolerance": TOLERANCE, "told": told}


def _words(kind: _Kind) -> str:
    found = [kind.combiner or "one row per key", f"dim {kind.dim}"]
    found += ["weighted"] if kind.weighted else []
    found += [] if kind.max_norm is None else [f"max_norm {kind.max_norm:g}"]
    return ", ".join(found)


def _difference(kind: _Kind, config: Mapping[str, Any], folder: Path) -> float:
    """The largest difference between both, relative to the largest sum of magnitudes."""
    random = np.random.default_rng(len(kind.combiner) + kind.dim)
    scale = 1.0 if kind.max_norm is None else kind.max_norm / kind.dim**0.5
    rows = (random.normal(size=(len(_KEYS) + 1, kind.dim)) * scale).astype(np.float32)
    item, outputs = _both(kind, config, rows, folder)
    feeds = _feeds(kind, random)
    with ItemSession(item) as session:
        live, frozen = session.run(list(outputs), feeds)
    if live.shape != frozen.shape or live.dtype != frozen.dtype:
        raise InternalError(f"a lowered lookup ({_words(kind)}) gives {frozen.dtype}{frozen.shape}, not {live.shape}")
    if np.isfinite(live).all() != np.isfinite(frozen).all():
        return float("inf")
    return float(np.abs(live - frozen).max(initial=0.0)) / max(float(np.abs(live).max(initial=0.0)), 1e-30)


def _feeds(kind: _Kind, random: np.random.Generator) -> dict[str, Any]:
    keys = random.choice(np.concatenate([_KEYS, _UNKNOWN]), sum(_LENGTHS))
    keys[: len(_KEYS)] = _KEYS
    feeds: dict[str, Any] = {"keys:0": keys}
    if kind.combiner:
        feeds["splits:0"] = np.concatenate([[0], np.cumsum(_LENGTHS)]).astype(np.int64)
    if kind.weighted:
        weights = random.uniform(0.5, 2.0, len(keys)).astype(np.float32)
        weights[0] = 0.0  # a row whose weights add up to 0
        weights[1:4] = (1.5, -0.5, 0.25)
        weights[4:6] = (0.75, -0.75)
        feeds["weights:0"] = weights
    return feeds


def _both(kind: _Kind, config: Mapping[str, Any], rows: np.ndarray, folder: Path) -> tuple[GraphItem, tuple[str, str]]:
    """An item with a live table, filled when it is asked, and a hash file of the same rows; the two results."""
    name = uuid.uuid4().hex
    item = GraphItem(
        graph_def=tf.compat.v1.GraphDef(), signatures={}, store_name=f"tfctr/proof/{name}", work_dir=folder
    )
    index = add_built_hash(item, name, _KEYS, rows[:-1], rows[-1])
    with tf.Graph().as_default() as graph:
        live = _live(kind, {**config, **_PLAIN}, rows, name)
    item.graph_def.CopyFrom(graph.as_graph_def(add_shapes=False))
    view = GraphView(item.graph_def)
    (lookup,) = read_call(view, view.node(node_of(live)))
    frozen = lower(view, "frozen", store_node(item, view), index, lookup)
    finish(item)
    return item, (live, f"{frozen}:0")


def _live(kind: _Kind, config: Mapping[str, Any], rows: np.ndarray, name: str) -> str:
    """The live table's lookup in the current graph."""
    ops = library.load()
    config = {**config, "name": name, "default_value": [float(v) for v in rows[-1]]}
    keys = tf.compat.v1.placeholder(tf.int64, [None], "keys")
    splits = [tf.compat.v1.placeholder(tf.int64, [None], "splits")] if kind.combiner else []
    weights = [tf.compat.v1.placeholder(tf.float32, [None], "weights")] if kind.weighted else []
    handle = ops.tfctr_ev_handle(config=json.dumps(config, sort_keys=True, separators=(",", ":")), shared_name=name)
    nothing = tf.zeros([0], tf.int64)
    step = tf.constant(0, tf.int64)
    filled = ops.tfctr_ev_import(
        handle=handle, step=step, keys=tf.constant(_KEYS), values=tf.constant(rows[:-1]), slots=[], frequency=nothing,
        last_step=nothing, last_time=nothing, slot_names=[],
    )  # fmt: skip
    with tf.control_dependencies([filled]):
        (found,) = ops.tfctr_ev_lookup(
            handles=[handle], keys=[keys], row_splits=splits, weights=weights, step=step, training=False,
            dims=[kind.dim], combiners=[kind.combiner], splits_index=[0 if kind.combiner else -1],
            weights_index=[0 if kind.weighted else -1], max_norms=[-1.0 if kind.max_norm is None else kind.max_norm],
        )  # fmt: skip
    assert found.op.type == LOOKUP_OP
    return found.name


# What a table that is only read needs nothing of.
_PLAIN: dict[str, Any] = {
    "optimizer": None, "clip": None, "admission": None, "eviction": [], "evict_every_steps": 0, "evict_on_save": False,
    "max_bytes": 0, "expected_rows": 0, "shards": 1,
}  # fmt: skip
