"""``tfctr export-onnx``: the file, what is printed, and what happens with bad input."""

import json
import os
import pathlib
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf

from examples.models import REFERENCE_MODELS, USER_FEATURES
from tfctr.cli.main import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "mmoe"
    REFERENCE_MODELS["mmoe"](hidden=(16, 8)).save(str(folder))
    return str(folder)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def call(*argv: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["export-onnx", *argv])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


def refused(result: tuple[int, str, str], code: int, *words: str) -> None:
    got, _, err = result
    last = err.strip().splitlines()[-1] if err.strip() else ""
    assert got == code, (got, err)
    assert "Traceback" not in err
    for word in words:
        assert word in last, (word, last)


def save(folder: pathlib.Path, function, *specs: tf.TensorSpec, variables: tuple[tf.Variable, ...] = ()) -> str:
    module = tf.Module()
    module.kept = variables
    module.function = function
    serve = tf.function(function, autograph=False).get_concrete_function(*specs)
    tf.saved_model.save(module, str(folder), signatures={"serving_default": serve})
    return str(folder)


def test_writes_what_it_says(run: Run, model: str, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "tower.onnx"
    code, printed, _ = run(model, str(out))
    assert code == 0
    for words in (
        "embeddings",
        "[N, 85]",
        "conversion",
        "item_id 40:48",
        "user_dense 72:76",
        "max |difference|",
        "opset 18",
    ):
        assert words in printed, (words, printed)
    found = onnx.load(str(out))
    onnx.checker.check_model(found, full_check=True)
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    outputs = session.run(None, {"embeddings": np.ones((3, 85), np.float32)})
    assert [one.name for one in session.get_outputs()] == ["click", "conversion"]
    assert all(value.shape == (3, 1) for value in outputs)
    assert os.listdir(tmp_path) == ["tower.onnx"]


def test_json(run: Run, model: str, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "tower.onnx"
    code, printed, err = run(model, str(out), "--json")
    told = json.loads(printed)
    assert code == 0 and err == ""
    assert told["bytes"] == out.stat().st_size and told["path"] == str(out) and told["reason"] == ""
    (embeddings,) = told["inputs"]
    assert embeddings["shape"] == [None, 85] and embeddings["side"] == "item"
    assert embeddings["columns"][0] == {"feature": "user_id", "start": 0, "stop": 8}
    assert [one["name"] for one in told["outputs"]] == ["click", "conversion"]
    assert told["difference"]["max_difference"] <= 1e-5 and told["difference"]["rows"] == [1, 7, 64]
    assert told["onnx"]["nodes"] > 10 and told["left_outside"] == []


def test_equal_models_equal_bytes(run: Run, model: str, tmp_path: pathlib.Path) -> None:
    for name in ("a", "b"):
        assert run(model, str(tmp_path / name))[0] == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_split_form(run: Run, model: str, tmp_path: pathlib.Path) -> None:
    code, printed, _ = run(model, str(tmp_path / "t"), "--user-features", ",".join(USER_FEATURES["mmoe"]), "--json")
    told = json.loads(printed)
    assert code == 0 and told["signature"] == "serving_default__split"
    assert {one["side"] for one in told["inputs"]} == {"user", "item", "row_to_user"}
    dims = {one.name: one.type.tensor_type.shape.dim[0].dim_param for one in onnx.load(tmp_path / "t").graph.input}
    assert set(dims.values()) == {"U", "N"} and dims["row_to_user"] == "N"


def test_bad_paths(run: Run, model: str, tmp_path: pathlib.Path) -> None:
    refused(run(str(tmp_path / "no"), str(tmp_path / "t")), 2, "no")
    refused(run(model, str(tmp_path / "no" / "t")), 2, "folder", "does not exist")
    refused(run(model, str(tmp_path)), 2, "is a folder")
    (tmp_path / "t").write_bytes(b"mine")
    refused(run(model, str(tmp_path / "t")), 2, "exists already", "--force")
    assert (tmp_path / "t").read_bytes() == b"mine" and os.listdir(tmp_path) == ["t"]
    assert run(model, str(tmp_path / "t"), "--force")[0] == 0
    assert (tmp_path / "t").read_bytes() != b"mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only(run: Run, model: str, tmp_path: pathlib.Path) -> None:
    tmp_path.chmod(0o555)
    try:
        refused(run(model, str(tmp_path / "t")), 2, "can't be written to")
    finally:
        tmp_path.chmod(0o755)


def test_bad_choices(run: Run, model: str, tmp_path: pathlib.Path) -> None:
    out = str(tmp_path / "t")
    refused(run(model, out, "--signature", "other"), 2, "no signature 'other'", "serving_default")
    refused(run(model, out, "--tags", "train"), 2, "train")
    refused(run(model, out, "--user-features", "usr_*"), 2, "usr_*", "user_")
    refused(run(model, out, "--op-library", "no.so"), 2, "no.so")
    assert os.listdir(tmp_path) == []


def test_models_without_a_tower(run: Run, tmp_path: pathlib.Path) -> None:
    spec = tf.TensorSpec((None, 4), tf.float32, "x")
    plain = save(tmp_path / "plain", lambda x: {"y": x * 2.0}, spec)
    refused(run(plain, str(tmp_path / "t")), 4, "serving_default", "no matrix product")
    weights = tf.Variable(np.array([[1, np.nan]] * 4, np.float32), name="kernel")
    broken = save(tmp_path / "broken", lambda x: {"y": tf.matmul(x, weights)}, spec, variables=(weights,))
    refused(run(broken, str(tmp_path / "t")), 4, "NaN", "kernel")
    assert not (tmp_path / "t").exists()


def test_a_bundle_without_a_file(run: Run, model: str, tmp_path: pathlib.Path) -> None:
    """It says what to give instead."""
    bundle = str(tmp_path / "bundle")
    assert main(["convert", model, bundle]) == 0
    manifest = pathlib.Path(bundle, "assets.extra", "tfctr", "manifest.json")
    dense = (
        json.loads(manifest.read_text())["signatures"]["serving_default"].get("dense") if manifest.exists() else None
    )
    result = run(bundle, str(tmp_path / "t"))
    if dense and dense.get("files"):
        assert result[0] == 0
        onnx.checker.check_model(onnx.load(tmp_path / "t"))
    else:
        refused(result, 2, "no ONNX tower", model)
