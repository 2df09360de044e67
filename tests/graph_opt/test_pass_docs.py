"""docs/passes.md says what the code says, and every pass says enough of itself."""

import ast
import sys
from pathlib import Path

import pytest

from graph_opt.pass_docs import pass_doc, passes_markdown
from graph_opt.report import Pass
from tfctr.cli.passes import listed

PASSES = listed()
IDS = [p.name for p in PASSES]


def test_the_page_is_fresh(repo_root: Path) -> None:
    page = (repo_root / "docs" / "passes.md").read_text(encoding="utf-8")
    assert page == passes_markdown(PASSES), "docs/passes.md is stale: tfctr passes --markdown > docs/passes.md"


def test_the_page_has_every_pass_and_keeps_to_its_width(repo_root: Path) -> None:
    page = passes_markdown(PASSES)
    for one in PASSES:
        assert f"\n## {one.name}\n" in page
    fenced = False
    for line in page.splitlines():
        fenced ^= line.startswith("```")
        assert fenced or line.startswith("|") or len(line) <= 120, line


@pytest.mark.parametrize("one", PASSES, ids=IDS)
def test_every_pass_has_words_and_an_example(one: Pass) -> None:
    doc = pass_doc(one)
    assert doc.detail and one.does and one.order_reason
    assert "before" in doc.example and "after" in doc.example
    assert not one.order_reason.endswith(".")


@pytest.mark.parametrize("one", PASSES, ids=IDS)
def test_a_pass_refuses_with_its_reasons_only(one: Pass) -> None:
    """No text is written where ``Refused`` is made: it would be missing from the page."""
    module = sys.modules[one.run.__module__]
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Refused", "Refusal"):
            for keyword in node.keywords:
                literal = isinstance(keyword.value, ast.Constant | ast.JoinedStr)
                assert keyword.arg != "reason" or not literal, f"{module.__name__}:{keyword.value.lineno}"
