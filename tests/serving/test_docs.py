"""The example of docs/serving.md is code that runs."""

import re

import pytest


def test_one_user_many_candidates(repo_root, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    text = (repo_root / "docs" / "serving.md").read_text()
    section = text[text.index("## One user, many candidates") :]
    (block, *_) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(block, names)
    assert names["scores"].shape[0] == 500
    printed = capsys.readouterr().out
    assert "user_history" in printed
    assert "'split': 2" in printed
