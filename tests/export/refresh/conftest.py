"""One converted bundle for the tests that only read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export.refresh import small


@pytest.fixture(scope="package")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(SavedModel, bundle) of the small ranker."""
    import tfctr

    folder = tmp_path_factory.mktemp("refresh")
    model = small.save(folder / "model")
    tfctr.convert(model, folder / "bundle", dense="tensorflow")
    return model, folder / "bundle"
