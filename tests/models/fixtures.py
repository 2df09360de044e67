"""The zoo as a pytest fixture: ``pytest_plugins = ["tests.models.fixtures"]`` in conftest.py."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.models.base import BuiltModel


class Zoo:
    """The models of one test run; ``zoo("a_safe_sparse")`` saves the model at first use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str) -> BuiltModel:
        # Imported at first use: collecting tests must not wait for TensorFlow.
        from tests.models import zoo

        with _locked(self.folder / f".{'legacy' if zoo.MODELS[name].legacy else name}.lock"):
            return zoo.build(name, self.folder)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock that the worker processes of one run (`pytest -n`) share."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    """Models by name, written once per run; TFCTR_TEST_MODELS names a folder to keep them in between runs."""
    kept = os.environ.get("TFCTR_TEST_MODELS")
    run_folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a folder of its own in the run's
        run_folder = run_folder.parent
    return Zoo(Path(kept) if kept else run_folder / "models")


@pytest.fixture(scope="session")
def zoo_model(zoo: Zoo) -> Zoo:
    """Another name of `zoo`, for tests that take one model."""
    return zoo
