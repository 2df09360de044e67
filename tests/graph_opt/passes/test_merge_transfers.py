"""One packed tensor each way: structure, transfers, numbers bit for bit, twice = once, and every refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from graph_opt.item import GraphItem, SplitForm
from graph_opt.options import ConvertOptions
from graph_opt.passes.lookups_first import lookups_first
from graph_opt.passes.merge_transfers import merge_transfers
from graph_opt.passes.place_devices import place_devices
from graph_opt.testing import SIGNATURE, Tables, apply, assert_refused, assert_rewrites, graph_item, op_counts, run_item
from graph_opt.view import GraphView
from tests.graph_opt.graphs import ROWS, placeholder, table
from tests.graph_opt.placement.small_models import WIDTH, plain_mlp, ranker, ranker_feeds, two_stages, weights
from tests.graph_opt.placement.two_devices import OPTIONS, TwoDevices, assert_same, crossed

DTYPES = (
    tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64, tf.uint64, tf.float16, tf.bfloat16,
    tf.float32, tf.float64, tf.complex64, tf.complex128,
)  # fmt: skip


def placed(item: GraphItem, first: bool = False) -> GraphItem:
    if first:
        item = apply(lookups_first, item)[0]
    return apply(place_devices, item, OPTIONS)[0]


def run_both(item: GraphItem, after: GraphItem, feeds: list[dict[str, Any]], signature: str = SIGNATURE):  # type: ignore[no-untyped-def]
    """Compares bit for bit; (to the dense device, back) of the last run."""
    with TwoDevices(after) as session:
        for one in feeds:
            got, metadata = session.run(one, signature)
            assert_same(got, run_item(item, one, signature))
    return crossed(metadata)


def test_one_tensor_each_way(tmp_path: Path) -> None:
    item = ranker(tmp_path)
    feeds = [ranker_feeds(rows, rows) for rows in (0, 1, 5, 32)]
    before = placed(item)
    after = assert_rewrites(merge_transfers, before, feeds=feeds, options=OPTIONS)
    to_dense, back = run_both(item, after, feeds)
    assert (to_dense.transfers, to_dense.strings, to_dense.waits) == (1, 0, 0)
    assert (back.transfers, back.waits) == (1, 0)
    # Two lookups, the dense inputs and one boolean word; a score and an int64.
    assert to_dense.bytes == 32 * 4 * (2 * WIDTH + 3 + 1)
    assert back.bytes == 32 * 4 * (1 + 2)
    outcome = apply(merge_transfers, before, OPTIONS)[1]
    assert [len(t["packed"]) for t in outcome.details["transfers"]] == [4, 2]
    assert outcome.notes == (
        "4 tensors cross to the dense device as one (serving_default)",
        "2 tensors cross to the sparse device as one (serving_default)",
    )


def test_waits_for_lookups_do_not_cross(tmp_path: Path) -> None:
    item = ranker(tmp_path)
    before = placed(item, first=True)
    with TwoDevices(before) as session:
        assert crossed(session.run(ranker_feeds(3))[1])[0].waits > 0
    after = assert_rewrites(merge_transfers, before, feeds=ranker_feeds(3), options=OPTIONS)
    to_dense, back = run_both(item, after, [ranker_feeds(3)])
    assert (to_dense.transfers, to_dense.waits, back.transfers, back.waits) == (1, 0, 1, 0)


def test_a_wait_moves_to_the_only_tensor_that_crosses(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        a, x = placeholder(tf.int64, [None], "a"), placeholder(tf.float32, [None, WIDTH], "x")
        return {"rows": tf.gather(tables["a"], a), "y": tf.matmul(x, weights(WIDTH, 1))}

    item = graph_item(build, tables={"a": table(width=WIDTH)}, work_dir=tmp_path)
    feeds = {"a": np.array([1, 2]), "x": np.ones((2, WIDTH), np.float32)}
    after = assert_rewrites(merge_transfers, placed(item, first=True), feeds=feeds, options=OPTIONS)
    to_dense, _ = run_both(item, after, [feeds])
    assert (to_dense.transfers, to_dense.waits) == (1, 0)
    view = GraphView(after.graph_def)
    product = next(n.name for n in view if n.op == "MatMul")
    assert any(view.node(n).op == "GatherV2" for n in view.ancestors([product]))


def _every_dtype(work_dir: Path, columns: list[int]) -> GraphItem:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        found = {"y": tf.matmul(tf.gather(tables["a"], placeholder(tf.int64, [None], "a")), weights(WIDTH, 3))}
        for dtype in DTYPES:
            x = placeholder(dtype, [None, *columns], dtype.name)
            found[f"{dtype.name}_out"] = tf.reverse(x, [len(columns)]) if columns else tf.reverse(x, [0])
        return found

    return graph_item(build, tables={"a": table(width=WIDTH)}, work_dir=work_dir)


def _any_bits(rows: int, columns: list[int], seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    feeds: dict[str, Any] = {"a": rng.integers(0, ROWS, rows)}
    for dtype in DTYPES:
        count = rows * int(np.prod(columns, dtype=int))
        raw = rng.bytes(count * dtype.size)
        if dtype == tf.bool:
            feeds["bool"] = rng.integers(0, 2, [rows, *columns]).astype(bool)
        else:
            feeds[dtype.name] = np.frombuffer(raw, dtype.as_numpy_dtype).reshape([rows, *columns])
    return feeds


@pytest.mark.parametrize("columns", [[3], [2, 5], [4]])
def test_every_dtype_crosses_bit_by_bit(columns: list[int], tmp_path: Path) -> None:
    item = _every_dtype(tmp_path, columns)
    after, outcome = apply(merge_transfers, placed(item), OPTIONS)
    assert [len(t["packed"]) for t in outcome.details["transfers"]] == [len(DTYPES) + 1] * 2
    feeds = [_any_bits(rows, columns, rows) for rows in (0, 1, 7, 16)]
    to_dense, back = run_both(item, after, feeds)
    assert (to_dense.transfers, back.transfers) == (1, 1)
    assert apply(merge_transfers, after, OPTIONS)[1].fired == 0


def test_what_reverses_the_batch_has_no_rows_and_crosses_by_itself(tmp_path: Path) -> None:
    item = _every_dtype(tmp_path, [])
    after, outcome = apply(merge_transfers, placed(item), OPTIONS)
    reasons = [r.reason for r in outcome.refused]
    assert sum("crosses by itself: its rows are not known to be the batch's" in r for r in reasons) == len(DTYPES)
    run_both(item, after, [_any_bits(5, [], 1)])


def _with_sizes(work_dir: Path) -> GraphItem:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        ids = placeholder(tf.int64, [None, 3], "ids")
        found = tf.gather(tables["a"], tf.reduce_max(ids, 1))
        more = tf.fill([tf.shape(ids)[0], 2], 0.5)
        wide = tf.reshape(tf.tile(found, [1, 2]), tf.stack([tf.shape(ids, out_type=tf.int64)[0] * 2, WIDTH]))
        h = tf.matmul(tf.concat([found, more], 1), weights(WIDTH + 2, 4))
        return {"y": h, "mean": tf.reduce_mean(tf.reshape(wide, [-1, 2, WIDTH]), 1)}

    return graph_item(build, tables={"a": table(width=WIDTH)}, work_dir=work_dir)


def test_sizes_are_read_off_what_crosses(tmp_path: Path) -> None:
    item = _with_sizes(tmp_path)
    feeds = [{"ids": np.random.default_rng(n).integers(0, ROWS, (n, 3))} for n in (0, 1, 6)]
    before = placed(item)
    with TwoDevices(before) as session:
        assert crossed(session.run(feeds[2])[1])[0].transfers > 1
    after = assert_rewrites(merge_transfers, before, feeds=feeds, options=OPTIONS)
    to_dense, back = run_both(item, after, feeds)
    assert (to_dense.transfers, back.transfers) == (1, 1)


def _history(work_dir: Path) -> GraphItem:
    """Attention over a history of any length, int64 [B, T]: rows, a mask and half weights of T positions."""

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        clicks, target = placeholder(tf.int64, [None, None], "clicks"), placeholder(tf.int64, [None], "target")
        found = tf.gather(tables["a"], clicks)
        query = tf.matmul(tf.gather(tables["b"], target), weights(WIDTH, WIDTH))
        scores = tf.squeeze(tf.matmul(found, query[:, :, tf.newaxis]), 2)
        bias = tf.fill(tf.shape(clicks), 0.25)
        masked = tf.where(tf.not_equal(clicks, 0), scores + bias, tf.zeros_like(scores))
        pooled = tf.squeeze(tf.matmul(masked[:, tf.newaxis], found), 1)
        return {"y": tf.matmul(pooled + query, weights(WIDTH, 1, 4)), "masked": masked}

    arrays = {"a": table(ROWS, WIDTH, 1), "b": table(ROWS, WIDTH, 2)}
    return graph_item(build, tables=arrays, work_dir=work_dir)


def test_one_unknown_size_is_read_off_what_crosses(tmp_path: Path) -> None:
    item = _history(tmp_path)
    rng = np.random.default_rng(0)
    feeds = [
        {"clicks": rng.integers(0, 3, (rows, positions)), "target": rng.integers(0, ROWS, rows)}
        for rows, positions in ((5, 7), (1, 1), (0, 4), (3, 0), (16, 20))
    ]
    before = placed(item)
    with TwoDevices(before) as session:
        assert crossed(session.run(feeds[0])[1])[0].transfers > 2
    after = assert_rewrites(merge_transfers, before, feeds=feeds, options=OPTIONS)
    to_dense, back = run_both(item, after, feeds)
    assert (to_dense.transfers, back.transfers) == (1, 2)
    outcome = apply(merge_transfers, before, OPTIONS)[1]
    assert any("crosses by itself: the size of its axis 1 is not known" in r.reason for r in outcome.refused)
    (packed,) = [t["packed"] for t in outcome.details["transfers"] if t["direction"] == "to the dense device"]
    assert sorted(p["columns"] for p in packed) == [[-1], [-1, WIDTH], [WIDTH]]


def test_of_two_unknown_sizes_one_crosses_by_itself(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        sums = [
            tf.reduce_sum(tf.gather(tables["a"], placeholder(tf.int64, [None, None], name)) * 2.0, 1) for name in "ab"
        ]
        return {"y": tf.matmul(sums[0] + sums[1], weights(WIDTH, 1))}

    item = graph_item(build, tables={"a": table(width=WIDTH)}, work_dir=tmp_path)
    feeds = {"a": np.ones((3, 2), np.int64), "b": np.ones((3, 5), np.int64)}
    before = placed(item)
    outcome = assert_refused(merge_transfers, before, "the size of its axis 1 is not known", options=OPTIONS)
    assert len(outcome.refused) >= 2
    run_both(item, before, [feeds])


def test_two_stages_cross_twice(tmp_path: Path) -> None:
    item = two_stages(tmp_path)
    feeds = [{"a": np.random.default_rng(n).integers(0, ROWS, n)} for n in (0, 1, 6)]
    after, _ = apply(merge_transfers, placed(item), OPTIONS)
    to_dense, back = run_both(item, after, feeds)
    assert (to_dense.transfers, back.transfers) == (2, 2)


def test_signatures_over_one_trunk_share_its_packing(tmp_path: Path) -> None:
    item = ranker(tmp_path)
    other = type(item.signatures[SIGNATURE])()
    other.CopyFrom(item.signatures[SIGNATURE])
    del other.outputs["click"]
    del item.signatures[SIGNATURE].outputs["rank"]
    item.signatures["ranks"] = other
    item.optimise = (SIGNATURE, "ranks")
    after, outcome = apply(merge_transfers, placed(item), OPTIONS)
    packs = [t for t in outcome.details["transfers"] if t["packed"]]
    assert [t["signatures"] for t in packs] == [["ranks", SIGNATURE]]
    for signature in (SIGNATURE, "ranks"):
        to_dense, back = run_both(item, after, [ranker_feeds(4)], signature)
        assert (to_dense.transfers, back.transfers) == (1, 1)


def test_signatures_never_pay_for_each_other(tmp_path: Path) -> None:
    """Two signatures over different inputs, and one dense input that both read."""

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        x = placeholder(tf.float32, [None, WIDTH], "x")
        found = {}
        for name in ("a", "b"):
            rows = tf.gather(tables["a"], placeholder(tf.int64, [None], name))
            found[name] = tf.matmul(rows + x, weights(WIDTH, 2))
        return {f"{name}_out": value for name, value in found.items()}

    item = graph_item(build, tables={"a": table(width=WIDTH)}, work_dir=tmp_path)
    for one, other in (("a", "b"), ("b", "a")):
        signature = type(item.signatures[SIGNATURE])()
        signature.CopyFrom(item.signatures[SIGNATURE])
        del signature.inputs[other]
        del signature.outputs[f"{other}_out"]
        item.signatures[f"only_{one}"] = signature
    del item.signatures[SIGNATURE]
    item.optimise = ("only_a", "only_b")
    after, _ = apply(merge_transfers, placed(item), OPTIONS)
    for name in ("a", "b"):
        feeds = {name: np.array([1, 5]), "x": np.ones((2, WIDTH), np.float32)}
        assert run_both(item, after, [feeds], f"only_{name}")[0].transfers == 1


def _split_form(work_dir: Path) -> GraphItem:
    """A plain form, and one with two users' tensors (a lookup and dense inputs), row_to_user, and an item lookup."""

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        user, item_id = placeholder(tf.int64, [None], "user"), placeholder(tf.int64, [None], "item")
        age = placeholder(tf.float64, [None, 3], "age")
        row_to_user = placeholder(tf.int64, [None], "row_to_user")
        found: dict[str, tf.Tensor] = {}
        for form in ("plain", "split"):
            mine = tf.concat([tf.gather(tables["a"], user), tf.cast(tf.reverse(age, [1]), tf.float32)], 1)
            # A bias of ones, made for as many rows as there are users.
            users = tf.matmul(mine, weights(WIDTH + 3, 5)) + tf.ones([tf.shape(user)[0], 1])
            users = tf.gather(users, row_to_user) if form == "split" else users
            h = tf.nn.relu(users + tf.matmul(tf.gather(tables["b"], item_id), weights(WIDTH, 5, 1)))
            found |= {f"{form}_y": tf.matmul(h, weights(5, 1, 2)), f"{form}_z": tf.matmul(h, weights(5, 2, 3))}
        return found

    item = graph_item(build, tables={n: table(width=WIDTH, seed=k) for k, n in enumerate("ab")}, work_dir=work_dir)
    whole = item.signatures.pop(SIGNATURE)
    for name, form in ((SIGNATURE, "plain"), (f"{SIGNATURE}__split", "split")):
        item.signatures[name] = type(whole)(method_name=whole.method_name)
        for key, info in whole.inputs.items():
            if form == "split" or key != "row_to_user":
                item.signatures[name].inputs[key].CopyFrom(info)
        for key in ("y", "z"):
            item.signatures[name].outputs[key].CopyFrom(whole.outputs[f"{form}_{key}"])
    item.split[SIGNATURE] = SplitForm(
        signature=f"{SIGNATURE}__split", row_to_user="row_to_user", user_inputs=("age", "user"), user_features=("user",)
    )
    return item


