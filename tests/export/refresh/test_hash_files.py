"""A refresh over embedding variables: other rows, keys that came and went; the dim must be as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tfctr
from tests.bundle.deltas import delta_models as models
from tests.graph_opt.delta import changes
from tests.models.base import run_stock
from tfctr.bundle.reader import open_bundle
from tfctr.errors import ConvertAnewError


def test_rows_and_keys_are_those_of_the_new_model(tmp_path: Path) -> None:
    model = models.Model()
    tfctr.convert(models.save(model, tmp_path / "m0"), tmp_path / "v0", dense="tensorflow")
    changes.train(model, 1, dense=True)
    new = models.save(model, tmp_path / "m1")
    report = tfctr.refresh(tmp_path / "v0", new, tmp_path / "v1")
    assert report.manifest["refreshed"]["structure"] == "the same export"
    tfctr.convert(new, tmp_path / "anew", dense="tensorflow")
    prints = [
        sorted(f["fingerprint"] for f in open_bundle(tmp_path / name).manifest["store"]["files"])
        for name in ("v1", "anew")
    ]
    assert prints[0] == prints[1]
    ours, theirs = (tfctr.ServingSession(tmp_path / name).predict(models.inputs(3)) for name in ("v1", "anew"))
    stock = run_stock(new, {"serving_default": models.inputs(3)})["serving_default"]
    for output, value in theirs.items():
        np.testing.assert_array_equal(ours[output], value)
        np.testing.assert_allclose(ours[output], stock[output], rtol=1e-5, atol=1e-6)


def test_another_dim_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tfctr.convert(models.save(models.Model(), tmp_path / "m0"), tmp_path / "v0", dense="tensorflow")
    monkeypatch.setattr(models, "DIM", models.DIM + 1)
    new = models.save(models.Model(), tmp_path / "m1")
    with pytest.raises(ConvertAnewError, match="the structure changed: "):
        tfctr.refresh(tmp_path / "v0", new, tmp_path / "v1")
    assert not (tmp_path / "v1").exists()
