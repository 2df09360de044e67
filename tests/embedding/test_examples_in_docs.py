"""The training examples of README.md and of docstrings are run, so that what they teach works."""

import doctest
import re
import types
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import tfctr
from tfctr.embedding import clock, training, variable, warm_start


def test_the_example_of_the_readme_runs(
    repo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    section = (repo_root / "README.md").read_text(encoding="utf-8").split("## Train with tables that grow\n")[1]
    blocks = re.findall(r"^```python\n(.*?)^```", section.split("\n## ")[0], re.MULTILINE | re.DOTALL)
    assert blocks
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["users"].size() == 2 and int(names["step"]) == 3
    assert "2 rows," in capsys.readouterr().out
    listed = [name for name, _ in tf.train.list_variables(str(tmp_path / "checkpoints"))]
    assert any(name.endswith("/keys") for name in listed) and any(name.endswith("/values") for name in listed)


def test_the_examples_of_the_page_on_training_run(
    repo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (repo_root / "docs" / "training.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 6
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "docs/training.md", "exec"), names)
    model = names["model"]
    assert int(model.step) == 21 and model.tags.contains(["tea", "green", "milk"]).all()
    assert model.users.size() == 3 + 3 + 2 + 2 and model.tags.contains(["water"]).all()
    assert {path.name for path in tmp_path.iterdir()} >= {"checkpoints", "saved_model"}


def names_of(module: types.ModuleType, folder: Path) -> dict[str, Any]:
    """What the examples of a module's docstrings take for granted."""
    names: dict[str, Any] = {"tf": tf, "tfctr": tfctr, "np": np}
    if module is training:
        return names | {
            "user_ids": tf.constant([1, 2, 1], tf.int64),
            "item_ids": tf.constant([5, 5, 6], tf.int64),
            "labels": tf.constant([1.0, 0.0, 1.0]),
        }
    if module is warm_start:
        rows = np.ones([3, 16], np.float32)
        pq.write_table(pa.table({"item_id": [7, 8, 9], "embedding": rows.tolist()}), folder / "items.parquet")
        adagrad = tfctr.optimizers.Adagrad(0.05)
        return names | {
            "users": tfctr.EmbeddingVariable(16, "users"),
            "items": tfctr.EmbeddingVariable(16, "items", key_dtype=tf.string),
            "numbers": tfctr.EmbeddingVariable(16, "numbers", optimizer=adagrad),
            "old_model": types.SimpleNamespace(user_table=tf.Variable(rows)),
            "old_table": tf.Variable(tf.ones([1000, 16])),
            "known_items": ["tea", "milk"],
            "keys": [1, 2, 3],
            "values": rows,
            "accumulator": rows,
        }
    return names


@pytest.mark.parametrize("module", [clock, training, variable, warm_start], ids=lambda module: module.__name__)
def test_the_examples_of_docstrings_run(
    module: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    texts = [module.__doc__, *(value.__doc__ for value in own)]
    texts = [text for text in dict.fromkeys(texts) if text and ">>>" in text]
    assert texts
    for text in texts:
        names = names_of(module, tmp_path)
        for example in doctest.DocTestParser().get_examples(text):
            exec(compile(example.source, f"{module.__name__}:{example.lineno}", "exec"), names)
