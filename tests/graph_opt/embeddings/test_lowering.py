"""Lookups of frozen embedding variables: as stock operations, and fused, against NumPy."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_opt.embeddings.calls import EvLookup
from graph_opt.embeddings.lowering import lower
from graph_opt.finish import finish
from graph_opt.item import GraphItem
from graph_opt.passes.fuse_lookups import fuse_lookups
from graph_opt.sessions import ItemSession
from graph_opt.testing import apply, graph_item, op_counts
from graph_opt.view import GraphView

v1 = tf.compat.v1
DIM = 5
KEYS = [-(2**63), -4, 0, 1, 7, 2**40, 2**63 - 1]
ROWS = np.random.default_rng(5).normal(size=(len(KEYS) + 1, DIM)).astype(np.float32)
TABLE: dict[int | None, np.ndarray] = {**dict(zip(KEYS, ROWS, strict=False)), None: ROWS[-1]}
KINDS = [
    (combiner, weighted, limit)
    for combiner in ("", "sum", "mean", "sqrtn")
    for weighted in (False, True)
    for limit in (None, 1.5)
    if combiner or not weighted
]

SPARSE = [("mean", False, None), ("sqrtn", True, 1.5), ("sum", True, None)]


def lowered(folder: Path, combiner: str, weighted: bool, limit: float | None, sparse: bool = False) -> GraphItem:
    """A graph with one lookup: keys, and splits (or indices and dense shape), and weights."""

    def build(tables: Any) -> dict[str, tf.Tensor]:
        keys = v1.placeholder(tf.int64, [None], "keys")
        if combiner and sparse:
            from tfctr.embedding.ops import row_splits_of

            indices, shape = v1.placeholder(tf.int64, [None, 2], "indices"), v1.placeholder(tf.int64, [2], "shape")
            tf.identity(row_splits_of(indices, shape), "made_splits")
        elif combiner:
            v1.placeholder(tf.int64, [None], "splits")
        if weighted:
            v1.placeholder(tf.float32, [None], "weights")
        return {"rows": tables.rows("t", keys)}

    item = graph_item(build, embeddings={"t": TABLE}, work_dir=folder)
    view = GraphView(item.graph_def)
    splits = ("made_splits:0" if sparse else "splits:0") if combiner else None
    lookup = EvLookup(
        handle="t", dim=DIM, keys="keys:0", splits=splits, weights="weights:0" if weighted else None,
        combiner=combiner, max_norm=limit,
    )  # fmt: skip
    out = lower(view, "lookup", item.store_node, 0, lookup)
    item.signatures["serving_default"].outputs["rows"].name = f"{out}:0"
    return item


def reference(
    combiner: str, limit: float | None, keys: np.ndarray, splits: np.ndarray, weights: np.ndarray | None
) -> np.ndarray:
    rows = np.array([TABLE.get(int(k), TABLE[None]) for k in keys], np.float64).reshape(len(keys), DIM)
    if limit is not None:
        rows = rows * limit / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), limit)
    if not combiner:
        return rows
    w = np.ones(len(keys)) if weights is None else weights.astype(np.float64)
    found = np.zeros((len(splits) - 1, DIM))
    for r, (first, last) in enumerate(itertools.pairwise(splits)):
        total = (rows[first:last] * w[first:last, None]).sum(0)
        divisor = {
            "sum": 1.0,
            "mean": np.float32(w[first:last].astype(np.float32).sum()),
            "sqrtn": np.sqrt((w[first:last] ** 2).sum()),
        }[combiner]
        found[r] = total / divisor if divisor else 0.0
    return found


class Both:
    """Sessions of the lowered and the fused graph of one kind."""

    def __init__(self, folder: Path, kind: tuple[str, bool, float | None], sparse: bool) -> None:
        self.kind, self.sparse = kind, sparse
        item = lowered(folder, *kind, sparse=sparse)
        fused, self.outcome = apply(fuse_lookups, item)
        self.ops = op_counts(fused)
        self.details = self.outcome.details["lookups"]
        self.sessions = []
        for one in (item, fused):
            finish(one)
            self.sessions.append((ItemSession(one), one.signatures["serving_default"].outputs["rows"].name))

    def run(self, keys: np.ndarray, splits: np.ndarray, weights: np.ndarray) -> list[np.ndarray]:
        feeds: dict[str, Any] = {"keys:0": keys}
        if self.kind[0] and self.sparse:
            lengths = np.diff(splits)
            at = np.stack([np.repeat(np.arange(len(lengths)), lengths), np.arange(len(keys))], 1)
            feeds |= {
                "indices:0": at.astype(np.int64),
                "shape:0": np.array([len(lengths), max(len(keys), 1)], np.int64),
            }
        elif self.kind[0]:
            feeds["splits:0"] = splits
        if self.kind[1]:
            feeds["weights:0"] = weights
        return [session.run([output], feeds)[0] for session, output in self.sessions]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Both]:
    return {
        (kind, sparse): Both(tmp_path_factory.mktemp("lowered"), kind, sparse)
        for kind in KINDS
        for sparse in ((False, True) if kind in SPARSE else (False,))
    }


def test_every_kind_is_fused_from_its_raw_inputs(made):
    for (kind, sparse), both in made.items():
        (entry,) = both.details
        assert entry["status"] == "fused", (kind, sparse, entry)
        assert entry["steps"] == ["find"] and entry["hashed"] and entry["table_rows"] == len(KEYS)
        assert entry["form"] == ("dense" if not kind[0] else "sparse" if sparse else "ragged"), (kind, sparse)
        assert set(both.ops) <= {"Placeholder", "TfctrStore", "TfctrFusedLookup", "Identity"}, (kind, both.ops)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_lowered_and_fused_give_what_numpy_gives(made, data):
    lengths = data.draw(st.lists(st.integers(0, 11), max_size=6))
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    some_key = st.one_of(st.sampled_from(KEYS), st.integers(-(2**63), 2**63 - 1))
    count = sum(lengths)
    keys = np.array(data.draw(st.lists(some_key, min_size=count, max_size=count)), np.int64)
    weight = st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0, -0.5])
    weights = np.array(data.draw(st.lists(weight, min_size=count, max_size=count)), np.float32)
    for (kind, _), both in made.items():
        combiner, weighted, limit = kind
        want = reference(combiner, limit, keys, splits, weights if weighted else None)
        for got in both.run(keys, splits, weights):
            assert got.dtype == np.float32 and got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6, err_msg=str(kind))


@pytest.mark.parametrize(
    ("splits", "error"),
    [([0, 2, 1, 3], "falls from 2 to 1"), ([0, 1, 2], "expected 0 to the number of keys, 3"), ([1, 3], "from 1 to 3")],
)
def test_bad_row_splits_are_refused_as_lowered_and_fused(made, splits, error):
    both = made[("mean", False, None), False]
    for number in range(2):
        session, output = both.sessions[number]
        feeds = {"keys:0": np.arange(3), "splits:0": np.array(splits, np.int64)}
        with pytest.raises(tf.errors.InvalidArgumentError, match=error if number == 0 else "splits"):
            session.run([output], feeds)
