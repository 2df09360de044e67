"""The form with the engine's node, on graphs made by hand: what is shared, what is copied, who waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from export.dense_pass import DenseOptions, dense_pass
from graph_opt.finish import finish
from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.passes.drop_unused_files import drop_unused_files
from graph_opt.passes.pack_inputs import pack_inputs
from graph_opt.passes.prune_training import prune_training
from graph_opt.report import PassOutcome
from graph_opt.sessions import ItemSession
from graph_opt.testing import SIGNATURE, Tables, apply, graph_item
from graph_opt.view import GraphView

V1 = tf.compat.v1
DENSE = f"{SIGNATURE}__dense"


def weights(rows: int, columns: int, seed: int = 1) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32))


def with_engine(item: GraphItem, cache_dir: Path, **options: Any) -> tuple[GraphItem, PassOutcome]:
    given = {"dense": "openvino", "cache_dir": cache_dir, "buckets": (8,), **options}
    return apply(dense_pass(DenseOptions(**given)), item, ConvertOptions())


def run(item: GraphItem, signature: str, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
    ready = item.copy()
    finish(ready)
    form = ready.signatures[signature]
    with ItemSession(ready) as session:
        names = sorted(form.outputs)
        given = {form.inputs[name].name: value for name, value in feeds.items()}
        return dict(zip(names, session.run([form.outputs[n].name for n in names], given), strict=True))


def mlp(x: tf.Tensor, *sizes: int) -> tf.Tensor:
    for number, size in enumerate(sizes):
        x = tf.matmul(x, weights(int(x.shape[1]), size, number))
        x = tf.nn.relu(x) if number + 1 < len(sizes) else x
    return x


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., GraphItem]:
    def made(build: Callable[[Tables], Mapping[str, tf.Tensor]], **more: Any) -> GraphItem:
        return graph_item(build, work_dir=tmp_path, **more)

    return made


FEEDS = {"x": np.random.default_rng(0).standard_normal((11, 6)).astype(np.float32)}


def assert_same(item: GraphItem, feeds: Mapping[str, Any] = FEEDS) -> None:
    want, got = run(item, SIGNATURE, feeds), run(item, DENSE, feeds)
    assert set(want) == set(got)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


def test_several_outputs_and_what_reads_them(make: Callable[..., GraphItem], cache_dir: Path) -> None:
    """Outputs of the tower, of what reads it, and of what has nothing to do with it."""

    def build(_: Tables) -> dict[str, tf.Tensor]:
        x = V1.placeholder(tf.float32, [None, 6], "x")
        logit = mlp(x, 16, 1)
        odd = tf.math.lgamma(tf.exp(logit))  # has no translation: stays outside
        return {"logit": logit, "score": tf.sigmoid(logit), "odd": odd, "x": x * 2.0}

    item = make(build)
    nodes = {node.name for node in item.graph_def.node}
    after, outcome = with_engine(item, cache_dir)
    assert outcome.fired == 1 and list(after.dense) == [SIGNATURE]
    assert nodes <= {node.name for node in after.graph_def.node}  # nothing of S changed
    assert_same(after)
    view = GraphView(after.graph_def)
    made = after.dense[SIGNATURE]
    assert [node.name for node in view if node.op == "TfctrDenseEngine"] == [made.node]
    needed = view.ancestors(after.fetches(DENSE))
    assert made.node in needed and not any(view.node(name).op == "MatMul" for name in needed)
    copies = {view.node(name).op for name in needed if name.startswith(f"{DENSE}/")}
    assert "Lgamma" in copies and "Placeholder" not in copies


def test_twice_is_once(make: Callable[..., GraphItem], cache_dir: Path) -> None:
    item = make(lambda _: {"y": mlp(V1.placeholder(tf.float32, [None, 6], "x"), 16, 1)})
    once, _ = with_engine(item, cache_dir)
    twice, outcome = with_engine(once, cache_dir)
    assert outcome.fired == 0 and not outcome.refused
    assert twice.graph_def == once.graph_def and twice.files == once.files


def test_a_bisection_takes_forms_one_by_one(make: Callable[..., GraphItem], cache_dir: Path) -> None:
    item = make(lambda _: {"y": mlp(V1.placeholder(tf.float32, [None, 6], "x"), 16, 1)})
    options = ConvertOptions(only_rewrites=frozenset({"another"}))
    one = dense_pass(DenseOptions(dense="openvino", cache_dir=cache_dir))
    after, outcome = apply(one, item, options)
    assert outcome.fired == 0 and not after.dense
    _, outcome = with_engine(item, cache_dir)
    assert outcome.rewrites == (SIGNATURE,)


def test_waits_go_over_to_the_engine(make: Callable[..., GraphItem], cache_dir: Path) -> None:
    def build(_: Tables) -> dict[str, tf.Tensor]:
        x = V1.placeholder(tf.float32, [None, 6], "x")
        early = tf.strings.as_string(x, name="early")
        with tf.control_dependencies([early]):
            hidden = tf.nn.relu(tf.matmul(x, weights(6, 16)), name="hidden")
        with tf.control_dependencies([hidden]):
            late = tf.identity(x, name="late")
        return {"y": tf.matmul(hidden, weights(16, 1)), "late": late}

    after, _ = with_engine(make(build), cache_dir)
    assert_same(after)
    view = GraphView(after.graph_def)
    engine = after.dense[SIGNATURE].node
    assert view.control_inputs(engine) == ["early"]
    assert view.control_inputs(f"{DENSE}/late") == [engine]


def test_a_wait_in_the_middle_is_a_reason(make: Callable[..., GraphItem], cache_dir: Path) -> None:
    def build(_: Tables) -> dict[str, tf.Tensor]:
        x = V1.placeholder(tf.float32, [None, 6], "x")
        first = tf.matmul(x, weights(6, 16))
        with tf.control_dependencies([first]):
            between = tf.strings.as_string(tf.constant([1]), name="between")
        with tf.control_dependencies([between]):
            second = tf.nn.relu(first)
        return {"y": tf.matmul(second, weights(16, 1))}

    after, outcome = with_engine(make(build), cache_dir)
    assert not after.dense and DENSE not in after.signatures
    (refused,) = outcome.refused
    assert "its nodes can't be one: something that waits for" in refused.reason
    assert after.files == []  # nothing of the attempt stays


def test_files_are_renumbered_and_forms_packed(make: Callable[..., GraphItem], cache_dir: Path) -> None:
    rows = np.random.default_rng(2).standard_normal((9, 4)).astype(np.float32)

    def build(tables: Tables) -> dict[str, tf.Tensor]:
        ids = V1.placeholder(tf.int64, [None], "ids")
        x = V1.placeholder(tf.float32, [None, 6], "x")
        more = V1.placeholder(tf.float32, [None, 2], "more")
        columns = tf.concat([tf.gather(tables["emb"], ids), x, more], axis=1)
        return {"y": mlp(tf.ensure_shape(columns, [None, 12]), 16, 1)}

    item = make(build, tables={"unread": rows + 1, "emb": rows})
    after, _ = with_engine(item, cache_dir)
    view = GraphView(after.graph_def)
    assert list(view.node(after.dense[SIGNATURE].node).attr["files"].list.i) == [2]
    after, _ = apply(prune_training, after, ConvertOptions())
    after, _ = apply(drop_unused_files, after, ConvertOptions())
    view = GraphView(after.graph_def)
    assert [file.name for file in after.files] == ["emb", "dense_0_tower.onnx"]
    assert list(view.node(after.dense[SIGNATURE].node).attr["files"].list.i) == [1]
    after, _ = apply(pack_inputs, after, ConvertOptions())
    assert after.packed == {SIGNATURE: f"{SIGNATURE}__packed", DENSE: f"{DENSE}__packed"}
    packed = GraphView(after.graph_def).ancestors(after.fetches(f"{DENSE}__packed"))
    assert sum(name.endswith("/engine") for name in packed) == 1
    assert_same(after, {**FEEDS, "ids": np.arange(11) % 9, "more": np.ones((11, 2), np.float32)})


def test_names_of_any_letters(make: Callable[..., GraphItem], cache_dir: Path) -> None:
    item = make(lambda _: {"y": mlp(V1.placeholder(tf.float32, [None, 6], "x"), 16, 1)})
    item.signatures["_ä/b c"] = item.signatures.pop(SIGNATURE)
    item.optimise = ("_ä/b c",)
    after, _ = with_engine(item, cache_dir)
    assert after.dense["_ä/b c"].signature == "_ä/b c__dense"
    assert after.dense["_ä/b c"].node.isascii()
    want, got = run(after, "_ä/b c", FEEDS), run(after, "_ä/b c__dense", FEEDS)
    np.testing.assert_allclose(got["y"], want["y"], rtol=1e-5, atol=1e-5)
