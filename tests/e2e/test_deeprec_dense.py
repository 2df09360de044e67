"""Faults that a fused-embedding system is known to have had with its engines (DeepRec's list: cases 34 and 35).

34: a conversion to FP16 engines "succeeds" with no engine at all. 35: engines beside embedding variables do not build,
there is no export, nor one without the embeddings.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import tensorflow as tf

import tfctr
from export.tensorrt import library
from tests.models.base import run_stock
from tfctr.bundle.reader import read_manifest
from tfctr.cli.main import main

Run = Callable[..., tuple[int, str, str]]
WORDS = ("red", "green", "blue", "yellow")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], cache: str) -> Run:
    """``tfctr`` in this process: (exit code, stdout, stderr)."""

    def call(*argv: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main([*argv, *(("--cache-dir", cache) if argv[0] == "convert" else ())])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


class Ranker(tf.Module):
    """A color by name (a vocabulary file), an item by id; two signatures over them.

    supported: the tower is an MLP; else a function that no engine has, over the embeddings, and no matrix product.
    """

    def __init__(self, folder: Path, supported: bool = True) -> None:
        super().__init__()
        folder.mkdir()
        (folder / "colors.txt").write_text("\n".join(WORDS) + "\n")
        found = tf.lookup.TextFileInitializer(
            str(folder / "colors.txt"), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER,
        )  # fmt: skip
        self.colors = tf.lookup.StaticVocabularyTable(found, num_oov_buckets=1)
        rng = np.random.default_rng(0)

        def variable(*shape: int) -> tf.Variable:
            return tf.Variable(rng.normal(size=shape).astype(np.float32) * 0.5)

        self.color, self.item = variable(len(WORDS) + 1, 8), variable(50, 8)
        self.hidden, self.head = variable(16, 32), variable(32, 1)
        self.supported = supported

    def embed(self, color: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
        rows = tf.gather(self.color, self.colors.lookup(color)), tf.gather(self.item, item)
        return tf.concat(rows, 1)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "color"), tf.TensorSpec([None], tf.int64, "item")])
    def score(self, color: tf.Tensor, item: tf.Tensor) -> dict[str, tf.Tensor]:
        x = self.embed(color, item)
        if not self.supported:
            return {"score": tf.math.bessel_i0e(x)}
        return {"score": tf.sigmoid(tf.nn.relu(x @ self.hidden) @ self.head)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "item")])
    def norms(self, item: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"norm": tf.norm(tf.gather(self.item, item), axis=1)}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    """supported -> SavedModel."""
    folder = tmp_path_factory.mktemp("models")
    found = {}
    for supported in (True, False):
        model = Ranker(folder / f"words_{supported}", supported)
        found[supported] = str(folder / f"model_{supported}")
        tf.saved_model.save(model, found[supported], signatures={"score": model.score, "norms": model.norms})
    return found


@pytest.fixture(scope="module")
def bundle(models: dict[bool, str], cache: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The good model, its tower in OpenVINO."""
    out = tmp_path_factory.mktemp("bundles") / "bundle"
    assert main(["convert", models[True], str(out), "--dense", "openvino", "--cache-dir", cache]) == 0
    return out


def requests(rows: int = 40) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    words = np.array([*WORDS, "violet"], object)
    return {"color": words[rng.integers(0, 5, rows)], "item": rng.integers(0, 50, rows)}


@pytest.mark.parametrize("provider", ["openvino", "tensorrt"])
def test_case_34_nothing_converted_is_no_success(
    run: Run, models: dict[bool, str], tmp_path: Path, provider: str
) -> None:
    """A tower that no engine takes: an exit code of its own and no bundle where it is required; else the reason."""
    if provider == "tensorrt" and library.installed() is None:
        pytest.skip("neither tensorrt nor tensorrt_rtx is installed")
    out = tmp_path / "bundle"
    code, _, err = run("convert", models[False], str(out), "--dense", provider, "--dense-required")
    assert code == 4, err
    assert not out.exists()
    last = err.strip().splitlines()[-1]
    assert "stays on TensorFlow" in last and "Traceback" not in err

    code, printed, err = run("convert", models[False], str(out), "--dense", provider)
    assert code == 0, err
    for signature, entry in read_manifest(out)["signatures"].items():
        dense = entry["dense"]
        assert dense["provider"] == "tensorflow" and dense["form"] is None, signature
        assert dense["reason"]
    assert "TensorFlow" in printed