@pytest.mark.parametrize(("users", "rows"), [(1, 1), (1, 7), (3, 7), (7, 2), (2, 40), (1, 0), (0, 0)])
def test_tensors_of_users_lie_behind_those_of_rows(users: int, rows: int, tmp_path: Path) -> None:
    item = _split_form(tmp_path)
    split = item.split[SIGNATURE].signature
    rng = np.random.default_rng(users + rows)
    feeds = {
        "user": rng.integers(0, ROWS, users),
        "age": rng.normal(size=(users, 3)),
        "item": rng.integers(0, ROWS, rows),
        "row_to_user": rng.integers(0, max(users, 1), rows) if users else np.zeros(rows, np.int64),
    }
    after, outcome = apply(merge_transfers, placed(item), OPTIONS)
    groups = [t for t in outcome.details["transfers"] if t["direction"] == "to the dense device"]
    of_forms = {t["signatures"][0]: t["packed"] for t in groups}
    assert sorted(p["along"] for p in of_forms[split]) == ["batch", "batch", "users", "users"]
    assert sorted(p["along"] for p in of_forms[SIGNATURE]) == ["batch", "batch", "batch"]
    with TwoDevices(after) as session:
        got, metadata = session.run(feeds, split)
    want = run_item(item, feeds, split)
    for name, value in want.items():  # the product over more rows of users may add in another order
        np.testing.assert_allclose(got[name], value, 1e-5, 1e-6)
    assert [c.transfers for c in crossed(metadata)] == [1, 1]


