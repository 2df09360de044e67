"""Every reason for which a tensor crosses by itself, a wait stays, or nothing is done: the smallest model of each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from graph_opt.item import GraphItem, SplitForm
from graph_opt.passes.merge_transfers import merge_transfers
from graph_opt.passes.place_devices import place_devices
from graph_opt.testing import SIGNATURE, Tables, apply, assert_refused, graph_item, run_item
from graph_opt.view import GraphView
from tests.graph_opt.graphs import placeholder, sparse_feeds, sparse_input, table
from tests.graph_opt.placement.small_models import WIDTH, weights
from tests.graph_opt.placement.two_devices import OPTIONS, TwoDevices, assert_same


def model(work_dir: Path, build) -> GraphItem:  # type: ignore[no-untyped-def]
    arrays = {n: table(width=WIDTH, seed=k) for k, n in enumerate("ab")}
    return apply(place_devices, graph_item(build, tables=arrays, work_dir=work_dir), OPTIONS)[0]


def apart(item: GraphItem) -> list[str]:
    """Reasons of tensors that cross by themselves; the item still runs as before."""
    outcome = apply(merge_transfers, item, OPTIONS)[1]
    return [r.reason for r in outcome.refused if r.reason.startswith("crosses by itself")]


def with_split(item: GraphItem, users: tuple[str, ...]) -> GraphItem:
    """A split form that is the plain form: enough to say whose rows are whose."""
    split = type(item.signatures[SIGNATURE])()
    split.CopyFrom(item.signatures[SIGNATURE])
    item.signatures[f"{SIGNATURE}__split"] = split
    item.split[SIGNATURE] = SplitForm(
        signature=f"{SIGNATURE}__split", row_to_user="row_to_user", user_inputs=users, user_features=users
    )
    return item


def test_sizes_without_a_tensor_that_says_them(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        ids = placeholder(tf.int64, [None, 2], "ids")
        return {"y": tf.matmul(tf.ones([tf.shape(ids)[0], 4]), weights(4, 1)), "x": tf.gather(tables["a"], ids)}

    assert "nothing that crosses beside it has that many rows" in apart(model(tmp_path, build))[0]


def test_sizes_that_do_not_follow_from_rows(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        ids = placeholder(tf.int64, [None, 2], "ids")
        rank = tf.cast(tf.raw_ops.Rank(input=ids), tf.float32)
        return {"y": tf.matmul(tf.gather(tables["a"], tf.reduce_max(ids, 1)) * rank, weights(WIDTH, 1))}

    assert "a size that does not follow from the number of rows" in apart(model(tmp_path, build))[0]


def test_a_tensor_without_columns(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        none = placeholder(tf.float32, [None, 0], "none")
        found = tf.gather(tables["a"], placeholder(tf.int64, [None], "a"))
        return {"y": tf.matmul(tf.concat([found, none], 1), weights(WIDTH, 1))}

    item = model(tmp_path, build)
    assert "it is empty" in apart(item)[0]
    feeds = {"a": np.array([1, 2]), "none": np.zeros((2, 0), np.float32)}
    assert_same(run_item(apply(merge_transfers, item, OPTIONS)[0], feeds), run_item(item, feeds))


def test_the_values_of_a_sparse_feature(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        feature = sparse_input("a")
        found = tf.nn.safe_embedding_lookup_sparse(tables["a"], feature, combiner="sum")
        return {"y": tf.matmul(found, weights(WIDTH, 1)), "z": tf.sqrt(tf.cast(feature.values, tf.float32))}

    item = model(tmp_path, build)
    assert any("has not one entry per row of the batch" in r for r in apart(item))
    with TwoDevices(apply(merge_transfers, item, OPTIONS)[0]) as session:
        assert_same(session.run(sparse_feeds("a", [2, 1]))[0], run_item(item, sparse_feeds("a", [2, 1])))


def test_a_second_unknown_size(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        one, two = (tf.gather(tables["a"], placeholder(tf.int64, [None, None], name)) for name in ("one", "two"))
        base = tf.gather(tables["b"], placeholder(tf.int64, [None], "base"))
        both = tf.reduce_sum(one * 2.0, 1) + tf.reduce_sum(two * 3.0, 1)
        return {"y": tf.matmul(both * base, weights(WIDTH, 1))}

    item = model(tmp_path, build)
    (reason,) = apart(item)
    assert "something else of unknown size crosses beside it" in reason
    feeds = {"one": np.ones((2, 3), np.int64), "two": np.ones((2, 5), np.int64), "base": np.array([1, 2])}
    with TwoDevices(apply(merge_transfers, item, OPTIONS)[0]) as session:
        assert_same(session.run(feeds)[0], run_item(item, feeds))


def test_rows_that_differ_between_the_forms_that_share_a_reader(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        user, item_id = placeholder(tf.int64, [None], "user"), placeholder(tf.int64, [None], "item")
        users = tf.matmul(tf.gather(tables["a"], user), weights(WIDTH, 3))
        users = tf.gather(users, placeholder(tf.int64, [None], "row_to_user"))
        return {"y": users + tf.matmul(tf.gather(tables["b"], item_id), weights(WIDTH, 3))}

    reasons = apart(with_split(model(tmp_path, build), ("user",)))
    assert any(f"not the same in {SIGNATURE} and {SIGNATURE}__split" in r for r in reasons)


def _users(work_dir: Path, *, odd: bool = False, mixed: bool = False, text: bool = False) -> GraphItem:
    """A model that has only its split form left to be looked at."""

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        user, item_id = placeholder(tf.int64, [None], "user"), placeholder(tf.int64, [None], "item")
        mine = tf.gather(tables["a"], user)
        if odd:
            mine += tf.reduce_sum(placeholder(tf.float32, [None, 2, None], "odd"), [1, 2])[:, tf.newaxis]
        users = tf.matmul(mine, weights(WIDTH, 3))
        joined = tf.gather(users, placeholder(tf.int64, [None], "row_to_user"))
        ids = item_id + user if mixed else item_id
        found = {"y": joined + tf.matmul(tf.gather(tables["b"], ids), weights(WIDTH, 3))}
        if text:
            found["text"] = tf.strings.as_string(users)
        return found

    item = with_split(model(work_dir, build), ("user", "odd"))
    item.optimise = ()
    return item


def test_all_or_none_of_the_users_tensors(tmp_path: Path) -> None:
    reasons = apart(_users(tmp_path, odd=True))
    assert any("one entry per user, and something else of the users crosses elsewhere" in r for r in reasons)
    assert any("the sizes of its inner axes are not known" in r for r in reasons)


def test_strings_that_the_model_itself_sends_across(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        words, ids = placeholder(tf.string, [None], "words"), placeholder(tf.int64, [None], "ids")
        with tf.device("/device:CPU:1"):
            length = tf.cast(tf.strings.length(words), tf.float32)
        x = tf.concat([tf.gather(tables["a"], ids), length[:, tf.newaxis]], 1)
        return {"y": tf.matmul(x, weights(WIDTH + 1, 1))}

    assert apart(model(tmp_path, build)) == ["crosses by itself: string can't be packed"]


def test_what_mixes_users_and_items(tmp_path: Path) -> None:
    assert any("it reads inputs of users and of items" in r for r in apart(_users(tmp_path, mixed=True)))


def test_users_do_not_come_back_packed(tmp_path: Path) -> None:
    reasons = apart(_users(tmp_path, text=True))
    assert any(r.endswith("it has one entry per user") for r in reasons)
    assert any("something else of the users crosses elsewhere" in r for r in reasons)


def test_a_wait_that_nothing_can_take_over(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        found = tf.gather(tables["a"], placeholder(tf.int64, [None], "a"))
        with tf.control_dependencies([found]):
            alone = tf.exp(weights(2, 2))
        return {"y": tf.matmul(found, weights(WIDTH, 1)), "alone": tf.tanh(alone)}

    item = model(tmp_path, build)
    view = GraphView(item.graph_def)
    for name in ("Exp", "Tanh"):
        view.node(name).device = "/device:CPU:1"
    for source in view.node("Exp").input:
        if not source.startswith("^"):
            view.node(source).device = "/device:CPU:1"
    outcome = apply(merge_transfers, item, OPTIONS)[1]
    assert any("and nothing that crosses can wait in its place" in r.reason for r in outcome.refused)
    assert ["GatherV2", "Const"] in outcome.details["waits_left"]  # the weights wait as well


def test_nothing_crosses(tmp_path: Path) -> None:
    """The model itself keeps its tower and all around it on a third device."""

    def build(_: Tables) -> dict[str, tf.Tensor]:
        x = placeholder(tf.float32, [None, 2], "x")
        return {"y": tf.matmul(x, weights(2, 1), name="product")}

    item = graph_item(build, work_dir=tmp_path)
    for node in item.graph_def.node:
        node.device = "/device:CPU:2"
    view = GraphView(item.graph_def)
    view.node(view.node("product").input[1]).device = "/device:CPU:1"
    assert_refused(merge_transfers, item, "nothing crosses between the devices", options=OPTIONS)


def test_devices_inside_functions_are_told(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        found = tf.gather(tables["a"], placeholder(tf.int64, [None], "a"))

        def twice() -> tf.Tensor:
            with tf.device("/cpu:0"):
                return found * 2.0

        h = tf.cond(placeholder(tf.bool, [], "big"), twice, lambda: found + 1.0)
        return {"y": tf.matmul(h, weights(WIDTH, 1))}

    item = graph_item(build, tables={"a": table(width=WIDTH)}, work_dir=tmp_path)
    outcome = apply(place_devices, item, OPTIONS)[1]
    assert any("CPU:0, in a function" in r.reason for r in outcome.refused)
