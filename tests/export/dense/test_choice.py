"""Which provider is taken and in which precision: every way that it can go, with the reason that is given."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from export.cache import CompileCache
from export.dense import choose as choosing
from export.dense import openvino
from export.dense.built import Built, NotUsable, worst_difference
from export.dense.options import DenseOptions
from export.dense.run import _check_provider
from export.dense.tower import ExportedTower
from export.onnx.exporter import to_onnx
from export.openvino.tuning import Tuned
from export.samples import BoundarySamples
from tests.export.dense.conftest import Convert
from tests.export.dense.rankers import save, write_samples
from tests.export.dense.test_conversion import dense, ran
from tests.export.towers import tower, tower_inputs
from tfctr.engines import providers
from tfctr.engines.isa import supports_bf16
from tfctr.engines.native import Engine
from tfctr.errors import InternalError

RATIOS = {32: 1.4, 256: 1.2, 512: 1.1}


def measured(monkeypatch: pytest.MonkeyPatch, *, faster: bool) -> None:
    """Stands for the clock: everything else is real."""
    tune = openvino.tune

    def told(*given: Any, **more: Any) -> Tuned:
        versus = {
            "faster": faster,
            "reason": "OpenVINO is 1.23x as fast" if faster else "OpenVINO is slower at 32 rows (0.80x)",
            "geometric_mean": 1.23 if faster else 0.8,
            "least": 1.1 if faster else 0.8,
            "rows": [
                {"rows": n, "tensorflow_ms": r, "openvino_ms": 1.0, "ratio": r} for n, r in RATIOS.items()
            ],
        }  # fmt: skip
        return dataclasses.replace(tune(*given, **more), versus_tensorflow=versus)

    monkeypatch.setattr(openvino, "tune", told)


@pytest.mark.parametrize("faster", [True, False])
def test_auto_takes_what_is_faster(
    ranker: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, faster: bool
) -> None:
    measured(monkeypatch, faster=faster)
    entry = dense(convert(ranker, dense="auto", cache_dir=tmp_path / "cache"))
    assert entry["provider"] == ("openvino" if faster else "tensorflow")
    assert "tensorrt" in entry["considered"] and ("libcuda" in entry["considered"]["tensorrt"])
    if faster:
        assert entry["reason"] == "OpenVINO is 1.23x as fast" and entry["form"] == "serving_default__dense"
        assert [row["ratio"] for row in entry["versus_tensorflow"]["rows"]] == list(RATIOS.values())
    else:
        assert entry["reason"].startswith("openvino: OpenVINO is slower at 32 rows (0.80x); tensorrt: ")
        assert entry["versus_tensorflow"]["geometric_mean"] == 0.8 and entry["steps"][-1]["what"] == "FP32"


def test_auto_with_a_precision_that_only_a_gpu_has(ranker: Path, convert: Convert) -> None:
    entry = dense(convert(ranker, dense="auto", precision="fp16", targets=("sm89",)))
    assert entry["form"] is None and entry["reason"].startswith("openvino: it has no fp16; tensorrt: ")
    assert entry["reason"].endswith(" (plans for sm89 are built with --dense tensorrt)")


def test_the_fastest_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    def built(provider: str, gain: float) -> Built:
        return Built(
            provider=provider, precision="fp32", files=(), inputs=(), outputs=(), options={}, engine={}, parity={},
            judged_on="", versus={"faster": True, "reason": f"{gain}x", "geometric_mean": gain},
        )  # fmt: skip

    monkeypatch.setattr(choosing, "why_not", lambda provider: "")
    gains = {"openvino": 1.3, "tensorrt": 4.0}
    choice = choosing._fastest(DenseOptions(), lambda provider: built(provider, gains[provider]))
    assert choice.built is not None and choice.built.provider == "tensorrt"
    assert choice.reason == "4.0x" and choice.considered == {"openvino": "1.3x"}

    def refuse(provider: str) -> Built:
        raise NotUsable(f"{provider} does not want to")

    choice = choosing._fastest(DenseOptions(), refuse)
    assert choice.built is None
    assert choice.reason == "openvino: openvino does not want to; tensorrt: tensorrt does not want to"


def test_a_library_that_fails_is_a_reason(ranker: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("export.dense.openvino.openvino_engine", broken)
    entry = dense(convert(ranker, dense="openvino"))
    assert entry["reason"] == "openvino: RuntimeError: out of luck" and entry["form"] is None


def test_bf16_without_the_instructions(ranker: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "supports_bf16", lambda: False)
    monkeypatch.setattr(openvino, "cpu_isa", lambda: "avx2")
    entry = dense(convert(ranker, dense="openvino", precision="bf16"))
    assert (entry["precision"], entry["asked"]["precision"]) == ("fp32", "bf16")
    first, last = entry["steps"]
    assert first["what"] == "BF16: this CPU (avx2) has no instructions for it, so it can't be judged; FP32"
    assert last["what"] == "FP32" and entry["accuracy"] is None


def _rounded(value: np.ndarray) -> np.ndarray:
    """To bfloat16 and back."""
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
    return ((bits + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)


@pytest.fixture
def bf16_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for a CPU with bf16: the engine is OpenVINO's in fp32, its outputs are rounded."""
    monkeypatch.setattr(openvino, "supports_bf16", lambda: True)
    open_engine = openvino.open_engine
    monkeypatch.setattr(openvino, "open_engine", lambda spec: open_engine(dataclasses.replace(spec, precision="fp32")))
    tune = openvino.tune
    monkeypatch.setattr(
        openvino, "tune", lambda tower, path, precision, *more, **named: tune(tower, path, "fp32", *more, **named)
    )
    run, describe = Engine.run, Engine.describe

    def rounded(engine: Engine, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {k: _rounded(v) for k, v in run(engine, inputs).items()}

    monkeypatch.setattr(Engine, "run", rounded)
    monkeypatch.setattr(Engine, "describe", lambda engine: {**describe(engine), "precision": "bf16"})


def _made(name: str, cache_dir: Path, labels: np.ndarray | None, **options: Any) -> Built:
    """OpenVINO for one of the five towers, as the pass makes it."""
    made = tower(name)
    exported = ExportedTower(
        tower=made, data=to_onnx(made).bytes(), report={}, key="", cache="off", seconds={}
    )  # fmt: skip
    samples = BoundarySamples(feeds=tower_inputs(name, 300, 1), labels=labels, told="tower inputs")
    chosen = DenseOptions(dense="openvino", precision="bf16", buckets=(8,), **options)
    with CompileCache(cache_dir) as cache:
        return openvino.openvino_engine(exported, samples, chosen, cache)


@pytest.mark.usefixtures("bf16_engine")
def test_bf16_that_passes_the_gate(tmp_path: Path) -> None:
    labels = np.random.default_rng(5).integers(0, 2, 300)
    built = _made("dcn", tmp_path, labels, max_auc_delta=1e-2)
    assert built.precision == "bf16" and built.gate is not None and built.gate.passed
    assert 0 < built.gate.worst_dp < 2e-2 and built.gate.worst_auc_delta is not None
    assert [step["what"] for step in built.steps] == ["BF16"] and built.judged_on == "tower inputs"


@pytest.mark.usefixtures("bf16_engine")
def test_bf16_that_fails_the_gate_is_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "worst_difference", lambda *_: 0.0)  # the stand-in rounds in fp32 as well
    built = _made("dcn", tmp_path, None, max_dp=1e-9)
    assert built.precision == "fp32" and built.gate is None
    first, last = built.steps
    assert first["what"] == "BF16 does not pass the accuracy gate; FP32" and "over 1e-09" in first["gate"]["text"]
    assert last["what"] == "FP32"


