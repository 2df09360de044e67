"""Damaged models and bundles: every command names the file or signature, exits with 2 and leaves nothing behind."""

import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from tensorflow.core.protobuf import saved_model_pb2

from tests.models.zoo import build
from tfctr.cli.main import main

MANIFEST = "assets.extra/tfctr_manifest.json"
Refused = Callable[..., None]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return build("a_safe_sparse_one", tmp_path_factory.mktemp("zoo")).path


@pytest.fixture(scope="module")
def bundle(model: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    out = tmp_path_factory.mktemp("bundles") / "one"
    assert main(["convert", str(model), str(out), "--strict"]) == 0
    return out


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]) -> Refused:
    def check(argv: list[object], *words: str) -> None:
        capfd.readouterr()
        code = main([str(a) for a in argv])
        error = capfd.readouterr().err
        assert code == 2, error
        assert "Traceback" not in error
        assert "internal error" not in error
        last = error.strip().splitlines()[-1]
        for word in words:
            assert word in last, (word, last)

    return check


def edited(model: pathlib.Path, folder: pathlib.Path, change: Callable[[Any], None]) -> pathlib.Path:
    """A copy of ``model`` whose first MetaGraph went through ``change``."""
    shutil.copytree(model, folder)
    saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    change(saved.meta_graphs[0])
    (folder / "saved_model.pb").write_bytes(saved.SerializeToString())
    return folder


def to_nowhere(meta: Any) -> None:
    meta.signature_def["serving_default"].outputs["score"].name = "nowhere:0"


def dangling(meta: Any) -> None:
    next(n for n in meta.graph_def.node if n.op == "StatefulPartitionedCall").input[0] = "nowhere"


def unknown_op(meta: Any) -> None:
    meta.graph_def.node.add(name="mine", op="NoSuchOpOfOurs")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (to_nowhere, ("serving_default", "score", "nowhere:0")),
        (dangling, ("nowhere",)),
        (unknown_op, ("NoSuchOpOfOurs", "--op-library")),
        (lambda meta: meta.signature_def.clear(), ("no signature",)),
    ],
)
def test_graphs_that_do_not_hold_together(
    model: pathlib.Path, tmp_path: pathlib.Path, refused: Refused, change: Callable[[Any], None], words: tuple[str, ...]
) -> None:
    broken = edited(model, tmp_path / "broken", change)
    for argv in (["convert", broken, tmp_path / "out"], ["inspect", broken], ["predict", broken]):
        refused(argv, str(broken), *words)
    assert [f.name for f in tmp_path.iterdir()] == ["broken"]


def cut(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: pathlib.Path) -> None:
    path.write_bytes(bytes(b ^ 0x10 for b in path.read_bytes()))


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("variables/variables.index", pathlib.Path.unlink),
        ("variables/variables.index", flip),
        ("variables/variables.data-00000-of-00001", pathlib.Path.unlink),
        ("variables/variables.data-00000-of-00001", cut),
        ("variables/variables.data-00000-of-00001", flip),
        ("saved_model.pb", cut),
    ],
)
def test_damaged_models(
    model: pathlib.Path,
    tmp_path: pathlib.Path,
    refused: Refused,
    file: str,
    damage: Callable[[pathlib.Path], None],
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    damage(broken / file)
    refused(["convert", broken, tmp_path / "out"], str(broken))
    refused(["predict", broken], str(broken))
    assert [f.name for f in tmp_path.iterdir()] == ["broken"]


@pytest.mark.parametrize("place", [0, 50, -3, -50, -90])
def test_damaged_tables_are_found_by_inspect(
    bundle: pathlib.Path, tmp_path: pathlib.Path, refused: Refused, place: int
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(bundle, broken)
    table = next((broken / "assets" / "tfctr").iterdir())
    data = bytearray(table.read_bytes())
    data[place] ^= 0x40
    table.write_bytes(data)
    refused(["inspect", broken, "--verify"], table.name)
    table.write_bytes(data[:1000])
    for argv in (["inspect", broken], ["predict", broken]):
        refused(argv, table.name, "1000 bytes")
    table.unlink()
    refused(["predict", broken], table.name, "missing")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(format=99), ("format 99",)),
        (lambda m: m["store"].pop("files"), ("files",)),
        (lambda m: m["store"]["files"][0].pop("bytes"), ("bytes",)),
        (lambda m: m["store"]["files"][0].update(file="../../x"), ("outside the bundle",)),
        (lambda m: m["signatures"].update(serving_default=None), ("serving_default",)),
        (lambda m: m["signatures"]["serving_default"].pop("inputs"), ("serving_default", "inputs")),
        (lambda m: m["signatures"]["serving_default"]["features"][0]["parts"].clear(), ("f0", "part")),
        (lambda m: m["signatures"]["serving_default"].update(packed="nowhere"), ("nowhere",)),
    ],
)
def test_damaged_manifests(
    bundle: pathlib.Path, tmp_path: pathlib.Path, refused: Refused, change: Callable[[Any], Any], words: tuple[str, ...]
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(bundle, broken)
    manifest = json.loads((broken / MANIFEST).read_text())
    change(manifest)
    (broken / MANIFEST).write_text(json.dumps(manifest))
    refused(["predict", broken], str(broken), *words)


def test_a_bundle_without_its_manifest_is_still_not_converted(
    bundle: pathlib.Path, tmp_path: pathlib.Path, refused: Refused
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(bundle, broken)
    (broken / MANIFEST).unlink()
    refused(["convert", broken, tmp_path / "out"], "is a tfctr bundle already")


def test_a_folder_of_versions_may_hold_bundles(
    bundle: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(bundle, tmp_path / "7")
    assert main(["inspect", str(tmp_path), "--verify"]) == 0
    assert "tfctr bundle" in capfd.readouterr().out
    assert main(["predict", str(tmp_path)]) == 0


def test_the_tags_of_a_bundle(model: pathlib.Path, tmp_path: pathlib.Path, refused: Refused) -> None:
    tagged = edited(model, tmp_path / "tagged", lambda meta: meta.meta_info_def.tags.append("gpu"))
    assert main(["convert", str(tagged), str(tmp_path / "out"), "--tags", "serve,gpu"]) == 0
    assert main(["predict", str(tmp_path / "out")]) == 0
    refused(["inspect", tmp_path / "out", "--tags", "nope"], "nope", "serve,gpu")
