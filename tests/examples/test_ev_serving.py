"""``make example-serving``, short: train, convert, serve, train on, delta, apply, compact, each in a new process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from examples import ev_serving
from examples.demo import make_console
from tfctr.errors import OutputsDifferError


def test_example_on_generated_clicks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ev_serving.parse(["--generated", "--rows", "3000", "--out", str(out)])
    figures = ev_serving.run(arguments, make_console())
    assert figures["evicted"] > 0
    assert sum(figures["rows_after"].values()) != sum(figures["rows_before"].values())
    said = capsys.readouterr().out
    for part in ("train on", "in memory", "on disk", "compact", "to the last bit", "item_id", "rows in bundle 2"):
        assert part in said
    linked = [p for p in (out / "bundles" / "2" / "assets" / "tfctr").iterdir() if p.stat().st_nlink > 1]
    assert any(p.suffix == ".hash" for p in linked)  # the tables of bundle 1, not copies


def test_predictions_that_differ_end_it() -> None:
    with pytest.raises(OutputsDifferError, match="version 2 predicts otherwise than the model: by up to 1.00e-03"):
        ev_serving.check(np.full(3, 0.501), np.full(3, 0.5), "version 2")
    with pytest.raises(OutputsDifferError, match="the compacted version predicts otherwise"):
        ev_serving.same(np.full(3, 0.5), np.array([0.5, 0.5, np.nextafter(0.5, 1)]), "the compacted version")


def test_serving_without_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ev_serving.main(["--serve", str(tmp_path / "none"), "--out", str(tmp_path)]) == 2
    assert "plan.json" in capsys.readouterr().err
