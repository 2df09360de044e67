"""``make demo``, short: on generated clicks, and on MovieLens-100k where it is there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tfctr
from examples import click_data, demo, wide_deep
from examples.schema import take

# One feature of each kind, and a cross: the whole list takes a minute to trace.
FEATURES = ("user_id", "item_id", "gender", "category_id", "brand", "age", "device")
BAGS = ("user_tags", "interests", "query", "clicked_items")


def test_demo_on_generated_clicks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = demo.parse(["--epochs", "2", "--rounds", "5", "--out", str(out)])
    data = click_data.generate(6000).only((*FEATURES, *BAGS))
    figures = demo.run(arguments, demo.make_console(), data)
    assert figures["auc_stock"] > 0.55
    assert figures["auc_tfctr"] == pytest.approx(figures["auc_stock"], abs=1e-4)
    said = capsys.readouterr().out
    for part in ("several per row, weighted", "sequence", "faster", str(out / "bundle"), str(out / "report.html")):
        assert part in said
    profile = figures["profile"]
    assert profile["profile"]["operations"] < profile["baseline"]["operations"]
    assert (
        profile["baseline"]["by_role"]["lookup"]["operations"]
        > profile["profile"]["by_role"]["lookup"]["operations"]
        > 0
    )
    told = " ".join(said.split())
    assert f"What was slow. {profile['slow']}" in told and f"What changed. {profile['changed']}" in told
    close = "".join(said.split())
    assert close.endswith(f"tfctrinspect{out / 'bundle'}") and profile["page"] in close
    assert f"tfctrserve{out / 'bundle'}" in close
    assert f"curl-d@{out / 'request.json'}http://127.0.0.1:8501/v1/models/bundle:predict" in close
    assert "<canvas" in Path(profile["page"]).read_text()
    assert (out / "model" / "saved_model.pb").is_file()
    assert (out / "report.html").stat().st_size > 1000
    with tfctr.ServingSession(out / "bundle") as session:
        assert session.predict(wide_deep.request(take(data.test, np.arange(3))))["click"].shape == (3, 1)
        asked = json.loads((out / "request.json").read_text())["inputs"]
        expected = session.predict(wide_deep.request(take(data.test, np.arange(2))))
        np.testing.assert_array_equal(session.predict(asked)["click"], expected["click"])


def test_demo_on_movielens(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "ml-100k"
    if not folder.is_dir():
        pytest.skip("no ../shared/data/ml-100k here")
    arguments = ["--data", str(folder), "--epochs", "1", "--rounds", "5", "--out", str(tmp_path / "out")]
    parsed = demo.parse(arguments)
    figures = demo.run(parsed, demo.make_console())
    assert figures["auc_tfctr"] == pytest.approx(figures["auc_stock"], abs=1e-4)
    assert figures["auc_stock"] > 0.6
    assert all(entry["status"] == "fused" for entry in figures["lookups"])
    assert np.isfinite([t["ratio"]["median"] for t in figures["timings"].values()]).all()


def test_bad_folder_ends_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--data", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert said.err.splitlines() == [f"demo: {tmp_path / 'none'} is not a folder"]
    assert not (tmp_path / "out").exists()


def test_folder_of_someone_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    assert demo.main(["--rows", "1000", "--out", str(tmp_path)]) == 2
    assert "was not made by the demo; name another folder with --out" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
