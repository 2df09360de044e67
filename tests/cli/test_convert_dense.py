"""The dense tower on the command line: options, what is printed, exit codes, and the commands that read a bundle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from export.dense import openvino
from tests.export.dense.rankers import request, save, write_samples
from tfctr.cli.main import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module", autouse=True)
def quick_tuning() -> None:
    openvino.TUNING_SECONDS = 0.1


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def call(*argv: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main([str(word) for word in argv])
        captured = capfd.readouterr()
        return code, " ".join(captured.out.split()), captured.err

    return call


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("ranker") / "model", more=("embed",))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache") / "tfctr"


@pytest.fixture(scope="module")
def bundle(model: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bundle") / "bundle"
    assert main(["convert", str(model), str(out), "--dense", "openvino", "--cache-dir", str(cache)]) == 0
    return out


def refused(result: tuple[int, str, str], code: int, *words: str) -> None:
    got, _, err = result
    assert got == code, err
    assert "Traceback" not in err
    for word in words:
        assert word in " ".join(err.split()), (word, err)


def test_what_is_printed(run: Run, model: Path, cache: Path, tmp_path: Path) -> None:
    code, out, _ = run("convert", model, tmp_path / "b", "--dense", "openvino", "--cache-dir", cache)
    assert code == 0
    for words in (
        "dense tower (serving_default): openvino 2026.",
        ", fp32; equal to TensorFlow: max |difference| ",
        "asked for (",
        "x at 32 rows",
        "elsewhere: tensorflow, fp32",
        "1 file, 9.3 KB; tower ",
        "dense tower (embed): stays on TensorFlow: it has no dense tower",
    ):
        assert words in out, (words, out)
    page = (tmp_path / "b.report.html").read_text()
    for words in ("<h2>Dense tower</h2>", "runs the dense tower", "serving_default__dense", "Times as fast"):
        assert words in page, words


def test_json_has_the_entry(
    run: Run, model: Path, cache: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    main(["convert", str(model), str(tmp_path / "b"), "--dense", "openvino", "--cache-dir", str(cache), "--json"])
    told = json.loads(capfd.readouterr().out)
    entry = told["signatures"]["serving_default"]["dense"]
    assert (
        entry["provider"] == "openvino" and entry["fallback_precision"] == "fp32" and len(entry["key"]["engine"]) == 64
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dense", "openvino", "--precision", "fp16"], ["no such pair", "tensorrt with fp32, fp16"]),
        (["--dense", "tensorflow", "--precision", "fp16"], ["no such pair", "tensorflow with fp32"]),
        (["--dense", "tensorrt", "--target", "sm33"], ["unknown target 'sm33'", "sm89"]),
        (["--dense", "tensorrt", "--target", "sm90"], ["needs the package tensorrt"]),
        (["--dense", "openvino", "--target", "sm80"], ["--dense tensorrt only"]),
        (["--dense", "tensorrt", "--target", ","], ["--target ','", "names no GPU"]),
        (["--clamp", "-3"], ["neither off nor a number above 0"]),
        (["--dense", "onnx"], ["invalid choice"]),
        (["--dense", "openvino", "--max-dp", "0.1"], ["--max-dp 0.1", "--precision"]),
    ],
)
def test_what_can_not_be_asked_for(run: Run, model: Path, tmp_path: Path, flags: list[str], words: list[str]) -> None:
    refused(run("convert", model, tmp_path / "b", *flags), 2, *words)
    assert not list(tmp_path.iterdir())


def test_required(run: Run, tmp_path: Path) -> None:
    model = save(tmp_path / "model", hostile="nan")
    flags = ("--dense", "openvino", "--dense-required")
    refused(run("convert", model, tmp_path / "b", *flags), 4, "--dense-required: serving_default", "has 1 NaN")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_pass_that_fails_is_told(run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> str:
        raise RuntimeError("no more [of it]")

    monkeypatch.setattr("export.dense_pass.run_forms", broken)
    code, out, err = run("convert", model, tmp_path / "b", "--dense", "openvino")
    assert code == 0, err
    assert "pass dense_engine failed and was undone: RuntimeError: no more [of it]" in out
    refused(
        run("convert", model, tmp_path / "c", "--dense", "openvino", "--dense-required"),
        4,
        "dense_engine failed: RuntimeError",
    )
    assert not (tmp_path / "c").exists()


def test_limits_of_an_engine_are_not_those_of_tables(run: Run, model: Path, cache: Path, tmp_path: Path) -> None:
    flags = ("--dense", "tensorrt", "--target", "sm89", "--clamp", "off", "--max-dp", "1e-7", "--max-bias", "1e-9")
    code, out, err = run("convert", model, tmp_path / "b", *flags, "--cache-dir", cache)
    assert code == 0, err
    assert "dense tower (serving_default): tensorrt_rtx" in out
    assert ", fp32; not compared, as it was not run here; openvino, its fallback: equal to TensorFlow" in out
    assert "FP16: failed on 1024 rows" in out and "elsewhere: openvino, fp32" in out


def test_a_cache_that_can_not_be_used_is_told(run: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("no folder")
    flags = ("--dense", "tensorrt", "--target", "sm89", "--cache-dir", tmp_path / "mine")
    code, out, err = run("convert", model, tmp_path / "b", *flags)
    assert code == 0, err
    assert "tower made, not kept, engine made, not kept" in out
    assert out.count("mine is not a folder; going on without it") == 1


def test_inspect(run: Run, bundle: Path) -> None:
    code, out, _ = run("inspect", bundle, "--verify")
    assert code == 0 and "all checksums are right" in out
    for words in (
        "Dense tower of serving_default: openvino 2026.",
        "signature serving_default__dense, packed serving_default__dense__packed",
        "where openvino does not run: tensorflow, fp32; converted on a CPU with ",
        "key of the compile cache: engine ",
        "onnx dense_0_tower.onnx 9.3 KB",
        "Dense tower of embed: TensorFlow: it has no dense tower",
    ):
        assert words in out, (words, out)


def test_inspect_finds_a_damaged_file(run: Run, bundle: Path, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    file = copy / "assets/tfctr/dense_0_tower.onnx"
    data = bytearray(file.read_bytes())
    data[100] ^= 4
    file.write_bytes(data)
    refused(run("inspect", copy, "--verify"), 2, "dense_0_tower.onnx", "fingerprint")
    file.write_bytes(data[:-1])
    refused(run("inspect", copy), 2, "dense_0_tower.onnx", "bytes")


def test_verify_compares_the_engines_form(run: Run, model: Path, bundle: Path) -> None:
    code, out, _ = run("verify", model, bundle, "--signature", "serving_default")
    assert code == 0 and "equal" in out
    assert "engine" in out


def test_export_onnx_of_a_bundle(run: Run, bundle: Path, tmp_path: Path) -> None:
    code, out, _ = run("export-onnx", bundle, tmp_path / "t.onnx")
    assert code == 0 and "compared with TensorFlow when the bundle was made" in out
    model = onnx.load(str(tmp_path / "t.onnx"))
    assert {one.name for one in model.graph.output} == {"score", "logit"}
    refused(run("export-onnx", bundle, tmp_path / "e.onnx", "--signature", "embed"), 2, "has no ONNX tower")


def test_bisect_looks_at_forms_with_an_engine(run: Run, model: Path, cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.npz"
    np.savez(file, **request(20))
    flags = ("--signature", "serving_default", "--dense", "openvino", "--cache-dir", cache, "--inputs", file)
    code, out, err = run("bisect", model, *flags)
    assert code == 0, err
    assert "dense_engine" in out and "dense packed" in out


def test_samples_are_what_is_judged_on(run: Run, model: Path, cache: Path, tmp_path: Path) -> None:
    samples = write_samples(tmp_path / "rows.npz", 64, click=np.arange(64) % 2)
    flags = ("--dense", "tensorrt", "--target", "sm89", "--cache-dir", cache, "--signature", "serving_default")
    code, out, err = run("convert", model, tmp_path / "b", *flags, "--samples", samples, "--label", "click=score")
    assert code == 0, err
    assert "accuracy gate passed on 64 rows" in out and "AUC +" in out or "AUC -" in out