def test_case_34_a_good_tower_lists_its_engine_and_fp16_its_error(
    run: Run, models: dict[bool, str], tmp_path: Path
) -> None:
    """What was converted, what was not, into which files, and how far FP16 is off, in numbers."""
    if library.installed() is None:
        pytest.skip("neither tensorrt nor tensorrt_rtx is installed")
    out = tmp_path / "bundle"
    code, printed, err = run("convert", models[True], str(out), "--dense", "tensorrt", "--target", "sm89")
    assert code == 0, err
    dense = read_manifest(out)["signatures"]["score"]["dense"]
    assert (dense["provider"], dense["precision"]) == ("tensorrt", "fp16")
    assert dense["accuracy"]["passed"] and 0 < max(o["max_dp"] for o in dense["accuracy"]["outputs"]) <= 5e-3
    plan = next(file for file in dense["files"] if file["role"] == "plan:sm89")
    assert plan["bytes"] > 0 and list(out.rglob(plan["file"]))
    code, told, err = run("inspect", str(out))
    assert code == 0, err
    for words in ("tensorrt", "fp16", "max |dp|"):
        assert words in printed + told, words
    assert read_manifest(out)["signatures"]["norms"]["dense"]["form"] is None  # no matrix product: said, not hidden
    assert "norms" in told


def test_case_35_strings_signatures_and_assets(models: dict[bool, str], bundle: Path) -> None:
    """The CLI takes such a model; what it writes loads in stock TensorFlow where tfctr is imported."""
    manifest = read_manifest(bundle)
    assert manifest["signatures"]["score"]["dense"]["provider"] == "openvino"
    inputs = requests()
    want = run_stock(models[True], {"score": inputs, "norms": {"item": inputs["item"]}})
    with tfctr.ServingSession(bundle, signature="score") as session:
        np.testing.assert_allclose(session.predict(inputs)["score"], want["score"]["score"], rtol=1e-5, atol=1e-6)
    dense = manifest["signatures"]["score"]["dense"]["form"]
    loaded = tf.saved_model.load(str(bundle))
    for name in ("score", "norms", dense):
        given = {"item": inputs["item"]} if name == "norms" else inputs
        got = loaded.signatures[name](**{key: tf.constant(value) for key, value in given.items()})
        for output, value in want["norms" if name == "norms" else "score"].items():
            np.testing.assert_allclose(got[output], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_case_35_without_our_ops_it_says_why_not(bundle: Path) -> None:
    """A process that never imported tfctr, such as a plain TF Serving: the op that is missing is named."""
    script = f"import tensorflow as tf; tf.saved_model.load({str(bundle)!r})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert "Tfctr" in done.stderr.strip().splitlines()[-1]


def test_case_35_the_tower_without_its_embeddings(run: Run, models: dict[bool, str], tmp_path: Path) -> None:
    """An ONNX model whose inputs are the looked-up rows, whatever strings and tables the model has."""
    out = tmp_path / "tower.onnx"
    code, printed, err = run("export-onnx", models[True], str(out), "--signature", "score")
    assert code == 0, err
    model = onnx.load(str(out))
    assert [one.name for one in model.graph.output] == ["score"]
    assert all(one.type.tensor_type.elem_type == onnx.TensorProto.FLOAT for one in model.graph.input)
    sizes = [tuple(one.dims) for one in model.graph.initializer]
    assert (16, 32) in sizes and (50, 8) not in sizes  # the hidden layer, no table
    assert "score" in printed
