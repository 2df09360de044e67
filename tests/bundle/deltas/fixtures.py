"""One bundle for all tests of deltas, and its three next versions' deltas; none of them is changed by a test."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest


@dataclasses.dataclass(frozen=True)
class Base:
    """bundle; deltas: of the versions 1 to 3; expected: rows of the versions 0 to 3."""

    bundle: Path
    deltas: list[Path]
    expected: list


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    import tfctr
    from tests.bundle.deltas import delta_models as models

    folder = tmp_path_factory.mktemp("deltas")
    model = models.Model()
    tfctr.convert(models.save(model, folder / "model"), folder / "bundle")
    version = models.version(folder / "bundle")
    expected, deltas = [models.expected(model)], []
    for number in range(3):
        changes = models.random_changes(number, expected[-1])
        delta = models.write_delta(folder / f"delta{number + 1}", folder / "bundle", version, changes)
        deltas.append(delta.path)
        expected.append(expected[-1].after(changes))
        version = version.followed_by(delta.entry())
    return Base(folder / "bundle", deltas, expected)
