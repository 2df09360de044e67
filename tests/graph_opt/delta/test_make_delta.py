"""base + deltas in order = a conversion of the newest model: rows, outputs, from SavedModels and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from tests.bundle.deltas import delta_models as models
from tests.graph_opt.delta import changes
from tfctr.bundle.reader import open_bundle
from tfctr.errors import ConvertAnewError


def tables_of(bundle: Path) -> dict[str, Any]:
    files = open_bundle(bundle).manifest["store"]["files"]
    names = [entry["name"] for entry in files if entry["kind"] in ("table", "hash")]
    return {name: tfctr.load_table(bundle, name) for name in names}


def same_as_conversion(version: Path, model: Path, anew: Path, **options: Any) -> None:
    """Keys, rows and outputs of ``version`` are those of a conversion of ``model``, bit for bit."""
    tfctr.convert(model, anew, dense="tensorflow", **options)
    ours, theirs = tables_of(version), tables_of(anew)
    assert sorted(ours) == sorted(theirs)
    for name, table in theirs.items():
        keys = np.sort(np.asarray(table.keys()))
        np.testing.assert_array_equal(np.sort(np.asarray(ours[name].keys())), keys)
        np.testing.assert_array_equal(ours[name].lookup(keys), table.lookup(keys))
    inputs = models.inputs(5)
    got, want = (tfctr.ServingSession(path).predict(inputs) for path in (version, anew))
    for output, value in want.items():
        np.testing.assert_array_equal(got[output], value)


def test_chain_of_exports_and_checkpoints(base: tuple[Path, Path], tmp_path: Path) -> None:
    """Rows alone; rows and dense weights; a checkpoint; a checkpoint without dense changes; keys go and come back."""
    version, model = base[1], models.Model()
    for number in range(1, 5):
        changes.train(model, number, dense=number in (2, 3))
        new = models.save(model, tmp_path / f"model{number}")
        given: Path | str = new
        if number >= 3:
            given = tf.train.Checkpoint(ranker=model).write(str(tmp_path / f"ckpt{number}"))
        delta, following = tmp_path / f"delta{number}", tmp_path / f"version{number}"
        report = tfctr.make_delta(version, given, delta)
        assert report.content["sequence"] == number
        assert bool(report.dense) == (number in (2, 3)), report.dense
        assert report.removed > 0
        assert {t.name for t in report.tables if t.added + t.changed} == {"items", "whole", "users"}
        tfctr.apply_delta(version, [delta], following)
        same_as_conversion(following, new, tmp_path / f"anew{number}")
        version = following
    tfctr.apply_delta(base[1], [tmp_path / f"delta{n}" for n in range(1, 5)], tmp_path / "at_once")
    same_as_conversion(tmp_path / "at_once", new, tmp_path / "anew_at_once")
    tfctr.compact(version, tmp_path / "compacted")
    report = tfctr.make_delta(tmp_path / "compacted", new, tmp_path / "nothing")
    assert report.empty
    assert report.content["sequence"] == 5


@pytest.mark.parametrize("kind", ["saved_model", "checkpoint"])
def test_nothing_changed(base: tuple[Path, Path], tmp_path: Path, kind: str) -> None:
    new: Path | str = base[0]
    if kind == "checkpoint":
        new = tf.train.Checkpoint(ranker=models.Model()).write(str(tmp_path / "ckpt"))
    report = tfctr.make_delta(base[1], new, tmp_path / "delta")
    assert report.empty
    assert (report.rows, report.removed, report.files, report.dense) == (0, 0, (), "")
    tfctr.apply_delta(base[1], [tmp_path / "delta"], tmp_path / "version")
    same_as_conversion(tmp_path / "version", base[0], tmp_path / "anew")


def test_narrow_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows go into a delta as their tables store them."""
    monkeypatch.setattr(models, "ITEMS", 2000)  # files are padded to pages: small ones would not be smaller
    monkeypatch.setattr(models, "KEYS", np.concatenate([models.KEYS, np.arange(2000) - 10**9]))
    wide: dict[str, Any] = {"table_dtype": "int8", "max_dp": 1.0, "max_bias": 1.0, "max_auc_delta": 1.0}
    model = models.Model()
    tfctr.convert(models.save(model, tmp_path / "m0"), tmp_path / "v0", dense="tensorflow", **wide)
    for number in (1, 2):
        changes.train(model, number, dense=number == 2)
        new = models.save(model, tmp_path / f"m{number}")
        tfctr.make_delta(tmp_path / f"v{number - 1}", new, tmp_path / f"d{number}")
        tfctr.apply_delta(tmp_path / f"v{number - 1}", [tmp_path / f"d{number}"], tmp_path / f"v{number}")
        same_as_conversion(tmp_path / f"v{number}", new, tmp_path / f"anew{number}", **wide)
    files = open_bundle(tmp_path / "v2").manifest["store"]["files"]
    assert {"table", "hash"} <= {e["kind"] for e in files if e.get("storage") == "int8"}


def test_a_table_that_can_not_be_stored_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes into the delta as a whole, in float32, and so does the graph that reads it."""
    monkeypatch.setattr(models, "ITEMS", 2000)
    limits: dict[str, Any] = {"table_dtype": "fp16", "max_dp": 1.0, "max_bias": 1.0, "max_auc_delta": 1.0}
    model = models.Model()
    tfctr.convert(models.save(model, tmp_path / "m0"), tmp_path / "v0", dense="tensorflow", **limits)
    changes.train(model, 1, dense=False)
    model.items.scatter_nd_update([[1234]], np.full((1, models.DIM), 70_000, np.float32))  # float16 ends at 65504
    new = models.save(model, tmp_path / "m1")
    report = tfctr.make_delta(tmp_path / "v0", new, tmp_path / "d1")
    assert report.dense == "table 'items' can't be stored as it was"
    assert report.files == ("items",)
    assert "row 1234 holds 70000" in next(t.whole for t in report.tables if t.name == "items")
    tfctr.apply_delta(tmp_path / "v0", [tmp_path / "d1"], tmp_path / "v1")
    same_as_conversion(tmp_path / "v1", new, tmp_path / "anew", **limits)


def test_another_structure_is_refused(base: tuple[Path, Path], tmp_path: Path) -> None:
    model = models.Model()
    model.items = tf.Variable(tf.zeros([models.ITEMS + 1, models.DIM]), name="items")
    new = models.save(model, tmp_path / "model")
    with pytest.raises(ConvertAnewError, match=r"the structure changed: table 'items': .*60, 8.*61, 8"):
        tfctr.make_delta(base[1], new, tmp_path / "delta")
    assert not (tmp_path / "delta").exists()
    prefix = tf.train.Checkpoint(ranker=model).write(str(tmp_path / "ckpt"))
    with pytest.raises(ConvertAnewError, match=r"table 'items': .*60, 8.*61, 8"):
        tfctr.make_delta(base[1], prefix, tmp_path / "delta")
    assert list(tmp_path.glob(".*")) == []
