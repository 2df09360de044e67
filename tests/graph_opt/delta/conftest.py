"""One converted bundle for the tests of making deltas; none of them changes it."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="package")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(SavedModel, bundle) of the model in tests/bundle/deltas: static tables, an embedding variable, a vocabulary."""
    import tfctr
    from tests.bundle.deltas import delta_models as models

    folder = tmp_path_factory.mktemp("make_delta")
    model = models.save(models.Model(), folder / "model")
    tfctr.convert(model, folder / "bundle", dense="tensorflow")
    return model, folder / "bundle"
