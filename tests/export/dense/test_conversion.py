"""Conversions with an engine, from a SavedModel to a bundle that runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tensorflow as tf

from tests.export.dense.conftest import Convert
from tests.export.dense.rankers import request, save, write_samples
from tfctr.bundle.reader import open_bundle, verify_files
from tfctr.errors import CorruptFileError, StrictRefusal, UsageError

FORMS = ("serving_default", "same")


def dense(manifest: dict[str, Any], name: str = "serving_default") -> dict[str, Any]:
    entry: dict[str, Any] = manifest["signatures"][name]["dense"]
    return entry


def ran(manifest: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in manifest["passes"] if one["name"] == "dense_engine")


def test_every_form_has_its_engine(converted: Path) -> None:
    manifest = open_bundle(converted).manifest
    for name in FORMS:
        entry, split = dense(manifest, name), manifest["signatures"][name]["split"]["dense"]
        assert (entry["provider"], entry["precision"], entry["form"]) == ("openvino", "fp32", f"{name}__dense")
        assert entry["packed"] == f"{name}__dense__packed" and split["packed"] == f"{name}__split__dense__packed"
        assert split["form"] == f"{name}__split__dense"
        assert {one["side"] for one in split["inputs"]} == {"user", "item", "row_to_user"}
        assert entry["parity"]["max_difference"] <= 1e-5 and entry["check"]["max_difference"] <= 1e-5
        assert {1, 7, 8, 9, 31, 32, 33} <= set(entry["parity"]["rows"])  # around each variant
        assert [one["rows"] for one in entry["buckets"]] == [8, 32]
    assert dense(manifest, "embed")["form"] is None and "no dense tower" in dense(manifest, "embed")["reason"]
    assert ran(manifest)["fired"] == 4 and "dense" not in ran(manifest)["details"]
    compared = {one["signature"] for one in manifest["parity"]["outputs"]}
    assert {"same__dense", "same__dense__packed", "same__split__dense", "same__split__dense__packed"} <= compared


def test_equal_towers_share_their_files(converted: Path) -> None:
    manifest = open_bundle(converted).manifest
    blobs = {one["file"].rsplit("/", 1)[1]: one for one in manifest["store"]["files"] if one["kind"] == "blob"}
    assert set(blobs) == {"dense_0_tower.onnx", "dense_1_tower.onnx"}  # plain forms, split forms
    for name in FORMS:
        assert dense(manifest, name)["files"][0]["file"] == "dense_0_tower.onnx"
        (file,) = manifest["signatures"][name]["split"]["dense"]["files"]
        assert (file["file"], file["role"]) == ("dense_1_tower.onnx", "onnx")
        assert manifest["store"]["files"][file["index"]]["file"].endswith("dense_1_tower.onnx")
    onnx.checker.check_model(onnx.load(str(converted / "assets/tfctr/dense_0_tower.onnx")))
    kept = {path.name for path in (converted / "assets/tfctr").iterdir()}
    assert kept == {one["file"].rsplit("/", 1)[1] for one in manifest["store"]["files"]}


def test_checksums_cover_the_engines_files(converted: Path, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(converted, tmp_path / "copy"))
    manifest = open_bundle(copy).manifest
    verify_files(copy, manifest)
    file = copy / "assets/tfctr/dense_0_tower.onnx"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptFileError, match="dense_0_tower.onnx"):
        verify_files(copy, manifest)


_LOAD = """
import sys
import numpy as np
import tfctr
import tensorflow as tf
folder, file = sys.argv[1:]
given = dict(np.load(file))
loaded = tf.saved_model.load(folder)
inputs = {name: tf.constant(value) for name, value in given.items()}
plain, dense = loaded.signatures["same"](**inputs), loaded.signatures["same__dense"](**inputs)
with tf.compat.v1.Session(graph=tf.Graph()) as session:
    signatures = tf.compat.v1.saved_model.load(session, ["serve"], folder).signature_def
    for name in plain:
        np.testing.assert_allclose(dense[name], plain[name], rtol=1e-5, atol=1e-5)
        form = signatures["serving_default__dense"]
        got = session.run(form.outputs[name].name, {form.inputs[k].name: v for k, v in given.items()})
        np.testing.assert_allclose(got, plain[name], rtol=1e-5, atol=1e-5)
