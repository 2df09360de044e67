"""Refreshing a TensorRT bundle on a machine with a GPU: plans are refitted, or built with the reason. CUDA and TensorRT
are fakes."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tensorflow as tf

import tfctr
from export.dense_pass import DenseOptions
from export.tensorrt import build as building
from export.tensorrt import library as tensorrt_library
from tests.export.dense import rankers
from tests.serving import dense_bundles as bundles
from tfctr.bundle.reader import read_manifest
from tfctr.engines import tensorrt_cuda


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU for sm89 and tensorrt_rtx; builds with REFIT stay in this process, where the fakes are."""
    trt = bundles.with_gpu(monkeypatch)
    known = tensorrt_library.Library(trt, "tensorrt_rtx", bundles.VERSION, ("sm86", "sm89"))
    monkeypatch.setattr("export.dense.tensorrt.load", lambda: known)
    monkeypatch.setattr(tensorrt_library, "load", lambda: known)
    monkeypatch.setattr(building, "_build_apart", building._build_here)
    yield trt
    tensorrt_cuda.driver.cache_clear()
    tensorrt_cuda.gpu.cache_clear()


def save_newer(folder):
    """The ranker after an hour of training: other numbers everywhere."""
    model = rankers.Ranker()
    rng = np.random.default_rng(11)
    for variable in model.variables:
        variable.assign_add(0.1 * rng.standard_normal(variable.shape).astype(np.float32))
    tf.saved_model.save(model, str(folder), signatures={"serving_default": model.scores})
    return folder


def notes_of(path):
    manifest = read_manifest(path)
    return [note for note in manifest["signatures"]["serving_default"]["dense"]["notes"] if note.startswith("sm")]


def test_a_refresh_refits_the_plans_of_this_gpu(gpu, tmp_path, caplog):
    caplog.set_level(logging.WARNING, "tfctr")
    model, newer = rankers.save(tmp_path / "m"), save_newer(tmp_path / "n")
    options = DenseOptions(dense="tensorrt", cache_dir="off", required=True, targets=("sm86", "sm89"))
    tfctr.convert(model, tmp_path / "b", dense=options)
    assert notes_of(tmp_path / "b") == []
    gpu.calls.clear()
    tfctr.refresh(tmp_path / "b", newer, tmp_path / "r", cache_dir="off")
    (note,) = notes_of(tmp_path / "r")
    assert note.startswith("sm89: refitted, and as the referee on ")
    assert [call[0] for call in gpu.calls].count("refit") == 1
    request = rankers.request(40)
    with tfctr.ServingSession(tmp_path / "r", fallback=False) as session, tfctr.ServingSession(newer) as plain:
        got, want = session.predict(request), plain.predict(request)
        assert session.describe()["dense"]["running"] == "tensorrt"
        np.testing.assert_allclose(got["score"], want["score"], atol=5e-3)
    with tfctr.ServingSession(model) as before:
        assert np.abs(before.predict(request)["score"] - want["score"]).max() > 2e-2
    tfctr.refresh(tmp_path / "r", model, tmp_path / "again", cache_dir="off")  # a refitted plan is refitted again
    assert notes_of(tmp_path / "again")[0].startswith("sm89: refitted")
    assert [one for one in caplog.records if one.name.startswith("tfctr")] == []


def test_a_plan_that_can_not_be_refitted_is_built_with_the_reason(gpu, tmp_path, monkeypatch):
    model, newer = rankers.save(tmp_path / "m"), save_newer(tmp_path / "n")
    options = DenseOptions(dense="tensorrt", cache_dir="off", required=True, targets=("sm89",))
    with monkeypatch.context() as patch:
        patch.setattr("export.dense.plans.refits_here", lambda target: False)  # converted without the GPU
        tfctr.convert(model, tmp_path / "b", dense=options)
    tfctr.refresh(tmp_path / "b", newer, tmp_path / "r", cache_dir="off")
    (note,) = notes_of(tmp_path / "r")
    assert "sm89: built, as it can't be refitted: plan for sm89: the plan was not built to be refitted" in note
    with tfctr.ServingSession(tmp_path / "r", fallback=False) as session, tfctr.ServingSession(newer) as plain:
        got, want = session.predict(rankers.request(40)), plain.predict(rankers.request(40))
    np.testing.assert_allclose(got["score"], want["score"], atol=5e-3)


def test_a_library_that_builds_no_plan_to_be_refitted(gpu, tmp_path, monkeypatch):
    real = building._build_here

    def without_refit(model, names, options, library):
        if options.refit:
            raise building.BuildError("tensorrt_rtx builds no plan for sm89: error: Myelin")
        return real(model, names, options, library)

    monkeypatch.setattr(building, "_build_apart", without_refit)
    options = DenseOptions(dense="tensorrt", cache_dir="off", required=True, targets=("sm89",))
    tfctr.convert(rankers.save(tmp_path / "m"), tmp_path / "b", dense=options)
    (note,) = notes_of(tmp_path / "b")
    assert note == "sm89: can't be built to be refitted: tensorrt_rtx builds no plan for sm89: error: Myelin"
    with tfctr.ServingSession(tmp_path / "b", fallback=False) as session:
        assert not session.describe()["dense"]["engines"][0]["refittable"]
