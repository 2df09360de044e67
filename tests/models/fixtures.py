"""The zoo as a pytest fixture: ``pytest_plugins = ["tests.models.fixtures"]`` in conftest.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.models.base import BuiltModel


class Zoo:
    """The models of one test run; ``zoo("a_safe_sparse")`` saves the model at first use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str) -> BuiltModel:
        # Imported at first use: collecting tests must not wait for TensorFlow.
        from tests.models import zoo

        return zoo.build(name, self.folder)


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    """Models by name, written once per run; TFCTR_TEST_MODELS names a folder to keep them in between runs."""
    kept = os.environ.get("TFCTR_TEST_MODELS")
    return Zoo(Path(kept) if kept else tmp_path_factory.mktemp("models"))