@pytest.mark.skipif(not supports_bf16(), reason="this CPU has no bf16 instructions")
def test_bf16_on_a_cpu_that_has_it(ranker: Path, convert: Convert) -> None:
    manifest = convert(ranker, dense="openvino", precision="bf16", more={"signatures": ("serving_default",)})
    assert dense(manifest)["precision"] == "bf16" and all(one["passed"] for one in manifest["parity"]["dense_gate"])


def test_fp32_numbers_that_are_off_are_a_reason(
    ranker: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Engine.run
    monkeypatch.setattr(Engine, "run", lambda engine, inputs: {k: v + 1e-3 for k, v in run(engine, inputs).items()})
    entry = dense(convert(ranker, dense="openvino"))
    assert entry["form"] is None
    assert re.search(r"openvino: OpenVINO at \d+ rows: \d+ of \d+ numbers of output \w+ differ", entry["reason"])


def test_tensorrt_plans_for_targets(ranker: Path, convert: Convert, tmp_path: Path) -> None:
    samples = write_samples(tmp_path / "rows.npz", 200)
    more = {"samples_path": samples, "signatures": ("serving_default",)}
    manifest = convert(ranker, dense="tensorrt", targets=("sm89",), more=more)
    entry = dense(manifest)
    assert (entry["provider"], entry["precision"], entry["fallback"]) == ("tensorrt", "fp16", "openvino")
    assert [file["role"] for file in entry["files"]] == ["onnx", "fp16_onnx", "plan:sm89"]
    assert entry["targets"] == ["sm89"] and entry["clamp"] == 10.0
    assert entry["accuracy"]["passed"] and entry["accuracy"]["rows"] == 200
    assert any(island["reason"] == "the output's sigmoid" for island in entry["islands"])
    assert entry["check"]["provider"] == "openvino" and entry["check"]["max_difference"] <= 1e-5
    again = dense(convert(ranker, dense="tensorrt", targets=("sm89",), more=more))
    assert again["cache"] == {"tower": "hit", "engine": "hit"} and again["key"] == entry["key"]
    other = write_samples(tmp_path / "other.npz", 300)
    changed = dense(convert(ranker, dense="tensorrt", targets=("sm89",), more={**more, "samples_path": other}))
    assert changed["accuracy"]["rows"] == 300  # other samples: FP16 is judged anew


def test_all_targets_where_none_is_named(ranker: Path, convert: Convert) -> None:
    entry = dense(convert(ranker, dense="tensorrt", precision="fp32", more={"signatures": ("serving_default",)}))
    notes = "; ".join(entry["notes"])
    assert "no --target was given: plans for all that tensorrt_rtx" in notes
    assert "sm75" not in entry["targets"] and "no plan for sm75" in notes  # it takes no FP32 matrix product
    assert {"sm80", "sm89"} <= set(entry["targets"]) and entry["precision"] == "fp32"


def test_fp16_that_fails_the_gate_is_an_fp32_plan(ranker: Path, convert: Convert) -> None:
    more = {"signatures": ("serving_default",)}
    entry = dense(convert(ranker, dense="tensorrt", targets=("sm89",), max_dp=1e-7, max_bias=1e-9, more=more))
    assert entry["precision"] == "fp32" and entry["accuracy"] is None and entry["clamp"] is None
    assert [file["role"] for file in entry["files"]] == ["onnx", "plan:sm89"]
    assert entry["steps"][0]["what"] == "FP16" and not entry["steps"][0]["gate"]["passed"]
    assert entry["steps"][-1]["what"] == "FP32"


def test_a_tower_that_overflows_in_fp16_is_fp32(tmp_path: Path, convert: Convert) -> None:
    model = save(tmp_path / "model", weight_scale=3e4)
    entry = dense(convert(model, dense="tensorrt", targets=("sm89",)))
    assert entry["precision"] == "fp32" and entry["form"] == "serving_default__dense"
    assert any("no matrix product is left in FP16" in step["what"] for step in entry["steps"])


def test_a_plan_that_can_not_be_built(ranker: Path, convert: Convert) -> None:
    manifest = convert(ranker, dense="tensorrt", precision="fp32", targets=("sm75",))
    entry = dense(manifest)
    assert entry["form"] is None and "no plan was built: sm75: " in entry["reason"]
    assert ran(manifest)["fired"] == 0


def test_numbers_that_differ_are_named() -> None:
    want = {"a": np.ones(4, np.float32), "b": np.arange(3)}
    assert worst_difference({"a": want["a"] + np.float32(5e-6), "b": want["b"]}, want, "X") == pytest.approx(
        5e-6, rel=0.1
    )
    for wrong, said in (
        ({**want, "a": want["a"] * 2}, "X: 4 of 4 numbers of output a differ from TensorFlow's, by up to 1"),
        ({**want, "b": want["b"] + 1}, "X: 3 of 3 values of output b differ"),
        ({**want, "a": want["a"][:2]}, r"X: output a is float32\[2\], in TensorFlow float32\[4\]"),
        ({**want, "a": np.full(4, np.nan, np.float32)}, "X: 4 of 4 numbers of output a differ .*, 4 are NaN"),
    ):
        with pytest.raises(NotUsable, match=said):
            worst_difference(wrong, want, "X")


def test_an_engine_that_is_installed_but_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fallback of a TensorRT bundle is no reason to fail: the plans are what was asked for."""

    def broken(provider: str) -> None:
        raise InternalError(f"provider {provider}: its library does not load")

    monkeypatch.setattr(providers, "why_not", lambda provider: "no GPU" if provider == "tensorrt" else "")
    monkeypatch.setattr(providers, "load", broken)
    built: Any = SimpleNamespace(provider="tensorrt", fallback="openvino")
    assert _check_provider(built) == ""
    monkeypatch.setattr(providers, "load", lambda provider: None)
    assert _check_provider(built) == "openvino"
