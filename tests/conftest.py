"""Shared test set-up: quiet TensorFlow, the op library loaded once, paths every test may use."""

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# No test uses the compile cache of whoever runs it.
os.environ["TFCTR_CACHE_DIR"] = "off"

import pytest
from hypothesis import settings

# An example may take any time: on a busy machine a thread waits longer for its turn than hypothesis allows by itself.
settings.register_profile("tfctr", deadline=None)
settings.load_profile("tfctr")

pytest_plugins = ["tests.models.fixtures", "tests.bundle.deltas.fixtures"]

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def towers_stay() -> None:
    """Conversions of tests leave the dense tower on TensorFlow unless they say otherwise: engines have tests of their
    own, and take seconds each.
    """
    from tfctr import converting

    converting.DEFAULT_DENSE = "tensorflow"


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The root of the source tree."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of optional public data sets, next to the repository; tests that need it are skipped without it."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no ../shared/data here")
    return folder