def test_rows_that_disagree_are_an_error_that_names_both(tmp_path: Path) -> None:
    after, _ = apply(merge_transfers, placed(ranker(tmp_path)), OPTIONS)
    feeds = ranker_feeds(4) | {"dense": np.ones((3, 3), np.float32)}
    with (
        TwoDevices(after) as session,
        pytest.raises(tf.errors.InvalidArgumentError, match="has 4 rows, .* has 3; what crosses"),
    ):
        session.run(feeds)


def test_refusals(tmp_path: Path) -> None:
    item = ranker(tmp_path)
    assert_refused(merge_transfers, item, "no devices were given")
    one = ConvertOptions(device_map={"sparse": "/CPU:0", "dense": "/CPU:0"})
    assert_refused(merge_transfers, item, "one device .*: nothing crosses", options=one)
    assert_refused(merge_transfers, item, "nothing is on /device:CPU:1: place_devices put nothing", options=OPTIONS)


def test_a_tensor_that_crosses_alone_is_left_as_it_is(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        return {"y": tf.matmul(tf.gather(tables["a"], placeholder(tf.int64, [None], "a")), weights(WIDTH, 1))}

    item = placed(graph_item(build, tables={"a": table(width=WIDTH)}, work_dir=tmp_path))
    outcome = assert_refused(merge_transfers, item, "crosses alone: there is nothing to pack it with", options=OPTIONS)
    assert [t["alone"] == [] for t in outcome.details["transfers"]] == [False, False]
    (refused,) = outcome.refused  # one line, however many there are
    assert refused.what.endswith(" and 1 more") and len(refused.nodes) == 2


def test_what_can_not_be_packed_crosses_by_itself(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        a, any_width = placeholder(tf.int64, [None], "a"), placeholder(tf.float32, [None, 2, None], "any_width")
        rate = placeholder(tf.float32, [], "rate")
        found = tf.gather(tables["a"], a) * rate + tf.reduce_sum(any_width, [1, 2])[:, tf.newaxis]
        kernel = tables["b"]  # a dense variable that is a file
        return {"y": tf.matmul(tf.concat([found, found], 1), kernel), "z": tf.matmul(found, weights(WIDTH, 1))}

    arrays = {"a": table(width=WIDTH), "b": table(2 * WIDTH, 3)}
    item = graph_item(build, tables=arrays, work_dir=tmp_path)
    feeds = {
        "a": np.array([1, 2, 3]), "any_width": np.ones((3, 2, 2), np.float32), "rate": np.float32(0.5)
    }  # fmt: skip
    after, outcome = apply(merge_transfers, placed(item), OPTIONS)
    reasons = {r.what: r.reason for r in outcome.refused}
    assert "the sizes of its inner axes are not known" in reasons["tensor any_width:0"]
    assert reasons["tensor rate:0"].startswith("crosses by itself: ")
    assert any("the same for every batch" in r for w, r in reasons.items() if "table" in w)
    run_both(item, after, [feeds])


def test_a_model_without_embeddings_packs_its_outputs(tmp_path: Path) -> None:
    item = plain_mlp(tmp_path)
    feeds = [{"x": np.ones((n, 4), np.float32)} for n in (0, 1, 3)]
    after = assert_rewrites(merge_transfers, placed(item), feeds=feeds, options=OPTIONS, fired=2)
    assert op_counts(after)["ConcatV2"] == 1
    assert [c.transfers for c in run_both(item, after, feeds)] == [1, 1]


def test_tf1_control_flow_keeps_its_numbers(tmp_path: Path) -> None:
    """Conditions and loops of Switch, Merge and Enter nodes stay on one side each."""

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        tf.compat.v1.disable_control_flow_v2()
        try:
            found = tf.gather(tables["a"], placeholder(tf.int64, [None], "a"))
            big = placeholder(tf.bool, [], "big")
            h = tf.compat.v1.cond(big, lambda: found * 2.0, lambda: found + 1.0)
            h = tf.compat.v1.while_loop(lambda k, _: k < 3, lambda k, v: (k + 1, v * 1.5), [tf.constant(0), h])[1]
            return {"y": tf.matmul(h, weights(WIDTH, 1)), "z": tf.matmul(found, weights(WIDTH, 2))}
        finally:
            tf.compat.v1.enable_control_flow_v2()

    item = graph_item(build, tables={"a": table(width=WIDTH)}, work_dir=tmp_path)
    assert {"Switch", "Merge", "Enter"} <= {n.op for n in item.graph_def.node}
    before, outcome = apply(place_devices, apply(lookups_first, item)[0], OPTIONS)
    assert any("TF1 control flow" in note for note in outcome.notes)
    after = apply(merge_transfers, before, OPTIONS)[0]
    run_both(item, after, [{"a": np.array([1, 2, 3]), "big": big} for big in (True, False)])
