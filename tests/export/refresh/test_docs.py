"""The commands of docs/refresh.md work, and its line of a changed structure is the one that comes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from tests.export.refresh import small
from tfctr.cli.main import main


def test_commands(repo_root: Path, tmp_path: Path, monkeypatch: Any, capfd: Any, base: tuple[Path, Path]) -> None:
    text = (repo_root / "docs" / "refresh.md").read_text()
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    commands = [line.split() for line in blocks[0].splitlines()]
    assert [c[:2] for c in commands] == [["tfctr", "convert"], ["tfctr", "refresh"], ["tfctr", "refresh"]]
    monkeypatch.chdir(tmp_path)
    shutil.copytree(base[1], "bundles/08")  # as the first command makes it
    for seed, name in enumerate(("09", "10"), 1):
        small.save(Path("models") / name, seed=seed)
    for command in commands[1:]:
        assert main(command[1:]) == 0
    capfd.readouterr()
    small.save("models/11", rows=41)
    assert main(["refresh", "bundles/10", "models/11", "bundles/11"]) == 5
    error = [line for line in capfd.readouterr().err.splitlines() if line.startswith("tfctr: error")]
    assert error == blocks[1].splitlines()
    assert not Path("bundles/11").exists()
