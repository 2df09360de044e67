"""The Python of docs/keras.md, run from top to bottom."""

import re


def test_the_page_runs(repo_root, tmp_path, monkeypatch):
    page = (repo_root / "docs/keras.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 6
    monkeypatch.chdir(tmp_path)
    shared: dict[str, object] = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, "docs/keras.md", "exec"), shared)
    assert shared["scores"].shape == (1, 1)
    assert 0 < shared["table"].size() <= 50
    assert set(shared["again"].get_layer("tag_table").table.keys()) == set(shared["table"].keys())
    assert {path.name for path in tmp_path.iterdir()} >= {"model.keras", "model.weights.h5", "checkpoints", "export"}
