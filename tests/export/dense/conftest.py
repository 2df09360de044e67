"""Models and conversions that several tests read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.dense import openvino
from export.dense_pass import DenseOptions
from tests.export.dense import rankers

Convert = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session", autouse=True)
def quick_tuning() -> None:
    """Which variants pay does not matter here."""
    openvino.TUNING_SECONDS = 0.1


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One compile cache for all of these tests."""
    return tmp_path_factory.mktemp("cache") / "tfctr"


@pytest.fixture(scope="session")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Signatures serving_default and same (one tower), and embed (none)."""
    return rankers.save(tmp_path_factory.mktemp("ranker") / "model", more=("same", "embed"))


@pytest.fixture(scope="session")
def converted(ranker: Path, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ranker with OpenVINO engines, user features split."""
    import tfctr

    out = tmp_path_factory.mktemp("converted") / "bundle"
    options = DenseOptions(dense="openvino", cache_dir=cache_dir, buckets=(8, 32))
    tfctr.convert(ranker, out, dense=options, user_features=("user",))
    return out


@pytest.fixture
def convert(tmp_path: Path, cache_dir: Path) -> Convert:
    """convert(model, dense="openvino", ...) -> the manifest; options of the dense pass and of a conversion."""
    import tfctr

    def run(model: Path, *, more: dict[str, Any] | None = None, **dense: Any) -> dict[str, Any]:
        options = DenseOptions(**{"cache_dir": cache_dir, "buckets": (8,), **dense})
        return tfctr.convert(model, tmp_path / "bundle", dense=options, force=True, **(more or {})).manifest

    return run
