"""The user/item split as a pass: structure, numbers, twice = once, a fresh session, every refusal, real models."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions, SampleColumns
from graph_opt.passes.fuse_lookups import fuse_lookups
from graph_opt.passes.pack_inputs import pack_inputs
from graph_opt.passes.split_user_item import split_user_item
from graph_opt.testing import SIGNATURE, Tables, apply, assert_refused, graph_item, run_item
from graph_opt.view import GraphView
from tests.graph_opt.graphs import ROWS, placeholder, table
from tests.graph_opt.split.helpers import assert_same_numbers, form_of, new_ops, split
from tests.graph_opt.split.models import product, ranker, reference, small, weights
from tests.models.fixtures import Zoo
from tfctr.errors import UsageError

USER = ConvertOptions(user_features=("u*",))
RNG = np.random.default_rng(1)


def feeds() -> tuple[dict[str, Any], dict[str, Any]]:
    ids = {name: RNG.integers(0, ROWS, 7) for name in ("u0", "i0", "u1", "i1")}
    dense = {name: RNG.normal(size=(7, n)).astype(np.float32) for name, n in (("ud", 3), ("id", 2))}
    both = ids | dense
    return {n: v for n, v in both.items() if n[0] == "u"}, {n: v for n, v in both.items() if n[0] == "i"}


# Structure, numbers, twice


def test_a_fused_lookup_becomes_one_for_users_and_one_for_items(tmp_path: Path) -> None:
    item = ranker(tmp_path)
    after, outcome = split(item, "u*")
    assert outcome.fired == 1
    assert_same_numbers(after, *feeds())
    ops = new_ops(after)
    assert ops == {
        "user/TfctrFusedLookup": 1, "TfctrFusedLookup": 1, "user/MatMul": 1, "user/AddV2": 1, "MatMul": 2,
        "TfctrAddUserRows": 1, "Sigmoid": 1, "Identity": 1,
    }  # fmt: skip
    sides = {g.node: {spec.name for spec, _ in g.lookups} for g in after.groups[1:]}
    assert sorted(map(sorted, sides.values())) == [["i0", "i1"], ["u0", "u1"]]
    assert [[c.width for c, _ in g.copies] for g in after.groups[1:]] == [[3], [2]]
    form = form_of(after)
    assert form.user_inputs == ("u0", "u1", "ud") and form.row_to_user == "row_to_user"
    assert {entry["side"]: entry["shape"] for entry in form.details["boundary"]} == {
        "user": [-1, 11], "item": [-1, 10], "row_to_user": [-1]
    }  # fmt: skip


def test_the_plain_form_stays_as_it_is(tmp_path: Path) -> None:
    item = ranker(tmp_path)
    after, _ = split(item, "u*")
    kept = {n.name: n for n in after.graph_def.node if not n.name.startswith("serving_default__split/")}
    assert kept == {n.name: n for n in item.graph_def.node}


def test_twice_is_once(tmp_path: Path) -> None:
    after, _ = split(ranker(tmp_path), "u*")
    again, outcome = split(after, "u*")
    assert outcome.fired == 0 and not outcome.refused
    assert again.graph_def == after.graph_def and again.files == after.files


def test_without_user_features_nothing_happens(tmp_path: Path) -> None:
    item = ranker(tmp_path)
    after, outcome = apply(split_user_item, item)
    assert after.graph_def == item.graph_def and outcome.fired == 0 and not outcome.refused and not outcome.details


def test_sparse_features_have_their_parts_once_per_user(tmp_path: Path) -> None:
    after, _ = split(ranker(tmp_path, sparse=True), "u*")
    form = form_of(after)
    assert {"uh_ids", "uh_indices", "uh_shape"} <= set(form.user_inputs)
    assert form.user_features == ("u0", "u1", "ud", "uh")


def ragged_ranker(tmp_path: Path, reads_width: bool = False) -> GraphItem:
    """A user's ragged history, made sparse before it is looked up. reads_width: the longest row's length is read."""

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        values, splits = placeholder(tf.int64, [None], "uh_values"), placeholder(tf.int64, [None], "uh_row_splits")
        history = tf.RaggedTensor.from_row_splits(values, splits, validate=False).to_sparse()
        found = tf.nn.safe_embedding_lookup_sparse(tables["t"], history, combiner="sum")
        x = tf.concat([found, tf.gather(tables["t"], placeholder(tf.int64, [None], "i"))], 1)
        y = tf.nn.relu(tf.matmul(x, weights(x.shape[1], 8)))
        return {"y": y / tf.cast(history.dense_shape[1], tf.float32) if reads_width else y}

    return apply(fuse_lookups, graph_item(build, tables={"t": table()}, work_dir=tmp_path))[0]


def test_ragged_features_made_sparse_come_once_per_user(tmp_path: Path) -> None:
    after, _ = split(ragged_ranker(tmp_path), "uh*")
    form = form_of(after)
    assert form.user_features == ("uh",) and not form.details["item_side"]
    assert form.user_inputs == ("uh_row_splits", "uh_values")
    assert new_ops(after)["user/RaggedTensorToSparse"] == 1
    lengths, row_to_user = [2, 0, 3], np.array([2, 0, 1, 1, 2])
    values = RNG.integers(0, ROWS, sum(lengths))
    rows = [np.split(values, np.cumsum(lengths)[:-1])[u] for u in row_to_user]
    items = {"i": RNG.integers(0, ROWS, len(row_to_user))}
    once = {"uh_values": values, "uh_row_splits": np.cumsum([0, *lengths]), form.row_to_user: row_to_user}
    each = {"uh_values": np.concatenate(rows), "uh_row_splits": np.cumsum([0, *map(len, rows)])}
    got, want = run_item(after, once | items, form.signature), run_item(after, each | items)
    np.testing.assert_allclose(got["y"], want["y"], 1e-5, 1e-6)


def test_the_longest_row_of_a_ragged_feature_is_the_batchs(tmp_path: Path) -> None:
    item = ragged_ranker(tmp_path, reads_width=True)
    options = ConvertOptions(user_features=("uh*",))
    assert_refused(split_user_item, item, "uh: RaggedTensorToSparse .*depends on the longest row", options=options)


def test_the_split_form_is_packed_too(tmp_path: Path) -> None:
    after, _ = split(ranker(tmp_path), "u*")
    packed, outcome = apply(pack_inputs, after)
    assert outcome.fired == 2 and packed.packed["serving_default__split"] == "serving_default__split__packed"


def test_the_name_row_to_user_may_be_taken(tmp_path: Path) -> None:
    def build(_: Tables) -> dict[str, tf.Tensor]:
        x = [placeholder(tf.float32, [None, 3], "u"), placeholder(tf.float32, [None, 2], "row_to_user")]
        return {"y": tf.matmul(tf.concat(x, 1), weights(5, 2))}

    after, _ = split(graph_item(build, work_dir=tmp_path), "u")
    assert form_of(after).row_to_user == "row_to_user_1"
    assert set(after.signatures["serving_default__split"].inputs) == {"u", "row_to_user", "row_to_user_1"}


def test_weights_in_a_table_file_are_taken_apart_into_files(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        x = tf.concat([placeholder(tf.float32, [None, 3], "i"), placeholder(tf.float32, [None, 4], "u")], 1)
        return {"y": tf.nn.relu(tf.matmul(x, tables["kernel"]))}

    item = graph_item(build, tables={"kernel": weights(7, 50)}, work_dir=tmp_path)
    options = ConvertOptions(user_features=("u",), dense_limit_bytes=100)
    after, _ = apply(split_user_item, item, options)
    assert [f.shape for f in after.files] == [(7, 50), (4, 50), (3, 50)]
    np.testing.assert_array_equal(
        np.fromfile(after.files[1].path, np.float32, 200).reshape(4, 50),  # type: ignore[arg-type]
        weights(7, 50)[3:],
    )
    x = {"u": RNG.normal(size=(7, 4)).astype(np.float32)}
    assert_same_numbers(after, x, {"i": RNG.normal(size=(7, 3)).astype(np.float32)})


def test_two_towers_share_the_users_lookups(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        x = tf.concat([tf.gather(tables[n], placeholder(tf.int64, [None], n)) for n in ("u0", "i0")], 1)
        towers = [tf.nn.relu(tf.matmul(x, weights(8, 4) * k)) for k in (1.0, 2.0)]
        return {"click": towers[0], "buy": tf.reduce_sum(towers[0] * towers[1], 1)}

    item = graph_item(build, tables={"u0": table(), "i0": table(seed=1)}, work_dir=tmp_path)
    after, _ = split(apply(fuse_lookups, item)[0], "u0")
    assert new_ops(after)["user/TfctrFusedLookup"] == 1 and new_ops(after)["user/MatMul"] == 2
    assert_same_numbers(after, {"u0": RNG.integers(0, ROWS, 7)}, {"i0": RNG.integers(0, ROWS, 7)})


def test_signatures_share_the_parts_of_their_weights(zoo: Zoo, tmp_path: Path) -> None:
    """Keras exports the same function under two names."""
    after, _ = split(reference(zoo("c_tf_keras").path, tmp_path), "history", "one")
    parts = [n.name for n in after.graph_def.node if n.op == "Const" and "/part/" in n.name]
    assert len(after.split) == 2 and len(parts) == 2
    assert len({name.split("__split/")[0] for name in parts}) == 1


def test_only_wanted_features_are_split(tmp_path: Path) -> None:
    options = dataclasses.replace(USER, only_rewrites=frozenset({"u1", "fuse"}))
    after, outcome = apply(split_user_item, ranker(tmp_path), options)
    assert outcome.rewrites == ("u0", "u1", "ud") and form_of(after).user_features == ("u1",)


# Features from patterns and samples


def test_a_pattern_that_matches_nothing_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"user_0.*no feature or input has such a name; the nearest are: u0"):
        apply(split_user_item, ranker(tmp_path), ConvertOptions(user_features=("u1", "user_0")))


def test_one_pattern_may_be_given_as_text() -> None:
    assert ConvertOptions(user_features="user_*").user_features == ("user_*",)  # type: ignore[arg-type]


def test_a_pattern_is_judged_before_any_work(zoo: Zoo, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--user-features nobody: .*the nearest are"):
        tfctr.convert(zoo("c_keras_onehot").path, tmp_path / "bundle", user_features=("nobody",))
    assert not list(tmp_path.iterdir())


def test_disabling_the_pass_contradicts_user_features(zoo: Zoo, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="split_user_item"):
        tfctr.convert(zoo("c_keras_onehot").path, tmp_path / "b", user_features=("c0",), disable=("split_user_item",))


def from_samples(arrays: dict[str, Any], requests: Any = None) -> ConvertOptions:
    return ConvertOptions(
        user_features_from_samples=True,
        samples_path="samples.npz",
        read_samples=lambda info: arrays,
        read_sample_columns=lambda info: SampleColumns(request_ids=requests),
    )


def test_user_features_are_found_in_samples(tmp_path: Path) -> None:
    once, items = feeds()
    arrays = {name: value[[0] * 7] for name, value in once.items()} | items
    after, _ = apply(split_user_item, ranker(tmp_path), from_samples(arrays))
    assert form_of(after).user_features == ("u0", "u1", "ud")


def test_user_features_are_those_that_do_not_vary_within_requests(tmp_path: Path) -> None:
    once, items = feeds()
    arrays = {name: value[[0, 0, 1, 1, 2, 2, 2]] for name, value in once.items()} | items
    arrays["i0"][:] = 3
    arrays["i0"][6] = 4  # varies in the last request only
    after, _ = apply(split_user_item, ranker(tmp_path), from_samples(arrays, np.array([7, 7, 8, 8, 9, 9, 9])))
    assert form_of(after).user_features == ("u0", "u1", "ud")


def test_samples_of_one_row_can_t_tell(tmp_path: Path) -> None:
    once, items = feeds()
    arrays = {name: value[:1] for name, value in (once | items).items()}
    with pytest.raises(UsageError, match=r"samples\.npz: .*one row per request"):
        apply(split_user_item, ranker(tmp_path), from_samples(arrays))
    with pytest.raises(UsageError, match="one row per request"):
        many = {name: value[:3] for name, value in (once | items).items()}
        apply(split_user_item, ranker(tmp_path), from_samples(many, np.arange(3)))


def test_finding_them_needs_samples(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs --samples FILE"):
        apply(split_user_item, ranker(tmp_path), ConvertOptions(user_features_from_samples=True))


# Control flow, names


def test_control_flow_over_user_rows_runs_on_item_rows(tmp_path: Path) -> None:
    """deeprec.md case 31: no abort, the same numbers."""

    def build(u: tf.Tensor, i: tf.Tensor) -> tf.Tensor:
        x = tf.cond(tf.reduce_sum(u) > 0, lambda: u * 2.0, lambda: u)
        y = tf.while_loop(lambda k, z: k < 3, lambda k, z: (k + 1, z * 0.5), (0, u))[1]
        return product(x, i) + product(y, i) + product(u, i)

    after, outcome = split(small(build, tmp_path), "u")
    assert outcome.fired == 1
    ops = new_ops(after)
    assert ops.keys() & {"If", "StatelessIf"} and ops.keys() & {"While", "StatelessWhile"}
    assert not any(op.startswith("user/") and ("If" in op or "While" in op) for op in ops)
    x = {"u": RNG.normal(size=(7, 4)).astype(np.float32)}, {"i": RNG.normal(size=(7, 3)).astype(np.float32)}
    assert_same_numbers(after, *x)


def test_names_do_not_matter(tmp_path: Path) -> None:
    """deeprec.md case 31: a renamed graph is split alike."""
    item = ranker(tmp_path)
    renamed = item.copy()
    feeds_ = {t.split(":")[0] for t in item.feeds()}
    new = {n.name: n.name if n.name in feeds_ else f"scope/x{k}" for k, n in enumerate(item.graph_def.node)}
    for node in renamed.graph_def.node:
        node.name = new[node.name]
        node.input[:] = [new[i.split(":")[0]] + i[len(i.split(":")[0]) :] for i in node.input]
    renamed.tables = {new[n]: k for n, k in item.tables.items() if n in new}
    renamed.store_node = new[item.store_node]
    renamed.groups = [dataclasses.replace(g, node=new[g.node]) for g in item.groups]
    for info in renamed.signatures[SIGNATURE].outputs.values():
        info.name = new[info.name.split(":")[0]] + ":0"
    after, outcome = split(renamed, "u*")
    assert outcome.fired == 1 and new_ops(after) == new_ops(split(item, "u*")[0])


def test_new_nodes_that_nothing_reads_are_gone(tmp_path: Path) -> None:
    after, _ = split(ranker(tmp_path), "u*")
    view = GraphView(after.graph_def)
    needed = view.ancestors([*after.fetches(), *after.feeds()])
    assert all(n.name in needed for n in view if n.name.startswith("serving_default__split/"))


def test_a_lookup_of_which_only_the_shape_is_read(tmp_path: Path) -> None:
    """It is not in the split form, where shapes are made of row counts."""

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        u, i = placeholder(tf.float32, [None, 4], "u"), placeholder(tf.int64, [None], "i")
        ids = placeholder(tf.int64, [None], "uids")
        score = tf.tanh(tf.matmul(u, weights(4, 4))) * tf.gather(tables["i"], i)
        return {"y": score, "ones": tf.ones(tf.shape(tf.gather(tables["u"], ids)))}

    item = apply(fuse_lookups, graph_item(build, tables={"u": table(), "i": table()}, work_dir=tmp_path))[0]
    after, _ = split(item, "u*")
    assert [entry["side"] for entry in form_of(after).details["boundary"]] == ["item", "row_to_user"]
    users = {"u": RNG.normal(size=(7, 4)).astype(np.float32), "uids": RNG.integers(0, ROWS, 7)}
    assert_same_numbers(after, users, {"i": RNG.integers(0, ROWS, 7)})
