"""The packed form: what is duplicated, what is shared, in which order inputs lie, and who passes through."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import graph_opt
from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.passes.pack_inputs import pack_inputs
from graph_opt.pipeline import all_passes, run_passes
from graph_opt.saved_model import load_inlined
from graph_opt.verify import verify
from graph_opt.view import GraphView
from tests.models.fixtures import Zoo
from tfctr.bundle.packing import pack
from tfctr.core import library

library.load()


def packed_item(path: Path, folder: Path, disable: tuple[str, ...] = ()) -> GraphItem:
    item = load_inlined(path)
    item.store_name = f"test/{folder.name}"
    item.work_dir = folder
    options = ConvertOptions(strict=True, disable=disable)
    run_passes(item, all_passes(options), options)
    verify(item)
    return item


def test_fused_lookups_read_the_arena(zoo: Zoo, tmp_path: Path) -> None:
    item = packed_item(zoo("a_safe_sparse").path, tmp_path)
    view = GraphView(item.graph_def)
    needed = view.ancestors(item.fetches("serving_default__packed"))
    assert not needed & {name.split(":")[0] for name in item.feeds("serving_default")}
    fused = [view.node(n) for n in needed if view.node(n).op == "TfctrFusedLookup"]
    assert len(fused) == 1
    assert b"in:" in fused[0].attr["spec"].s and b"arg:" not in fused[0].attr["spec"].s
    assert "TfctrUnpack" not in {view.node(n).op for n in needed}
    assert set(item.signatures["serving_default__packed"].inputs) == {"arena", "shapes"}


def test_what_depends_on_no_input_is_shared(zoo: Zoo, tmp_path: Path) -> None:
    item = packed_item(zoo("c_keras_onehot").path, tmp_path)
    view = GraphView(item.graph_def)
    plain = view.ancestors(item.fetches("serving_default"))
    packed = view.ancestors(item.fetches("serving_default__packed"))
    assert {view.node(n).op for n in plain & packed} >= {"Const"}
    copied = {n for n in packed - plain if view.node(n).op in ("Const", "TfctrTable", "TfctrStore")}
    assert copied <= {"serving_default__packed/no_strings"}


def test_unpack_gives_inputs_that_others_read(zoo: Zoo, tmp_path: Path) -> None:
    item = packed_item(zoo("e_vocab_file").path, tmp_path, disable=("fuse_lookups",))
    view = GraphView(item.graph_def)
    (unpack,) = (n for n in view if n.op == "TfctrUnpack")
    assert len(unpack.attr["emit"].list.i) == len(unpack.attr["Tout"].list.type)
    assert set(item.signatures["serving_default__packed"].inputs) == {"arena", "shapes", "strings"}


def test_one_and_two_inputs_pass_through(zoo: Zoo, tmp_path: Path) -> None:
    report = graph_opt.convert(zoo("f_densefeatures_example").path, tmp_path / "bundle")
    assert report.manifest["signatures"]["serving_default"]["packed"] is None
    (refused,) = next(p for p in report.manifest["passes"] if p["name"] == "pack_inputs")["refused"]
    assert "1 inputs: feeding them is as cheap as packing" in refused["reason"]


def _three_inputs(path: Path, signature: str, default: bool = False) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        b = v1.placeholder(tf.float32, [None], "b")
        a = v1.placeholder_with_default([1.0], [None], "a") if default else v1.placeholder(tf.float32, [None], "a")
        text = v1.placeholder(tf.string, [None], "text")
        inputs = {"z": b, "a": a, "m": text}
        signatures = {signature: v1.saved_model.predict_signature_def(inputs, {"sum": a - b, "text": text})}
        builder = v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save()


def test_order_is_the_manifests_and_any_signature_name_works(tmp_path: Path) -> None:
    _three_inputs(tmp_path / "model", "_my signature/1")
    report = graph_opt.convert(tmp_path / "model", tmp_path / "bundle", strict=True)
    info = report.manifest["signatures"]["_my signature/1"]
    assert [e["name"] for e in info["inputs"]] == ["a", "m", "z"]
    values: dict[str, Any] = {
        "a": np.float32([3, 4]), "m": np.array([b"x", b"y"], dtype=object), "z": np.float32([1, 1])
    }  # fmt: skip
    arena, shapes, strings = pack([values[e["name"]] for e in info["inputs"]])
    function = tf.saved_model.load(str(tmp_path / "bundle")).signatures[info["packed"]]
    got = function(arena=tf.constant(arena), shapes=tf.constant(shapes), strings=tf.constant(strings.astype("S")))
    assert got["sum"].numpy().tolist() == [2, 3]
    assert got["text"].numpy().tolist() == [b"x", b"y"]


def test_inputs_with_defaults_are_not_packed(tmp_path: Path) -> None:
    _three_inputs(tmp_path / "model", "serving_default", default=True)
    item = load_inlined(tmp_path / "model")
    (refused,) = pack_inputs(item, ConvertOptions()).refused
    assert "a:0 may be left out" in refused.reason


@pytest.mark.parametrize("encoded", [True, False])
def test_the_shape_of_a_sparse_placeholder_has_no_usable_default(tmp_path: Path, encoded: bool) -> None:
    """``sparse_placeholder(shape=[None, None])`` gives its dense shape the default [-1, -1]."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        ids = v1.sparse_placeholder(tf.int64, [None, None], name="ids")
        assert ids.dense_shape.op.type == "PlaceholderWithDefault"
        parts = {"rows": ids.indices, "ids": ids.values, "shape": ids.dense_shape}
        outputs = {"dense": tf.sparse.to_dense(ids)}
        v1.saved_model.simple_save(session, str(tmp_path / "model"), {"x": ids} if encoded else parts, outputs)
    assert pack_inputs(load_inlined(tmp_path / "model"), ConvertOptions()).fired == 1