print("the same")
"""


def test_stock_tensorflow_loads_and_runs_it_in_a_fresh_process(converted: Path, tmp_path: Path) -> None:
    file = write_samples(tmp_path / "rows.npz", 19)
    made = subprocess.run(
        [sys.executable, "-c", _LOAD, str(converted), str(file)], capture_output=True, text=True, check=False
    )
    assert made.stdout.strip() == "the same", made.stderr[-2000:]


@pytest.mark.parametrize("rows", [0, 1, 8, 100])
def test_any_number_of_rows(converted: Path, rows: int) -> None:
    loaded = tf.saved_model.load(str(converted))
    inputs = {name: tf.constant(value) for name, value in request(rows).items()}
    want = loaded.signatures["same"](**inputs)
    for name, value in loaded.signatures["same__dense"](**inputs).items():
        np.testing.assert_allclose(value, want[name], rtol=1e-5, atol=1e-5)


def test_a_second_conversion_exports_nothing(ranker: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch) -> None:
    first = convert(ranker, dense="openvino")

    def exported(*_: object, **__: object) -> None:
        raise AssertionError("exported again")

    monkeypatch.setattr("export.dense.tower.attempt_export", exported)
    monkeypatch.setattr("export.dense.openvino.tune", exported)
    second = convert(ranker, dense="openvino")
    assert dense(second)["cache"] == {"tower": "hit", "engine": "hit"}
    assert dense(second)["key"] == dense(first)["key"]
    assert dense(second)["buckets"] == dense(first)["buckets"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ({"hostile": "nan"}, "weight .*kernel_1 has 1 NaN among its 1152 numbers"),
        ({"hostile": "rows"}, "its rows depend on each other"),
        ({"more": ("serving_default__dense",)}, "the model has a signature serving_default__dense of its own"),
    ],
)
def test_reasons_to_stay(tmp_path: Path, convert: Convert, kind: dict[str, Any], said: str) -> None:
    import re

    model = save(tmp_path / "model", **kind)
    manifest = convert(model, dense="openvino")
    entry = dense(manifest)
    assert entry["provider"] == "tensorflow" and entry["form"] is None and re.search(said, entry["reason"])
    refused = {one["what"]: one["reason"] for one in ran(manifest)["refused"]}
    assert refused["signature serving_default"] == f"stays on TensorFlow: {entry['reason']}"
    with pytest.raises(StrictRefusal, match=f"--dense-required: serving_default: .*{said}"):
        convert(model, dense="openvino", required=True)


def test_what_an_engine_can_not_take_stays_outside(tmp_path: Path, convert: Convert) -> None:
    manifest = convert(save(tmp_path / "model", hostile="lgamma"), dense="openvino", required=True)
    entry = dense(manifest)
    assert entry["form"] == "serving_default__dense"
    (left,) = entry["left_outside"]
    assert "Lgamma: no ONNX translation" in left
    assert entry["check"]["max_difference"] <= 1e-5


def test_required_without_any_tower(tmp_path: Path, convert: Convert, ranker: Path) -> None:
    convert(ranker, dense="openvino", required=True)  # embed has none, which is no failure
    with pytest.raises(StrictRefusal, match="embed: the dense tower stays on TensorFlow: it has no dense tower"):
        convert(ranker, dense="openvino", required=True, more={"signatures": ("embed",)})
    assert dense(convert(ranker, dense="openvino", more={"signatures": ("embed",)}), "embed")["form"] is None


def test_with_a_device_map(ranker: Path, convert: Convert) -> None:
    """What crosses alone is no obstacle; where it was packed with other things, the engine can't have it."""
    devices = {"sparse": "/CPU:0", "dense": "/GPU:0"}
    more = {"device_map": devices, "user_features": ("user",), "signatures": ("serving_default",)}
    manifest = convert(ranker, dense="openvino", more=more)
    assert dense(manifest)["form"] == "serving_default__dense" and dense(manifest)["check"]["max_difference"] <= 1e-5
    split = manifest["signatures"]["serving_default"]["split"]["dense"]
    assert split["form"] is None and "packed for /GPU:0 (--device-map)" in split["reason"]


def test_tensorflow_is_left_alone(ranker: Path, convert: Convert) -> None:
    manifest = convert(ranker, dense="tensorflow")
    assert dense(manifest) is None
    assert ran(manifest)["refused"][0]["reason"] == "stays on TensorFlow, as asked for (--dense tensorflow)"


def test_without_the_packages_it_stays(ranker: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    entry = dense(convert(ranker, dense="auto"))
    assert entry["form"] is None and "tf2onnx is not installed (pip install 'tfctr[export]')" in entry["reason"]


def test_a_pass_that_fails_leaves_no_file(
    ranker: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object, **__: object) -> str:
        raise RuntimeError("no more")

    monkeypatch.setattr("export.dense.rewrite.DenseWriter.write", broken)
    manifest = convert(ranker, dense="openvino")
    assert ran(manifest)["status"] == "failed" and "RuntimeError: no more" in ran(manifest)["error"]
    assert dense(manifest) is None
    assert not list((tmp_path / "bundle/assets/tfctr").glob("dense_*"))
    with pytest.raises(StrictRefusal, match="--dense-required: dense_engine failed: RuntimeError: no more"):
        convert(ranker, dense="openvino", required=True)


def test_required_and_disabled(ranker: Path, convert: Convert) -> None:
    with pytest.raises(UsageError, match="--dense-required: contradicts --disable dense_engine"):
        convert(ranker, required=True, more={"disable": ("dense_engine",)})
