"""Whole conversions over one cache: what a second one takes, and what it does with a damaged or useless one."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tfctr
from export.cache.admin import listing, verify_all
from export.cache.places import Places
from export.dense import openvino
from export.dense_pass import DenseOptions
from tests.export.dense import rankers
from tfctr.bundle.reader import open_bundle, verify_files


@pytest.fixture(scope="module", autouse=True)
def quick_tuning() -> Iterator[None]:
    """Which variants pay does not matter here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openvino, "TUNING_SECONDS", 0.1)
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rankers.save(tmp_path_factory.mktemp("cached") / "model")


@pytest.fixture(scope="module")
def filled(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache after the first conversion."""
    root = tmp_path_factory.mktemp("filled") / "cache"
    entry, _ = convert(model, root, root.parent / "first")
    assert entry["cache"] == {"tower": "miss", "engine": "miss"}
    return root


@pytest.fixture
def cache(filled: Path, tmp_path: Path) -> Path:
    """A copy of it, to be harmed."""
    shutil.copytree(filled, tmp_path / "cache")
    return tmp_path / "cache"


def convert(model: Path, root: Path, out: Path) -> tuple[dict[str, Any], list[str]]:
    """The manifest's entry of the tower, and what the report says of the cache."""
    options = DenseOptions(dense="openvino", cache_dir=root, buckets=(8,))
    manifest = tfctr.convert(model, out, dense=options, force=True).manifest
    (ran,) = [one for one in manifest["passes"] if one["name"] == "dense_engine"]
    verify_files(out, open_bundle(out).manifest)
    return manifest["signatures"]["serving_default"]["dense"], [n for n in ran["notes"] if "compile cache" in n]


def levels(root: Path) -> list[str]:
    return sorted(one.level for one in listing(Places(root)))


def test_the_same_model_from_elsewhere(model, cache, tmp_path):
    """Saved by another run, to another folder: names of nodes and paths are no part of a key."""
    other = rankers.save(tmp_path / "another" / "folder")
    entry, said = convert(other, cache, tmp_path / "out")
    assert entry["cache"] == {"tower": "hit", "engine": "hit"} and said == []
    found = listing(Places(cache))
    assert {one.key for one in found} == set(entry["key"].values())
    assert all(one.label.startswith(f"{model} serving_default") for one in found)  # who made it


def test_new_weights(cache, tmp_path):
    before = {one.key for one in listing(Places(cache))}
    entry, said = convert(rankers.save(tmp_path / "model", weight_scale=1.01), cache, tmp_path / "out")
    assert entry["cache"] == {"tower": "miss", "engine": "miss"} and said == []
    assert levels(cache) == ["engine", "engine", "tower", "tower"]
    (tower,) = [one for one in listing(Places(cache)) if one.level == "tower" and one.key not in before]
    old, new = (
        json.loads((cache / "tower" / k / "key.json").read_text())["key"] for k in (*_tower(before, cache), tower.key)
    )
    assert old["graph"] == new["graph"] and old["weights"] != new["weights"]  # one sees what changed


def _tower(keys: set[str], root: Path) -> list[str]:
    return [key for key in keys if (root / "tower" / key).is_dir()]


@pytest.mark.parametrize(("level", "name"), [("tower", "tower.onnx"), ("engine", "tuned.json"), ("engine", "key.json")])
def test_damaged(model, cache, tmp_path, level, name):
    """The bundle is right all the same; the report says what was found, once; the cache is whole again."""
    (file,) = cache.glob(f"{level}/*/{name}")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    entry, said = convert(model, cache, tmp_path / "out")
    assert entry["cache"] == {"tower": "hit", "engine": "hit"} | {level: "miss"}
    (line,) = said
    assert f"{level}/" in line and "is damaged: " in line and name in line and "built anew" in line
    assert levels(cache) == sorted(["engine", "tower", "damaged"])
    assert verify_all(Places(cache)).damaged == ()
    assert convert(model, cache, tmp_path / "again")[0]["cache"] == {"tower": "hit", "engine": "hit"}


def test_a_folder_that_is_a_file(model, tmp_path):
    (tmp_path / "cache").write_text("mine")
    entry, said = convert(model, tmp_path / "cache", tmp_path / "out")
    assert entry["cache"] == {"tower": "off", "engine": "off"}
    (line,) = said
    assert line == f"compile cache {tmp_path / 'cache'}: {tmp_path / 'cache'} is not a folder; going on without it"
