"""Fused against stock where fusing has gone wrong elsewhere (DeepRec's list: cases 27, 28 and 29), forward only.

Case 28: widths around the vector sizes, every combiner, weights, empty rows, norms. Case 27: each pattern with the pass
on and off, and graphs that nearly are the pattern: a tensor inside is used elsewhere, waits for an effect, has another
dtype or constant, or an unknown shape. Whether such a graph is fused is the pass's affair; its numbers are not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from graph_opt.finish import finish
from graph_opt.item import GraphItem
from graph_opt.passes.fuse_lookups import fuse_lookups, replace_lookups
from graph_opt.recognise import find_lookups
from graph_opt.recognise.facts import Facts
from graph_opt.sessions import ItemSession
from graph_opt.testing import SIGNATURE, Tables, apply, graph_item, op_counts, run_item
from graph_opt.view import GraphView
from tests.graph_opt.graphs import placeholder, sparse_input, table

SAFE, PLAIN = tf.nn.safe_embedding_lookup_sparse, tf.nn.embedding_lookup_sparse
WIDTHS = (1, 3, 64, 65, 128, 257)
ROWS = 40
LENGTHS = {
    "empty rows inside": [3, 0, 1, 0, 12],
    "all rows empty": [0, 0, 0, 0],
    "trailing rows empty": [9, 1, 17, 0, 0],
    "no row at all": [],
}


def grid(tables: Tables) -> dict[str, tf.Tensor]:
    sparse = sparse_input("f")
    weights = tf.SparseTensor(sparse.indices, placeholder(tf.float32, [None], "weights"), sparse.dense_shape)
    found = {}
    # Every width with every combiner, with and without weights; a norm for every other one, so that each width, each
    # combiner and each kind has it and has it not. (Most of the test's time is TensorFlow writing these graphs.)
    kinds = (("plain", None), ("weighted", weights))
    for (w, width), (c, combiner), (k, (kind, given)) in itertools.product(
        enumerate(WIDTHS), enumerate(("sum", "mean", "sqrtn")), enumerate(kinds)
    ):
        norm = 1.0 if (w + c + k) % 2 else None
        name = f"{kind}_{width}_{combiner}_{norm}"
        found[name] = SAFE(tables[f"w{width}"], sparse, given, combiner=combiner, max_norm=norm)
    return found


def grid_feeds(lengths: list[int], zeros: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(len(lengths))
    rows = np.repeat(np.arange(len(lengths)), lengths)
    columns = np.concatenate([np.zeros(0, np.int64), *(np.arange(n) for n in lengths)])
    weights = np.zeros(len(rows)) if zeros else rng.normal(1, 2, len(rows))
    return {
        "f_indices": np.stack([rows, columns], 1).astype(np.int64),
        "f_ids": rng.integers(-2, ROWS, len(rows)),
        "f_shape": np.array([len(lengths), max([1, *lengths])], np.int64),
        "weights": weights.astype(np.float32),
    }


def fused_unproven(item: GraphItem) -> GraphItem:
    """Every lookup fused as it is recognised: the comparison below is wider than the proof."""
    after = item.copy()
    view = GraphView(after.graph_def)
    facts = Facts(view)
    files = {node: after.files[index] for node, index in after.tables.items()}
    candidates, refusals = find_lookups(view, after.fetches(SIGNATURE), files, facts=facts)
    assert not refusals
    replace_lookups(after, view, facts, [(c, c.spec) for c in candidates])
    return after


def test_case_28_widths_combiners_weights_empty_rows_and_norms(tmp_path: Path) -> None:
    arrays = {f"w{width}": table(ROWS, width, seed=width) for width in WIDTHS}
    item = graph_item(grid, tables=arrays, work_dir=tmp_path)
    after = fused_unproven(item)
    assert op_counts(after)["TfctrFusedLookup"] == 1
    assert "SparseFillEmptyRows" not in op_counts(after)
    cases = [(case, len(lengths), grid_feeds(lengths, zeros)) for case, lengths in LENGTHS.items() for zeros in (0, 1)]
    runs = [run_each(graph, [feeds for _, _, feeds in cases]) for graph in (after, item)]
    for (case, rows, _), got, want in zip(cases, *runs, strict=True):
        for name, value in want.items():
            assert got[name].shape == (rows, value.shape[1]), (case, name)  # case 29: the dense shape is kept
            assert np.isfinite(got[name]).all(), (case, name)  # nothing is left unwritten, nothing divided by zero
            np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6, err_msg=f"{case}: {name}")


def run_each(item: GraphItem, requests: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """All outputs for each request, in one session."""
    ready = item.copy()
    finish(ready)
    signature = ready.signatures[SIGNATURE]
    names = {name: info.name for name, info in signature.outputs.items()}
    with ItemSession(ready) as session:
        return [
            dict(zip(names, session.run([*names.values()], feeds_of(ready, feeds)), strict=True)) for feeds in requests
        ]


def feeds_of(item: GraphItem, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    signature = item.signatures[SIGNATURE]
    return {signature.inputs[name].name: value for name, value in feeds.items()}


# Case 27. A pattern: tables -> one result; its inputs are made by the caller, so that copies of it share them.


def dense_ids() -> tf.Tensor:
    return placeholder(tf.int64, [None, 4], "ids")


def masked_mean(tables: Tables, ids: tf.Tensor) -> tf.Tensor:
    mask = tf.cast(tf.not_equal(ids, 0), tf.float32)[..., tf.newaxis]
    return tf.reduce_sum(tf.gather(tables["t"], ids) * mask, 1) / tf.maximum(tf.reduce_sum(mask, 1), 1.0)


def wrapped(tables: Tables, ids: tf.Tensor) -> tf.Tensor:
    return tf.gather(tables["t"], tf.where(ids < 0, ids + ROWS, ids))


PATTERNS: dict[str, tuple[Callable[[], Any], Callable[[Tables, Any], tf.Tensor]]] = {
    "safe mean": (lambda: sparse_input("f"), lambda t, x: SAFE(t["t"], x, combiner="mean")),
    "plain sqrtn": (lambda: sparse_input("f"), lambda t, x: PLAIN(t["t"], x, None, combiner="sqrtn")),
    "masked mean": (dense_ids, masked_mean),
    "wrapped gather": (dense_ids, wrapped),
    "hashed": (
        dense_ids,
        lambda t, x: tf.gather(t["t"], tf.strings.to_hash_bucket_fast(tf.strings.as_string(x), ROWS)),
    ),
}


def pattern_feeds(name: str) -> dict[str, np.ndarray]:
    if "sparse" not in name and name not in ("safe mean", "plain sqrtn"):
        ids = np.array([[1, 0, 2, 39], [0, 0, 0, 0], [5, 5, 5, 5]])
        return {"ids": np.where(ids == 5, -3, ids) if name == "wrapped gather" else ids}
    feeds = grid_feeds([3, 0, 1, 2] if name == "safe mean" else [3, 1, 2], zeros=1)
    feeds["f_ids"] = np.abs(feeds["f_ids"]) if name == "plain sqrtn" else feeds["f_ids"]
    return {k: v for k, v in feeds.items() if k != "weights"}


def copies(name: str, work_dir: Path, change: Callable[[tf.Graph, list[tf.Operation], int], Any]) -> GraphItem:
    """A graph with the pattern once per operation inside it but constants; ``change`` alters copy k at its operation k.

    ``change`` returns a further output, None for none, or False where it does not apply to that operation.
    """
    make_input, pattern = PATTERNS[name]

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        graph, given = tf.compat.v1.get_default_graph(), make_input()

        def add() -> tuple[tf.Tensor, list[tf.Operation]]:
            before = set(graph.get_operations())
            result = pattern(tables, given)
            return result, [op for op in graph.get_operations() if op not in before]

        untouched, first = add()
        found = {}
        for k, operation in enumerate(first):
            if operation.type == "Const":  # no change applies to it
                continue
            result, inside = add()
            assert [op.type for op in inside] == [op.type for op in first]
            extra = change(graph, inside, k)
            if extra is not False:
                found[f"result_{k}"] = result
            if isinstance(extra, tf.Tensor):
                found[f"inside_{k}"] = extra
        return {**found, "untouched": untouched}

    return graph_item(build, tables={"t": table(ROWS, 5)}, work_dir=work_dir)


def outcomes(item: GraphItem, feeds: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray | type]]:
    """Every output: its value, or the class of the error that it ends in (by itself: all at once is the fast way)."""
    ready = item.copy()
    finish(ready)
    outputs = sorted(ready.signatures[SIGNATURE].outputs.items())
    tensors = feeds_of(ready, feeds)
    with ItemSession(ready) as session:
        try:
            values = session.run([info.name for _, info in outputs], tensors)
        except tf.errors.OpError:
            values = []
        if values:
            yield from zip((name for name, _ in outputs), values, strict=True)
            return
        for name, info in outputs:
            try:
                yield name, session.run([info.name], tensors)[0]
            except tf.errors.OpError as error:
                yield name, type(error)


def assert_same_outcomes(item: GraphItem, name: str) -> GraphItem:
    after, outcome = apply(fuse_lookups, item)
    assert outcome.fired > 0, "not even the untouched pattern was fused"
    feeds = pattern_feeds(name)
    for (output, want), (_, got) in zip(outcomes(item, feeds), outcomes(after, feeds), strict=True):
        if isinstance(want, type) or isinstance(got, type):
            assert got is want, output
        elif want.dtype == object:
            np.testing.assert_array_equal(got, want, err_msg=output)
        else:
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7, err_msg=output)
    return after


def also_an_output(graph: tf.Graph, inside: list[tf.Operation], k: int) -> Any:
    """Case 27, extra consumer."""
    outputs = inside[k].outputs
    usable = outputs and outputs[0].dtype not in (tf.resource, tf.variant)
    return tf.identity(outputs[0]) if usable else False


def waits_for_a_check(graph: tf.Graph, inside: list[tf.Operation], k: int) -> Any:
    """Case 27, control edge."""
    check = tf.debugging.Assert(tf.constant(True), ["never"])
    inside[k]._add_control_input(check)
    return None


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("change", [also_an_output, waits_for_a_check])
def test_case_27_near_misses_keep_their_numbers(name: str, change: Any, tmp_path: Path) -> None:
    item = copies(name, tmp_path, change)
    after = assert_same_outcomes(item, name)
    if change is waits_for_a_check:
        assert op_counts(after)["Assert"] == op_counts(item)["Assert"]  # no check is lost


def other_constants(tables: Tables) -> dict[str, tf.Tensor]:
    """What looks like a pattern but for one number."""
    ids, t = dense_ids(), tables["t"]
    rows = tf.gather(t, ids)

    def pooled(limit: int, least: float, axis: int = 1) -> tf.Tensor:
        mask = tf.cast(tf.not_equal(ids, limit), tf.float32)[..., tf.newaxis]
        return tf.reduce_sum(rows * mask, axis) / tf.maximum(tf.reduce_sum(mask, axis), least)

    sparse = tf.sparse.from_dense(ids)
    kept = tf.sparse.retain(sparse, sparse.values >= 2)  # safe_* keeps what is >= 0
    filled, empty = tf.sparse.fill_empty_rows(kept, tf.constant(3, tf.int64))
    summed = PLAIN(t, filled, None, combiner="sum")
    return {
        "mask_of_another_id": pooled(1, 1.0),
        "at_least_two": pooled(0, 2.0),
        "at_least_half": pooled(0, 0.5),
        "wrap_by_another_number": tf.gather(t, tf.where(ids < 0, ids + 7, ids)),
        "negative_from_one_on": tf.gather(t, tf.where(ids < 1, ids + 1, ids)),
        "from_two_on": summed,
        "empty_rows_are_ones": tf.where(empty[:, tf.newaxis], tf.ones_like(summed), summed),
        "first_column_is_not_the_row": tf.math.segment_sum(tf.gather(t, filled.values), filled.indices[:, 0] // 2),
        "mean_over_too_many": tf.reduce_sum(rows, 1) / 5.0,
        "sum_of_another_axis": tf.reduce_sum(rows, 0),
    }


def test_case_27_other_constants_keep_their_numbers(tmp_path: Path) -> None:
    item = graph_item(other_constants, tables={"t": table(ROWS, 5)}, work_dir=tmp_path)
    assert_same_outcomes(item, "masked mean")


@pytest.mark.parametrize("dtype", [tf.float16, tf.float64])
@pytest.mark.parametrize("ids", [tf.int32, tf.int64])
@pytest.mark.parametrize("shape", [None, [None], [None, None], [None, 4], [3, 4]])
def test_case_27_other_dtypes_and_unknown_shapes(dtype: Any, ids: Any, shape: Any, tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        given = placeholder(ids, shape, "ids")
        rows = tf.gather(tables["t"], tf.where(given < 0, given + ROWS, given))
        return {"rows": rows, "doubled": rows * 2} | (
            {"sum": tf.reduce_sum(rows, 1)} if shape and len(shape) == 2 else {}
        )

    values = table(ROWS, 5).astype(dtype.as_numpy_dtype)
    item = graph_item(build, tables={"t": values}, work_dir=tmp_path)
    after, _ = apply(fuse_lookups, item)
    feed = np.array([[1, -1, 2, 39], [0, 0, 0, 0], [5, -40, 5, 5]], ids.as_numpy_dtype)
    feed = feed[0] if shape == [None] else feed
    want, got = run_item(item, {"ids": feed}), run_item(after, {"ids": feed})
    for name, value in want.items():
        assert got[name].dtype == value.dtype
        np.testing.assert_allclose(got[name].astype(np.float64), value.astype(np.float64), rtol=2e-3, err_msg=name)
