"""What is not split, and why: a test for each reason."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.passes import split_user_item as module
from graph_opt.passes.fuse_lookups import fuse_lookups
from graph_opt.passes.split_user_item import split_user_item
from graph_opt.pipeline import REFERENCE_PASSES, run_passes
from graph_opt.saved_model import load_inlined
from graph_opt.split import proof
from graph_opt.split.refusals import REASONS
from graph_opt.testing import SIGNATURE, Tables, apply, assert_refused, graph_item
from tests.graph_opt.graphs import placeholder, table
from tests.graph_opt.split.models import product, ranker, reference, small
from tests.models.fixtures import Zoo
from tfctr.errors import StrictRefusal

USER = ConvertOptions(user_features=("u*",))


def test_all_features_are_the_users(tmp_path: Path) -> None:
    assert_refused(split_user_item, ranker(tmp_path), REASONS["all"], options=ConvertOptions(user_features=("*",)))


def test_a_signature_without_user_features(zoo: Zoo, tmp_path: Path) -> None:
    item = reference(zoo("o_two_signatures").path, tmp_path)
    names = {s: sorted(item.signatures[s].inputs) for s in item.optimise}
    only = next(n for s in names for n in names[s] if all(n not in other for t, other in names.items() if t != s))
    _, outcome = apply(split_user_item, item, ConvertOptions(user_features=(only,)))
    assert any(r.reason == REASONS["none"] for r in outcome.refused)


def test_the_name_of_the_form_is_taken(tmp_path: Path) -> None:
    item = small(product, tmp_path)
    item.signatures["serving_default__split"] = item.signatures[SIGNATURE]
    assert_refused(split_user_item, item, "has a signature serving_default__split of its own", options=USER)


def test_no_dense_part_to_gain_from(tmp_path: Path) -> None:
    item = small(lambda u, i: tf.concat([tf.tanh(u), i], 1), tmp_path)
    assert_refused(split_user_item, item, REASONS["dense"], options=USER)


def test_nothing_to_gain_where_all_is_mixed(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        u, i = placeholder(tf.float32, [None, 4], "u"), placeholder(tf.int64, [None], "i")
        return {"y": tf.gather(tables["t"], i) * tf.linalg.l2_normalize(u, 0)}

    item = graph_item(build, tables={"t": table()}, work_dir=tmp_path)
    assert_refused(split_user_item, apply(fuse_lookups, item)[0], REASONS["gain"], options=USER)


def test_a_size_that_can_t_be_made_for_the_items(tmp_path: Path) -> None:
    def build(tables: Tables) -> dict[str, tf.Tensor]:
        u, i = placeholder(tf.float32, [None, None, 4], "u"), placeholder(tf.float32, [None, 3], "i")
        entries = tf.cast(tf.shape(tf.reshape(u, [-1, 4]))[0], tf.float32)  # rows times positions
        return {"y": product(tf.reduce_sum(u, 1), i) / entries}

    item = graph_item(build, work_dir=tmp_path)
    assert_refused(split_user_item, item, "the split can't be written: the shape of .* is not known", options=USER)


def test_a_fixed_number_of_rows(tmp_path: Path) -> None:
    item = small(product, tmp_path, shape=8)
    item.signatures[SIGNATURE].inputs["i"].tensor_shape.dim[0].size = -1
    assert_refused(split_user_item, item, "input u has a fixed number of rows", options=USER)


def test_frames_of_loops(tmp_path: Path) -> None:
    def loop(u: tf.Tensor, i: tf.Tensor) -> tf.Tensor:
        tf.compat.v1.disable_control_flow_v2()
        try:
            x = tf.compat.v1.while_loop(lambda k, z: k < 3, lambda k, z: (k + 1, z * 0.5), (0, u))[1]
        finally:
            tf.compat.v1.enable_control_flow_v2()
        return product(x, i)

    assert_refused(split_user_item, small(loop, tmp_path), "control flow: .* runs in frames", options=USER)


def test_state_that_is_read_or_written(tmp_path: Path) -> None:
    item = small(lambda u, i: product(u + tf.random.uniform([]), i), tmp_path)
    assert_refused(split_user_item, item, "writes or reads state", options=USER)


def test_state_inside_control_flow(tmp_path: Path) -> None:
    def build(u: tf.Tensor, i: tf.Tensor) -> tf.Tensor:
        x = tf.cond(tf.reduce_sum(i) > 0, lambda: u + tf.random.uniform([]), lambda: u)
        return product(x, i)

    assert_refused(split_user_item, small(build, tmp_path), "control flow: .*RandomUniform", options=USER)


def test_serialized_examples(zoo: Zoo, tmp_path: Path) -> None:
    item = reference(zoo("f_densefeatures_example").path, tmp_path)
    assert_refused(
        split_user_item, item, "examples holds serialized Examples", options=ConvertOptions(user_features=("*",))
    )


def test_features_that_must_come_per_item_are_named(zoo: Zoo, tmp_path: Path) -> None:
    """A plain sparse lookup gives as many rows as the last row that has ids: not the number of users."""
    item = reference(zoo("a_plain_sparse").path, tmp_path)
    options = ConvertOptions(user_features=("f1",))
    outcome = assert_refused(split_user_item, item, "no user feature is left: f1: TfctrFusedLookup", options=options)
    assert outcome.details["user"]["serving_default"]["features"] == ["f1"]
    assert outcome.details["user"]["serving_default"]["inputs"] == ["f1_indices", "f1_shape", "f1_values"]


def test_unfused_lookups_of_sparse_features_stay_on_the_item_side(zoo: Zoo, tmp_path: Path) -> None:
    item = load_inlined(zoo("a_safe_sparse").path)
    item.store_name, item.work_dir = "test/unfused", tmp_path
    run_passes(item, REFERENCE_PASSES, ConvertOptions(strict=True))
    assert_refused(
        split_user_item, item, "f1: .*is not known to work row by row", options=ConvertOptions(user_features=("f1",))
    )


def test_a_split_that_gives_other_numbers_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(session: Any, item: GraphItem, name: str, arrays: Any) -> Any:
        values = real(session, item, name, arrays)
        return [v + 1 for v in values] if name.endswith("__split") else values

    real = proof._run
    monkeypatch.setattr(proof, "_run", wrong)
    item = ranker(tmp_path)
    outcome = assert_refused(split_user_item, item, "not proven: one user: output .* differs", options=USER)
    assert outcome.refused[0].proof_failed
    with pytest.raises(StrictRefusal, match="not proven"):
        run_passes(item, [p for p in all_form_passes() if p.name == "split_user_item"],
                   dataclasses.replace(USER, strict=True))  # fmt: skip


def all_form_passes() -> tuple[Any, ...]:
    from graph_opt.pipeline import FORM_PASSES

    return FORM_PASSES


def test_a_model_that_refuses_the_inputs_can_t_be_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "_run", lambda *_: "ids out of range")
    outcome = assert_refused(split_user_item, ranker(tmp_path), "refuses generated inputs", options=USER)
    assert not outcome.refused[0].proof_failed


def test_every_reason_has_a_test() -> None:
    assert module.REASONS is REASONS
    assert set(REASONS) == {
        "none", "taken", "examples", "frames", "state", "inner_state", "static", "all", "left", "dense", "gain",
        "shape", "proof",
    }  # fmt: skip
