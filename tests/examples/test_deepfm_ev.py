"""``make example-ev``, short: train, evict, checkpoint, restore in a new process."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import deepfm_ev
from examples.demo import make_console


def test_example_on_generated_clicks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = deepfm_ev.parse(["--generated", "--rows", "12000", "--epochs", "3", "--out", str(out)])
    figures = deepfm_ev.run(arguments, make_console())
    assert figures["losses"][-1] < figures["losses"][0]
    assert figures["auc_after"] > 0.55
    tables = figures["tables"]
    assert set(tables) >= {"user_id", "item_id", "city", "query"}
    for table in tables.values():
        assert table["planned"] == table["evicted"]
        assert table["left"] == table["rows"] - table["evicted"] > 0
        assert table["seen"] >= table["rows"] and (table["seen"] == table["rows"] or table["admitted_at"] == 3)
    assert sum(t["evicted"] for t in tables.values()) > 0
    assert figures["restored"] == 1200
    said = capsys.readouterr().out
    for part in ("data", "train", "evict", "save", "restore", "equal to the last bit", "item_id", "ids seen"):
        assert part in said

    import tensorflow as tf

    names = [name for name, _ in tf.train.list_variables(figures["checkpoint"])]
    assert any("values" in name for name in names)


def test_fields_of_movielens(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "ml-100k"
    if not folder.is_dir():
        pytest.skip("no ../shared/data/ml-100k here")
    for file in folder.glob("ml-100k.*"):  # the first ratings: all of them take seconds
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = lines[:1000] if file.suffix == ".inter" else lines
        (tmp_path / file.name).write_text("".join(kept), encoding="utf-8")
    data = deepfm_ev.load({"data": str(tmp_path), "rows": 0})
    found = {f.name: f for f in deepfm_ev.fields(data.train, 100)}
    assert list(found) == ["user_id", "item_id", "occupation", "zip", "genres", "title_words"]
    assert found["zip"].dtype == "string" and found["zip"].admission is not None
    assert found["title_words"].several and found["genres"].dtype == "int64"


def test_folder_of_someone_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    assert deepfm_ev.main(["--generated", "--rows", "1000", "--out", str(tmp_path)]) == 2
    assert "was not made by this example" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_restoring_from_a_folder_without_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert deepfm_ev.main(["--restore", str(tmp_path / "none")]) == 2
    assert "plan.json: No such file" in capsys.readouterr().err
