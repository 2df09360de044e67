"""Requests that no honest client sends: refused by name, and the session goes on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfctr
from tests.models.zoo import build
from tfctr.errors import InputError, UsageError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("a_safe_sparse_one", tmp_path_factory.mktemp("zoo")).path


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tfctr.ServingSession]:
    out = tmp_path_factory.mktemp("bundles") / "one"
    tfctr.convert(model, out)
    with tfctr.ServingSession(out) as session:
        yield session


def endless() -> list[Any]:
    nested: list[Any] = []
    nested.append(nested)
    return nested


def deep() -> list[Any]:
    nested: list[Any] = [1]
    for _ in range(5000):
        nested = [nested]
    return nested


class NoArray:
    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise RuntimeError("first line\nsecond line")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (endless(), "nested deeper"),
        (deep(), "nested deeper"),
        ([[2**70]], "does not fit"),
        ([[None]], "None at"),
        ([[1, [2]]], "list"),
        ({1: 2}, "dict"),
        (NoArray(), "first line"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_of_a_feature(served: tfctr.ServingSession, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        served.predict({"f0": value})
    assert "f0" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert served.predict({"f0": [[1], []]})["score"].shape == (2, 1)


@pytest.mark.parametrize("part", ["f0", "f0_1", "f0_2"])
@pytest.mark.parametrize("value", [np.array([2**62, 2**62]), np.array([[-(2**63), 0]]), np.zeros(0), "x", None])
def test_parts_that_contradict_each_other(served: tfctr.ServingSession, model: Path, part: str, value: Any) -> None:
    with np.load(model / "inputs.npz") as archive:
        good = dict(archive)
    with pytest.raises(tfctr.errors.TfctrError, match="f0"):
        served.predict(good | {part: value})
    assert len(served.predict(good)["score"]) == good["f0_2"][0]


@pytest.mark.parametrize("threads", [0, -1, 100_000])
def test_threads_have_limits(model: Path, threads: int) -> None:
    with pytest.raises(UsageError, match="expected 1 to"):
        tfctr.ServingSession(model, intra_op_threads=threads)
