"""Another structure is refused: the first node that differs is named with both sides, and nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.export.refresh import small
from tests.models.base import save_module
from tfctr.cli.main import main
from tfctr.errors import ConvertAnewError

CHANGES: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"rows": 41}, ("table 'emb_item'", "[40, 4]", "[41, 4]")),
    ({"width": 5}, ("table 'emb_item'", "[40, 4]", "[40, 5]")),
    ({"table_dtype": "float16"}, ("table 'emb_item'", "float32 [40, 4]", "float16 [40, 4]")),
    ({"hidden": 9}, ("[8, 1]", "[9, 1]")),
    ({"activation": "tanh"}, ("Relu in the bundle", "Tanh in the new model")),
    ({"activation": "leaky_relu"}, ("Relu in the bundle", "LeakyRelu in the new model")),
    ({"combiner": "sum"}, ("SparseSegment",)),
    ({"order": ("tag", "item", "dense")}, ("node",)),
    ({"dense": 4}, ("dense", "(None, 3)", "(None, 4)")),
    ({"scale": 3.0}, ("its value", "2.0 in the bundle", "3.0 in the new model")),
    ({"output": "click"}, ("signature 'serving_default'", "outputs", "score", "click")),
    ({"second": True}, ("the signatures", "second")),
    ({"extra_node": True}, ("Sigmoid in the bundle", "Abs in the new model")),
    ({"tag_rows": 31}, ("table 'emb_tag'", "[30, 5]", "[31, 5]")),
]


@pytest.mark.parametrize(("changed", "words"), CHANGES, ids=[", ".join(c) + str(k) for k, (c, _) in enumerate(CHANGES)])
def test_a_change_is_refused_and_named(
    tmp_path: Path, base: tuple[Path, Path], changed: dict[str, Any], words: tuple[str, ...]
) -> None:
    new = small.save(tmp_path / "new", seed=1, **changed)
    with pytest.raises(ConvertAnewError) as caught:
        tfctr.refresh(base[1], new, tmp_path / "out")
    message = str(caught.value)
    assert message.startswith("the structure changed: ") and message.endswith("; convert the new model"), message
    for word in words:
        assert word in message, message
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new"]


def test_the_command_exits_with_5_and_one_line(tmp_path: Path, base: tuple[Path, Path], capfd: Any) -> None:
    new = small.save(tmp_path / "new", hidden=16)
    assert main(["refresh", str(base[1]), str(new), str(tmp_path / "out")]) == 5
    (line,) = [one for one in capfd.readouterr().err.splitlines() if one.startswith("tfctr: error")]
    assert "the structure changed" in line and "convert the new model" in line


class _Frozen(tf.Module):
    """Weights and a branch's constant that are part of the graph, not variables."""

    def __init__(self, kernel: np.ndarray, inside: float) -> None:
        super().__init__()
        self.kernel, self.inside = kernel, inside

    def serve(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        y = tf.matmul(x, tf.constant(self.kernel))
        return {"y": tf.cond(tf.reduce_sum(x) > 0, lambda: y * self.inside, lambda: y)}


def _frozen(path: Path, seed: int, width: int = 2, inside: float = 3.0) -> Path:
    kernel = np.random.default_rng(seed).normal(size=(4, width)).astype(np.float32)
    model = _Frozen(kernel, inside)
    save_module(str(path), model, model.serve, {"x": tf.TensorSpec([None, 4], tf.float32, "x")})
    return path


def test_frozen_weights_are_weights_and_what_is_inside_a_branch_is_structure(tmp_path: Path) -> None:
    tfctr.convert(_frozen(tmp_path / "old", 0), tmp_path / "bundle", dense="tensorflow")
    new = _frozen(tmp_path / "new", 1)
    report = tfctr.refresh(tmp_path / "bundle", new, tmp_path / "out")
    assert report.manifest["refreshed"]["changed"]["weights"] == 1
    x = np.random.default_rng(2).normal(size=(5, 4)).astype(np.float32)
    with tfctr.ServingSession(tmp_path / "out") as session:
        want = tf.saved_model.load(str(new)).signatures["serving_default"](x=tf.constant(x))["y"]
        np.testing.assert_array_equal(session.predict({"x": x})["y"], want)
    with pytest.raises(ConvertAnewError, match=r"attribute 'then_branch'"):
        tfctr.refresh(tmp_path / "bundle", _frozen(tmp_path / "inside", 1, inside=4.0), tmp_path / "out2")
    with pytest.raises(ConvertAnewError, match=r"\[4, 2\].*\[4, 3\]|\(None, 2\).*\(None, 3\)"):
        tfctr.refresh(tmp_path / "bundle", _frozen(tmp_path / "wide", 1, width=3), tmp_path / "out2")


def test_names_do_not_matter(tmp_path: Path, base: tuple[Path, Path]) -> None:
    """The same model saved from another process, or after others were made, has other names throughout."""
    from graph_opt import pipeline
    from graph_opt.options import ConvertOptions
    from graph_opt.renewal.matching import match
    from graph_opt.renewal.record import read_record
    from graph_opt.saved_model import load_inlined

    record = read_record(base[1])
    assert record is not None
    new = load_inlined(small.save(tmp_path / "new", seed=3))
    new.store_name, new.work_dir = "test/names", tmp_path / "work"
    (tmp_path / "work").mkdir()
    pipeline.run_passes(new, pipeline.REFERENCE_PASSES, ConvertOptions())
    names = {node.name: f"other/{k}" for k, node in enumerate(new.graph_def.node)}
    _rename(new, names)
    found = match(record.reference, new)
    assert set(found.nodes.values()) <= set(names.values())
    assert len(found.nodes) == len(record.reference.graph_def.node)


def _rename(item: Any, names: dict[str, str]) -> None:
    from graph_opt.passes.pack_inputs import rename_info
    from graph_opt.view import canonical, node_of

    def tensor(name: str) -> str:
        if name.startswith("^"):
            return "^" + names[name[1:]]
        return canonical(name).replace(node_of(name), names[node_of(name)], 1)

    for node in item.graph_def.node:
        node.name = names[node.name]
        node.input[:] = [tensor(i) for i in node.input]
    for signature in item.signatures.values():
        for info in (*signature.inputs.values(), *signature.outputs.values()):
            rename_info(info, tensor)
    item.init_op = names.get(item.init_op)
    item.constants = {names[n]: ref for n, ref in item.constants.items()}
    item.vocabulary_sizes = {names[n]: k for n, k in item.vocabulary_sizes.items()}
    for asset in item.assets:
        asset.tensor_info.name = tensor(asset.tensor_info.name)
