"""The example of docs/passes_howto.md is code that runs, and its tests pass."""

import re

import pytest


@pytest.fixture(scope="module")
def example(repo_root):
    blocks = re.findall(r"```python\n(.*?)```", (repo_root / "docs" / "passes_howto.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    names: dict = {}
    for block in blocks:
        exec(block, names)
    return names


@pytest.mark.parametrize("test", ["test_drops_unit_scales", "test_leaves_other_scales"])
def test_example(example, tmp_path, test):
    example[test](tmp_path)
