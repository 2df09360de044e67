"""docs/compile_cache.md: its example runs, its commands work, and its table tells no level that is none."""

import re
import shlex

import pytest

from export.cache import LEVELS, CompileCache
from tests.export.cache.keys import KEY, Builder
from tfctr.cli.main import main


@pytest.fixture
def text(repo_root, tmp_path, monkeypatch) -> str:
    monkeypatch.setenv("TFCTR_CACHE_DIR", str(tmp_path / "cache"))
    return (repo_root / "docs" / "compile_cache.md").read_text()


def test_the_example(text, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for status in ("miss", "hit"):
        names: dict = {}
        exec(block, names)
        assert names["plan"] == b"compiled"
        assert capsys.readouterr().out == f"{status} {names['entry'].key}\n"


def test_the_commands(text, tmp_path, capsys):
    with CompileCache(tmp_path / "cache") as cache:
        entry = cache.get_or_build("tower", KEY, Builder())
    lines = [line.split(" #")[0] for line in text.splitlines() if line.startswith("tfctr cache ")]
    assert len(lines) >= 6
    for line in lines:
        assert main(shlex.split(line.replace("3f9c", entry.key[:4]))[1:]) == 0, line
    assert capsys.readouterr().out.count("removed") == 3  # two prunes, one clear


def test_what_lies_where(text, tmp_path):
    with CompileCache(tmp_path / "cache") as cache:
        cache.get_or_build("tower", KEY, Builder())
    for path in (tmp_path / "cache").iterdir():
        assert re.search(rf"^  .*\b{path.name}\b", text, re.MULTILINE), path
    assert all(f"| `{level}` |" in text for level in LEVELS)
